//! Clipping by the global norm. The sum runs over all gradients in double precision in a fixed order of
//! plain Rust arithmetic, so every member gets the same bits whatever its processor or thread count.

use crate::torch::{TorchError, read_elements};
use tch::{Device, Kind, Tensor};

/// Partial sums that are added in a fixed order at the end: independent chains keep the processor busy.
const LANES: usize = 8;

/// The Euclidean norm over all elements of `gradients`. Not finite if an element is not, or if the sum of
/// squares overflows (only possible in fp64).
///
/// # Errors
/// When a tensor is neither Float nor Double.
pub fn global_norm<'a>(gradients: impl IntoIterator<Item = &'a Tensor>) -> Result<f64, TorchError> {
    let mut sum = 0.0;
    for gradient in gradients {
        sum += with_elements(gradient, |elements| match elements {
            Elements::Float(values) => squares(values.iter().map(|x| f64::from(*x))),
            Elements::Double(values) => squares(values.iter().copied()),
        })?;
    }
    Ok(libm::sqrt(sum))
}

/// Whether every element of `gradients` is finite.
///
/// # Errors
/// When a tensor is neither Float nor Double.
pub fn all_finite<'a>(gradients: impl IntoIterator<Item = &'a Tensor>) -> Result<bool, TorchError> {
    for gradient in gradients {
        let finite = with_elements(gradient, |elements| match elements {
            Elements::Float(values) => values.iter().all(|x| x.is_finite()),
            Elements::Double(values) => values.iter().all(|x| x.is_finite()),
        })?;
        if !finite {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What to multiply gradients of norm `norm` with so that none is larger than `largest`: exactly
/// `largest / norm` when it is larger, else 1.
#[must_use]
pub fn clip_factor(norm: f64, largest: Option<f64>) -> f64 {
    match largest {
        Some(largest) if norm > largest => largest / norm,
        _ => 1.0,
    }
}

enum Elements<'a> {
    Float(&'a [f32]),
    Double(&'a [f64]),
}

fn with_elements<R>(tensor: &Tensor, read: impl FnOnce(Elements<'_>) -> R) -> Result<R, TorchError> {
    let plain = tensor.f_to_device(Device::Cpu)?.f_contiguous()?;
    match plain.f_kind()? {
        Kind::Float => read_elements(&plain, |values| read(Elements::Float(values))),
        Kind::Double => read_elements(&plain, |values| read(Elements::Double(values))),
        kind => Err(TorchError::new(format!(
            "read gradients of kind {kind:?}: must be Float or Double"
        ))),
    }
}

/// Sum of squares; element `i` goes to lane `i % LANES`.
fn squares(values: impl Iterator<Item = f64>) -> f64 {
    let mut lanes = [0.0; LANES];
    for (index, value) in values.enumerate() {
        lanes[index % LANES] += value * value;
    }
    lanes.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Key, normal};

    #[test]
    fn the_norm_is_that_of_all_elements_together() {
        for kind in [Kind::Float, Kind::Double] {
            let drawn: Vec<_> = [1i64, 17, 64, 1000]
                .iter()
                .map(|n| normal(Key::derive(1, "test", *n as u64, 0), &[*n], kind).unwrap())
                .collect();
            let expected = Tensor::cat(&drawn, 0)
                .to_kind(Kind::Double)
                .norm()
                .double_value(&[]);
            let norm = global_norm(&drawn).unwrap();
            assert!((norm / expected - 1.0).abs() < 1e-14, "{norm} {expected}");
            assert_eq!(norm.to_bits(), global_norm(&drawn).unwrap().to_bits());
        }
        assert_eq!(global_norm([]).unwrap(), 0.0);
        assert!(global_norm(&[Tensor::from_slice(&[1i64])]).is_err());
    }

    #[test]
    fn thread_count_does_not_change_a_bit() {
        let drawn = normal(Key::derive(2, "test", 0, 0), &[200_000], Kind::Float).unwrap();
        let norms = [1, 2].map(|threads| {
            tch::set_num_threads(threads);
            global_norm([&drawn]).unwrap().to_bits()
        });
        tch::set_num_threads(1);
        assert_eq!(norms[0], norms[1]);
    }

    #[test]
    fn a_clipped_gradient_has_exactly_the_largest_norm() {
        let c = 0.1;
        let gradient = Tensor::from_slice(&[c; 100]);
        let factor = clip_factor(global_norm([&gradient]).unwrap(), Some(0.25));
        let clipped = global_norm([&(gradient * factor)]).unwrap();
        assert!((clipped - 0.25).abs() < 1e-15, "{clipped}");
        assert_eq!(clip_factor(0.25, Some(0.25)), 1.0);
        assert_eq!(clip_factor(9.0, None), 1.0);
    }

    #[test]
    fn what_is_not_finite_is_seen() {
        let good = Tensor::from_slice(&[1e30f32; 3]);
        assert!(all_finite([&good]).unwrap());
        assert!(
            global_norm([&good]).unwrap().is_finite(),
            "no overflow in double precision"
        );
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let bad = Tensor::from_slice(&[0.0, bad]);
            assert!(!all_finite([&good, &bad]).unwrap());
            assert!(!global_norm([&good, &bad]).unwrap().is_finite());
        }
        let huge = Tensor::from_slice(&[1e200f64]);
        assert!(all_finite([&huge]).unwrap());
    }
}
