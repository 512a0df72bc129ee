//! A model's parameters and buffers: how they are made, where their memory lies, how their gradients
//! become ready, what identifies them.

mod buffers;
mod builder;
mod digest;
mod flat;
mod hooks;
mod layout;
mod used;

pub use buffers::{BufferError, ReplicatedBuffers};
pub use builder::{Buffer, BuildError, Init, ModelBuilder, ModelTensors, Parameter};
pub use digest::{Difference, StateDigest, tensor_digest};
pub use flat::{FlatError, FlatParameters, parameter_specs};
pub use hooks::{ArmedBackward, BackwardHooks, BackwardReport, BucketSink};
pub use layout::{ParameterLayout, TensorShape};
pub use used::UsedParameters;
