//! What a rank and its agent say to each other over the inherited socket pair: one JSON message per line,
//! in the same vocabulary, wrapped in the same [`super::Envelope`].

use super::{EncodedPlan, MemberMessage, MemberNews, MemberReport, Progress, Refusal};
use gradsync_formats::identity::Generation;
use gradsync_formats::run_config::RunConfig;
use serde::{Deserialize, Serialize};

/// From a rank to its agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum FromRank {
    /// Join, or join again; answered by [`ToRank::Joined`] or [`ToRank::Refused`].
    Join {
        /// Where the rank stands.
        report: Box<MemberReport>,
    },
    /// A report to pass on; answered by [`ToRank::Accepted`] or [`ToRank::Refused`].
    Report {
        /// Chosen by the rank, given back in the answer.
        number: u64,
        /// What to report.
        message: MemberMessage,
    },
    /// A sign of life; not answered.
    Beat {
        /// See [`super::RankBeat::step_counter`].
        step_counter: u64,
        /// See [`super::RankBeat::thread_counter`].
        thread_counter: u64,
        /// How far it is.
        #[serde(default)]
        progress: Option<Progress>,
    },
}

/// From an agent to one of its ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ToRank {
    /// The join was accepted.
    Joined {
        /// The configuration in force.
        run_config: Box<RunConfig>,
        /// Its digest, to be given back in reports.
        run_config_digest: String,
        /// See [`MemberNews::floor`].
        floor: Generation,
    },
    /// News for this rank; sent whenever they differ from what was sent last.
    News {
        /// The plan on offer, if the rank is in it.
        plan: Option<EncodedPlan>,
        /// The rank's own news.
        news: MemberNews,
    },
    /// The report of this number was taken in.
    Accepted {
        /// The report's number.
        number: u64,
    },
    /// A join or report was refused for good.
    Refused {
        /// The report's number; absent for a join.
        number: Option<u64>,
        /// Why.
        refusal: Refusal,
    },
}
