//! A member that is loaded and could start at once: task, model, data, and the state if it holds one.

use super::checkpoints::{Checkpoints, Place};
use super::{End, Summary, Surroundings};
use crate::clock::Clock;
use crate::evaluation::Evaluation;
use crate::group::Joined;
use crate::state::TrainingState;
use crate::step::{Committed, Course, Fatal, StepError, WorkContext};
use crate::task::{DataSource, GivenParameters, Normalisation, Parameters, Split, Task};
use gradsync_collective::Communicator;
use gradsync_formats::identity::{Generation, Position};
use gradsync_formats::lineage::Lineage;
use gradsync_formats::manifest::{DataProgress, Evaluated, Fingerprints};
use gradsync_formats::run_config::RunConfig;
use gradsync_rendezvous::wire::{HeldState, Plan, Progress};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Everything that does not change between generations, and the state that does.
pub(crate) struct Warm<'t> {
    pub(crate) config: RunConfig,
    pub(crate) run_config_digest: String,
    pub(crate) fingerprints: Fingerprints,
    pub(crate) course: Course,
    pub(crate) state: TrainingState,
    pub(crate) checkpoints: Option<Checkpoints>,
    /// Where in the data the lineage began.
    pub(crate) origin: DataProgress,
    /// The evaluation with the lowest loss, whose checkpoint is kept.
    pub(crate) best: Option<Best>,
    /// The state that was evaluated last, and what was found.
    evaluated: Option<(Position, Evaluation)>,
    /// The newest checkpoint of this job that this process knows to have been whole.
    pub(crate) saved: Option<(Position, String)>,
    /// The newest that was found to be damaged when none was whole.
    pub(crate) damaged: Option<(Position, String)>,
    /// The group that this process is in, or was in last.
    pub(crate) place: Option<Place>,
    /// The lineage of the last plan that was accepted, whether or not its group came to be.
    pub(crate) accepted: Lineage,
    /// What is still to be done at the boundary that the present generation started from.
    pub(crate) undone: Undone,
    metrics: BTreeMap<String, f64>,
    pub(super) task: &'t dyn Task,
    pub(super) parameters: Parameters,
    train: Box<dyn DataSource>,
    test: Box<dyn DataSource>,
    nominal: f64,
    /// Whether `state` is a base that was obtained, rather than just a model that was built.
    pub(super) holds_state: bool,
    last: Option<Committed>,
    rate: Rate,
}

impl<'t> Warm<'t> {
    /// Loads what the configuration names.
    pub(crate) fn load(
        tasks: &'t [Box<dyn Task>],
        joined: &Joined,
        around: &mut Surroundings<'_>,
    ) -> Result<Warm<'t>, Fatal> {
        let config = joined.run_config.clone();
        crate::torch::set_threads(config.workers.intra_op_threads, 1).map_err(Fatal::process)?;
        let task = crate::tasks::find(tasks, &config.task.name).map_err(Fatal::user)?;
        let given =
            GivenParameters::new(&config.task.parameters, around.paths.clone()).map_err(Fatal::user)?;
        let parameters = task.parameters(&given).map_err(Fatal::of)?;
        task.check(&parameters, &config.training).map_err(Fatal::of)?;
        around.group.alive(None);
        let train = task.data(Split::Train, &parameters).map_err(Fatal::of)?;
        let test = task.data(Split::Test, &parameters).map_err(Fatal::of)?;
        around.group.alive(None);
        if train.len() == 0 {
            return Err(Fatal::user(format!(
                "task {}: its training data is empty",
                task.name()
            )));
        }
        let course = Course {
            epoch_samples: train.len(),
            global_batch_size: config.training.global_batch_size,
            micro_batch_size: config.micro_batch_size,
            seed: config.training.seed,
            length: config.training.length,
        };
        let nominal = match task.normalisation() {
            Normalisation::Sum => 1.0,
            Normalisation::Mean => {
                let units = task.units_per_sample(&parameters).map_err(Fatal::of)?;
                (config.training.global_batch_size as f64) * (units as f64)
            }
        };
        let state = TrainingState::initial(task, &parameters, &config, &course)?;
        around.group.alive(None);
        let fingerprints = Fingerprints {
            task: task.name().to_owned(),
            parameter_layout: state.layout_digest(),
            data: train.fingerprint().to_string(),
        };
        let checkpoints = Checkpoints::open(config.checkpoint.as_ref(), around)?;
        Ok(Warm {
            run_config_digest: joined.run_config_digest.clone(),
            fingerprints,
            course,
            state,
            checkpoints,
            origin: DataProgress::default(),
            best: None,
            evaluated: None,
            saved: None,
            damaged: None,
            place: None,
            accepted: Lineage::default(),
            undone: Undone::default(),
            metrics: BTreeMap::new(),
            task,
            parameters,
            train,
            test,
            nominal,
            holds_state: false,
            last: None,
            rate: Rate::default(),
            config,
        })
    }

    /// What a step and an evaluation need besides the state, and the state, to change.
    pub(crate) fn parts<'a>(&'a mut self, clock: &'a dyn Clock) -> (WorkContext<'a>, &'a mut TrainingState) {
        let context = WorkContext {
            task: self.task,
            parameters: &self.parameters,
            train: self.train.as_ref(),
            test: self.test.as_ref(),
            course: &self.course,
            nominal: self.nominal,
            normalisation: self.task.normalisation(),
            optimizer: &self.config.training.optimizer,
            clock,
        };
        (context, &mut self.state)
    }

    /// The last commit.
    pub(crate) fn position(&self) -> Position {
        self.state.position()
    }

    /// The state held, for a report; none before the first base was obtained.
    pub(crate) fn held(&self) -> Result<Option<HeldState>, Fatal> {
        if !self.holds_state {
            return Ok(None);
        }
        Ok(Some(HeldState {
            position: self.state.position(),
            chain: self.state.chain_hex(),
            state_digest: self.state.digest()?,
        }))
    }

    /// Whether a base was obtained, and not lost since.
    pub(crate) fn holds_state(&self) -> bool {
        self.holds_state
    }

    /// Forgets the state: the next base must come from a checkpoint or the beginning.
    pub(crate) fn drop_state(&mut self) {
        self.holds_state = false;
    }

    /// Agrees on the bucket plan: rank 0's, made by a dry run before the very first step.
    pub(crate) fn agree_on_buckets(
        &mut self,
        communicator: &dyn Communicator,
        patience: Duration,
        clock: &dyn Clock,
    ) -> Result<(), StepError> {
        let caps = self.config.sync.all_reduce;
        let mut plan = None;
        if communicator.identity().rank == 0 {
            plan = Some(match self.state.bucket_plan() {
                Some(plan) => plan.clone(),
                None => {
                    let (context, state) = self.parts(clock);
                    crate::step::plan_buckets(&context, state, &caps)?
                }
            });
        }
        let agreed = crate::agree::share_document(plan.as_ref(), communicator, 0, patience)?;
        self.state.adopt_buckets(&agreed)
    }

    /// Agrees on what was found and done up to the base: what rank 0 knows, by the checkpoints that it sees and
    /// by its memory.
    pub(crate) fn agree_on_past(
        &mut self,
        plan: &Plan,
        communicator: &dyn Communicator,
        patience: Duration,
    ) -> Result<(), StepError> {
        let mut past = None;
        if communicator.identity().rank == 0 {
            past = Some(self.past(plan)?);
        }
        let past: Past = crate::agree::share_document(past.as_ref(), communicator, 0, patience)?;
        self.best = past.best;
        // A boundary that another job, or nobody, came to is not made up for.
        let ours = plan.base.position.commit > 0 && plan.base.position.generation != Generation::NONE;
        self.undone = Undone {
            evaluation: ours && !past.evaluated && self.evaluation_is_due(),
            checkpoint: ours && !past.saved,
        };
        Ok(())
    }

    fn past(&self, plan: &Plan) -> Result<Past, Fatal> {
        let position = plan.base.position;
        let mut best = match &self.checkpoints {
            Some(checkpoints) => checkpoints.best(&plan.job_uid, &plan.lineage)?,
            None => None,
        };
        let evaluated = self.evaluated.as_ref().filter(|(at, _)| *at == position);
        if let Some((_, found)) = evaluated
            && is_better(found.loss, best.as_ref())
        {
            let loss = found.loss;
            best = Some(Best { position, loss });
        }
        let is_at =
            |known: &Option<(Position, String)>| known.as_ref().is_some_and(|(at, _)| *at == position);
        Ok(Past {
            best,
            evaluated: evaluated.is_some(),
            saved: is_at(&self.saved) && !is_at(&self.damaged),
        })
    }

    /// Takes note of a commit.
    pub(crate) fn note(&mut self, committed: &Committed) {
        self.rate.note(committed.samples, committed.seconds);
        self.last = Some(committed.clone());
    }

    /// Takes note of an evaluation.
    pub(crate) fn note_evaluation(&mut self, position: Position, found: &Evaluation) {
        self.metrics.clone_from(&found.metrics);
        self.evaluated = Some((position, found.clone()));
        if is_better(found.loss, self.best.as_ref()) {
            self.best = Some(Best {
                position,
                loss: found.loss,
            });
        }
    }

    /// Takes note of an evaluation that a checkpoint tells of.
    pub(super) fn note_evaluated(&mut self, position: Position, found: &Evaluated) {
        let (loss, metrics) = (found.loss, found.metrics.clone());
        self.evaluated = Some((position, Evaluation { loss, metrics }));
    }

    /// What an evaluation of exactly the state at `position` found.
    pub(crate) fn evaluation_of(&self, position: Position) -> Option<Evaluated> {
        let (_, found) = self.evaluated.as_ref().filter(|(at, _)| *at == position)?;
        Evaluated::new(found.loss, &found.metrics)
    }

    /// Whether the state is that of the best evaluation: only its own checkpoint can keep it.
    pub(crate) fn is_best(&self) -> bool {
        self.best
            .as_ref()
            .is_some_and(|best| best.position == self.state.position())
    }

    /// Whether the state is one to evaluate.
    pub(crate) fn evaluation_is_due(&self) -> bool {
        let step = self.state.progress().step;
        self.config
            .training
            .evaluate_every_steps
            .is_some_and(|every| every > 0 && step.is_multiple_of(every))
    }

    /// Whether the state is one to write a checkpoint of.
    pub(crate) fn checkpoint_is_due(&self) -> bool {
        let every = self
            .config
            .checkpoint
            .as_ref()
            .and_then(|checkpoint| checkpoint.every_steps);
        every.is_some_and(|every| every > 0 && self.state.position().commit.is_multiple_of(every))
    }

    /// How far training is, for display.
    pub(crate) fn progress_report(&self, activity: &str) -> Progress {
        let progress = self.state.progress();
        Progress {
            position: self.state.position(),
            step: progress.step,
            total_steps: Some(self.course.total_steps()),
            epoch: progress.epoch,
            loss: self
                .last
                .as_ref()
                .map_or_else(String::new, |last| last.loss.to_string()),
            samples_per_second: self
                .rate
                .per_second()
                .map_or_else(String::new, |rate| format!("{rate:.1}")),
            activity: activity.to_owned(),
        }
    }

    /// How training stands at its end.
    pub(crate) fn summary(&self, end: End) -> Result<Summary, Fatal> {
        let progress = self.state.progress();
        Ok(Summary {
            end,
            position: self.state.position(),
            steps: progress.step,
            epochs: progress.epoch,
            loss: self.last.as_ref().map_or(f64::NAN, |last| last.loss),
            metrics: self.metrics.clone(),
            state_digest: if self.holds_state {
                self.state.digest()?
            } else {
                String::new()
            },
        })
    }
}

/// What was found and done up to the base of a generation.
#[derive(Debug, Serialize, Deserialize)]
struct Past {
    best: Option<Best>,
    /// Whether the base was evaluated.
    evaluated: bool,
    /// Whether a checkpoint of the base was written.
    saved: bool,
}

/// What a generation that ended at a boundary did not come to there.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Undone {
    pub(crate) evaluation: bool,
    /// No checkpoint is known, which is a lack only if one is due.
    pub(crate) checkpoint: bool,
}

fn is_better(loss: f64, best: Option<&Best>) -> bool {
    loss.is_finite() && best.is_none_or(|best| loss < best.loss)
}

/// The best evaluated state so far.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Best {
    pub(crate) position: Position,
    pub(crate) loss: f64,
}

/// Samples per second over about the last ten steps.
#[derive(Debug, Default)]
struct Rate {
    samples: f64,
    seconds: f64,
}

impl Rate {
    /// Weight that a step keeps when the next one comes.
    const MEMORY: f64 = 0.9;

    fn note(&mut self, samples: u64, seconds: f64) {
        self.samples = self.samples * Self::MEMORY + samples as f64;
        self.seconds = self.seconds * Self::MEMORY + seconds;
    }

    fn per_second(&self) -> Option<f64> {
        (self.seconds > 0.0).then(|| self.samples / self.seconds)
    }
}
