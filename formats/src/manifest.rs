//! The checkpoint manifest: put last, it is the commit of a checkpoint.

use crate::identity::{JobUid, Position};
use crate::lineage::Lineage;
use serde::{Deserialize, Serialize};

/// Version of the manifest format.
pub const MANIFEST_VERSION: u32 = 1;
/// Name of the manifest within a checkpoint's folder.
pub const MANIFEST_NAME: &str = "manifest.json";

/// One checkpoint: which state it is, which files hold it, how to check them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// Format version.
    pub version: u32,
    /// The job whose checkpoint it is.
    pub job_uid: JobUid,
    /// Which state: the last commit that it holds.
    pub position: Position,
    /// The lineage of the group that wrote it.
    pub lineage: Lineage,
    /// Where in the data.
    pub progress: DataProgress,
    /// The seed of the run.
    pub seed: u64,
    /// The fixed micro-batch size of the grid.
    pub micro_batch_size: u64,
    /// Scalars of the optimiser, schedule and loss scale by name, such as `adam.step`. Exact in JSON:
    /// floats round-trip.
    pub scalars: std::collections::BTreeMap<String, serde_json::Value>,
    /// The bucket plan agreed before step 0, replayed on resume (the encoding is the collective crate's).
    pub bucket_plan: serde_json::Value,
    /// Chain value at `position`, hex.
    pub chain: String,
    /// Digest over the whole replicated state at `position`, hex.
    pub state_digest: String,
    /// Identity of the model and data that this state belongs to.
    pub fingerprints: Fingerprints,
    /// World size that wrote it; informational, any other can read it.
    pub world_size: u32,
    /// RunConfig in force, as JSON.
    pub run_config: serde_json::Value,
    /// The files that hold tensors.
    pub parts: Vec<Part>,
    /// RFC 3339 time of writing.
    pub written_at: String,
}

/// Position within the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DataProgress {
    /// Optimiser steps applied (skips excluded).
    pub step: u64,
    /// Current epoch, from 0.
    pub epoch: u64,
    /// Samples of the current epoch already used.
    pub cursor: u64,
}

/// What must be equal for a checkpoint to be readable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fingerprints {
    /// The task's name.
    pub task: String,
    /// Digest over names, shapes and types of parameters and buffers.
    pub parameter_layout: String,
    /// Length and sampled content hash of the training data.
    pub data: String,
}

/// One safetensors file of the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Part {
    /// File name within the checkpoint's folder.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 of the file, hex.
    pub sha256: String,
}

/// The folder of a checkpoint below the job's: `step-S-gG`, S being the commit number.
#[must_use]
pub fn checkpoint_folder(position: Position) -> String {
    format!("step-{}-g{}", position.commit, position.generation)
}

/// The position that a folder's name stands for; None for other names.
#[must_use]
pub fn parse_checkpoint_folder(name: &str) -> Option<Position> {
    let (commit, generation) = name.strip_prefix("step-")?.split_once("-g")?;
    let position = Position {
        commit: commit.parse().ok()?,
        generation: crate::identity::Generation(generation.parse().ok()?),
    };
    (checkpoint_folder(position) == name).then_some(position)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Generation;

    #[test]
    fn folder_names_round_trip_and_strangers_are_not_checkpoints() {
        let position = Position {
            commit: 12,
            generation: Generation(3),
        };
        assert_eq!(
            parse_checkpoint_folder(&checkpoint_folder(position)),
            Some(position)
        );
        for name in ["step-1", "step-01-g1", "step-1-g1.tmp", "step--1-g1", "latest"] {
            assert_eq!(parse_checkpoint_folder(name), None, "{name}");
        }
    }
}
