//! Writes a snapshot: the parts, then the manifest, which makes it a checkpoint.

use super::check::{Damage, verify};
use super::error::CheckpointError;
use super::snapshot::{Group, Snapshot};
use super::{CheckpointRef, manifest_key, path_of, tensors};
use crate::digest::sha256_hex;
use crate::identity::JobUid;
use crate::manifest::{MANIFEST_VERSION, Manifest, ManifestError, Part};
use crate::store::Store;

/// Writes `snapshot` as a checkpoint of `job` and returns when it would survive a crash of the machine.
///
/// A crash before that leaves earlier checkpoints as they were, and this one is not there or not whole.
/// If a whole one of the same state is there, no part is written; its manifest is only if this one knows of an
/// evaluation, or of more members that agreed.
///
/// # Errors
/// When the store refuses (nothing half-written counts as a checkpoint), when the state cannot be written
/// (two tensors of one name, a shape that does not fit, a scalar that JSON lacks), or when a whole
/// checkpoint of this position holds another state.
pub fn save(store: &dyn Store, job: &JobUid, snapshot: &Snapshot) -> Result<CheckpointRef, CheckpointError> {
    write(store, job, snapshot, Writers::One)
}

/// The same where other members that hold this very state may be saving it at this moment: nothing is deleted,
/// whatever happens, since it may be theirs. Parts that are left of a failure count for nothing.
///
/// # Errors
/// As [`save`].
pub fn save_beside_others(
    store: &dyn Store,
    job: &JobUid,
    snapshot: &Snapshot,
) -> Result<CheckpointRef, CheckpointError> {
    write(store, job, snapshot, Writers::Several)
}

/// Who may be saving this state.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writers {
    One,
    Several,
}

fn write(
    store: &dyn Store,
    job: &JobUid,
    snapshot: &Snapshot,
    writers: Writers,
) -> Result<CheckpointRef, CheckpointError> {
    let path = path_of(job, snapshot.position);
    let unsavable = |problem: String| CheckpointError::Unsavable {
        path: path.clone(),
        problem,
    };
    if let Some((name, _)) = snapshot.scalars.iter().find(|(_, v)| v.is_null()) {
        return Err(unsavable(format!("scalar {name} is not a finite number")));
    }
    let mut files = vec![];
    for group in Group::ALL {
        let content = snapshot.group(group);
        if !content.is_empty() {
            let bytes = tensors::encode(content)
                .map_err(|problem| unsavable(format!("{}: {problem}", group.file_name())))?;
            files.push((group.file_name(), bytes));
        }
    }
    let manifest = manifest(job, snapshot, &files);
    let reference = CheckpointRef {
        position: snapshot.position,
        path: path.clone(),
        digest: snapshot.state_digest.clone(),
    };
    match verify(store, &path) {
        Ok(there) if there.parts == manifest.parts && there.chain == manifest.chain => {
            let better = better(&there, &manifest);
            if better != there {
                let encoded = better.encode().map_err(|e| unsavable(e.to_string()))?;
                store.put(&manifest_key(&path), &encoded)?;
            }
            return Ok(reference);
        }
        Ok(there) => {
            return Err(CheckpointError::Conflict {
                path,
                position: snapshot.position,
                there: there.chain,
                now: manifest.chain,
            });
        }
        Err(e @ CheckpointError::Damaged(Damage::Manifest(ManifestError::Newer { .. }))) => return Err(e),
        // Nothing, or parts without a manifest, which another member may be writing just now: the same bytes.
        Err(CheckpointError::Damaged(Damage::Unfinished { .. })) => {}
        // What is left of an attempt that went wrong. Its manifest goes first: a new part under an old
        // manifest would look like damage. Beside others it may have been mended by now.
        Err(CheckpointError::Damaged(_)) if writers == Writers::One => store.delete(&manifest_key(&path))?,
        Err(CheckpointError::Damaged(_)) => {}
        Err(other) => return Err(other),
    }
    let encoded = manifest.encode().map_err(|e| unsavable(e.to_string()))?;
    let written = files
        .iter()
        .try_for_each(|(name, bytes)| store.put(&format!("{path}/{name}"), bytes))
        .and_then(|()| store.put(&manifest_key(&path), &encoded));
    if let Err(error) = written {
        // Another holder of this state may have got it done.
        if verify(store, &path)
            .is_ok_and(|there| there.parts == manifest.parts && there.chain == manifest.chain)
        {
            return Ok(reference);
        }
        if writers == Writers::One {
            // A full store needs the space. What cannot be deleted now is harmless: it has no manifest.
            let _ = store.delete(&manifest_key(&path));
            for (name, _) in &files {
                let _ = store.delete(&format!("{path}/{name}"));
            }
        }
        return Err(error.into());
    }
    Ok(reference)
}

/// What is known of the state that both manifests stand for.
fn better(there: &Manifest, now: &Manifest) -> Manifest {
    let mut better = there.clone();
    if now.agreed_by > there.agreed_by {
        (better.agreed_by, better.world_size) = (now.agreed_by, now.world_size);
    }
    if better.evaluation.is_none() {
        better.evaluation.clone_from(&now.evaluation);
    }
    better
}

fn manifest(job: &JobUid, snapshot: &Snapshot, files: &[(&'static str, Vec<u8>)]) -> Manifest {
    let s = snapshot;
    Manifest {
        version: MANIFEST_VERSION,
        job_uid: job.clone(),
        position: s.position,
        lineage: s.lineage.clone(),
        progress: s.progress,
        seed: s.seed,
        micro_batch_size: s.micro_batch_size,
        scalars: s.scalars.clone(),
        bucket_plan: s.bucket_plan.clone(),
        chain: s.chain.clone(),
        state_digest: s.state_digest.clone(),
        fingerprints: s.fingerprints.clone(),
        world_size: s.world_size,
        agreed_by: s.agreed_by,
        evaluation: s.evaluation.clone(),
        run_config: s.run_config.clone(),
        parts: files
            .iter()
            .map(|(name, bytes)| Part {
                name: (*name).to_owned(),
                bytes: bytes.len() as u64,
                sha256: sha256_hex(bytes),
            })
            .collect(),
        written_at: s.written_at.clone(),
    }
}
