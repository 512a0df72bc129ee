//! The border to libtorch. Everything that tch does not offer goes through the C++ shim; the shim's
//! declarations are the only unsafe code of this crate.

mod error;

pub use error::TorchError;
