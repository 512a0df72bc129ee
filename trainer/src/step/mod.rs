//! One training step as a transaction: compute, reduce, agree, commit.
//!
//! Everything before [`commit`] works on scratch (gradient buckets, a copy of the buffers); only `commit`
//! changes parameters, optimiser state, buffers, cursor and chain, and it does all of it or nothing.

mod agreed;
mod blame;
mod commit;
mod compute;
mod course;
mod error;
mod plan;

pub use blame::{Blame, of_io};
pub use commit::{Step, commit};
pub use course::{Course, Work};
pub use error::{Fatal, FatalKind, StepError};
pub use plan::plan_buckets;

use crate::clock::Clock;
use crate::parameters::UsedParameters;
use crate::record::Recorder;
use crate::state::TrainingState;
use crate::strategy::{Event, Round, Strategy, Trace};
use crate::task::{DataSource, Normalisation, Parameters, Task};
use crate::torch::{read_elements, write_elements};
use compute::{Launching, compute};
use gradsync_collective::{Channel, Communicator, Moved, Pending, ReduceOp, WireType};
use gradsync_formats::identity::{Generation, Position};
use gradsync_formats::record::{CommitKind, RecordLine};
use gradsync_formats::run_config::OptimizerSpec;
use gradsync_rendezvous::wire::Share;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What a step needs besides the state and the group: all of it is the same throughout the run.
#[derive(Clone, Copy)]
pub struct WorkContext<'a> {
    /// What is trained.
    pub task: &'a dyn Task,
    /// The task's parameters.
    pub parameters: &'a Parameters,
    /// Training data.
    pub train: &'a dyn DataSource,
    /// Test data.
    pub test: &'a dyn DataSource,
    /// Batch, grid, length.
    pub course: &'a Course,
    /// The constant denominator of the loss: B times units per sample, or 1.
    pub nominal: f64,
    /// Whether the true denominator is corrected for.
    pub normalisation: Normalisation,
    /// Optimiser, clipping and schedule.
    pub optimizer: &'a OptimizerSpec,
    /// Time.
    pub clock: &'a dyn Clock,
}

/// This member's place in the live generation.
#[derive(Clone)]
pub struct Member {
    /// Connections to the others.
    pub communicator: Arc<dyn Communicator>,
    /// The generation.
    pub generation: Generation,
    /// This member's rank.
    pub rank: u32,
    /// Number of ranks.
    pub world_size: u32,
    /// Its share of each step's parts.
    pub share: Share,
    /// How long one collective operation may take.
    pub patience: Duration,
}

/// The strategy of a generation, shared with the hooks of the last backward pass of a step.
pub type SharedStrategy = Arc<Mutex<Box<dyn Strategy>>>;

/// What one member, or after the step any member, wants at the boundary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// Leave the generation and form a new one.
    pub reform: bool,
    /// Stop training.
    pub stop: bool,
    /// Write a checkpoint.
    pub checkpoint: bool,
    /// Compare digests of the replicated state.
    pub compare_digests: bool,
}

/// A step that was committed.
#[derive(Clone, Debug, PartialEq)]
pub struct Committed {
    /// Its position.
    pub position: Position,
    /// Apply or Skip.
    pub kind: CommitKind,
    /// Samples of the step over all members.
    pub samples: u64,
    /// Mean loss over the step's units.
    pub loss: f64,
    /// Learning rate that was used.
    pub learning_rate: f64,
    /// Global norm of the gradient before clipping; none if it was not needed.
    pub gradient_norm: Option<f64>,
    /// What members agreed on for the boundary after it.
    pub agreed: Wants,
    /// Chain value after it, hex.
    pub chain: String,
    /// Bytes and time of the gradient reductions.
    pub moved: Moved,
    /// Seconds of the whole step.
    pub seconds: f64,
    /// Of these, in data, forward and backward.
    pub compute_seconds: f64,
    /// Of these, waiting for others after the own backward.
    pub wait_seconds: f64,
}

/// Computes this member's parts, synchronises, and commits.
///
/// # Errors
/// Whatever the reason, the committed state is as it was before the call.
pub fn advance(
    context: &WorkContext<'_>,
    state: &mut TrainingState,
    member: &Member,
    strategy: &SharedStrategy,
    recorder: &mut Recorder,
    wants: Wants,
    trace: &Trace,
) -> Result<Committed, StepError> {
    let began = context.clock.now();
    trace.clear();
    let work = context
        .course
        .work(&state.progress(), member.share.index, member.share.of);
    let position = Position {
        commit: state.position().commit + 1,
        generation: member.generation,
    };

    let buckets = (0..state.parameters.plan().buckets.len())
        .map(|bucket| state.parameters.bucket(bucket))
        .collect::<Result<Vec<_>, _>>()
        .map_err(Fatal::process)?;
    let launching = Arc::new(Mutex::new(Launching {
        strategy: Arc::clone(strategy),
        round: Round::new(
            member.communicator.clone(),
            buckets,
            member.patience,
            trace.clone(),
        ),
        failed: None,
    }));
    let local = compute(context, state, &work, &launching, trace)?;
    let computed = context.clock.now();

    let mut launching = launching.lock().unwrap_or_else(PoisonError::into_inner);
    let round = &mut launching.round;
    let mut strategy = strategy.lock().unwrap_or_else(PoisonError::into_inner);
    strategy.backward_ended(round)?;
    let beside = Beside::launch(state, member)?;
    recorder.write(&RecordLine::Computed {
        position,
        epoch: work.epoch,
        cursor: work.cursor,
        samples: work.samples,
        parts: local.parts,
    })?;
    let exchange = agreed::send(member, wants, local.denominator, local.loss, state.chain())?;
    trace.note(Event::ControlSent);

    let proposal = strategy.finish(round)?;
    let used = beside.finish(state, context.clock.now() + member.patience)?;
    let agreed = agreed::receive(exchange, member, context.clock.now() + member.patience)?;
    let waited = context.clock.now();

    let step = Step {
        context,
        work: &work,
        position,
        agreed: &agreed,
        used: &used,
        hashes: round.hashes(),
    };
    let outcome = commit(state, &step, proposal)?;
    trace.note(Event::Committed);
    let ended = context.clock.now();
    let seconds = |from: Instant, to: Instant| to.saturating_duration_since(from).as_secs_f64();
    Ok(Committed {
        position,
        kind: outcome.kind,
        samples: work.samples,
        loss: agreed.loss / agreed.denominator as f64,
        learning_rate: outcome.learning_rate,
        gradient_norm: outcome.gradient_norm,
        agreed: agreed.wants,
        chain: state.chain_hex(),
        moved: *round.moved(),
        seconds: seconds(began, ended),
        compute_seconds: seconds(began, computed),
        wait_seconds: seconds(computed, waited),
    })
}

/// What is summed beside the gradients, in full precision: the change of the model's buffers and the
/// flags of used parameters.
struct Beside {
    pending: Option<Pending>,
    changes: gradsync_collective::Buffer,
}

impl Beside {
    fn launch(state: &mut TrainingState, member: &Member) -> Result<Beside, StepError> {
        let used = state.hooks.used();
        let mut extra = state.buffers.extra().map_err(Fatal::process)?;
        write_elements::<f64, _>(&mut extra, |flags| used.write_flags(flags)).map_err(Fatal::process)?;
        let changes = state.buffers.change().map_err(Fatal::process)?;
        let pending =
            member
                .communicator
                .all_reduce(Channel::State, changes.clone(), ReduceOp::Sum, WireType::Same);
        Ok(Beside {
            pending: Some(pending),
            changes,
        })
    }

    fn finish(mut self, state: &TrainingState, deadline: Instant) -> Result<UsedParameters, StepError> {
        if let Some(pending) = self.pending.take() {
            pending.wait(deadline)?;
        }
        drop(self.changes);
        let extra = state.buffers.extra().map_err(Fatal::process)?;
        Ok(read_elements::<f64, _>(&extra, UsedParameters::from_flags).map_err(Fatal::process)?)
    }
}
