//! Reads a checkpoint back, every hash checked, if it is this run's.

use super::check::{Damage, read_manifest, read_part};
use super::error::{CheckpointError, Mismatch};
use super::snapshot::{Group, NamedTensor, Snapshot, TensorSpec};
use super::{CheckpointRef, tensors};
use crate::identity::JobUid;
use crate::manifest::{Fingerprints, Manifest};
use crate::store::{DirectoryStore, Store, StoreError};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

/// What a checkpoint must agree with to be loaded.
#[derive(Clone, Copy, Debug, Default)]
pub struct Expected<'a> {
    /// The job; None with resume policy Path.
    pub job: Option<&'a JobUid>,
    /// Task, model and data; None to look at any checkpoint.
    pub fingerprints: Option<&'a Fingerprints>,
    /// The model's tensors, to name the first that differs.
    pub parameters: &'a [TensorSpec],
    /// The model's buffers, likewise.
    pub buffers: &'a [TensorSpec],
}

/// Loads the checkpoint in the folder `path` (as in `CheckpointRef`) of `store`.
///
/// # Errors
/// `Damaged` when it is not whole, naming the file; `Mismatch` when it is another job's (unless
/// `expected.job` is None), another task's or model's, or was trained on other data; `Store` when it could
/// not be read.
pub fn load(store: &dyn Store, path: &str, expected: &Expected<'_>) -> Result<Snapshot, CheckpointError> {
    let manifest = read_manifest(store, path)?;
    let mut groups = BTreeMap::new();
    let mut read = |manifest: &Manifest| -> Result<(), CheckpointError> {
        for part in &manifest.parts {
            // Parts that this version does not know are checked by hash all the same.
            let bytes = read_part(store, path, part)?;
            let Some(group) = Group::ALL.into_iter().find(|g| g.file_name() == part.name) else {
                continue;
            };
            let content = tensors::decode(&bytes).map_err(|problem| Damage::MalformedPart {
                file: format!("{path}/{}", part.name),
                problem,
            })?;
            groups.insert(group, content);
        }
        Ok(())
    };
    let differs = |mismatch| CheckpointError::Mismatch {
        path: path.to_owned(),
        mismatch,
    };
    compare_identity(&manifest, expected).map_err(differs)?;
    read(&manifest)?;
    compare_layout(&manifest, &groups, expected).map_err(differs)?;
    Ok(Snapshot {
        position: manifest.position,
        lineage: manifest.lineage,
        progress: manifest.progress,
        seed: manifest.seed,
        micro_batch_size: manifest.micro_batch_size,
        scalars: manifest.scalars,
        bucket_plan: manifest.bucket_plan,
        chain: manifest.chain,
        state_digest: manifest.state_digest,
        fingerprints: manifest.fingerprints,
        world_size: manifest.world_size,
        agreed_by: manifest.agreed_by,
        evaluation: manifest.evaluation,
        run_config: manifest.run_config,
        written_at: manifest.written_at,
        tensors: groups,
    })
}

/// The store and the folder's key for a checkpoint given by its path on disk (resume policy Path).
///
/// # Errors
/// When the path has no folder name, no manifest lies there, or it cannot be read at this time.
pub fn open_path(path: &Path) -> Result<(DirectoryStore, CheckpointRef), CheckpointError> {
    let bad = |problem: &str| CheckpointError::BadPath {
        path: path.display().to_string(),
        problem: problem.to_owned(),
    };
    // `checkpoint inspect .` names a folder too.
    let path = &path.canonicalize().map_err(|e| match e.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => bad(&e.to_string()),
        _ => StoreError::Io {
            action: "open",
            path: path.display().to_string(),
            source: e,
        }
        .into(),
    })?;
    let (Some(parent), Some(name)) = (path.parent(), path.file_name().and_then(|n| n.to_str())) else {
        return Err(bad("it is not the folder of a checkpoint"));
    };
    let store = DirectoryStore::new(parent);
    let manifest = match read_manifest(&store, name) {
        Err(CheckpointError::Damaged(Damage::Unfinished { .. })) => {
            return Err(bad(
                "no manifest.json lies there; give a checkpoint's folder, such as <directory>/<job UID>/step-100-g1",
            ));
        }
        read => read?,
    };
    Ok((
        store,
        CheckpointRef {
            position: manifest.position,
            path: name.to_owned(),
            digest: manifest.state_digest,
        },
    ))
}

fn compare_identity(manifest: &Manifest, expected: &Expected<'_>) -> Result<(), Mismatch> {
    if let Some(job) = expected.job
        && *job != manifest.job_uid
    {
        return Err(Mismatch::Job {
            found: manifest.job_uid.clone(),
            expected: job.clone(),
        });
    }
    let Some(wanted) = expected.fingerprints else {
        return Ok(());
    };
    let found = &manifest.fingerprints;
    if found.task != wanted.task {
        return Err(Mismatch::Task {
            found: found.task.clone(),
            expected: wanted.task.clone(),
        });
    }
    Ok(())
}

/// The model before the data: who changed both wants to hear of the model first.
fn compare_layout(
    manifest: &Manifest,
    groups: &BTreeMap<Group, Vec<NamedTensor>>,
    expected: &Expected<'_>,
) -> Result<(), Mismatch> {
    let Some(wanted) = expected.fingerprints else {
        return Ok(());
    };
    let found = &manifest.fingerprints;
    if found.parameter_layout != wanted.parameter_layout {
        let there = |group| groups.get(&group).map_or(&[][..], Vec::as_slice);
        let difference = first_difference("parameter", there(Group::Parameters), expected.parameters)
            .or_else(|| first_difference("buffer", there(Group::Buffers), expected.buffers))
            .unwrap_or_else(|| {
                format!(
                    "the same tensors in another order (layout {}, this model has {})",
                    found.parameter_layout, wanted.parameter_layout
                )
            });
        return Err(Mismatch::Layout { difference });
    }
    if found.data != wanted.data {
        return Err(Mismatch::Data {
            found: found.data.clone(),
            expected: wanted.data.clone(),
        });
    }
    Ok(())
}

/// The first of the model's tensors that the checkpoint has otherwise or not at all, else the first that
/// only the checkpoint has.
fn first_difference(what: &str, there: &[NamedTensor], model: &[TensorSpec]) -> Option<String> {
    for spec in model {
        match there.iter().find(|t| t.name == spec.name) {
            None => return Some(format!("the checkpoint has no {what} {}", spec.name)),
            Some(t) if t.spec() != *spec => {
                return Some(format!(
                    "{what} {} is {} {:?} in the checkpoint and {} {:?} in the model",
                    spec.name, t.dtype, t.shape, spec.dtype, spec.shape
                ));
            }
            Some(_) => {}
        }
    }
    there
        .iter()
        .find(|t| model.iter().all(|spec| spec.name != t.name))
        .map(|t| format!("the model has no {what} {}", t.name))
}
