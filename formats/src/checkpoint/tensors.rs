//! One group of tensors as the bytes of a safetensors file, and back.

use super::snapshot::{NamedTensor, TensorType};
use safetensors::tensor::{Dtype, SafeTensors, View};
use std::borrow::Cow;

struct Content<'a>(&'a NamedTensor);

impl View for Content<'_> {
    fn dtype(&self) -> Dtype {
        match self.0.dtype {
            TensorType::F32 => Dtype::F32,
            TensorType::F64 => Dtype::F64,
            TensorType::I64 => Dtype::I64,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.0.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.0.bytes)
    }

    fn data_len(&self) -> usize {
        self.0.bytes.len()
    }
}

/// The file that holds `tensors`. The same tensors in any order give the same bytes.
///
/// # Errors
/// Two tensors of one name, or one whose bytes do not fit its shape, named in the text.
pub(super) fn encode<'a>(tensors: impl IntoIterator<Item = &'a NamedTensor>) -> Result<Vec<u8>, String> {
    let mut sorted: Vec<&NamedTensor> = tensors.into_iter().collect();
    sorted.sort_by(|a, b| a.name.cmp(&b.name));
    for pair in sorted.windows(2) {
        if pair[0].name == pair[1].name {
            return Err(format!("two tensors are named {}", pair[0].name));
        }
    }
    for t in &sorted {
        let elements = t.shape.iter().try_fold(1usize, |n, size| n.checked_mul(*size));
        if elements.and_then(|n| n.checked_mul(t.dtype.bytes())) != Some(t.bytes.len()) {
            return Err(format!("{} has {} bytes of content", t.spec(), t.bytes.len()));
        }
    }
    safetensors::serialize(sorted.into_iter().map(|t| (t.name.as_str(), Content(t))), None)
        .map_err(|e| e.to_string())
}

/// The tensors in `file`, sorted by name.
///
/// # Errors
/// When it is no safetensors file or holds an element type that checkpoints do not have.
pub(super) fn decode(file: &[u8]) -> Result<Vec<NamedTensor>, String> {
    let parsed = SafeTensors::deserialize(file).map_err(|e| e.to_string())?;
    let mut tensors = Vec::with_capacity(parsed.len());
    for (name, view) in parsed.iter() {
        let dtype = match view.dtype() {
            Dtype::F32 => TensorType::F32,
            Dtype::F64 => TensorType::F64,
            Dtype::I64 => TensorType::I64,
            other => return Err(format!("{name} has element type {other:?}")),
        };
        tensors.push(NamedTensor {
            name: name.to_owned(),
            dtype,
            shape: view.shape().to_vec(),
            bytes: view.data().to_vec(),
        });
    }
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(tensors)
}
