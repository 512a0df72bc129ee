//! The border to libtorch. What tch does not offer goes through the C++ shim; [`ffi`] and [`memory`] are
//! the only modules of this crate with unsafe code, and everything that they export is safe to call.

mod error;
#[allow(unsafe_code)]
mod ffi;
#[allow(unsafe_code)]
mod memory;

pub use error::TorchError;
pub use ffi::{
    AdamWLists, AdamWScalars, GradientHook, SgdLists, SgdScalars, fused_adamw, fused_sgd, hook_gradient,
    intra_op_threads, set_gradient, set_threads,
};
pub use memory::{lend, read_bytes, read_elements, write_elements};

#[cfg(test)]
mod tests;
