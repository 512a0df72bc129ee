//! When members synchronise and what travels: one file per strategy.
//!
//! A strategy sees gradient buckets become ready while backward runs, launches what it needs on the
//! communicator, and in the end proposes a commit. It never touches committed state itself: only
//! [`crate::step::commit`] does.

mod all_reduce;
mod round;

pub use all_reduce::AllReduce;
pub use round::{Event, Round, Trace};

use crate::step::StepError;
use gradsync_formats::run_config::{RunConfig, StrategyName};

/// What one commit covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitUnit {
    /// One optimiser step of the whole group.
    Step,
    /// One worker's push to the shards.
    Push,
    /// So many local steps and one outer step.
    OuterStep {
        /// Local steps between two outer steps.
        steps: u64,
    },
}

/// A kind of state that a strategy keeps beside the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatePart {
    /// The model's parameters.
    Parameters,
    /// The optimiser's state tensors and counters.
    OptimizerState,
    /// The model's buffers (running statistics).
    Buffers,
}

/// Which state is identical on all members (hashed and compared) and which is each member's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateDeclaration {
    /// Identical on all members after each commit.
    pub replicated: &'static [StatePart],
    /// Each member's own, saved per member.
    pub per_member: &'static [StatePart],
}

/// Number of a bucket in plan order.
pub type BucketId = usize;

/// What a finished round asks the commit to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proposal {
    /// The gradient buckets hold the sum over all members: apply them.
    Apply,
}

/// When members synchronise and what travels.
pub trait Strategy: Send {
    /// What one commit covers.
    fn commit_unit(&self) -> CommitUnit;
    /// Which state it keeps where.
    fn state(&self) -> StateDeclaration;
    /// A bucket holds all of this member's gradient of the step. Called from the backward pass of the
    /// member's last micro-batch, on the thread that runs it; must not block.
    ///
    /// # Errors
    /// When the communicator refuses the operation; backward then ends with it.
    fn gradient_ready(&mut self, bucket: BucketId, round: &mut Round) -> Result<(), StepError>;
    /// Backward is over: launches what is left, without waiting. A member without parts of the step comes
    /// here at once; its buckets are zero.
    ///
    /// # Errors
    /// When the communicator refuses an operation.
    fn backward_ended(&mut self, round: &mut Round) -> Result<(), StepError>;
    /// Waits for all that was launched and proposes. Touches no committed state, so that a failure leaves
    /// everything as it was.
    ///
    /// # Errors
    /// [`StepError::Lost`] when a peer is gone or an operation misses its deadline.
    fn finish(&mut self, round: &mut Round) -> Result<Proposal, StepError>;
}

/// The strategy that the configuration selects.
#[must_use]
pub fn select(config: &RunConfig) -> Box<dyn Strategy> {
    match config.sync.strategy {
        StrategyName::AllReduce => Box::new(AllReduce),
    }
}
