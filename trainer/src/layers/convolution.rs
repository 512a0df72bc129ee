//! A convolution over two dimensions.

use crate::parameters::{BuildError, Init, ModelBuilder};
use crate::task::TaskError;
use tch::Tensor;

/// Shape of a convolution. Leave the bias out before a BatchNorm: it subtracts the mean, so that the
/// bias's true gradient is zero, and an adaptive optimiser would turn rounding errors into steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvOptions {
    /// Height and width of the kernel.
    pub kernel: i64,
    /// Distance between two applications.
    pub stride: i64,
    /// Zeros put around the input on each side.
    pub padding: i64,
    /// Whether to add a bias.
    pub bias: bool,
}

/// `[samples, inputs, height, width]` to `[samples, outputs, height', width']`.
#[derive(Debug)]
pub struct Conv2d {
    weight: Tensor,
    bias: Option<Tensor>,
    options: ConvOptions,
}

impl Conv2d {
    /// Weight `[outputs, inputs, kernel, kernel]` and bias `[outputs]`, both uniform in ±1/sqrt(inputs *
    /// kernel²).
    ///
    /// # Errors
    /// When the builder refuses a name or a shape.
    pub fn new(
        builder: &ModelBuilder,
        inputs: i64,
        outputs: i64,
        options: ConvOptions,
    ) -> Result<Self, BuildError> {
        let kernel = options.kernel;
        let init = Init::KaimingUniform {
            fan_in: inputs * kernel * kernel,
        };
        let weight = builder.parameter("weight", &[outputs, inputs, kernel, kernel], init)?;
        let bias = options
            .bias
            .then(|| builder.parameter("bias", &[outputs], init))
            .transpose()?;
        Ok(Conv2d {
            weight,
            bias,
            options,
        })
    }

    /// The convolution.
    ///
    /// # Errors
    /// When the input has other dimensions.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor, TaskError> {
        let ConvOptions { stride, padding, .. } = self.options;
        Ok(input.f_conv2d(
            &self.weight,
            self.bias.as_ref(),
            [stride, stride],
            [padding, padding],
            [1, 1],
            1,
        )?)
    }
}
