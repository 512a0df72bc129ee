//! Normalisation layers.

use crate::parameters::{BuildError, Init, ModelBuilder};
use crate::task::{Mode, TaskError};
use tch::Tensor;

/// Added to a variance before its root is taken: PyTorch's default.
const EPSILON: f64 = 1e-5;

/// The weight of a batch in the running statistics: PyTorch's default.
const MOMENTUM: f64 = 0.1;

/// Normalises the last dimension of each place by itself.
#[derive(Debug)]
pub struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
    width: i64,
}

impl LayerNorm {
    /// Weight `[width]` of ones and bias `[width]` of zeros.
    ///
    /// # Errors
    /// When the builder refuses a name or a shape.
    pub fn new(builder: &ModelBuilder, width: i64) -> Result<Self, BuildError> {
        Ok(LayerNorm {
            weight: builder.parameter("weight", &[width], Init::Ones)?,
            bias: builder.parameter("bias", &[width], Init::Zeros)?,
            width,
        })
    }

    /// The normalised input.
    ///
    /// # Errors
    /// When the last dimension is not `width`.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor, TaskError> {
        Ok(input.f_layer_norm([self.width], Some(&self.weight), Some(&self.bias), EPSILON, true)?)
    }
}

/// Normalises each channel of `[samples, channels, height, width]`: in training by the statistics of the
/// micro-batch, in evaluation by the running ones. A forward pass in training moves the running
/// statistics in place; the engine restores them after each micro-batch and commits the mean change of the
/// step, so they do not depend on who computed what. It advances the counter too.
#[derive(Debug)]
pub struct BatchNorm2d {
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
}

impl BatchNorm2d {
    /// Weight `[channels]` of ones, bias `[channels]` of zeros; buffers `running_mean`, `running_var` and
    /// the counter `num_batches_tracked`.
    ///
    /// # Errors
    /// When the builder refuses a name or a shape.
    pub fn new(builder: &ModelBuilder, channels: i64) -> Result<Self, BuildError> {
        let layer = BatchNorm2d {
            weight: builder.parameter("weight", &[channels], Init::Ones)?,
            bias: builder.parameter("bias", &[channels], Init::Zeros)?,
            running_mean: builder.buffer("running_mean", &[channels], 0.0)?,
            running_var: builder.buffer("running_var", &[channels], 1.0)?,
        };
        // The engine alone advances it: it counts steps, not parts.
        let _ = builder.counter("num_batches_tracked")?;
        Ok(layer)
    }

    /// The normalised input.
    ///
    /// # Errors
    /// When the input has other channels, or in training a single value per channel.
    pub fn forward(&self, input: &Tensor, mode: &Mode) -> Result<Tensor, TaskError> {
        Ok(input.f_batch_norm(
            Some(&self.weight),
            Some(&self.bias),
            Some(&self.running_mean),
            Some(&self.running_var),
            mode.is_training(),
            MOMENTUM,
            EPSILON,
            true,
        )?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, Kind};

    #[test]
    fn batch_norm_moves_its_statistics_in_training_only_and_uses_them_in_evaluation() {
        let builder = ModelBuilder::new(1, Kind::Double, Device::Cpu);
        let layer = BatchNorm2d::new(&builder.sub("norm"), 1).unwrap();
        let tensors = builder.finish();
        let names: Vec<&str> = tensors.buffers.iter().map(|b| b.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "norm.running_mean",
                "norm.running_var",
                "norm.num_batches_tracked"
            ]
        );
        let mean = || tensors.buffers[0].tensor.double_value(&[0]);
        let variance = || tensors.buffers[1].tensor.double_value(&[0]);
        let input = Tensor::from_slice(&[1.0f64, 3.0]).reshape([2, 1, 1, 1]);

        let still = layer.forward(&input, &Mode::evaluate()).unwrap();
        assert_eq!((mean(), variance()), (0.0, 1.0));
        assert!((still.double_value(&[1, 0, 0, 0]) - 3.0 / (1.0 + EPSILON).sqrt()).abs() < 1e-12);

        let trained = layer.forward(&input, &Mode::train(1, 0, 0)).unwrap();
        assert!((mean() - 0.2).abs() < 1e-12);
        assert!(
            (variance() - (0.9 + 0.1 * 2.0)).abs() < 1e-12,
            "the running variance is the unbiased one"
        );
        assert!((trained.double_value(&[0, 0, 0, 0]) + 1.0 / (1.0 + EPSILON).sqrt()).abs() < 1e-12);
    }

    #[test]
    fn layer_norm_makes_mean_zero_and_variance_one() {
        let builder = ModelBuilder::new(1, Kind::Double, Device::Cpu);
        let layer = LayerNorm::new(&builder, 3).unwrap();
        let output = layer.forward(&Tensor::from_slice(&[1.0f64, 2.0, 3.0])).unwrap();
        let values = Vec::<f64>::try_from(output).unwrap();
        let scale = 1.0 / (2.0f64 / 3.0 + EPSILON).sqrt();
        for (value, expected) in values.iter().zip([-scale, 0.0, scale]) {
            assert!((value - expected).abs() < 1e-12);
        }
    }
}
