//! A task with a parameter that every sample uses, one that only every eighth sample uses, and one that
//! none does.

use gradsync_formats::order::Order;
use gradsync_trainer::parameters::{Init, ModelBuilder};
use gradsync_trainer::task::{
    AugmentationKey, Batch, DataError, DataSource, Fingerprint, GivenParameters, LossSum, Mode, Model,
    ParameterError, Parameters, Split, Task, TaskError,
};
use serde_json::{Value, json};
use tch::{Kind, Tensor};

pub const SAMPLES: u64 = 64;
pub const BATCH: u64 = 4;
const SEED: u64 = 3;

/// A job of two epochs, in parts of one sample each.
pub fn spec(optimizer: &Value) -> Value {
    json!({
        "task": {"name": "sometimes"},
        "training": {"globalBatchSize": BATCH, "epochs": 2, "seed": SEED, "optimizer": optimizer},
        "accumulation": {"microBatchSize": 1},
        "precision": {"mode": "fp64"},
        "workers": {"replicas": 1},
    })
}

/// How many samples of the step after `commit - 1` others use the parameter that few use.
pub fn uses(commit: u64) -> usize {
    let steps = SAMPLES / BATCH;
    let order = Order::new(SEED, (commit - 1) / steps, SAMPLES);
    let batch = order.batch((commit - 1) % steps * BATCH, BATCH);
    batch.filter(|index| index % 8 == 0).count()
}

pub struct Sometimes;

struct Three {
    always: Tensor,
    sometimes: Tensor,
    _never: Tensor,
}

impl Model for Three {
    fn forward(&self, input: &Tensor, _: &Mode) -> Result<Tensor, TaskError> {
        let base = input.f_matmul(&self.always)?;
        let eighth = input.f_select(1, 1)?;
        if eighth.f_sum(Kind::Double)?.f_double_value(&[])? == 0.0 {
            return Ok(base);
        }
        Ok(base.f_add(&eighth.f_mul(&self.sometimes.f_sum(self.sometimes.kind())?)?)?)
    }
}

impl Task for Sometimes {
    fn name(&self) -> &str {
        "sometimes"
    }

    fn parameters(&self, given: &GivenParameters) -> Result<Parameters, ParameterError> {
        given.reject_unknown()?;
        Ok(Parameters::new(()))
    }

    fn model(&self, builder: &ModelBuilder, _: &Parameters) -> Result<Box<dyn Model>, TaskError> {
        Ok(Box::new(Three {
            always: builder.parameter("always", &[2], Init::Constant(0.5))?,
            sometimes: builder.parameter("sometimes", &[3], Init::Constant(0.25))?,
            _never: builder.parameter("never", &[4], Init::Constant(0.75))?,
        }))
    }

    fn data(&self, _: Split, _: &Parameters) -> Result<Box<dyn DataSource>, TaskError> {
        Ok(Box::new(Numbers))
    }

    fn loss(&self, model: &dyn Model, batch: &Batch, mode: &Mode) -> Result<LossSum, TaskError> {
        let error = model.forward(&batch.inputs, mode)?.f_sub(&batch.targets)?;
        Ok(LossSum::new(error.f_square()?.f_sum(error.kind())?, batch.units))
    }
}

struct Numbers;

impl DataSource for Numbers {
    fn len(&self) -> u64 {
        SAMPLES
    }

    fn get(&self, indices: &[u64], _: AugmentationKey) -> Result<Batch, DataError> {
        let inputs: Vec<f64> = indices
            .iter()
            .flat_map(|index| [*index as f64 / 64.0, f64::from(u8::from(index % 8 == 0))])
            .collect();
        let targets: Vec<f64> = indices.iter().map(|index| (*index as f64).sin()).collect();
        Ok(Batch::new(
            Tensor::f_from_slice(&inputs)?.f_view([-1, 2])?,
            Tensor::f_from_slice(&targets)?,
            indices,
        ))
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(SAMPLES, "sometimes", &[])
    }
}
