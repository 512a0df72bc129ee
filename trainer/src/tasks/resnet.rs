//! ResNet-18 for small colour images (He et al. 2015, the form for 32 x 32 pixels: a 3 x 3 stem and no
//! first pooling).

use crate::layers::{BatchNorm2d, Conv2d, ConvOptions, Linear};
use crate::parameters::{BuildError, ModelBuilder};
use crate::task::{Mode, Model, TaskError};
use tch::Tensor;

/// Images `[samples, 3, height, width]` to scores `[samples, classes]`.
#[derive(Debug)]
pub struct ResNet18 {
    stem: Unit,
    blocks: Vec<Block>,
    output: Linear,
}

impl ResNet18 {
    /// Registers the model's parameters and buffers.
    ///
    /// # Errors
    /// When the builder refuses a name or a shape.
    pub fn new(builder: &ModelBuilder, classes: i64) -> Result<Self, BuildError> {
        let stem = Unit::new(&builder.sub("stem"), 3, 64, 3, 1)?;
        let mut blocks = Vec::new();
        let mut inputs = 64;
        for (stage, (outputs, stride)) in [(64, 1), (128, 2), (256, 2), (512, 2)].into_iter().enumerate() {
            let stage = builder.sub(format!("stage{}", stage + 1));
            blocks.push(Block::new(&stage.sub(0), inputs, outputs, stride)?);
            blocks.push(Block::new(&stage.sub(1), outputs, outputs, 1)?);
            inputs = outputs;
        }
        Ok(ResNet18 {
            stem,
            blocks,
            output: Linear::new(&builder.sub("output"), inputs, classes)?,
        })
    }
}

impl Model for ResNet18 {
    fn forward(&self, input: &Tensor, mode: &Mode) -> Result<Tensor, TaskError> {
        let mut features = self.stem.forward(input, mode)?.f_relu()?;
        for block in &self.blocks {
            features = block.forward(&features, mode)?;
        }
        self.output
            .forward(&features.f_adaptive_avg_pool2d([1, 1])?.f_flatten(1, -1)?)
    }
}

/// Two convolutions beside a shortcut.
#[derive(Debug)]
struct Block {
    first: Unit,
    second: Unit,
    shortcut: Option<Unit>,
}

impl Block {
    fn new(builder: &ModelBuilder, inputs: i64, outputs: i64, stride: i64) -> Result<Self, BuildError> {
        Ok(Block {
            first: Unit::new(&builder.sub("first"), inputs, outputs, 3, stride)?,
            second: Unit::new(&builder.sub("second"), outputs, outputs, 3, 1)?,
            shortcut: (inputs != outputs || stride != 1)
                .then(|| Unit::new(&builder.sub("shortcut"), inputs, outputs, 1, stride))
                .transpose()?,
        })
    }

    fn forward(&self, input: &Tensor, mode: &Mode) -> Result<Tensor, TaskError> {
        let features = self.first.forward(input, mode)?.f_relu()?;
        let features = self.second.forward(&features, mode)?;
        let sum = match &self.shortcut {
            Some(shortcut) => features.f_add(&shortcut.forward(input, mode)?)?,
            None => features.f_add(input)?,
        };
        Ok(sum.f_relu()?)
    }
}

/// A convolution without bias, and BatchNorm.
#[derive(Debug)]
struct Unit {
    convolution: Conv2d,
    norm: BatchNorm2d,
}

impl Unit {
    fn new(
        builder: &ModelBuilder,
        inputs: i64,
        outputs: i64,
        kernel: i64,
        stride: i64,
    ) -> Result<Self, BuildError> {
        let options = ConvOptions {
            kernel,
            stride,
            padding: kernel / 2,
            bias: false,
        };
        Ok(Unit {
            convolution: Conv2d::new(&builder.sub("convolution"), inputs, outputs, options)?,
            norm: BatchNorm2d::new(&builder.sub("norm"), outputs)?,
        })
    }

    fn forward(&self, input: &Tensor, mode: &Mode) -> Result<Tensor, TaskError> {
        self.norm.forward(&self.convolution.forward(input)?, mode)
    }
}
