//! What can go wrong with a checkpoint.

use super::check::Damage;
use crate::identity::{JobUid, Position};
use crate::store::StoreError;

/// Why a checkpoint could not be written or used.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The store refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The checkpoint is not whole.
    #[error(transparent)]
    Damaged(#[from] Damage),
    /// It is whole and belongs to something else.
    #[error("load {path}: {mismatch}")]
    Mismatch {
        /// The checkpoint's folder.
        path: String,
        /// What differs.
        mismatch: Mismatch,
    },
    /// The state given cannot be written.
    #[error("save {path}: {problem}")]
    Unsavable {
        /// The folder that it was to have.
        path: String,
        /// What is wrong with the state.
        problem: String,
    },
    /// A whole checkpoint of the same position holds another state.
    #[error(
        "save {path}: a whole checkpoint of {position} is there and holds another state (chain {there}, now {now}): two groups trained under one job UID, or training is not deterministic; move that folder away to go on"
    )]
    Conflict {
        /// The folder.
        path: String,
        /// The position of both.
        position: Position,
        /// Chain value of the checkpoint that is there.
        there: String,
        /// Chain value of the state to save.
        now: String,
    },
    /// The path given as a checkpoint cannot be one.
    #[error("open checkpoint {path:?}: {problem}")]
    BadPath {
        /// The path as given.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
}

/// What differs between a checkpoint and the run that wants it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// Another job's.
    #[error(
        "it belongs to job {found}, not to {expected}; resume policy Path takes another job's checkpoint"
    )]
    Job {
        /// The checkpoint's job.
        found: JobUid,
        /// This job.
        expected: JobUid,
    },
    /// Another task's.
    #[error("it was written by task {found:?}, this job trains {expected:?}")]
    Task {
        /// The checkpoint's task.
        found: String,
        /// This job's.
        expected: String,
    },
    /// Another model's.
    #[error(
        "the model differs: {difference}; resume with the task parameters that wrote it, or start a new job"
    )]
    Layout {
        /// The first tensor that differs, and how.
        difference: String,
    },
    /// Trained on other data.
    #[error(
        "it was trained on other data (fingerprint {found}, this job's data has {expected}); resume with the data that wrote it, or start a new job"
    )]
    Data {
        /// The checkpoint's fingerprint.
        found: String,
        /// This job's.
        expected: String,
    },
}
