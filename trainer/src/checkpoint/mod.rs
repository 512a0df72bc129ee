//! Checkpoints as the trainer sees them: the torch-free reading and writing of `gradsync_formats`, and
//! tensors turned into bytes and back.

mod convert;

pub use convert::{ConvertError, bytes_to_tensor, copy_into, spec_of, tensor_to_bytes};
pub use gradsync_formats::checkpoint::*;
