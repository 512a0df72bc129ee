//! Classes of grey images.

use super::classification;
use crate::data::images::{ImageOptions, Images};
use crate::layers::{BatchNorm2d, Conv2d, ConvOptions, Linear};
use crate::parameters::{BuildError, ModelBuilder};
use crate::task::{
    Batch, DataSource, GivenParameters, LossSum, Mode, Model, ParameterError, Parameters, Split, Task,
    TaskError,
};
use std::path::PathBuf;
use tch::Tensor;

/// `image-classification`. Parameters:
///
/// | field | default | meaning |
/// |---|---|---|
/// | `model` | `cnn` | `mlp`, `cnn` or `cnn-bn` (with BatchNorm) |
/// | `data` | required | directory of the four IDX files, compressed or not |
/// | `augment` | false | shift by up to 2 pixels and mirror training samples at random |
/// | `dropout` | 0 | probability, before each of the last two layers |
/// | `imageSize`, `classes` | 28, 10 | what the files hold |
/// | `limit`, `testLimit` | all | use only the first so many samples |
///
/// Metric: `accuracy`.
#[derive(Clone, Copy, Debug)]
pub struct ImageClassification;

#[derive(Clone, Debug)]
struct Options {
    architecture: Architecture,
    data: PathBuf,
    dropout: f64,
    images: ImageOptions,
    test_limit: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Architecture {
    Mlp,
    Cnn { batch_norm: bool },
}

impl Task for ImageClassification {
    fn name(&self) -> &str {
        "image-classification"
    }

    fn parameters(&self, given: &GivenParameters) -> Result<Parameters, ParameterError> {
        let architecture = match given.choice("model", &["cnn", "cnn-bn", "mlp"])? {
            "mlp" => Architecture::Mlp,
            name => Architecture::Cnn {
                batch_norm: name == "cnn-bn",
            },
        };
        let options = Options {
            architecture,
            data: given.path("data", "/data/fashion-mnist")?,
            dropout: given.f64_within("dropout", 0.0, 0.0..=0.95)?,
            images: ImageOptions {
                size: given.u64_within("imageSize", Some(28), 8..=256)? as usize,
                classes: given.u64_within("classes", Some(10), 2..=255)? as u8,
                augment: given.bool_or("augment", false)?,
                limit: given.optional_count("limit")?,
            },
            test_limit: given.optional_count("testLimit")?,
        };
        given.reject_unknown()?;
        Ok(Parameters::new(options))
    }

    fn model(&self, builder: &ModelBuilder, p: &Parameters) -> Result<Box<dyn Model>, TaskError> {
        let options = p.get::<Options>()?;
        let (size, classes) = (options.images.size as i64, i64::from(options.images.classes));
        Ok(match options.architecture {
            Architecture::Mlp => Box::new(Mlp {
                hidden1: Linear::new(&builder.sub("hidden1"), size * size, 256)?,
                hidden2: Linear::new(&builder.sub("hidden2"), 256, 128)?,
                output: Linear::new(&builder.sub("output"), 128, classes)?,
                dropout: options.dropout,
            }),
            Architecture::Cnn { batch_norm } => Box::new(Cnn {
                stage1: Stage::new(&builder.sub("stage1"), 1, 32, batch_norm)?,
                stage2: Stage::new(&builder.sub("stage2"), 32, 64, batch_norm)?,
                hidden: Linear::new(&builder.sub("hidden"), 64 * (size / 4) * (size / 4), 128)?,
                output: Linear::new(&builder.sub("output"), 128, classes)?,
                dropout: options.dropout,
            }),
        })
    }

    fn data(&self, split: Split, p: &Parameters) -> Result<Box<dyn DataSource>, TaskError> {
        let options = p.get::<Options>()?;
        let images = match split {
            Split::Train => options.images,
            Split::Test => ImageOptions {
                augment: false,
                limit: options.test_limit,
                ..options.images
            },
        };
        Ok(Box::new(Images::open(&options.data, split, images)?))
    }

    fn loss(&self, model: &dyn Model, batch: &Batch, mode: &Mode) -> Result<LossSum, TaskError> {
        classification(
            &model.forward(&batch.inputs, mode)?,
            &batch.targets,
            batch.units,
            mode,
        )
    }
}

/// Two hidden layers on the pixels.
#[derive(Debug)]
struct Mlp {
    hidden1: Linear,
    hidden2: Linear,
    output: Linear,
    dropout: f64,
}

impl Model for Mlp {
    fn forward(&self, input: &Tensor, mode: &Mode) -> Result<Tensor, TaskError> {
        let hidden = self.hidden1.forward(&input.f_flatten(1, -1)?)?.f_relu()?;
        let hidden = self
            .hidden2
            .forward(&mode.dropout(&hidden, self.dropout)?)?
            .f_relu()?;
        self.output.forward(&mode.dropout(&hidden, self.dropout)?)
    }
}

/// Two stages of convolution and pooling, then two linear layers.
#[derive(Debug)]
struct Cnn {
    stage1: Stage,
    stage2: Stage,
    hidden: Linear,
    output: Linear,
    dropout: f64,
}

impl Model for Cnn {
    fn forward(&self, input: &Tensor, mode: &Mode) -> Result<Tensor, TaskError> {
        let features = self.stage2.forward(&self.stage1.forward(input, mode)?, mode)?;
        let features = mode.dropout(&features.f_flatten(1, -1)?, self.dropout)?;
        let hidden = self.hidden.forward(&features)?.f_relu()?;
        self.output.forward(&mode.dropout(&hidden, self.dropout)?)
    }
}

/// Convolution 3 x 3, BatchNorm if wanted, and the largest of each 2 x 2.
#[derive(Debug)]
struct Stage {
    convolution: Conv2d,
    norm: Option<BatchNorm2d>,
}

impl Stage {
    fn new(builder: &ModelBuilder, inputs: i64, outputs: i64, batch_norm: bool) -> Result<Self, BuildError> {
        let options = ConvOptions {
            kernel: 3,
            stride: 1,
            padding: 1,
            bias: !batch_norm,
        };
        Ok(Stage {
            convolution: Conv2d::new(&builder.sub("convolution"), inputs, outputs, options)?,
            norm: batch_norm
                .then(|| BatchNorm2d::new(&builder.sub("norm"), outputs))
                .transpose()?,
        })
    }

    fn forward(&self, input: &Tensor, mode: &Mode) -> Result<Tensor, TaskError> {
        let mut features = self.convolution.forward(input)?;
        if let Some(norm) = &self.norm {
            features = norm.forward(&features, mode)?;
        }
        // The order of the two does not matter to the result; pooling first leaves a quarter to rectify.
        Ok(features
            .f_max_pool2d([2, 2], [2, 2], [0, 0], [1, 1], false)?
            .f_relu()?)
    }
}
