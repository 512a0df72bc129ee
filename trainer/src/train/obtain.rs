//! Bringing the state into memory from which a generation starts.

use super::Surroundings;
use super::checkpoints::LoadError;
use super::standing::Standing;
use super::warm::Warm;
use crate::record;
use crate::state::TrainingState;
use crate::step::{Fatal, StepError};
use gradsync_collective::{AbortCause, CollectiveError, Communicator};
use gradsync_formats::checkpoint::Snapshot;
use gradsync_formats::manifest::DataProgress;
use gradsync_rendezvous::wire::{BaseSource, Plan};
use std::path::Path;
use std::time::Duration;

impl Warm<'_> {
    /// Brings the base state of `plan` into memory, discarding what was held if it is another.
    pub(crate) fn obtain(
        &mut self,
        plan: &Plan,
        rank: u32,
        communicator: &dyn Communicator,
        standing: &mut Standing,
        around: &Surroundings<'_>,
    ) -> Result<(), StepError> {
        let patience = around.patience.operation;
        let base = &plan.base;
        self.refuse_to_start_over(plan, around)?;
        match &base.source {
            BaseSource::Memory => {
                if !self.holds_state || self.state.position() != base.position {
                    return Err(unusable(format!(
                        "start from memory at {}: this member holds {}",
                        base.position,
                        self.state.position()
                    )));
                }
            }
            BaseSource::Initial => {
                self.holds_state = false;
                self.state = TrainingState::initial(self.task, &self.parameters, &self.config, &self.course)?;
                self.origin = DataProgress::default();
            }
            BaseSource::Checkpoint { path } => {
                self.holds_state = false;
                self.obtain_checkpoint(plan, path, rank, communicator, standing, patience)?;
            }
            BaseSource::Donor { .. } => {
                return Err(unusable(
                    "obtain state from a donor: not yet possible in this version".to_owned(),
                ));
            }
        }
        if let Some(expected) = &base.state_digest {
            let found = self.state.digest()?;
            if found != *expected {
                self.holds_state = false;
                if let BaseSource::Checkpoint { path } = &base.source {
                    // Whole and of this model, and still another state: what the optimiser keeps differs.
                    return Err(Fatal::user(format!(
                        "load {path}: it does not give the state that was saved (digest {found}, saved as {expected}); \
                         it holds the state of another optimiser than {:?}, use the one that wrote it or a new job",
                        self.config.training.optimizer.name
                    ))
                    .into());
                }
                return Err(unusable(format!(
                    "obtain the state at {}: its digest is {found}, the plan says {expected}",
                    base.position
                )));
            }
        }
        self.state.set_position(base.position);
        self.holds_state = true;
        Ok(())
    }

    /// A base that is what the job began from means that no checkpoint was found: right after a loss before
    /// the first one, and wrong when the directory is another one than it was.
    fn refuse_to_start_over(&self, plan: &Plan, around: &Surroundings<'_>) -> Result<(), Fatal> {
        let from_the_beginning = match &plan.base.source {
            BaseSource::Initial => true,
            BaseSource::Checkpoint { path } => Path::new(path).is_absolute(),
            BaseSource::Memory | BaseSource::Donor { .. } => false,
        };
        let Some(checkpoints) = self.checkpoints.as_ref().filter(|_| from_the_beginning) else {
            return Ok(());
        };
        let recorded = match &around.records {
            Some(directory) => record::newest_checkpoint(directory, &plan.job_uid)?,
            None => None,
        };
        let known = recorded.max(self.saved.clone()).max(self.damaged.clone());
        checkpoints.refuse_to_start_over(plan, known)
    }

    fn obtain_checkpoint(
        &mut self,
        plan: &Plan,
        path: &str,
        rank: u32,
        communicator: &dyn Communicator,
        standing: &mut Standing,
        patience: Duration,
    ) -> Result<(), StepError> {
        let Some(checkpoints) = &self.checkpoints else {
            return Err(Fatal::user(format!("load {path}: no checkpoint.directory is configured")).into());
        };
        let shared = checkpoints.is_shared();
        if shared || rank == 0 {
            match checkpoints.load(&plan.job_uid, path, &self.fingerprints, &self.state) {
                Ok(snapshot) => {
                    self.check_order(path, &snapshot)?;
                    self.state.restore(&snapshot)?;
                    if let Some(found) = &snapshot.evaluation {
                        self.note_evaluated(plan.base.position, found);
                    }
                    if !Path::new(path).is_absolute() {
                        self.saved = Some((plan.base.position, path.to_owned()));
                    }
                }
                Err(LoadError::Unusable(problem)) => {
                    standing.found_damaged(path.to_owned(), problem.clone());
                    return Err(unusable(format!("load {path}: {problem}")));
                }
                Err(LoadError::Fatal(fatal)) => return Err(fatal.into()),
            }
        }
        if !shared {
            // Only rank 0 sees the directory: everybody takes its state.
            crate::agree::broadcast_state(&mut self.state, communicator, 0, patience)?;
        }
        if plan.lineage.0.len() <= 1 {
            self.origin = self.state.progress();
        }
        Ok(())
    }

    /// A cursor in the middle of an epoch means the samples before it in that seed's order.
    fn check_order(&self, path: &str, snapshot: &Snapshot) -> Result<(), Fatal> {
        let within_epoch = snapshot.progress.cursor > 0;
        if within_epoch && snapshot.seed != self.course.seed {
            return Err(Fatal::user(format!(
                "resume from {path}: it stands {} samples into an epoch in the order of seed {}, and \
                 spec.training.seed is {}; use the same seed, or a checkpoint from an epoch's end",
                snapshot.progress.cursor, snapshot.seed, self.course.seed
            )));
        }
        Ok(())
    }
}

/// The group cannot start with this member's state: join again and let the service choose anew.
fn unusable(message: String) -> StepError {
    StepError::Lost(CollectiveError::Aborted {
        cause: AbortCause::Failure(message),
    })
}
