//! A table of vectors.

use crate::parameters::{BuildError, Init, ModelBuilder};
use crate::task::TaskError;
use tch::Tensor;

/// Integers `[..]` to vectors `[.., width]`.
#[derive(Debug)]
pub struct Embedding {
    weight: Tensor,
}

impl Embedding {
    /// Weight `[entries, width]`, normal with deviation `deviation` (PyTorch's default is 1; language
    /// models train better from 0.02).
    ///
    /// # Errors
    /// When the builder refuses a name or a shape.
    pub fn new(builder: &ModelBuilder, entries: i64, width: i64, deviation: f64) -> Result<Self, BuildError> {
        let init = Init::Normal {
            mean: 0.0,
            std: deviation,
        };
        Ok(Embedding {
            weight: builder.parameter("weight", &[entries, width], init)?,
        })
    }

    /// The vectors of `indices`.
    ///
    /// # Errors
    /// When an index is not in the table.
    pub fn forward(&self, indices: &Tensor) -> Result<Tensor, TaskError> {
        // The gradient stays dense: buckets are flat.
        Ok(Tensor::f_embedding(&self.weight, indices, -1, false, false)?)
    }

    /// The first `count` vectors, `[count, width]`.
    ///
    /// # Errors
    /// When the table has fewer.
    pub fn first(&self, count: i64) -> Result<Tensor, TaskError> {
        Ok(self.weight.f_narrow(0, 0, count)?)
    }
}
