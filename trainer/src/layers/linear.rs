//! An affine map of the last dimension.

use crate::parameters::{BuildError, Init, ModelBuilder};
use crate::task::TaskError;
use tch::Tensor;

/// `y = x W^T + b`: `[.., inputs]` to `[.., outputs]`.
#[derive(Debug)]
pub struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    /// Weight `[outputs, inputs]` and bias `[outputs]`, both uniform in ±1/sqrt(inputs).
    ///
    /// # Errors
    /// When the builder refuses a name or a shape.
    pub fn new(builder: &ModelBuilder, inputs: i64, outputs: i64) -> Result<Self, BuildError> {
        let mut layer = Self::without_bias(builder, inputs, outputs)?;
        layer.bias = Some(builder.parameter("bias", &[outputs], Init::KaimingUniform { fan_in: inputs })?);
        Ok(layer)
    }

    /// The weight alone.
    ///
    /// # Errors
    /// As [`Linear::new`].
    pub fn without_bias(builder: &ModelBuilder, inputs: i64, outputs: i64) -> Result<Self, BuildError> {
        let init = Init::KaimingUniform { fan_in: inputs };
        Ok(Linear {
            weight: builder.parameter("weight", &[outputs, inputs], init)?,
            bias: None,
        })
    }

    /// The map.
    ///
    /// # Errors
    /// When the last dimension is not `inputs`.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor, TaskError> {
        Ok(input.f_linear(&self.weight, self.bias.as_ref())?)
    }
}
