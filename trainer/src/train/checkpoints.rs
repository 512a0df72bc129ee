//! The checkpoint directory as the outer loop uses it: what is there, load, write, retention, and the
//! proof that all members see the same.

use super::Surroundings;
use super::again::{PATIENTLY, try_again};
use super::warm::{Best, Warm};
use crate::state::{Circumstances, TrainingState};
use crate::step::{Blame as _, Fatal};
use gradsync_collective::Communicator;
use gradsync_formats::checkpoint::{
    self, CheckpointError, CheckpointRef, Damage, Expected, Listing, PassReason, Snapshot, Whole,
    list_candidates, open_path,
};
use gradsync_formats::identity::{JobUid, Position};
use gradsync_formats::lineage::Lineage;
use gradsync_formats::manifest::{Fingerprints, checkpoint_folder, parse_checkpoint_folder};
use gradsync_formats::run_config::{CheckpointSpec, ResumePolicy};
use gradsync_formats::store::Store;
use gradsync_rendezvous::wire::{Plan, SeenCheckpoint};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::standing::{REPORTED_CHECKPOINTS, Standing};

/// An open checkpoint directory.
pub(crate) struct Checkpoints {
    store: Arc<dyn Store>,
    spec: CheckpointSpec,
    /// Where `resume.path` lies here.
    resume_path: Option<PathBuf>,
    /// First pause before what could not be read is read again.
    pause: Duration,
}

/// In which group a state is, or was last.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) lineage: Lineage,
    pub(crate) rank: u32,
    pub(crate) world_size: u32,
}

/// Checkpoints in sight.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Whole ones of this job, newest first.
    pub(crate) whole: Vec<SeenCheckpoint>,
    /// Another job's, if the policy asks for it.
    pub(crate) resume_from: Option<SeenCheckpoint>,
    /// The newest that was written and is damaged now, where none is whole.
    pub(crate) damaged: Option<(Position, String)>,
}

/// Checkpoints come and go while they are read; so often is the list made anew in which none was whole.
const LISTINGS: u32 = 3;

impl Checkpoints {
    /// Opens the directory that the configuration names; none without one.
    pub(crate) fn open(
        warm_spec: Option<&CheckpointSpec>,
        around: &Surroundings<'_>,
    ) -> Result<Option<Checkpoints>, Fatal> {
        let Some(spec) = warm_spec else { return Ok(None) };
        let store = (around.open_store)(&spec.directory).map_err(Fatal::of)?;
        let resume_path = match (spec.resume.policy, &spec.resume.path) {
            (ResumePolicy::Path, Some(path)) => Some(around.paths.apply(Path::new(path))),
            _ => None,
        };
        Ok(Some(Checkpoints {
            store,
            spec: spec.clone(),
            resume_path,
            pause: around.patience.reread,
        }))
    }

    /// Whether every member sees the directory.
    pub(crate) fn is_shared(&self) -> bool {
        self.spec.shared
    }

    /// Looks what is there. What cannot be read at this time is not taken for damaged: this fails, with a platform
    /// fault, rather than sending the group back to an older state. What this member knows of the directory
    /// already is in its `standing`. That none is whole is an error only for a member that does not hold a
    /// state: to others it matters only if theirs turns out not to be enough.
    pub(crate) fn look(
        &self,
        job: &JobUid,
        fingerprints: &Fingerprints,
        standing: &Standing,
        holds_state: bool,
    ) -> Result<Found, Fatal> {
        let damaged = &standing.damaged();
        let mut listing = self.list(job, fingerprints, damaged)?;
        for _ in 1..LISTINGS {
            // A part that is gone may have been deleted with its checkpoint, after a newer one was written.
            let gone =
                |reason: &PassReason| matches!(reason, PassReason::Damaged(Damage::MissingPart { .. }));
            if !listing.whole.is_empty() || !listing.passed_over.iter().any(|passed| gone(&passed.reason)) {
                break;
            }
            listing = self.list(job, fingerprints, damaged)?;
        }
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
        let newest_damaged = listing.passed_over.iter().find(|passed| {
            matches!(&passed.reason, PassReason::Damaged(damage) if !matches!(damage, Damage::Unfinished { .. }))
        });
        let newest_damaged = match (newest_damaged, damaged.last()) {
            (Some(passed), _) => Some((
                Some(passed.position),
                format!("{}: {}", passed.path, passed.reason),
            )),
            (None, Some(folder)) => Some((
                parse_checkpoint_folder(folder),
                format!("{folder}, which could not be loaded"),
            )),
            (None, None) => None,
        };
        let mut once_whole = None;
        if let (true, Some((position, newest_damaged))) = (listing.whole.is_empty(), newest_damaged) {
            if !holds_state {
                return Err(Fatal::user(format!(
                    "resume in {}: none of its {} checkpoints is whole, the newest damaged one is {newest_damaged}; \
                     begin a new run, from a copy of one of them with checkpoint.resume: {{policy: Path, path: ...}}, \
                     or from the beginning",
                    self.store.describe(),
                    listing.passed_over.len() + damaged.len(),
                )));
            }
            once_whole = position.map(|position| (position, checkpoint_folder(position)));
        }
        let mut whole = listing.whole;
        // After a divergence only states on which members agreed are good enough, if there are any.
        let agreed = |whole: &Whole| whole.manifest.agreed_by > 0;
        if standing.has_diverged() && whole.iter().any(agreed) {
            whole.retain(agreed);
        }
        let whole = whole.iter().take(REPORTED_CHECKPOINTS).map(seen).collect();
        let resume_from = match &self.resume_path {
            None => None,
            Some(path) => Some(seen_elsewhere(path)?),
        };
        Ok(Found {
            whole,
            resume_from,
            damaged: once_whole,
        })
    }

    /// What is there now, all of it readable.
    fn list(&self, job: &JobUid, fingerprints: &Fingerprints, damaged: &[String]) -> Result<Listing, Fatal> {
        let store = self.store.as_ref();
        let listing = list_candidates(store, job, Some(fingerprints), damaged).map_err(|e| self.unread(e))?;
        let unreadable = listing
            .passed_over
            .iter()
            .find_map(|passed| match &passed.reason {
                PassReason::Unreadable(problem) => Some(problem),
                _ => None,
            });
        match unreadable {
            Some(problem) => Err(Fatal::process(format!(
                "look for checkpoints in {}: {problem}",
                self.store.describe()
            ))),
            None => Ok(listing),
        }
    }

    fn unread(&self, error: CheckpointError) -> Fatal {
        let kind = error.kind();
        let message = format!("look for checkpoints in {}: {error}", self.store.describe());
        Fatal { kind, message }
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
        let elsewhere = Path::new(path).is_absolute();
        if elsewhere {
            expected.job = None;
        }
        let loaded = try_again(PATIENTLY, self.pause, || {
            let loaded = if elsewhere {
                open_path(Path::new(path))
                    .and_then(|(store, reference)| checkpoint::load(&store, &reference.path, &expected))
            } else {
                checkpoint::load(self.store.as_ref(), &format!("{job}/{path}"), &expected)
            };
            match loaded {
                Ok(snapshot) => Ok(Ok(snapshot)),
                // Only what is there and not what was written is a reason to take another one.
                Err(CheckpointError::Damaged(damage)) => Ok(Err(damage)),
                Err(other) => Err(Fatal::of(other)),
            }
        });
        match loaded {
            Ok(Ok(snapshot)) => Ok(snapshot),
            Ok(Err(damage)) => Err(LoadError::Unusable(damage.to_string())),
            Err(fatal) => Err(LoadError::Fatal(fatal)),
        }
    }

    /// The state of the best evaluation on the lineage, by what the manifests say.
    pub(crate) fn best(&self, job: &JobUid, lineage: &Lineage) -> Result<Option<Best>, Fatal> {
        let best = try_again(PATIENTLY, self.pause, || {
            checkpoint::best_evaluated(self.store.as_ref(), job, lineage).map_err(|e| self.unread(e))
        })?;
        Ok(best.map(|(position, found)| Best {
            position,
            loss: found.loss,
        }))
    }

    /// Writes the state, on which `agreed_by` of the `world_size` members of the lineage's newest generation
    /// have compared notes; without any, others may be writing it too. What the platform refuses is tried `tries`
    /// times.
    pub(crate) fn write(
        &self,
        warm: &Warm<'_>,
        place: &Place,
        agreed_by: u32,
        tries: u32,
        around: &Surroundings<'_>,
    ) -> Result<CheckpointRef, Fatal> {
        let position = warm.state.position();
        let snapshot = warm.state.snapshot(Circumstances {
            lineage: &place.lineage,
            fingerprints: &warm.fingerprints,
            config: &warm.config,
            world_size: place.world_size,
            agreed_by,
            evaluation: warm.evaluation_of(position),
            written_at: around.clock.wall(),
        })?;
        let save = match agreed_by {
            0 => checkpoint::save_beside_others,
            _ => checkpoint::save,
        };
        let saved = try_again(tries, self.pause, || {
            save(self.store.as_ref(), around.group.job(), &snapshot).map_err(|error| {
                let kind = error.kind();
                let (folder, place) = (checkpoint_folder(position), self.store.describe());
                let message = format!("write checkpoint {folder} in {place}: {error}");
                Fatal { kind, message }
            })
        })?;
        tracing::info!(path = saved.path, "wrote a checkpoint");
        Ok(saved)
    }

    /// Deletes what `saved` has made superfluous. That of the best evaluation stays beside the newest ones.
    pub(crate) fn prune(
        &self,
        warm: &Warm<'_>,
        place: &Place,
        saved: &CheckpointRef,
        around: &Surroundings<'_>,
    ) -> Result<(), Fatal> {
        let best: Vec<_> = warm.best.iter().map(|best| best.position).collect();
        let (store, job) = (self.store.as_ref(), around.group.job());
        checkpoint::prune(store, job, self.spec.keep, &place.lineage, saved, &best).map_err(|error| {
            let kind = error.kind();
            let message = format!("delete old checkpoints in {}: {error}", self.store.describe());
            Fatal { kind, message }
        })?;
        Ok(())
    }

    /// Refuses to start `plan` from what the job's first generation started from, although a later state was
    /// saved in this directory: `known`, as this process, the run record or a damaged checkpoint tells.
    pub(crate) fn refuse_to_start_over(
        &self,
        plan: &Plan,
        known: Option<(Position, String)>,
    ) -> Result<(), Fatal> {
        let Some((position, folder)) = known else {
            return Ok(());
        };
        if self.spec.resume.policy == ResumePolicy::Never || position.commit <= plan.base.position.commit {
            return Ok(());
        }
        Err(Fatal::user(format!(
            "start generation {} from {}: {} has no usable checkpoint of job {} any more, and {folder} was written \
             there after step {}; mount the volume that holds it at checkpoint.directory ({}) and resume in a new run \
             with checkpoint.resume: {{policy: Path, path: ...}}, or start a new run to give these steps up",
            plan.generation,
            plan.base.position,
            self.store.describe(),
            plan.job_uid,
            position.commit,
            self.spec.directory,
        )))
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
            try_again(PATIENTLY, self.pause, || {
                checkpoint::write_nonce(store, &plan.job_uid, plan.generation, &nonce).map_err(Fatal::of)
            })?;
        }
        let nonce: String = crate::agree::share_document(first.then_some(&nonce), communicator, 0, patience)?;
        if !first {
            try_again(PATIENTLY, self.pause, || {
                checkpoint::check_nonce(store, &plan.job_uid, plan.generation, &nonce).map_err(Fatal::of)
            })?;
        }
        Ok(())
    }
}

/// Why a checkpoint could not be loaded.
pub(crate) enum LoadError {
    /// Another one may do.
    Unusable(String),
    /// It is another model's, the path is wrong, or it cannot be read at this time: nothing else will do.
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
    let (store, reference) = open_path(path).map_err(Fatal::of)?;
    let manifest = checkpoint::verify(&store, &reference.path).map_err(Fatal::of)?;
    Ok(SeenCheckpoint {
        position: manifest.position,
        path: path.display().to_string(),
        state_digest: manifest.state_digest,
        chain: manifest.chain,
        lineage: Lineage::default(),
    })
}
