//! Faults put between the engine and what it works with, through its own traits.

use gradsync_collective::{
    AbortCause, Buffer, Channel, Communicator, DType, GroupIdentity, Issued, OperationKind, Pending,
    ReduceOp, WireType, in_process,
};
use gradsync_formats::run_config::TrainingSpec;
use gradsync_trainer::parameters::ModelBuilder;
use gradsync_trainer::task::{
    AugmentationKey, Batch, DataError, DataSource, Fingerprint, GivenParameters, LossSum, Mode, Model,
    Normalisation, ParameterError, Parameters, Split, Task, TaskError,
};
use std::sync::Arc;

/// What happens to a collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// It is issued.
    Pass,
    /// It is carried out on this rank alone.
    Alone,
    /// Another operation is issued before it.
    AfterAnother,
}

/// Decides on an operation, given the group, the operation's kind, channel and buffer.
pub type Decide = Arc<dyn Fn(&GroupIdentity, OperationKind, Channel, Option<&Buffer>) -> Act + Send + Sync>;

/// A communicator that a test meddles with.
pub struct Meddled {
    inner: Arc<dyn Communicator>,
    alone: Arc<dyn Communicator>,
    decide: Decide,
    /// What its checksums are wrong by.
    lie: u64,
}

/// Wraps a communicator; `lie` is what its checksums are wrong by.
pub fn meddle(inner: Arc<dyn Communicator>, lie: u64, decide: Decide) -> Arc<dyn Communicator> {
    Arc::new(Meddled {
        inner,
        alone: in_process::group(1, "alone", 1).remove(0),
        decide,
        lie,
    })
}

impl Communicator for Meddled {
    fn identity(&self) -> &GroupIdentity {
        self.inner.identity()
    }

    fn issue(&self, channel: Channel, issued: Issued) -> Pending {
        let kind = issued.operation().kind;
        match (self.decide)(self.inner.identity(), kind, channel, issued.buffer()) {
            Act::Pass => self.inner.issue(channel, issued),
            Act::Alone => self.alone.issue(channel, issued),
            Act::AfterAnother => {
                let other = Buffer::zeroed(3, DType::F64).unwrap();
                drop(
                    self.inner
                        .all_reduce(channel, other, ReduceOp::Sum, WireType::Same),
                );
                self.inner.issue(channel, issued)
            }
        }
    }

    fn sequence_checksum(&self, channel: Channel) -> u64 {
        self.inner.sequence_checksum(channel) ^ self.lie
    }

    fn abort(&self, cause: AbortCause) {
        self.inner.abort(cause);
    }
}

/// Changes a question to the training data, or its answer.
pub type Change =
    Arc<dyn Fn(&dyn DataSource, &[u64], AugmentationKey) -> Result<Batch, DataError> + Send + Sync>;

/// A task whose training data a test meddles with.
pub struct MeddledTask<T> {
    pub inner: T,
    pub change: Change,
    /// Appended to the data's fingerprint.
    pub fingerprint: &'static str,
}

impl<T: Task> MeddledTask<T> {
    /// `inner` with `change` between it and its training data.
    pub fn boxed(
        inner: T,
        change: impl Fn(&dyn DataSource, &[u64], AugmentationKey) -> Result<Batch, DataError>
        + Send
        + Sync
        + 'static,
    ) -> Box<dyn Task>
    where
        T: 'static,
    {
        Box::new(MeddledTask {
            inner,
            change: Arc::new(change),
            fingerprint: "",
        })
    }
}

impl<T: Task> Task for MeddledTask<T> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn parameters(&self, given: &GivenParameters) -> Result<Parameters, ParameterError> {
        self.inner.parameters(given)
    }

    fn check(&self, parameters: &Parameters, training: &TrainingSpec) -> Result<(), TaskError> {
        self.inner.check(parameters, training)
    }

    fn model(&self, builder: &ModelBuilder, parameters: &Parameters) -> Result<Box<dyn Model>, TaskError> {
        self.inner.model(builder, parameters)
    }

    fn data(&self, split: Split, parameters: &Parameters) -> Result<Box<dyn DataSource>, TaskError> {
        let inner = self.inner.data(split, parameters)?;
        Ok(match split {
            Split::Train => Box::new(MeddledData {
                inner,
                change: Arc::clone(&self.change),
                fingerprint: self.fingerprint,
            }),
            Split::Test => inner,
        })
    }

    fn normalisation(&self) -> Normalisation {
        self.inner.normalisation()
    }

    fn units_per_sample(&self, parameters: &Parameters) -> Result<u64, TaskError> {
        self.inner.units_per_sample(parameters)
    }

    fn loss(&self, model: &dyn Model, batch: &Batch, mode: &Mode) -> Result<LossSum, TaskError> {
        self.inner.loss(model, batch, mode)
    }
}

struct MeddledData {
    inner: Box<dyn DataSource>,
    change: Change,
    fingerprint: &'static str,
}

impl DataSource for MeddledData {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn get(&self, indices: &[u64], key: AugmentationKey) -> Result<Batch, DataError> {
        (self.change)(self.inner.as_ref(), indices, key)
    }

    fn fingerprint(&self) -> Fingerprint {
        let mut fingerprint = self.inner.fingerprint();
        fingerprint.content.push_str(self.fingerprint);
        fingerprint
    }
}
