//! The checkpoint manifest: put last, it is the commit of a checkpoint.
//!
//! The file is JSON with a `digest` of all its other fields, so that a flipped byte in a number is found
//! just as one in a tensor is.

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
    /// Members whose digests of this very state were compared and found equal before it was written. Zero: it
    /// was not compared, as when a member whose group was gone saved what it held.
    #[serde(default)]
    pub agreed_by: u32,
    /// What an evaluation of exactly this state found, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluation: Option<Evaluated>,
    /// RunConfig in force, as JSON.
    pub run_config: serde_json::Value,
    /// The files that hold tensors.
    pub parts: Vec<Part>,
    /// RFC 3339 time of writing.
    pub written_at: String,
}

/// What an evaluation found. Only finite numbers: JSON has no others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Evaluated {
    /// Mean loss over the evaluation data.
    pub loss: f64,
    /// Metrics by name, such as accuracy.
    #[serde(default)]
    pub metrics: std::collections::BTreeMap<String, f64>,
}

impl Evaluated {
    /// What can be kept of these numbers; none where the loss is not finite.
    #[must_use]
    pub fn new(loss: f64, metrics: &std::collections::BTreeMap<String, f64>) -> Option<Evaluated> {
        let finite = metrics.iter().filter(|(_, value)| value.is_finite());
        loss.is_finite().then(|| Evaluated {
            loss,
            metrics: finite.map(|(name, value)| (name.clone(), *value)).collect(),
        })
    }
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

/// Why a manifest cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// Not JSON, not a manifest, or cut off.
    #[error("read {file}: {problem}")]
    Malformed {
        /// The manifest's file.
        file: String,
        /// What the parser met.
        problem: String,
    },
    /// Its content is not what was written.
    #[error(
        "read {file}: the content has digest {found}, it was written with {written}: the file is corrupted"
    )]
    Corrupted {
        /// The manifest's file.
        file: String,
        /// Digest of what is there.
        found: String,
        /// Digest that the file states.
        written: String,
    },
    /// Written by a newer version.
    #[error(
        "read {file}: it has format version {found}, this program reads up to {MANIFEST_VERSION}: use the version of gradsync that wrote it"
    )]
    Newer {
        /// The manifest's file.
        file: String,
        /// Version of the file.
        found: u64,
    },
}

/// Name of the field that holds the digest over all others.
const DIGEST_FIELD: &str = "digest";

impl Manifest {
    /// The manifest as the bytes of its file.
    ///
    /// # Errors
    /// When a value has no form in JSON.
    pub fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut document = serde_json::to_value(self)?;
        let digest = crate::digest::document_digest(&document)?;
        document[DIGEST_FIELD] = digest.into();
        let mut bytes = serde_json::to_vec_pretty(&document)?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    /// Reads the manifest in `bytes`, which came from `file` (for messages).
    ///
    /// # Errors
    /// When it is cut off, not a manifest, corrupted, or of a newer version.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Manifest, ManifestError> {
        let malformed = |problem: String| ManifestError::Malformed {
            file: file.to_owned(),
            problem,
        };
        let mut document: serde_json::Value =
            serde_json::from_slice(bytes).map_err(|e| malformed(e.to_string()))?;
        let version = document.get("version").and_then(serde_json::Value::as_u64);
        match version {
            None | Some(0) => return Err(malformed("it is not a checkpoint manifest: no version".into())),
            Some(found) if found > u64::from(MANIFEST_VERSION) => {
                return Err(ManifestError::Newer {
                    file: file.to_owned(),
                    found,
                });
            }
            Some(_) => {}
        }
        let written = document
            .as_object_mut()
            .and_then(|fields| fields.shift_remove(DIGEST_FIELD));
        let Some(serde_json::Value::String(written)) = written else {
            return Err(malformed("it has no digest of its content".into()));
        };
        let found = crate::digest::document_digest(&document).map_err(|e| malformed(e.to_string()))?;
        if found != written {
            return Err(ManifestError::Corrupted {
                file: file.to_owned(),
                found,
                written,
            });
        }
        serde_json::from_value(document).map_err(|e| malformed(e.to_string()))
    }
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

    fn sample() -> Manifest {
        Manifest {
            version: MANIFEST_VERSION,
            job_uid: JobUid("u".into()),
            position: Position {
                commit: 12,
                generation: Generation(3),
            },
            lineage: Lineage::default().extended(Generation(3), Position::INITIAL),
            progress: DataProgress {
                step: 11,
                epoch: 1,
                cursor: 40,
            },
            seed: u64::MAX,
            micro_batch_size: 4,
            scalars: [("lr".to_owned(), serde_json::json!(0.1 + 0.2))].into(),
            bucket_plan: serde_json::json!({"b": [1, 2], "a": null}),
            chain: "c0".into(),
            state_digest: "d0".into(),
            fingerprints: Fingerprints {
                task: "t".into(),
                parameter_layout: "p".into(),
                data: "d".into(),
            },
            world_size: 2,
            agreed_by: 2,
            evaluation: Evaluated::new(0.1 + 0.2, &[("accuracy".to_owned(), 0.5)].into()),
            run_config: serde_json::json!({"z": 1, "a": 1e-300}),
            parts: vec![Part {
                name: "x".into(),
                bytes: 3,
                sha256: "ab".into(),
            }],
            written_at: "2026-01-01T00:00:00Z".into(),
        }
    }

    #[test]
    fn a_manifest_round_trips_bit_for_bit() {
        let m = sample();
        let bytes = m.encode().unwrap();
        let back = Manifest::parse("m", &bytes).unwrap();
        assert_eq!(back, m);
        assert_eq!(
            back.scalars["lr"].as_f64().unwrap().to_bits(),
            (0.1f64 + 0.2).to_bits()
        );
    }

    #[test]
    fn no_flipped_bit_changes_what_is_read() {
        let m = sample();
        let bytes = m.encode().unwrap();
        let mut refused = 0;
        for at in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[at / 8] ^= 1 << (at % 8);
            match Manifest::parse("m", &damaged) {
                Err(e) => {
                    refused += 1;
                    assert!(e.to_string().contains(" m: "), "{e}");
                }
                // A space that became a line break, or e that became E.
                Ok(read) => assert_eq!(read, m),
            }
        }
        assert!(refused > bytes.len() * 6);
    }

    #[test]
    fn a_torn_manifest_is_refused_at_every_length() {
        let bytes = sample().encode().unwrap();
        for length in 0..bytes.len() - 2 {
            let error = Manifest::parse("u/step-1-g1/manifest.json", &bytes[..length]).unwrap_err();
            assert!(error.to_string().contains("u/step-1-g1/manifest.json"), "{error}");
        }
    }

    #[test]
    fn unknown_fields_are_ignored_and_a_newer_version_is_refused_clearly() {
        let mut document = serde_json::to_value(sample()).unwrap();
        document["later"] = serde_json::json!({"x": 1});
        let digest = crate::digest::document_digest(&document).unwrap();
        document["digest"] = digest.into();
        let bytes = serde_json::to_vec(&document).unwrap();
        assert_eq!(Manifest::parse("m", &bytes).unwrap(), sample());

        let newer = Manifest::parse("m", br#"{"version": 2, "anything": true}"#).unwrap_err();
        assert_eq!(
            newer.to_string(),
            "read m: it has format version 2, this program reads up to 1: use the version of gradsync that wrote it"
        );
        for no_manifest in ["{}", "[]", "3", r#"{"version": 1}"#, r#"{"version": "1"}"#] {
            assert!(matches!(
                Manifest::parse("m", no_manifest.as_bytes()),
                Err(ManifestError::Malformed { .. })
            ));
        }
    }
}
