//! Finds the checkpoints that a path stands for.

use crate::audit::known_about;
use anyhow::{Context as _, bail};
use gradsync_formats::checkpoint::{CheckpointRef, Listing, list_whole, newest_whole, open_path};
use gradsync_formats::identity::JobUid;
use gradsync_formats::lineage::Lineage;
use gradsync_formats::manifest::{MANIFEST_NAME, parse_checkpoint_folder};
use gradsync_formats::store::DirectoryStore;
use std::fs;
use std::path::{Path, PathBuf};

/// So deep below an output directory a job's folder may lie: `volumes/<name>/<path>/<job UID>`.
const DEPTH: usize = 5;

/// A job's checkpoints.
#[derive(Debug)]
pub struct Job {
    /// The checkpoint directory.
    pub store: DirectoryStore,
    /// The job.
    pub uid: JobUid,
    /// Its lineage, where the output directory says so.
    pub lineage: Option<Lineage>,
}

impl Job {
    /// All its checkpoints, verified.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub fn list(&self) -> anyhow::Result<Listing> {
        Ok(list_whole(&self.store, &self.uid, self.lineage.as_ref(), None)?)
    }
}

/// The jobs with checkpoints below `directory`: an output directory of `gradsync run`, a checkpoint
/// directory or a job's folder in it.
///
/// # Errors
/// When the directory cannot be read.
pub fn find_jobs(directory: &Path) -> anyhow::Result<Vec<Job>> {
    let directory = &directory
        .canonicalize()
        .with_context(|| format!("read {}", directory.display()))?;
    let known = known_about(directory)?;
    let mut folders = vec![];
    visit(directory, DEPTH, &mut folders)?;
    folders.sort();
    let jobs = folders.into_iter().filter_map(|folder| {
        let uid = JobUid(folder.file_name()?.to_str()?.to_owned());
        let of_job = known.as_ref().filter(|(job, _)| *job == uid);
        Some(Job {
            store: DirectoryStore::new(folder.parent()?),
            lineage: of_job.and_then(|(_, given)| given.lineage.clone()),
            uid,
        })
    });
    Ok(jobs.collect())
}

/// The checkpoint that `path` stands for: its own folder, or the newest whole one of the only job below.
///
/// # Errors
/// When there is none, the jobs are several, or nothing is whole.
pub fn open(path: &Path) -> anyhow::Result<(DirectoryStore, CheckpointRef)> {
    let is_checkpoint = path.join(MANIFEST_NAME).exists()
        || path
            .file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| parse_checkpoint_folder(name).is_some());
    if is_checkpoint {
        return Ok(open_path(path)?);
    }
    let shown = path.display();
    let mut jobs = find_jobs(path)?;
    let job = match jobs.len() {
        0 => bail!("find a checkpoint in {shown}: there is none"),
        1 => jobs.remove(0),
        _ => {
            let uids: Vec<&str> = jobs.iter().map(|j| j.uid.0.as_str()).collect();
            bail!(
                "find a checkpoint in {shown}: there are those of several jobs, name one: {}",
                uids.join(", ")
            )
        }
    };
    let listing = newest_whole(&job.store, &job.uid, job.lineage.as_ref())?;
    let Some(newest) = listing.whole.into_iter().next() else {
        let reasons: Vec<String> = listing
            .passed_over
            .iter()
            .map(|p| format!("\n  {}", p.reason))
            .collect();
        bail!("find a checkpoint in {shown}: none is whole:{}", reasons.concat());
    };
    Ok((job.store, newest.reference))
}

/// Collects the folders that hold folders of checkpoints.
fn visit(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let reading = || format!("read {}", folder.display());
    let mut below = vec![];
    for entry in fs::read_dir(folder).with_context(reading)? {
        let entry = entry.with_context(reading)?;
        if !entry.file_type().with_context(reading)?.is_dir() {
            continue;
        }
        let name = entry.file_name();
        if name.to_str().and_then(parse_checkpoint_folder).is_some() {
            found.push(folder.to_owned());
            return Ok(());
        }
        below.push(entry.path());
    }
    if depth > 0 {
        for folder in below {
            visit(&folder, depth - 1, found)?;
        }
    }
    Ok(())
}
