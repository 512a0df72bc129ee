//! Layers for models: parameters from a [`ModelBuilder`](crate::parameters::ModelBuilder), initialised by
//! name with PyTorch's default distributions.

mod convolution;
mod embedding;
mod linear;
mod norm;

pub use convolution::{Conv2d, ConvOptions};
pub use embedding::Embedding;
pub use linear::Linear;
pub use norm::{BatchNorm2d, LayerNorm};
