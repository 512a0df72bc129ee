//! Tasks whose steps are known in closed form or whose samples weigh differently.

use gradsync_formats::run_config::TrainingSpec;
use gradsync_trainer::parameters::{Init, ModelBuilder};
use gradsync_trainer::task::{
    AugmentationKey, Batch, DataError, DataSource, Fingerprint, GivenParameters, LossSum, Mode, Model,
    Normalisation, ParameterError, Parameters, Split, Task, TaskError,
};
use gradsync_trainer::tasks::Count;
use tch::Tensor;

const SAMPLES: u64 = 40;
/// A sample has between 1 and so many tokens.
const CONTEXT: u64 = 7;

/// Tokens of sample `index`.
fn length(index: u64) -> u64 {
    1 + index * index % CONTEXT
}

/// A linear fit; the loss counts tokens, of which samples have different numbers.
pub struct Tokens;

struct Line(Tensor);

impl Model for Line {
    fn forward(&self, input: &Tensor, _: &Mode) -> Result<Tensor, TaskError> {
        Ok(input.f_matmul(&self.0)?)
    }
}

impl Task for Tokens {
    fn name(&self) -> &str {
        "tokens"
    }

    fn parameters(&self, given: &GivenParameters) -> Result<Parameters, ParameterError> {
        given.reject_unknown()?;
        Ok(Parameters::new(()))
    }

    fn model(&self, builder: &ModelBuilder, _: &Parameters) -> Result<Box<dyn Model>, TaskError> {
        let init = Init::Normal { mean: 0.0, std: 1.0 };
        Ok(Box::new(Line(builder.parameter("weight", &[4], init)?)))
    }

    fn data(&self, _: Split, _: &Parameters) -> Result<Box<dyn DataSource>, TaskError> {
        Ok(Box::new(Sentences))
    }

    fn units_per_sample(&self, _: &Parameters) -> Result<u64, TaskError> {
        Ok(CONTEXT)
    }

    fn loss(&self, model: &dyn Model, batch: &Batch, mode: &Mode) -> Result<LossSum, TaskError> {
        // Inputs are [samples, tokens, 5]: four features and whether the token is there.
        let there = batch.inputs.f_select(2, 4)?;
        let answer = model.forward(&batch.inputs.f_narrow(2, 0, 4)?, mode)?;
        let error = answer.f_sub(&batch.targets)?.f_mul(&there)?;
        Ok(LossSum::new(error.f_square()?.f_sum(error.kind())?, batch.units))
    }
}

struct Sentences;

impl DataSource for Sentences {
    fn len(&self) -> u64 {
        SAMPLES
    }

    fn get(&self, indices: &[u64], _: AugmentationKey) -> Result<Batch, DataError> {
        let (mut inputs, mut targets) = (Vec::new(), Vec::new());
        for index in indices {
            for token in 0..CONTEXT {
                let x = (index * CONTEXT + token) as f64;
                let there = f64::from(u8::from(token < length(*index)));
                inputs.extend([x.sin(), x.cos(), (x * 0.37).sin(), 1.0, there]);
                targets.push((x * 0.11).cos() * 2.0);
            }
        }
        let shape = [indices.len() as i64, CONTEXT as i64];
        let batch = Batch::new(
            Tensor::f_from_slice(&inputs)?.f_view([shape[0], shape[1], 5])?,
            Tensor::f_from_slice(&targets)?.f_view(shape)?,
            indices,
        );
        Ok(batch.with_units(indices.iter().copied().map(length).sum()))
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(SAMPLES, "tokens", &[])
    }
}

/// `count`, but with the mean over the step: each use of a sample adds 1 / samples of that step.
pub struct MeanCount;

impl Task for MeanCount {
    fn name(&self) -> &str {
        "mean-count"
    }

    fn parameters(&self, given: &GivenParameters) -> Result<Parameters, ParameterError> {
        Count.parameters(given)
    }

    fn check(&self, parameters: &Parameters, training: &TrainingSpec) -> Result<(), TaskError> {
        Count.check(parameters, training)
    }

    fn model(&self, builder: &ModelBuilder, parameters: &Parameters) -> Result<Box<dyn Model>, TaskError> {
        Count.model(builder, parameters)
    }

    fn data(&self, split: Split, parameters: &Parameters) -> Result<Box<dyn DataSource>, TaskError> {
        Count.data(split, parameters)
    }

    fn normalisation(&self) -> Normalisation {
        Normalisation::Mean
    }

    fn loss(&self, model: &dyn Model, batch: &Batch, mode: &Mode) -> Result<LossSum, TaskError> {
        Count.loss(model, batch, mode)
    }
}
