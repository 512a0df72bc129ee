//! Which checkpoints of a job there are, and which of them count.

use super::check::{Damage, read_manifest, verify};
use super::error::CheckpointError;
use super::{CheckpointRef, path_of};
use crate::identity::{JobUid, Position};
use crate::lineage::Lineage;
use crate::manifest::{Fingerprints, Manifest, checkpoint_folder, parse_checkpoint_folder};
use crate::store::{Store, StoreError};
use std::collections::BTreeSet;
use std::fmt;

/// A whole checkpoint on the lineage.
#[derive(Clone, Debug, PartialEq)]
pub struct Whole {
    /// Where it is.
    pub reference: CheckpointRef,
    /// What it says about itself.
    pub manifest: Manifest,
}

/// A folder that is no checkpoint to start from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassedOver {
    /// The folder.
    pub path: String,
    /// What its name stands for.
    pub position: Position,
    /// Why it does not count.
    pub reason: PassReason,
}

/// Why a folder was passed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PassReason {
    /// Not whole.
    Damaged(Damage),
    /// The lineage went on from before it: its commits never happened.
    Superseded,
    /// The manifest is another job's or another position's: the folder was moved here.
    Misplaced {
        /// What the manifest says.
        says: String,
    },
    /// Written by another task or model, or on other data.
    OtherModel {
        /// What differs.
        difference: &'static str,
    },
    /// It could not be read at this time.
    Unreadable(String),
}

impl fmt::Display for PassReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PassReason::Damaged(damage) => damage.fmt(f),
            PassReason::Superseded => f.write_str("superseded: the lineage went on from an earlier position"),
            PassReason::Misplaced { says } => write!(f, "the folder does not fit its manifest ({says})"),
            PassReason::OtherModel { difference } => write!(f, "written with another {difference}"),
            PassReason::Unreadable(problem) => f.write_str(problem),
        }
    }
}

/// The checkpoints of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Listing {
    /// Whole ones on the lineage, newest first.
    pub whole: Vec<Whole>,
    /// All others, newest first.
    pub passed_over: Vec<PassedOver>,
}

/// All checkpoints of `job`, each read and compared with its hashes. Without a `lineage` that of the
/// newest generation found in a manifest judges. With `expected`, those of another model are passed over.
///
/// # Errors
/// When the store cannot be listed.
pub fn list_whole(
    store: &dyn Store,
    job: &JobUid,
    lineage: Option<&Lineage>,
    expected: Option<&Fingerprints>,
) -> Result<Listing, CheckpointError> {
    walk(store, job, lineage, expected, Depth::All)
}

/// The same, looking no further than the newest whole one, so that older ones are not read.
///
/// # Errors
/// When the store cannot be listed.
pub fn newest_whole(
    store: &dyn Store,
    job: &JobUid,
    lineage: Option<&Lineage>,
) -> Result<Listing, CheckpointError> {
    walk(store, job, lineage, None, Depth::First)
}

/// What a job could start from, newest first: all that is read and hashed are the newest whole checkpoint and
/// damaged ones newer than it. Those older than it are judged by their manifests alone; loading one compares
/// its hashes. Folders of `unusable` (names below the job's) are passed over in silence.
///
/// # Errors
/// When the store cannot be listed.
pub fn list_candidates(
    store: &dyn Store,
    job: &JobUid,
    expected: Option<&Fingerprints>,
    unusable: &[String],
) -> Result<Listing, CheckpointError> {
    walk(store, job, None, expected, Depth::Candidates(unusable))
}

/// How much is read.
enum Depth<'a> {
    /// Every part of every checkpoint.
    All,
    /// Up to the newest whole one.
    First,
    /// Up to the newest whole one; beyond it manifests. Some folders are known to be of no use.
    Candidates(&'a [String]),
}

/// The positions of the job's checkpoint folders, newest first.
pub(super) fn folders(store: &dyn Store, job: &JobUid) -> Result<Vec<Position>, StoreError> {
    let prefix = format!("{job}/");
    let positions: BTreeSet<Position> = store
        .list(&format!("{prefix}step-"))?
        .iter()
        .filter_map(|key| key.strip_prefix(&prefix)?.split_once('/'))
        .filter_map(|(folder, _)| parse_checkpoint_folder(folder))
        .collect();
    Ok(positions.into_iter().rev().collect())
}

fn newest_lineage(store: &dyn Store, job: &JobUid, folders: &[Position]) -> Result<Lineage, CheckpointError> {
    let mut newest = Lineage::default();
    for position in folders {
        match read_manifest(store, &path_of(job, *position)) {
            Ok(m) if m.job_uid == *job && m.lineage.newest() > newest.newest() => newest = m.lineage,
            Ok(_) | Err(CheckpointError::Damaged(_)) => {}
            Err(other) => return Err(other),
        }
    }
    Ok(newest)
}

fn walk(
    store: &dyn Store,
    job: &JobUid,
    lineage: Option<&Lineage>,
    expected: Option<&Fingerprints>,
    depth: Depth<'_>,
) -> Result<Listing, CheckpointError> {
    let folders = folders(store, job)?;
    let found;
    let lineage = match lineage {
        Some(given) => Some(given),
        None => {
            found = newest_lineage(store, job, &folders)?;
            // Without any manifest to tell, a folder is judged by its content alone.
            Some(&found).filter(|lineage| !lineage.0.is_empty())
        }
    };
    let mut listing = Listing::default();
    for position in folders {
        let read = match &depth {
            Depth::Candidates(unusable) => {
                let folder = checkpoint_folder(position);
                if unusable.contains(&folder) {
                    continue;
                }
                if listing.whole.is_empty() {
                    verify
                } else {
                    read_manifest
                }
            }
            Depth::First if !listing.whole.is_empty() => break,
            Depth::First | Depth::All => verify,
        };
        match judge(store, job, position, lineage, expected, read) {
            Ok(whole) => listing.whole.push(whole),
            Err(reason) => listing.passed_over.push(PassedOver {
                path: path_of(job, position),
                position,
                reason,
            }),
        }
    }
    Ok(listing)
}

fn judge(
    store: &dyn Store,
    job: &JobUid,
    position: Position,
    lineage: Option<&Lineage>,
    expected: Option<&Fingerprints>,
    read: fn(&dyn Store, &str) -> Result<Manifest, CheckpointError>,
) -> Result<Whole, PassReason> {
    if lineage.is_some_and(|lineage| !lineage.contains(position)) {
        return Err(PassReason::Superseded);
    }
    let path = path_of(job, position);
    let manifest = read(store, &path).map_err(|e| match e {
        CheckpointError::Damaged(damage) => PassReason::Damaged(damage),
        other => PassReason::Unreadable(other.to_string()),
    })?;
    if manifest.job_uid != *job || manifest.position != position {
        return Err(PassReason::Misplaced {
            says: format!("{} of job {}", manifest.position, manifest.job_uid),
        });
    }
    if let Some(difference) = expected.and_then(|e| difference(e, &manifest.fingerprints)) {
        return Err(PassReason::OtherModel { difference });
    }
    Ok(Whole {
        reference: CheckpointRef {
            position,
            path,
            digest: manifest.state_digest.clone(),
        },
        manifest,
    })
}

fn difference(expected: &Fingerprints, found: &Fingerprints) -> Option<&'static str> {
    let Fingerprints {
        task,
        parameter_layout,
        data,
    } = expected;
    if *task != found.task {
        Some("task")
    } else if *parameter_layout != found.parameter_layout {
        Some("model")
    } else if *data != found.data {
        Some("data set")
    } else {
        None
    }
}
