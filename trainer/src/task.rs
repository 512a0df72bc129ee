//! What a user writes: a [`Task`] says what is trained (model, data, loss, metrics) and nothing about how.
//! Workers, synchronisation, precision, accumulation, checkpoints and recovery are the engine's: a task
//! sees one part of a step at a time and must not care which, or who computes it.

mod batch;
mod error;
mod given;
mod mode;

pub use batch::{AugmentationKey, Batch, DataSource, Fingerprint, LossSum, Split};
pub use error::{DataError, ParameterError, TaskError};
pub use given::GivenParameters;
pub(crate) use given::suggest;
pub use gradsync_formats::path_map::PathMap;
pub use mode::Mode;

use crate::parameters::ModelBuilder;
use gradsync_formats::run_config::TrainingSpec;
use std::any::Any;
use tch::Tensor;

/// A kind of training that a job names in `spec.task.name`.
///
/// ```
/// use gradsync_trainer::task::*;
/// use gradsync_trainer::parameters::{Init, ModelBuilder};
/// use tch::Tensor;
///
/// struct Mean;                      // learns the mean of numbers
/// struct Level(Tensor);
///
/// impl Model for Level {
///     fn forward(&self, input: &Tensor, _: &Mode) -> Result<Tensor, TaskError> {
///         Ok(self.0.f_expand_as(input)?)
///     }
/// }
///
/// impl Task for Mean {
///     fn name(&self) -> &str { "mean" }
///     fn parameters(&self, given: &GivenParameters) -> Result<Parameters, ParameterError> {
///         let samples = given.u64_within("samples", Some(100), 1..=1_000_000)?;
///         given.reject_unknown()?;
///         Ok(Parameters::new(samples))
///     }
///     fn model(&self, root: &ModelBuilder, _: &Parameters) -> Result<Box<dyn Model>, TaskError> {
///         Ok(Box::new(Level(root.parameter("level", &[1], Init::Constant(0.0))?)))
///     }
///     fn data(&self, _: Split, p: &Parameters) -> Result<Box<dyn DataSource>, TaskError> {
///         Ok(Box::new(Numbers(*p.get::<u64>()?)))
///     }
///     fn loss(&self, model: &dyn Model, batch: &Batch, mode: &Mode) -> Result<LossSum, TaskError> {
///         let error = model.forward(&batch.inputs, mode)?.f_sub(&batch.targets)?;
///         Ok(LossSum::new(error.f_square()?.f_sum(error.kind())?, batch.units))
///     }
/// }
///
/// struct Numbers(u64);
/// impl DataSource for Numbers {
///     fn len(&self) -> u64 { self.0 }
///     fn get(&self, indices: &[u64], _: AugmentationKey) -> Result<Batch, DataError> {
///         let values: Vec<f32> = indices.iter().map(|&index| index as f32).collect();
///         let targets = Tensor::f_from_slice(&values)?;
///         Ok(Batch::new(targets.f_zeros_like()?, targets, indices))
///     }
///     fn fingerprint(&self) -> Fingerprint { Fingerprint::of(self.0, "numbers", &[]) }
/// }
/// ```
pub trait Task: Send + Sync {
    /// The name in `spec.task.name`.
    fn name(&self) -> &str;

    /// Checks `spec.task.parameters` and turns it into the task's own type. Call
    /// [`GivenParameters::reject_unknown`] last, so that a misspelt field is an error.
    ///
    /// # Errors
    /// Names the field, the value and the way out.
    fn parameters(&self, given: &GivenParameters) -> Result<Parameters, ParameterError>;

    /// Objects to the rest of the configuration, for a task that makes sense only with some of it.
    ///
    /// # Errors
    /// Says what does not fit and what would.
    fn check(&self, parameters: &Parameters, training: &TrainingSpec) -> Result<(), TaskError> {
        let _ = (parameters, training);
        Ok(())
    }

    /// Builds the model; its parameters and buffers are those asked of `builder`, in this order.
    ///
    /// # Errors
    /// When libtorch refuses, or a name is used twice.
    fn model(&self, builder: &ModelBuilder, parameters: &Parameters) -> Result<Box<dyn Model>, TaskError>;

    /// Opens one split of the data.
    ///
    /// # Errors
    /// Names the file and the place in it.
    fn data(&self, split: Split, parameters: &Parameters) -> Result<Box<dyn DataSource>, TaskError>;

    /// How the sum of losses becomes a gradient.
    fn normalisation(&self) -> Normalisation {
        Normalisation::Mean
    }

    /// Units (samples, tokens) that one sample counts for in [`LossSum::count`] when nothing is missing:
    /// the nominal denominator of a step is `globalBatchSize` times this. The true one is corrected for at
    /// commit, so samples may count for less.
    ///
    /// # Errors
    /// When `parameters` are another task's.
    fn units_per_sample(&self, parameters: &Parameters) -> Result<u64, TaskError> {
        let _ = parameters;
        Ok(1)
    }

    /// The loss of one part of a step: a sum, never a mean, so that parts of any size add up.
    ///
    /// # Errors
    /// When libtorch refuses.
    fn loss(&self, model: &dyn Model, batch: &Batch, mode: &Mode) -> Result<LossSum, TaskError>;
}

/// A model: a function from inputs to outputs, with its parameters inside.
pub trait Model: Send {
    /// Computes the outputs for a batch of inputs.
    ///
    /// # Errors
    /// When libtorch refuses, for example because of a shape.
    fn forward(&self, input: &Tensor, mode: &Mode) -> Result<Tensor, TaskError>;
}

/// How the sum of losses over a step becomes a gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Normalisation {
    /// Divided by the number of units of the step: the usual mean over the global batch.
    Mean,
    /// Not divided.
    Sum,
}

/// A task's checked parameters, in the task's own type.
#[derive(Debug)]
pub struct Parameters(Box<dyn Any + Send + Sync>);

impl Parameters {
    /// Wraps the task's own type.
    pub fn new<T: Any + Send + Sync>(parameters: T) -> Self {
        Parameters(Box::new(parameters))
    }

    /// The task's own type back.
    ///
    /// # Errors
    /// When these are the parameters of another task.
    pub fn get<T: Any>(&self) -> Result<&T, TaskError> {
        self.0.downcast_ref().ok_or_else(|| {
            TaskError::other(format!(
                "read task parameters as {}: they are of another task",
                std::any::type_name::<T>()
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_come_back_in_their_own_type_only() {
        let parameters = Parameters::new(7u64);
        assert_eq!(*parameters.get::<u64>().unwrap(), 7);
        let error = parameters.get::<String>().unwrap_err().to_string();
        assert!(
            error.contains("String") && error.contains("another task"),
            "{error}"
        );
    }
}
