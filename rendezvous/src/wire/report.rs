//! What a member tells the service about itself.

use gradsync_formats::identity::{Generation, MemberId, Position};
use gradsync_formats::lineage::Lineage;
use gradsync_formats::manifest::Fingerprints;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Where a member stands. It is sent with every join: at process start (cold), when warmed up, and whenever
/// the member has left a generation.
///
/// Three numbers tell which generations it can still take part in. It *runs* in `established` if
/// `left < established`; it is in the opening barrier of `planned` if `left < planned` and
/// `established < planned`; otherwise it is idle and waits for a plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MemberReport {
    /// Whether process, model and data are loaded, so that the member could start at once.
    pub ready: bool,
    /// The newest generation whose opening barrier this process has passed.
    pub established: Generation,
    /// The newest generation whose plan this process has seen and accepted.
    pub planned: Generation,
    /// Digest of that plan.
    pub planned_digest: Option<String>,
    /// A promise for ever: this process is in no generation up to this one, and will never enter one of
    /// them. Leaving a generation raises it to that generation; an idle member raises it to
    /// [`super::MemberNews::floor`] when asked. Only plans of later generations may be accepted.
    pub left: Generation,
    /// The committed state that it holds in memory; none before the first base was obtained.
    pub held: Option<HeldState>,
    /// Where its listener can be reached, as `host:port`, best first.
    pub addresses: Vec<String>,
    /// Digest of the RunConfig that it works with; none before the first join was answered.
    pub run_config_digest: Option<String>,
    /// Identity of its model and data; none before it is warm.
    pub fingerprints: Option<Fingerprints>,
    /// The nonce read from the checkpoint directory; none without a shared directory.
    pub directory_nonce: Option<String>,
    /// The newest whole checkpoints of this job that it sees, newest first, at most 16.
    pub checkpoints: Vec<SeenCheckpoint>,
    /// Another job's checkpoint that `checkpoint.resume.path` names, if that is the policy.
    pub resume_from: Option<SeenCheckpoint>,
    /// Checkpoints that it tried to load and found torn or corrupted.
    pub damaged: Vec<DamagedCheckpoint>,
    /// Members of `planned` that it could not reach, or that went away without a word.
    pub unreachable: Vec<MemberId>,
    /// Why its last generation ended, for people.
    pub ended: Option<String>,
}

/// A committed state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeldState {
    /// The last commit in it.
    pub position: Position,
    /// Chain value, hex.
    pub chain: String,
    /// Digest of the replicated state, hex; the same for all members at this position.
    pub state_digest: String,
}

/// A checkpoint whose manifest and files are all there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SeenCheckpoint {
    /// Which state it holds.
    pub position: Position,
    /// Its folder, relative to the job's checkpoint directory; absolute for another job's.
    pub path: String,
    /// Digest of the replicated state, hex.
    pub state_digest: String,
    /// Chain value, hex.
    pub chain: String,
    /// The lineage in its manifest, from which a service that has lost its own rebuilds it.
    #[serde(default)]
    pub lineage: Lineage,
}

/// A checkpoint that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DamagedCheckpoint {
    /// Its folder, relative to the job's checkpoint directory.
    pub path: String,
    /// What is wrong, naming the file.
    pub problem: String,
}

/// Body of a report request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReportRequest {
    /// Who reports.
    pub member: MemberId,
    /// What.
    pub message: MemberMessage,
}

/// Answer to a report: it was taken in. For [`MemberMessage::Done`] it also means that completion is
/// persisted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReportReply {}

/// What a member reports between two joins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum MemberMessage {
    /// It has passed the opening barrier of `generation`.
    Established {
        /// The generation.
        generation: Generation,
    },
    /// It goes, and this process does not come back.
    Leave {
        /// Why.
        cause: LeaveCause,
    },
    /// How it came into the present generation.
    Recovered(RecoveryPhases),
    /// It stands still at a boundary as a donor of its state.
    Frozen {
        /// The generation in which it froze.
        generation: Generation,
        /// The state that it offers.
        state: HeldState,
    },
    /// Training is over: last commit, evaluation, closing barrier of all members and final checkpoint are
    /// done.
    Done(DoneReport),
}

/// Why a member goes for good.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum LeaveCause {
    /// All stopped at an agreed boundary, as asked.
    Stopped {
        /// The state at which it stopped.
        position: Position,
        /// The checkpoint written there, if any.
        checkpoint: Option<String>,
    },
    /// Its pod is being drained.
    Draining,
    /// An error that starting again cannot mend, such as a loss that is not a number or a missing data file.
    /// It fails the job.
    Fatal {
        /// The error in one line: what and where.
        error: String,
    },
}

/// How long a member's way into `generation` took, by phases, in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecoveryPhases {
    /// The generation that was entered.
    pub generation: Generation,
    /// Why the one before ended.
    pub reason: String,
    /// From the fault to the abort.
    pub detect_ms: f64,
    /// From the abort to the plan.
    pub form_ms: f64,
    /// From the plan to state in place and connections up.
    pub state_ms: f64,
    /// From there to the first commit.
    pub first_step_ms: f64,
}

/// The end of training as one member saw it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DoneReport {
    /// The generation that finished.
    pub generation: Generation,
    /// This member's rank in it.
    pub rank: u32,
    /// Its ranks.
    pub world_size: u32,
    /// The last commit.
    pub position: Position,
    /// Optimiser steps over the whole run.
    pub total_steps: u64,
    /// Whole epochs over the whole run.
    pub epochs: u64,
    /// Digest of the final replicated state on this rank, hex.
    pub state_digest: String,
    /// Loss of the last step; text because it may be NaN.
    pub final_loss: String,
    /// The last evaluation's metrics, such as accuracy.
    #[serde(default)]
    pub metrics: BTreeMap<String, f64>,
    /// Folder of the final checkpoint, relative to the checkpoint directory, if one was written.
    #[serde(default)]
    pub checkpoint: Option<String>,
}
