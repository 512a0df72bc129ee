//! Names, shapes and types of a model's tensors, in order: what must be equal for two members to train
//! together and for a checkpoint to be readable.

use gradsync_formats::digest::sha256_hex;
use serde::{Deserialize, Serialize};
use tch::Kind;

/// One tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorShape {
    /// Full name.
    pub name: String,
    /// Element type: `float32`, `float64` or `int64`.
    pub kind: String,
    /// Sizes, outermost first.
    pub shape: Vec<i64>,
}

impl TensorShape {
    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.shape.iter().map(|size| *size as u64).product()
    }
}

/// All tensors of a model, in order of registration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParameterLayout {
    /// Trained tensors.
    pub parameters: Vec<TensorShape>,
    /// State without gradients.
    pub buffers: Vec<TensorShape>,
}

impl ParameterLayout {
    /// SHA-256 over all names, types and shapes in order, hex.
    #[must_use]
    pub fn digest(&self) -> String {
        let mut text = String::new();
        for (section, tensors) in [("parameter", &self.parameters), ("buffer", &self.buffers)] {
            for tensor in tensors {
                // Names hold no spaces and no line ends, so the text is unambiguous.
                text += &format!("{section} {} {} {:?}\n", tensor.name, tensor.kind, tensor.shape);
            }
        }
        sha256_hex(text.as_bytes())
    }

    /// Elements of all parameters.
    #[must_use]
    pub fn parameter_elements(&self) -> u64 {
        self.parameters.iter().map(TensorShape::elements).sum()
    }
}

/// The name of an element type in layouts and digests.
pub(super) fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Float => "float32",
        Kind::Double => "float64",
        Kind::Int64 => "int64",
        Kind::Half => "float16",
        Kind::BFloat16 => "bfloat16",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::{Init, ModelBuilder};
    use tch::Device;

    fn layout(kind: Kind, first: &str, second: &str, size: i64) -> ParameterLayout {
        let root = ModelBuilder::new(1, kind, Device::Cpu);
        let _ = root.parameter(first, &[2, size], Init::Zeros).unwrap();
        let _ = root.parameter(second, &[size], Init::Zeros).unwrap();
        let _ = root.buffer("mean", &[size], 0.0).unwrap();
        root.finish().layout()
    }

    #[test]
    fn every_difference_in_name_order_shape_or_type_changes_the_digest() {
        let base = layout(Kind::Float, "a", "b", 3);
        assert_eq!(base.digest(), layout(Kind::Float, "a", "b", 3).digest());
        assert_eq!(base.parameter_elements(), 9);
        for other in [
            layout(Kind::Double, "a", "b", 3),
            layout(Kind::Float, "b", "a", 3),
            layout(Kind::Float, "a", "c", 3),
            layout(Kind::Float, "a", "b", 4),
        ] {
            assert_ne!(base.digest(), other.digest());
        }
        let mut moved = base.clone();
        let parameter = moved.parameters.pop().unwrap();
        moved.buffers.insert(0, parameter);
        assert_ne!(base.digest(), moved.digest());
    }

    #[test]
    fn the_digest_is_fixed_for_ever() {
        // Checkpoints carry it: a change makes every older checkpoint unreadable.
        let text = "parameter a float32 [2, 3]\nparameter b float32 [3]\nbuffer mean float32 [3]\n";
        assert_eq!(
            layout(Kind::Float, "a", "b", 3).digest(),
            sha256_hex(text.as_bytes())
        );
    }
}
