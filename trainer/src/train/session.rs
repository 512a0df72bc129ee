//! A live generation: steps, and what is done at the boundaries between them.

use super::again::BRIEFLY;
use super::checkpoints::Place;
use super::closing;
use super::generation::{Entered, Left};
use super::warm::Warm;
use super::{End, Surroundings};
use crate::evaluation;
use crate::group::Asked;
use crate::record::Recorder;
use crate::step::{self, Committed, Fatal, FatalKind, Member, SharedStrategy, StepError, Wants};
use crate::strategy::{Trace, select};
use gradsync_collective::{AbortCause, CollectiveError, Communicator};
use gradsync_formats::identity::Position;
use gradsync_formats::record::{RECORD_VERSION, RecordLine};
use gradsync_rendezvous::wire::{LeaveCause, MemberMessage, RecoveryPhases};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Connections, strategy and record of one generation.
pub(crate) struct Session {
    pub(crate) member: Member,
    pub(crate) recorder: Recorder,
    strategy: SharedStrategy,
    trace: Trace,
    /// The state that was evaluated last in this generation.
    evaluated: Option<Position>,
    /// The state on which all members compared notes last in this generation, and agreed.
    agreed: Option<Position>,
    /// The state of which a checkpoint was to be written last in this generation; and where it is, if this
    /// member knows that it was.
    checkpointed: Option<(Position, Option<String>)>,
    place: Place,
    agreement: AgreementBudget,
}

impl Session {
    /// Opens the record of the generation.
    pub(crate) fn new(
        warm: &mut Warm<'_>,
        entered: &Entered,
        communicator: &Arc<dyn Communicator>,
        around: &Surroundings<'_>,
    ) -> Result<Session, StepError> {
        let plan = &entered.plan;
        let share = entered.head.share.ok_or_else(|| {
            Fatal::process(format!(
                "enter generation {}: the plan gives this member no share, and only workers are known here",
                plan.generation
            ))
        })?;
        let mut recorder = Recorder::open(around.records.as_deref(), plan.generation, around.group.member())?;
        recorder.write(&RecordLine::Opened {
            version: RECORD_VERSION,
            job_uid: around.group.job().clone(),
            generation: plan.generation,
            member: around.group.member().clone(),
            rank: entered.head.rank,
            world_size: plan.world_size,
            lineage: plan.lineage.clone(),
            epoch_samples: warm.course.epoch_samples,
            global_batch_size: warm.course.global_batch_size,
            micro_batch_size: warm.course.micro_batch_size,
            seed: warm.course.seed,
            origin: warm.origin,
            length: warm.course.length,
            at: around.clock.wall(),
        })?;
        let place = Place {
            lineage: plan.lineage.clone(),
            rank: entered.head.rank,
            world_size: plan.world_size,
        };
        warm.place = Some(place.clone());
        Ok(Session {
            member: Member {
                communicator: communicator.clone(),
                generation: plan.generation,
                rank: entered.head.rank,
                world_size: plan.world_size,
                share,
                patience: around.patience.operation,
            },
            recorder,
            strategy: Arc::new(Mutex::new(select(&warm.config))),
            trace: Trace::default(),
            evaluated: None,
            agreed: None,
            checkpointed: None,
            place,
            agreement: AgreementBudget::default(),
        })
    }

    /// Does what the generation before did not come to at the boundary where it ended.
    pub(crate) fn make_up(
        &mut self,
        warm: &mut Warm<'_>,
        around: &mut Surroundings<'_>,
    ) -> Result<(), StepError> {
        let undone = warm.undone;
        if undone.evaluation {
            self.evaluate(warm, around)?;
        }
        let newly_best = undone.evaluation && warm.is_best();
        if newly_best || undone.checkpoint && (warm.checkpoint_is_due() || warm.is_best()) {
            self.checkpoint_or_go_on(warm, around)?;
        }
        Ok(())
    }

    /// One step and its boundary. Something is returned when the generation ends here.
    pub(crate) fn advance(
        &mut self,
        warm: &mut Warm<'_>,
        entered: &Entered,
        around: &mut Surroundings<'_>,
    ) -> Result<Option<Left>, StepError> {
        let (mut wants, reason) = match around.group.asked(entered.plan.generation) {
            Asked::Nothing => (Wants::default(), None),
            Asked::Reform { checkpoint, reason } => (
                Wants {
                    reform: true,
                    checkpoint,
                    ..Wants::default()
                },
                Some(reason),
            ),
            Asked::Stop(cause) => (
                Wants {
                    stop: true,
                    ..Wants::default()
                },
                Some(cause.reason),
            ),
            Asked::Over { reason } => return Err(over(reason)),
            Asked::Finished(reason) => return Err(over(reason)),
            Asked::Failed(reason) => {
                return Err(Fatal::refused(format!("the job has failed: {reason}")).into());
            }
            Asked::Refused(why) => return Err(Fatal::refused(why).into()),
            Asked::AgentGone(why) => {
                return Err(Fatal::abandoned(format!("the agent is gone: {why}")).into());
            }
        };
        wants.compare_digests = self.member.rank == 0 && self.agreement.is_due();
        let (context, state) = warm.parts(around.clock);
        let committed = step::advance(
            &context,
            state,
            &self.member,
            &self.strategy,
            &mut self.recorder,
            wants,
            &self.trace,
        )?;
        self.agreement.step_took(committed.seconds);
        self.recorder.write(&RecordLine::Committed {
            position: committed.position,
            kind: committed.kind,
            progress: warm.state.progress(),
            loss: committed.loss.to_string(),
            chain: committed.chain.clone(),
            seconds: committed.seconds,
            compute_seconds: committed.compute_seconds,
            wait_seconds: committed.wait_seconds,
        })?;
        around.observer.committed(&warm.state, &committed, &self.trace);
        warm.note(&committed);
        around.group.alive(Some(warm.progress_report("training")));
        if warm.evaluation_is_due() {
            self.evaluate(warm, around)?;
        }
        self.boundary(warm, &committed, reason, around)
    }

    fn boundary(
        &mut self,
        warm: &mut Warm<'_>,
        committed: &Committed,
        reason: Option<String>,
        around: &mut Surroundings<'_>,
    ) -> Result<Option<Left>, StepError> {
        let agreed = committed.agreed;
        if agreed.compare_digests {
            self.agree(warm, around)?;
        }
        if warm.course.is_finished(&warm.state.progress()) {
            return Ok(None);
        }
        let leaving = agreed.stop || agreed.reform;
        if warm.checkpoint_is_due() || warm.is_best() || agreed.stop || agreed.checkpoint {
            self.checkpoint_or_go_on(warm, around)?;
        }
        if !leaving {
            return Ok(None);
        }
        let reason = reason.unwrap_or_else(|| "another member was asked to".into());
        if agreed.stop {
            tracing::info!(reason, position = %committed.position, "stopping at an agreed boundary");
            closing::barrier(&self.member, around)?;
            let cause = LeaveCause::Stopped {
                position: committed.position,
                checkpoint: self.checkpoint_path(),
            };
            super::leave(around, cause);
            let summary = warm.summary(End::Stopped).map_err(StepError::from)?;
            return Ok(Some(Left::Ended(Box::new(summary))));
        }
        Ok(Some(Left::Reform { reason }))
    }

    /// Evaluates the state, once per position and generation. First it is made sure that all hold the same.
    pub(crate) fn evaluate(
        &mut self,
        warm: &mut Warm<'_>,
        around: &mut Surroundings<'_>,
    ) -> Result<(), StepError> {
        let position = warm.state.position();
        if self.evaluated == Some(position) {
            return Ok(());
        }
        self.agree(warm, around)?;
        around.group.alive(Some(warm.progress_report("evaluating")));
        let (context, state) = warm.parts(around.clock);
        let found = evaluation::evaluate(&context, state, &self.member)?;
        tracing::info!(step = warm.state.progress().step, loss = found.loss, metrics = ?found.metrics, "evaluated");
        if self.member.rank == 0 {
            self.recorder.write(&RecordLine::Evaluated {
                position,
                step: warm.state.progress().step,
                loss: found.loss.to_string(),
                metrics: found.metrics.clone(),
            })?;
        }
        warm.note_evaluation(position, &found);
        self.evaluated = Some(position);
        Ok(())
    }

    /// Makes sure that all members hold the same state; once per position and generation.
    pub(crate) fn agree(
        &mut self,
        warm: &mut Warm<'_>,
        around: &mut Surroundings<'_>,
    ) -> Result<(), StepError> {
        match self.agreed == Some(warm.state.position()) {
            true => Ok(()),
            false => self.compare_digests(warm, around),
        }
    }

    /// Compares the digests of the replicated state of all members.
    fn compare_digests(
        &mut self,
        warm: &mut Warm<'_>,
        around: &mut Surroundings<'_>,
    ) -> Result<(), StepError> {
        let began = around.clock.now();
        let digest = crate::agree::compare(&mut warm.state, &self.member)?;
        self.agreement
            .comparison_took(around.clock.now().saturating_duration_since(began));
        self.agreed = Some(warm.state.position());
        self.recorder.write(&RecordLine::Agreed {
            position: warm.state.position(),
            digest,
        })?;
        Ok(())
    }

    /// Where the checkpoint is that was written last, if this member knows.
    pub(crate) fn checkpoint_path(&self) -> Option<String> {
        let (_, path) = self.checkpointed.as_ref()?;
        path.clone()
    }

    /// Writes a checkpoint of the state. A directory that is away costs this one: the state is in memory, and
    /// the next one is written when it is due.
    fn checkpoint_or_go_on(
        &mut self,
        warm: &mut Warm<'_>,
        around: &mut Surroundings<'_>,
    ) -> Result<(), StepError> {
        if let Some(fatal) = self.checkpoint(warm, BRIEFLY, around)? {
            tracing::error!("going on without this checkpoint: {fatal}");
        }
        Ok(())
    }

    /// Writes a checkpoint of the state: rank 0 does, trying so often; the others go on and wait for it in their
    /// next collective operation. Before it begins all members have brought their records to the disk, so that
    /// the checkpoint is never ahead of what proves it, and agree on the state that it will hold.
    ///
    /// Returns the platform fault for which rank 0 could not write it.
    pub(crate) fn checkpoint(
        &mut self,
        warm: &mut Warm<'_>,
        tries: u32,
        around: &mut Surroundings<'_>,
    ) -> Result<Option<Fatal>, StepError> {
        let position = warm.state.position();
        if self.checkpointed.as_ref().is_some_and(|(at, _)| *at == position) {
            return Ok(None);
        }
        if warm.checkpoints.is_none() {
            return Ok(None);
        }
        self.recorder.sync(around.to_disk)?;
        if self.agreed == Some(position) {
            closing::barrier(&self.member, around)?;
        } else {
            self.agree(warm, around)?;
        }
        self.checkpointed = Some((position, None));
        let Some(checkpoints) = warm.checkpoints.as_ref().filter(|_| self.member.rank == 0) else {
            return Ok(None);
        };
        let path = gradsync_formats::manifest::checkpoint_folder(position);
        around
            .group
            .alive(Some(warm.progress_report("writing checkpoint")));
        let began = around.clock.now();
        let saved = match checkpoints.write(warm, &self.place, self.member.world_size, tries, around) {
            Err(fatal) if fatal.kind == FatalKind::Process => return Ok(Some(fatal)),
            written => written?,
        };
        match checkpoints.prune(warm, &self.place, &saved, around) {
            Err(fatal) if fatal.kind == FatalKind::Process => {
                tracing::error!("keeping superfluous checkpoints until the next one: {fatal}");
            }
            pruned => pruned?,
        }
        let seconds = around.clock.now().saturating_duration_since(began).as_secs_f64();
        self.recorder.write(&RecordLine::Checkpointed {
            position,
            path: path.clone(),
            seconds,
        })?;
        // The others know of it by that line, once it is there: until then it may come to nothing.
        warm.saved = Some((position, path.clone()));
        self.checkpointed = Some((position, Some(path)));
        Ok(None)
    }

    /// Publishes how long each phase took on the way into this generation.
    pub(crate) fn report_recovery(
        &mut self,
        entered: &Entered,
        began: Instant,
        opened: Instant,
        now: Instant,
        around: &mut Surroundings<'_>,
    ) -> Result<(), StepError> {
        let Some(since) = &entered.since else {
            return Ok(());
        };
        let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
        let phases = RecoveryPhases {
            generation: entered.plan.generation,
            reason: since.reason.clone(),
            detect_ms: ms(since.detect),
            form_ms: ms(began.saturating_duration_since(since.aborted)),
            state_ms: ms(opened.saturating_duration_since(began)),
            first_step_ms: ms(now.saturating_duration_since(opened)),
        };
        self.recorder.write(&RecordLine::Recovered {
            generation: phases.generation,
            reason: phases.reason.clone(),
            detect_ms: phases.detect_ms,
            form_ms: phases.form_ms,
            state_ms: phases.state_ms,
            first_step_ms: phases.first_step_ms,
        })?;
        if let Err(error) = around.group.tell(MemberMessage::Recovered(phases)) {
            tracing::warn!(%error, "could not report the phases of the recovery");
        }
        Ok(())
    }
}

fn over(reason: String) -> StepError {
    StepError::Lost(CollectiveError::Aborted {
        cause: AbortCause::Failure(reason),
    })
}

/// When digests are compared: so often that it costs at most one percent of the time. Rank 0 decides and
/// tells the others in the control record.
#[derive(Debug, Default)]
struct AgreementBudget {
    comparison: Duration,
    since_comparison: f64,
}

impl AgreementBudget {
    /// Share of the time that comparisons may take.
    const SHARE: f64 = 0.01;
    /// Never more often than this, in seconds of training.
    const SHORTEST: f64 = 1.0;

    fn is_due(&self) -> bool {
        self.since_comparison >= (self.comparison.as_secs_f64() / Self::SHARE).max(Self::SHORTEST)
    }

    fn step_took(&mut self, seconds: f64) {
        self.since_comparison += seconds;
    }

    fn comparison_took(&mut self, took: Duration) {
        self.comparison = took;
        self.since_comparison = 0.0;
    }
}
