//! Deletes checkpoints that are no longer wanted.

use super::check::read_manifest;
use super::error::CheckpointError;
use super::list::folders;
use super::{CheckpointRef, manifest_key, path_of};
use crate::identity::{JobUid, Position};
use crate::lineage::Lineage;
use crate::store::Store;

/// Deletes what the newest checkpoint makes superfluous and returns the folders that went.
///
/// `newest` is the checkpoint just saved, so known to be whole: it is never deleted. Beside it the newest
/// `keep - 1` others on the lineage stay, and those of `also_keep` (such as the best by evaluation). What
/// goes are older ones, those of commits that the lineage superseded, and torn ones older than `newest`.
/// Folders of newer generations, of other jobs and of newer versions are left alone: a group deletes only
/// what it began from or made void. (A generation that is older than the lineage's newest and not on it
/// has contributed nothing: two generations of one job never live at once.)
///
/// A crash in between leaves folders without a manifest, which are no checkpoints.
///
/// # Errors
/// When the store refuses; what was deleted before stays deleted.
pub fn prune(
    store: &dyn Store,
    job: &JobUid,
    keep: u32,
    lineage: &Lineage,
    newest: &CheckpointRef,
    also_keep: &[Position],
) -> Result<Vec<String>, CheckpointError> {
    let mut deleted = vec![];
    let mut kept = 1;
    for position in folders(store, job)? {
        let path = path_of(job, position);
        if position == newest.position || also_keep.contains(&position) {
            continue;
        }
        let superfluous = match verdict(store, job, lineage, position, &path)? {
            Verdict::Foreign => false,
            Verdict::Superseded => true,
            Verdict::Torn => position.commit < newest.position.commit,
            Verdict::Counts if kept < keep => {
                kept += 1;
                false
            }
            Verdict::Counts => true,
        };
        if superfluous {
            delete(store, &path)?;
            deleted.push(path);
        }
    }
    store.sweep(&format!("{job}/"))?;
    Ok(deleted)
}

enum Verdict {
    Foreign,
    Superseded,
    Torn,
    Counts,
}

/// Judged by the manifest alone: reading every part of every checkpoint after each save would cost more
/// than the save, and only `newest` needs to be whole.
fn verdict(
    store: &dyn Store,
    job: &JobUid,
    lineage: &Lineage,
    position: Position,
    path: &str,
) -> Result<Verdict, CheckpointError> {
    if position.generation > lineage.newest() {
        return Ok(Verdict::Foreign);
    }
    match read_manifest(store, path) {
        Ok(m) if m.job_uid != *job || m.position != position => Ok(Verdict::Foreign),
        Err(CheckpointError::Damaged(super::Damage::Manifest(crate::manifest::ManifestError::Newer {
            ..
        }))) => Ok(Verdict::Foreign),
        _ if !lineage.contains(position) => Ok(Verdict::Superseded),
        Ok(_) => Ok(Verdict::Counts),
        Err(CheckpointError::Damaged(_)) => Ok(Verdict::Torn),
        Err(other) => Err(other),
    }
}

/// The manifest first: what is left after a crash is then not a checkpoint, rather than a damaged one.
fn delete(store: &dyn Store, path: &str) -> Result<(), CheckpointError> {
    store.delete(&manifest_key(path))?;
    for key in store.list(&format!("{path}/"))? {
        store.delete(&key)?;
    }
    Ok(())
}
