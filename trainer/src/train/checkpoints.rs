//! The checkpoint directory as the outer loop uses it: what is there, load, write, retention, and the
//! proof that all members see the same.

use super::Surroundings;
use super::warm::Warm;
use crate::state::{Circumstances, TrainingState};
use crate::step::{Fatal, Member};
use gradsync_collective::Communicator;
use gradsync_formats::checkpoint::{
    self, CheckpointError, Damage, Expected, PassReason, Snapshot, Whole, list_whole, open_path,
};
use gradsync_formats::identity::JobUid;
use gradsync_formats::lineage::Lineage;
use gradsync_formats::manifest::{Fingerprints, checkpoint_folder};
use gradsync_formats::run_config::{CheckpointSpec, ResumePolicy};
use gradsync_formats::store::Store;
use gradsync_rendezvous::wire::{Plan, SeenCheckpoint};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::standing::REPORTED_CHECKPOINTS;

/// An open checkpoint directory.
pub(crate) struct Checkpoints {
    store: Arc<dyn Store>,
    spec: CheckpointSpec,
    /// Where `resume.path` lies here.
    resume_path: Option<PathBuf>,
}

/// Checkpoints in sight.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Whole ones of this job, newest first.
    pub(crate) whole: Vec<SeenCheckpoint>,
    /// Another job's, if the policy asks for it.
    pub(crate) resume_from: Option<SeenCheckpoint>,
}

impl Checkpoints {
    /// Opens the directory that the configuration names; none without one.
    pub(crate) fn open(
        warm_spec: Option<&CheckpointSpec>,
        around: &Surroundings<'_>,
    ) -> Result<Option<Checkpoints>, Fatal> {
        let Some(spec) = warm_spec else { return Ok(None) };
        let store = (around.open_store)(&spec.directory).map_err(Fatal::user)?;
        let resume_path = match (spec.resume.policy, &spec.resume.path) {
            (ResumePolicy::Path, Some(path)) => Some(around.paths.apply(Path::new(path))),
            _ => None,
        };
        Ok(Some(Checkpoints {
            store,
            spec: spec.clone(),
            resume_path,
        }))
    }

    /// Whether every member sees the directory.
    pub(crate) fn is_shared(&self) -> bool {
        self.spec.shared
    }

    /// Looks what is there.
    pub(crate) fn look(&self, job: &JobUid, fingerprints: &Fingerprints) -> Result<Found, Fatal> {
        let listing = list_whole(self.store.as_ref(), job, None, Some(fingerprints)).map_err(Fatal::user)?;
        for passed in &listing.passed_over {
            tracing::warn!(path = passed.path, "passing over a checkpoint: {}", passed.reason);
        }
        if listing.whole.is_empty()
            && let Some(other) = listing
                .passed_over
                .iter()
                .find(|p| matches!(p.reason, PassReason::OtherModel { .. }))
        {
            return Err(Fatal::user(format!(
                "resume from {} in {}: it was {}; use the task, parameters and data that wrote it, or a new job",
                other.path,
                self.store.describe(),
                other.reason
            )));
        }
        // One that was cut off while it was written never counted; a damaged one did, and starting from the
        // beginning in its place would throw training away without a word.
        let damaged = listing.passed_over.iter().find(|passed| {
            matches!(&passed.reason, PassReason::Damaged(damage) if !matches!(damage, Damage::Unfinished { .. }))
        });
        if let (true, Some(damaged)) = (listing.whole.is_empty(), damaged) {
            return Err(Fatal::user(format!(
                "resume in {}: none of its {} checkpoints is whole, the newest damaged one is {}: {}; put back a copy, or \
                 move them away to start from the beginning",
                self.store.describe(),
                listing.passed_over.len(),
                damaged.path,
                damaged.reason
            )));
        }
        let whole = listing
            .whole
            .iter()
            .take(REPORTED_CHECKPOINTS)
            .map(seen)
            .collect();
        let resume_from = match &self.resume_path {
            None => None,
            Some(path) => Some(seen_elsewhere(path)?),
        };
        Ok(Found { whole, resume_from })
    }

    /// Loads a checkpoint named by a plan: a folder of this job, or another job's by its absolute path.
    pub(crate) fn load(
        &self,
        job: &JobUid,
        path: &str,
        fingerprints: &Fingerprints,
        state: &TrainingState,
    ) -> Result<Snapshot, LoadError> {
        let (parameters, buffers) = state.specs().map_err(LoadError::Fatal)?;
        let mut expected = Expected {
            job: Some(job),
            fingerprints: Some(fingerprints),
            parameters: &parameters,
            buffers: &buffers,
        };
        let loaded = if Path::new(path).is_absolute() {
            expected.job = None;
            open_path(Path::new(path))
                .and_then(|(store, reference)| checkpoint::load(&store, &reference.path, &expected))
        } else {
            checkpoint::load(self.store.as_ref(), &format!("{job}/{path}"), &expected)
        };
        loaded.map_err(|error| match error {
            CheckpointError::Mismatch { .. } | CheckpointError::BadPath { .. } => {
                LoadError::Fatal(Fatal::user(error))
            }
            other => LoadError::Unusable(other.to_string()),
        })
    }

    /// Writes the state and deletes what has become superfluous.
    pub(crate) fn write(
        &self,
        warm: &Warm<'_>,
        lineage: &Lineage,
        member: &Member,
        around: &Surroundings<'_>,
    ) -> Result<(), Fatal> {
        let job = around.group.job();
        let position = warm.state.position();
        let failed = |error: &dyn std::fmt::Display| {
            Fatal::user(format!(
                "write checkpoint {} in {}: {error}",
                checkpoint_folder(position),
                self.store.describe()
            ))
        };
        let snapshot = warm.state.snapshot(Circumstances {
            lineage,
            fingerprints: &warm.fingerprints,
            config: &warm.config,
            world_size: member.world_size,
            written_at: around.clock.wall(),
        })?;
        let saved = checkpoint::save(self.store.as_ref(), job, &snapshot).map_err(|error| failed(&error))?;
        let best: Vec<_> = warm.best.iter().map(|best| best.position).collect();
        checkpoint::prune(self.store.as_ref(), job, self.spec.keep, lineage, &saved, &best)
            .map_err(|error| failed(&error))?;
        tracing::info!(path = saved.path, "wrote a checkpoint");
        Ok(())
    }

    /// Proves that all members see the directory of rank 0: before the first step of a generation.
    pub(crate) fn prove_shared(
        &self,
        plan: &Plan,
        communicator: &dyn Communicator,
        patience: Duration,
    ) -> Result<(), crate::step::StepError> {
        if !self.spec.shared || plan.world_size <= 1 {
            return Ok(());
        }
        let first = communicator.identity().rank == 0;
        let store = self.store.as_ref();
        let nonce = uuid::Uuid::new_v4().to_string();
        if first {
            checkpoint::write_nonce(store, &plan.job_uid, plan.generation, &nonce).map_err(Fatal::user)?;
        }
        let nonce: String = crate::agree::share_document(first.then_some(&nonce), communicator, 0, patience)?;
        if !first {
            checkpoint::check_nonce(store, &plan.job_uid, plan.generation, &nonce).map_err(Fatal::user)?;
        }
        Ok(())
    }
}

/// Why a checkpoint could not be loaded.
pub(crate) enum LoadError {
    /// Another one may do.
    Unusable(String),
    /// It is another model's, or the path is wrong: nothing else will do.
    Fatal(Fatal),
}

fn seen(whole: &Whole) -> SeenCheckpoint {
    SeenCheckpoint {
        position: whole.reference.position,
        path: checkpoint_folder(whole.reference.position),
        state_digest: whole.manifest.state_digest.clone(),
        chain: whole.manifest.chain.clone(),
        lineage: whole.manifest.lineage.clone(),
    }
}

fn seen_elsewhere(path: &Path) -> Result<SeenCheckpoint, Fatal> {
    let (store, reference) = open_path(path).map_err(Fatal::user)?;
    let manifest = checkpoint::verify(&store, &reference.path).map_err(Fatal::user)?;
    Ok(SeenCheckpoint {
        position: manifest.position,
        path: path.display().to_string(),
        state_digest: manifest.state_digest,
        chain: manifest.chain,
        lineage: Lineage::default(),
    })
}
