//! Tensors to bytes and back, bit for bit.

use gradsync_formats::checkpoint::{NamedTensor, TensorSpec, TensorType};
use tch::{Kind, TchError, Tensor};

// Checkpoints are little-endian; the copies below take the machine's own order.
const _: () = assert!(
    cfg!(target_endian = "little"),
    "checkpoints need a little-endian machine"
);

/// Why a tensor could not be converted.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// An element type that checkpoints do not hold.
    #[error("convert {name}: element type {kind:?} is none of float32, float64 and int64")]
    Kind {
        /// The tensor's name.
        name: String,
        /// Its element type.
        kind: Kind,
    },
    /// The bytes do not fit the shape.
    #[error("convert {spec}: it needs {needed} bytes and has {found}")]
    Size {
        /// What the tensor is to be.
        spec: TensorSpec,
        /// Bytes of such a tensor.
        needed: usize,
        /// Bytes that are there.
        found: usize,
    },
    /// The tensor to be filled is another one.
    #[error("fill {there} from a checkpoint's {given}: names, types and shapes must be equal")]
    Other {
        /// The tensor to be filled.
        there: TensorSpec,
        /// The content.
        given: TensorSpec,
    },
    /// libtorch refused.
    #[error("convert {name}: {source}")]
    Torch {
        /// The tensor's name.
        name: String,
        /// Its reason.
        source: TchError,
    },
}

fn torch(name: &str) -> impl FnOnce(TchError) -> ConvertError {
    let name = name.to_owned();
    move |source| ConvertError::Torch { name, source }
}

/// Name, element type and shape of `tensor`.
///
/// # Errors
/// When checkpoints do not hold its element type.
pub fn spec_of(name: &str, tensor: &Tensor) -> Result<TensorSpec, ConvertError> {
    let dtype = match tensor.f_kind().map_err(torch(name))? {
        Kind::Float => TensorType::F32,
        Kind::Double => TensorType::F64,
        Kind::Int64 => TensorType::I64,
        kind => {
            return Err(ConvertError::Kind {
                name: name.to_owned(),
                kind,
            });
        }
    };
    // libtorch never reports a negative size.
    let shape = tensor
        .size()
        .iter()
        .map(|size| size.unsigned_abs() as usize)
        .collect();
    Ok(TensorSpec {
        name: name.to_owned(),
        dtype,
        shape,
    })
}

/// The content of `tensor` (of any device, strides and gradient) in row-major order.
///
/// # Errors
/// When checkpoints do not hold its element type, or libtorch cannot copy it.
pub fn tensor_to_bytes(name: &str, tensor: &Tensor) -> Result<NamedTensor, ConvertError> {
    let spec = spec_of(name, tensor)?;
    let flat = tensor
        .f_detach()
        .and_then(|t| t.f_to_device(tch::Device::Cpu))
        .and_then(|t| t.f_contiguous())
        .map_err(torch(name))?;
    let elements: usize = spec.shape.iter().product();
    let mut bytes = vec![0; elements * spec.dtype.bytes()];
    if elements > 0 {
        flat.f_copy_data_u8(&mut bytes, elements).map_err(torch(name))?;
    }
    Ok(NamedTensor {
        name: spec.name,
        dtype: spec.dtype,
        shape: spec.shape,
        bytes,
    })
}

/// A CPU tensor with the content of `named`.
///
/// # Errors
/// When its bytes do not fit its shape, or libtorch cannot make it.
pub fn bytes_to_tensor(named: &NamedTensor) -> Result<Tensor, ConvertError> {
    let spec = named.spec();
    let kind = match named.dtype {
        TensorType::F32 => Kind::Float,
        TensorType::F64 => Kind::Double,
        TensorType::I64 => Kind::Int64,
    };
    let needed = named
        .shape
        .iter()
        .try_fold(named.dtype.bytes(), |n, size| n.checked_mul(*size));
    let needed = needed.unwrap_or(usize::MAX);
    if needed != named.bytes.len() {
        let found = named.bytes.len();
        return Err(ConvertError::Size { spec, needed, found });
    }
    let size: Vec<i64> = named.shape.iter().map(|s| *s as i64).collect();
    Tensor::f_from_data_size(&named.bytes, &size, kind).map_err(torch(&named.name))
}

/// Copies the content of `named` into `target`, called `name`, in place: views of `target` (parameters in
/// flat buckets) stay views.
///
/// # Errors
/// When name, element type or shape differ, or libtorch cannot copy; `target` is then unchanged.
pub fn copy_into(name: &str, target: &Tensor, named: &NamedTensor) -> Result<(), ConvertError> {
    let there = spec_of(name, target)?;
    if there != named.spec() {
        return Err(ConvertError::Other {
            there,
            given: named.spec(),
        });
    }
    let content = bytes_to_tensor(named)?;
    tch::no_grad(|| target.shallow_clone().f_copy_(&content)).map_err(torch(name))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Device;

    fn bits(t: &Tensor) -> Vec<u8> {
        tensor_to_bytes("t", t).unwrap().bytes
    }

    #[test]
    fn every_element_type_comes_back_bit_for_bit() {
        let f32s = [
            0.1f32,
            -0.0,
            f32::NAN,
            f32::INFINITY,
            f32::MIN_POSITIVE / 2.0,
            1.0,
        ];
        let f64s = [0.1f64, -0.0, f64::NAN, f64::NEG_INFINITY, 5e-324, 1.0];
        let i64s = [i64::MIN, -1, 0, 1, 1 << 53, i64::MAX];
        for t in [
            Tensor::from_slice(&f32s).view([2, 3]),
            Tensor::from_slice(&f64s).view([3, 2]),
            Tensor::from_slice(&i64s),
            Tensor::from(7i64),
            Tensor::zeros([0, 4], (Kind::Float, Device::Cpu)),
        ] {
            let named = tensor_to_bytes("a.b", &t).unwrap();
            assert_eq!(named.name, "a.b");
            let back = bytes_to_tensor(&named).unwrap();
            assert_eq!((back.size(), back.kind()), (t.size(), t.kind()));
            assert_eq!(bits(&back), bits(&t));
        }
        assert_eq!(bits(&Tensor::from_slice(&f32s[..1])), 0.1f32.to_le_bytes());
    }

    #[test]
    fn strides_and_gradients_do_not_matter() {
        let t = Tensor::from_slice(&[1f32, 2., 3., 4., 5., 6.]).view([2, 3]);
        assert_eq!(
            bits(&t.tr()),
            bits(&Tensor::from_slice(&[1f32, 4., 2., 5., 3., 6.]))
        );
        let leaf = t.copy().set_requires_grad(true);
        assert_eq!(bits(&leaf), bits(&t));
        assert_eq!(
            bits(&t.narrow(1, 1, 2)),
            bits(&Tensor::from_slice(&[2f32, 3., 5., 6.]))
        );
    }

    #[test]
    fn filling_writes_through_views_and_refuses_another_tensor() {
        let flat = Tensor::zeros([6], (Kind::Float, Device::Cpu));
        let view = flat.narrow(0, 2, 4).view([2, 2]).set_requires_grad(true);
        let given = tensor_to_bytes("w", &Tensor::from_slice(&[1f32, 2., 3., 4.]).view([2, 2])).unwrap();
        copy_into("w", &view, &given).unwrap();
        assert_eq!(
            bits(&flat),
            bits(&Tensor::from_slice(&[0f32, 0., 1., 2., 3., 4.]))
        );
        let error = copy_into("v", &view, &given).unwrap_err().to_string();
        assert!(error.contains("v float32 [2, 2]"), "{error}");
        let error = copy_into("w", &flat, &given).unwrap_err().to_string();
        assert!(error.contains("[6]"), "{error}");
    }

    #[test]
    fn what_checkpoints_do_not_hold_is_refused() {
        let t = Tensor::zeros([2], (Kind::Half, Device::Cpu));
        assert!(matches!(
            tensor_to_bytes("h", &t).unwrap_err(),
            ConvertError::Kind { .. }
        ));
        let mut named = tensor_to_bytes("w", &Tensor::from_slice(&[1f32, 2.])).unwrap();
        named.bytes.pop();
        assert!(matches!(
            bytes_to_tensor(&named).unwrap_err(),
            ConvertError::Size { .. }
        ));
        named.shape = vec![usize::MAX, 8];
        assert!(matches!(
            bytes_to_tensor(&named).unwrap_err(),
            ConvertError::Size { .. }
        ));
    }
}
