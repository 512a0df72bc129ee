//! A model's parameters and buffers: how they are made, where their memory lies, how their gradients
//! become ready, what identifies them.

mod builder;
mod layout;

pub use builder::{Buffer, BuildError, Init, ModelBuilder, ModelTensors, Parameter};
pub use layout::{ParameterLayout, TensorShape};
