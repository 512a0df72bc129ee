//! Made-up samples for benchmarks: the arithmetic of well-known models without a file.

use super::gpt::{Gpt, GptOptions};
use super::resnet::ResNet18;
use super::{classification, cross_entropy};
use crate::layers::Linear;
use crate::parameters::ModelBuilder;
use crate::random::{Key, fill_normal};
use crate::task::{
    AugmentationKey, Batch, DataError, DataSource, Fingerprint, GivenParameters, LossSum, Mode, Model,
    ParameterError, Parameters, Split, Task, TaskError,
};
use tch::Tensor;

/// `synthetic`. Parameters: `model`, one of `mlp` (24.9 million parameters), `gpt` (5.3 million) and
/// `resnet-18` (11.2 million); `samples` and `testSamples` (1024 and 64), all in memory.
#[derive(Clone, Copy, Debug)]
pub struct Synthetic;

#[derive(Clone, Copy, Debug)]
struct Options {
    model: Kind,
    samples: u64,
    test_samples: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Mlp,
    Gpt,
    ResNet18,
}

/// Widths of the layers of `mlp`.
const MLP: [i64; 6] = [1024, 2560, 2560, 2560, 2560, 1024];
/// Shape of `gpt`.
const GPT: GptOptions = GptOptions {
    vocab: 4096,
    context: 128,
    width: 256,
    heads: 8,
    layers: 4,
    dropout: 0.0,
};
/// Classes of `resnet-18`.
const CLASSES: i64 = 10;

impl Task for Synthetic {
    fn name(&self) -> &str {
        "synthetic"
    }

    fn parameters(&self, given: &GivenParameters) -> Result<Parameters, ParameterError> {
        let model = match given.choice("model", &["mlp", "gpt", "resnet-18"])? {
            "gpt" => Kind::Gpt,
            "resnet-18" => Kind::ResNet18,
            _ => Kind::Mlp,
        };
        let options = Options {
            model,
            samples: given.u64_within("samples", Some(1024), 1..=1 << 20)?,
            test_samples: given.u64_within("testSamples", Some(64), 1..=1 << 20)?,
        };
        given.reject_unknown()?;
        Ok(Parameters::new(options))
    }

    fn model(&self, builder: &ModelBuilder, p: &Parameters) -> Result<Box<dyn Model>, TaskError> {
        Ok(match p.get::<Options>()?.model {
            Kind::Mlp => {
                let layers = MLP.windows(2).enumerate();
                let layers =
                    layers.map(|(at, pair)| Linear::new(&builder.sub("layers").sub(at), pair[0], pair[1]));
                Box::new(Mlp(layers.collect::<Result<_, _>>()?))
            }
            Kind::Gpt => Box::new(Gpt::new(builder, GPT)?),
            Kind::ResNet18 => Box::new(ResNet18::new(builder, CLASSES)?),
        })
    }

    fn data(&self, split: Split, p: &Parameters) -> Result<Box<dyn DataSource>, TaskError> {
        let options = p.get::<Options>()?;
        let (samples, which) = match split {
            Split::Train => (options.samples, 0),
            Split::Test => (options.test_samples, 1),
        };
        Ok(Box::new(MadeUp::new(options.model, samples, which)))
    }

    fn units_per_sample(&self, p: &Parameters) -> Result<u64, TaskError> {
        Ok(match p.get::<Options>()?.model {
            Kind::Gpt => GPT.context as u64,
            Kind::Mlp | Kind::ResNet18 => 1,
        })
    }

    fn loss(&self, model: &dyn Model, batch: &Batch, mode: &Mode) -> Result<LossSum, TaskError> {
        let scores = model.forward(&batch.inputs, mode)?;
        if scores.dim() == 3 {
            return cross_entropy(
                &scores.f_flatten(0, 1)?,
                &batch.targets.f_flatten(0, 1)?,
                batch.units,
            );
        }
        classification(&scores, &batch.targets, batch.units, mode)
    }
}

#[derive(Debug)]
struct Mlp(Vec<Linear>);

impl Model for Mlp {
    fn forward(&self, input: &Tensor, _: &Mode) -> Result<Tensor, TaskError> {
        let mut state = input.shallow_clone();
        for (at, layer) in self.0.iter().enumerate() {
            state = layer.forward(&state)?;
            if at + 1 < self.0.len() {
                state = state.f_relu()?;
            }
        }
        Ok(state)
    }
}

/// Samples drawn once from a fixed key.
#[derive(Debug)]
struct MadeUp {
    model: Kind,
    samples: u64,
    /// Normal numbers; none for `gpt`.
    numbers: Vec<f32>,
    /// Classes or, for `gpt`, one token more than the context.
    classes: Vec<i64>,
}

impl MadeUp {
    fn new(model: Kind, samples: u64, which: u64) -> Self {
        let (numbers_each, classes_each, classes) = match model {
            Kind::Mlp => (MLP[0], 1, MLP[MLP.len() - 1]),
            Kind::Gpt => (0, GPT.context + 1, GPT.vocab),
            Kind::ResNet18 => (3 * 32 * 32, 1, CLASSES),
        };
        let key = |name| Key::derive(0, "synthetic", which, 0).child(name, 0);
        let mut numbers = vec![0.0; samples as usize * numbers_each as usize];
        fill_normal(key("numbers"), 0, &mut numbers);
        let drawn = key("classes");
        let count = samples * classes_each as u64;
        MadeUp {
            model,
            samples,
            numbers: numbers.into_iter().map(|number| number as f32).collect(),
            classes: (0..count)
                .map(|at| (drawn.bits(at) % classes as u64) as i64)
                .collect(),
        }
    }
}

impl DataSource for MadeUp {
    fn len(&self) -> u64 {
        self.samples
    }

    fn get(&self, indices: &[u64], _: AugmentationKey) -> Result<Batch, DataError> {
        if let Some(&index) = indices.iter().find(|index| **index >= self.samples) {
            let len = self.samples;
            return Err(DataError::NoSuchSample { index, len });
        }
        fn rows<T: Copy>(all: &[T], samples: u64, indices: &[u64]) -> Vec<T> {
            let each = all.len() / samples as usize;
            let row = |index: &u64| &all[*index as usize * each..][..each];
            indices.iter().flat_map(row).copied().collect()
        }
        let count = indices.len() as i64;
        let classes = Tensor::f_from_slice(&rows(&self.classes, self.samples, indices))?;
        if self.model == Kind::Gpt {
            let tokens = classes.f_reshape([count, GPT.context + 1])?;
            let inputs = tokens.f_narrow(1, 0, GPT.context)?.f_contiguous()?;
            let targets = tokens.f_narrow(1, 1, GPT.context)?.f_contiguous()?;
            let units = indices.len() as u64 * GPT.context as u64;
            return Ok(Batch::new(inputs, targets, indices).with_units(units));
        }
        let inputs = Tensor::f_from_slice(&rows(&self.numbers, self.samples, indices))?;
        let inputs = match self.model {
            Kind::ResNet18 => inputs.f_reshape([count, 3, 32, 32])?,
            Kind::Mlp | Kind::Gpt => inputs.f_reshape([count, MLP[0]])?,
        };
        Ok(Batch::new(inputs, classes, indices))
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(self.samples, &format!("synthetic {:?}", self.model), &[])
    }
}
