//! The run record: JSON lines from which `gradsync audit` proves what was trained on.

use crate::identity::{Generation, JobUid, MemberId, Position};
use crate::lineage::Lineage;
use crate::manifest::DataProgress;
use serde::{Deserialize, Serialize};

/// Version of the record format, in each file's first line.
pub const RECORD_VERSION: u32 = 1;

/// The file of one member in one generation: `records/<g>-<incarnation>.jsonl`.
#[must_use]
pub fn record_file_name(generation: Generation, member: &MemberId) -> String {
    format!("{}-{}.jsonl", generation, member.incarnation)
}

/// One line of a record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum RecordLine {
    /// First line of each file: who writes, in which group.
    Opened {
        /// Format version.
        version: u32,
        /// The job.
        job_uid: JobUid,
        /// The generation.
        generation: Generation,
        /// The writer.
        member: MemberId,
        /// The writer's rank.
        rank: u32,
        /// Ranks in this generation.
        world_size: u32,
        /// The lineage up to and with this generation.
        lineage: Lineage,
        /// Number of samples of one epoch.
        epoch_samples: u64,
        /// Samples per step.
        global_batch_size: u64,
        /// The fixed micro-batch size m of the grid.
        micro_batch_size: u64,
        /// Seed of the order of samples.
        seed: u64,
        /// Where in the data the lineage began: zero, or the progress of the other job's checkpoint that
        /// was the initial state (resume policy Path). It counts in records of the lineage's first
        /// generation; later ones need not know it.
        #[serde(default)]
        origin: DataProgress,
        /// Epochs or steps to train.
        length: crate::run_config::Length,
        /// RFC 3339 time.
        at: String,
    },
    /// Written before the control record is sent: what this member computed of the step that, if it
    /// commits, has this position. Of no effect if the position is beyond the next generation's base.
    Computed {
        /// The position that the step will have.
        position: Position,
        /// Epoch of the samples.
        epoch: u64,
        /// First sample of the step within the epoch's order.
        cursor: u64,
        /// Samples of the whole step over all members.
        samples: u64,
        /// What the data source returned, part by part.
        parts: Vec<ComputedPart>,
    },
    /// The step was committed. Written as soon as the commit is applied: before the member reports the
    /// position to anybody and before a checkpoint of it is put. A commit without such a line in any
    /// record cannot be proved.
    Committed {
        /// Its position.
        position: Position,
        /// Apply or Skip.
        kind: CommitKind,
        /// Where in the data training stands now.
        progress: DataProgress,
        /// Mean loss over the step's samples; text because it may be NaN.
        loss: String,
        /// Chain value after this commit, hex.
        chain: String,
        /// Seconds that the step took, wall clock.
        seconds: f64,
        /// Of these, seconds in forward and backward.
        compute_seconds: f64,
        /// Of these, seconds waiting for communication after backward.
        wait_seconds: f64,
    },
    /// A task metric of an evaluation (rank 0 only).
    Evaluated {
        /// State that was evaluated.
        position: Position,
        /// Optimiser steps applied.
        step: u64,
        /// Mean loss over the evaluation data.
        loss: String,
        /// Metrics by name, such as accuracy.
        metrics: std::collections::BTreeMap<String, f64>,
    },
    /// The per-tensor digests were compared and agree.
    Agreed {
        /// State that was compared.
        position: Position,
        /// Digest over all of the replicated state, hex.
        digest: String,
    },
    /// A checkpoint was committed (by rank 0, or by a survivor that saved what it held after its generation).
    Checkpointed {
        /// State that it holds.
        position: Position,
        /// Folder, relative to the checkpoint directory.
        path: String,
        /// Seconds that training stood still for it.
        seconds: f64,
    },
    /// How a member came back, by phases in milliseconds.
    Recovered {
        /// The generation that was formed.
        generation: Generation,
        /// Why the earlier one ended.
        reason: String,
        /// Fault to abort.
        detect_ms: f64,
        /// Abort to plan.
        form_ms: f64,
        /// Plan to state in place and connections up.
        state_ms: f64,
        /// To the first commit.
        first_step_ms: f64,
    },
}

/// One part of the grid as this member computed it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputedPart {
    /// Number of the part within the step.
    pub part: u64,
    /// The indices that the data source really returned.
    pub indices: Vec<u64>,
}

/// What a commit did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CommitKind {
    /// The optimiser stepped and the cursor advanced.
    Apply,
    /// Only loss scale and counters changed; the same samples are computed again.
    Skip,
}
