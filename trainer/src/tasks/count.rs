//! A proof by counting: one parameter per sample, whose gradient is -1 for each use of the sample. Plain
//! SGD with learning rate 1 adds exactly 1 per use, so after E epochs every entry is exactly E if every
//! sample was used exactly once in each, whatever crashed or was resized on the way.

use crate::parameters::{Init, ModelBuilder};
use crate::task::{
    AugmentationKey, Batch, DataError, DataSource, Fingerprint, GivenParameters, LossSum, Mode, Model,
    Normalisation, ParameterError, Parameters, Split, Task, TaskError,
};
use gradsync_formats::run_config::{OptimizerName, ScheduleName, TrainingSpec};
use tch::{Kind, Tensor};

/// `count`: parameter `size`, the number of samples. Metric `uses`: the mean of the counts. A 32-bit float
/// counts to 2^24 exactly.
#[derive(Clone, Copy, Debug)]
pub struct Count;

impl Task for Count {
    fn name(&self) -> &str {
        "count"
    }

    fn parameters(&self, given: &GivenParameters) -> Result<Parameters, ParameterError> {
        let size = given.u64_within("size", None, 1..=1 << 30)?;
        given.reject_unknown()?;
        Ok(Parameters::new(Size(size)))
    }

    fn check(&self, _: &Parameters, training: &TrainingSpec) -> Result<(), TaskError> {
        let optimizer = &training.optimizer;
        let wrong = |field: &str, value: String, way_out: &str| {
            Err(TaskError::other(format!(
                "spec.training.optimizer.{field}: {value} does not count; task count needs {way_out}"
            )))
        };
        if optimizer.name != OptimizerName::Sgd {
            return wrong("name", format!("{:?}", optimizer.name), "SGD");
        }
        if optimizer.learning_rate != 1.0 {
            return wrong("learningRate", optimizer.learning_rate.to_string(), "1");
        }
        if optimizer.momentum != 0.0 {
            return wrong("momentum", optimizer.momentum.to_string(), "0");
        }
        if optimizer.weight_decay != 0.0 {
            return wrong("weightDecay", optimizer.weight_decay.to_string(), "0");
        }
        if let Some(norm) = optimizer.clip_norm {
            return wrong("clipNorm", norm.to_string(), "none");
        }
        if optimizer.schedule.name != ScheduleName::Constant {
            return wrong(
                "schedule.name",
                format!("{:?}", optimizer.schedule.name),
                "Constant",
            );
        }
        if optimizer.schedule.warmup_steps != 0 {
            return wrong(
                "schedule.warmupSteps",
                optimizer.schedule.warmup_steps.to_string(),
                "0",
            );
        }
        Ok(())
    }

    fn model(&self, builder: &ModelBuilder, p: &Parameters) -> Result<Box<dyn Model>, TaskError> {
        let size = p.get::<Size>()?.0 as i64;
        Ok(Box::new(Counts(builder.parameter(
            "count",
            &[size],
            Init::Zeros,
        )?)))
    }

    fn data(&self, _: Split, p: &Parameters) -> Result<Box<dyn DataSource>, TaskError> {
        Ok(Box::new(*p.get::<Size>()?))
    }

    fn normalisation(&self) -> Normalisation {
        Normalisation::Sum
    }

    fn loss(&self, model: &dyn Model, batch: &Batch, mode: &Mode) -> Result<LossSum, TaskError> {
        let counts = model.forward(&batch.inputs, mode)?;
        let loss = LossSum::new(counts.f_sum(counts.kind())?.f_neg()?, batch.units);
        if mode.is_training() {
            return Ok(loss);
        }
        let uses = counts.f_sum(Kind::Double)?.f_double_value(&[])?;
        Ok(loss.with_metric("uses", uses))
    }
}

/// The data: the numbers below it.
#[derive(Clone, Copy, Debug)]
struct Size(u64);

#[derive(Debug)]
struct Counts(Tensor);

impl Model for Counts {
    fn forward(&self, input: &Tensor, _: &Mode) -> Result<Tensor, TaskError> {
        Ok(self.0.f_index_select(0, input)?)
    }
}

impl DataSource for Size {
    fn len(&self) -> u64 {
        self.0
    }

    fn get(&self, indices: &[u64], _: AugmentationKey) -> Result<Batch, DataError> {
        if let Some(&index) = indices.iter().find(|index| **index >= self.0) {
            return Err(DataError::NoSuchSample { index, len: self.0 });
        }
        let numbers: Vec<i64> = indices.iter().map(|&index| index as i64).collect();
        let inputs = Tensor::f_from_slice(&numbers)?;
        let targets = inputs.shallow_clone();
        Ok(Batch::new(inputs, targets, indices))
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(self.0, "count", &[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gradsync_formats::run_config::{Length, OptimizerSpec, ScheduleSpec};

    #[test]
    fn count_refuses_an_optimiser_that_does_not_count() {
        let plain = || TrainingSpec {
            global_batch_size: 10,
            length: Length::Epochs(3),
            seed: 1,
            optimizer: OptimizerSpec {
                name: OptimizerName::Sgd,
                learning_rate: 1.0,
                weight_decay: 0.0,
                no_decay: vec![],
                betas: (0.9, 0.999),
                eps: 1e-8,
                momentum: 0.0,
                nesterov: false,
                clip_norm: None,
                schedule: ScheduleSpec {
                    name: ScheduleName::Constant,
                    warmup_steps: 0,
                    total_steps: None,
                    min_learning_rate: 0.0,
                    decay_steps: 0,
                },
            },
            evaluate_every_steps: None,
        };
        let check = |change: &dyn Fn(&mut OptimizerSpec)| {
            let mut training = plain();
            change(&mut training.optimizer);
            Count
                .check(&Parameters::new(()), &training)
                .map_err(|error| error.to_string())
        };
        assert_eq!(check(&|_| {}), Ok(()));
        for (change, field) in [
            (
                &(|o: &mut OptimizerSpec| o.name = OptimizerName::AdamW) as &dyn Fn(&mut OptimizerSpec),
                "name: AdamW",
            ),
            (&|o| o.learning_rate = 0.5, "learningRate: 0.5"),
            (&|o| o.momentum = 0.9, "momentum: 0.9"),
            (&|o| o.weight_decay = 0.1, "weightDecay: 0.1"),
            (&|o| o.clip_norm = Some(2.0), "clipNorm: 2"),
            (
                &|o| o.schedule.name = ScheduleName::Cosine,
                "schedule.name: Cosine",
            ),
            (&|o| o.schedule.warmup_steps = 5, "schedule.warmupSteps: 5"),
        ] {
            let error = check(change).unwrap_err();
            assert!(
                error.starts_with(&format!("spec.training.optimizer.{field} does not count")),
                "{error}"
            );
        }
    }
}
