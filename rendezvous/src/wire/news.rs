//! What the service wants of a pod's members: the state of things, so that an answer may be lost, repeated
//! or late without harm.

use super::{EncodedPlan, PlanHead, Refusal, StopCause};
use gradsync_formats::identity::{Generation, Incarnation, PodUid};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Asks for news. Held until there is something newer than `after`, at most `hold_ms` and never longer
/// than [`super::MAX_HOLD`]; then answered with what there is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NewsRequest {
    /// Whose members.
    pub pod: PodUid,
    /// The newest revision seen; absent: answer at once.
    pub after: Option<Revision>,
    /// How long the poll may be held.
    pub hold_ms: u64,
}

/// Names a state of a pod's news by a digest of what they say. Compared for equality only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Revision(pub String);

/// The news of one pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodNews {
    /// Which state of the news this is.
    pub revision: Revision,
    /// The plan on offer, if any of the pod's members is in it.
    pub plan: Option<EncodedPlan>,
    /// By process. One that is missing here is unknown to the service and must join again.
    pub members: BTreeMap<Incarnation, MemberNews>,
}

/// The news of one member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberNews {
    /// Its part in [`PodNews::plan`]; present while the plan is on offer and this member is in it. It is to
    /// be accepted if its generation is above the member's promise ([`super::MemberReport::left`]).
    pub head: Option<PlanHead>,
    /// Generations up to this one are over. An idle member whose promise is lower raises it to this and
    /// joins again; one that is still in such a generation leaves it.
    pub floor: Generation,
    /// What is wanted of it.
    pub ask: Ask,
}

/// What the service wants of a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Ask {
    /// Nothing.
    None,
    /// Leave `generation` and join again. While it still works, that is at the next agreed boundary; where
    /// it is broken already, at once. For an idle member the floor says the same.
    Reform {
        /// The generation to leave. One that was left already needs nothing.
        generation: Generation,
        /// Write a checkpoint at the boundary first, because the next group cannot start from memory.
        checkpoint: bool,
        /// Why, for people.
        reason: String,
    },
    /// The configuration has changed: join again to obtain it.
    Rejoin {
        /// Why, for people.
        reason: String,
    },
    /// Stop at the next agreed boundary, write a checkpoint, report
    /// [`super::LeaveCause::Stopped`] and exit.
    Stop {
        /// Why.
        cause: StopCause,
    },
    /// The job is finished for ever: exit with success.
    Finished {
        /// How it finished, for people.
        reason: String,
    },
    /// The job has failed for ever: exit with an error.
    Failed {
        /// Why, for people.
        reason: String,
    },
    /// This member cannot be in this job: exit with an error.
    Refused {
        /// Why.
        refusal: Refusal,
    },
}
