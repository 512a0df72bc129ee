//! Tensors of keyed draws, on the CPU: element `i` in row-major order is draw `i` of the key.

use super::fill::{fill, fill_normal, unit_f32, unit_f64};
use super::key::Key;
use crate::torch::TorchError;
use tch::{Kind, Tensor};

/// Uniform in [low, high).
///
/// # Errors
/// When `kind` is not a floating point kind or memory is short.
pub fn uniform(key: Key, shape: &[i64], kind: Kind, low: f64, high: f64) -> Result<Tensor, TorchError> {
    let width = high - low;
    match kind {
        Kind::Double => build(key, shape, |bits| low + width * unit_f64(bits)),
        // Scaled in double precision and rounded once; the minimum with the largest float below `high`
        // keeps rounding from reaching it.
        Kind::Float => {
            let below = largest_below(high);
            build(key, shape, |bits| {
                ((low + width * f64::from(unit_f32(bits))) as f32).min(below)
            })
        }
        Kind::BFloat16 | Kind::Half => Ok(uniform(key, shape, Kind::Float, low, high)?.f_to_kind(kind)?),
        other => Err(not_floating(other)),
    }
}

/// Standard normal.
///
/// # Errors
/// When `kind` is not a floating point kind or memory is short.
pub fn normal(key: Key, shape: &[i64], kind: Kind) -> Result<Tensor, TorchError> {
    if !matches!(kind, Kind::Double | Kind::Float | Kind::BFloat16 | Kind::Half) {
        return Err(not_floating(kind));
    }
    let mut values = vec![0.0; elements(shape)];
    fill_normal(key, 0, &mut values);
    Ok(Tensor::f_from_slice(&values)?.f_reshape(shape)?.f_to_kind(kind)?)
}

/// A mask of ones with probability `keep` and zeros otherwise, in `kind`. Not scaled: dropout divides by
/// `keep` itself.
///
/// # Errors
/// When `kind` is not a floating point kind or memory is short.
pub fn bernoulli(key: Key, shape: &[i64], kind: Kind, keep: f64) -> Result<Tensor, TorchError> {
    match kind {
        Kind::Double => build(key, shape, |bits| f64::from(unit_f64(bits) < keep)),
        Kind::Float => build(key, shape, |bits| f32::from(unit_f64(bits) < keep)),
        Kind::BFloat16 | Kind::Half => Ok(bernoulli(key, shape, Kind::Float, keep)?.f_to_kind(kind)?),
        other => Err(not_floating(other)),
    }
}

fn build<T: tch::kind::Element + Default + Clone>(
    key: Key,
    shape: &[i64],
    value: impl Fn(u64) -> T,
) -> Result<Tensor, TorchError> {
    let mut values = vec![T::default(); elements(shape)];
    fill(key, 0, &mut values, value);
    Ok(Tensor::f_from_slice(&values)?.f_reshape(shape)?)
}

fn elements(shape: &[i64]) -> usize {
    shape.iter().map(|size| (*size).max(0) as usize).product()
}

fn largest_below(limit: f64) -> f32 {
    let rounded = limit as f32;
    if f64::from(rounded) < limit {
        rounded
    } else {
        rounded.next_down()
    }
}

fn not_floating(kind: Kind) -> TorchError {
    TorchError::new(format!(
        "draw random numbers of kind {kind:?}: not a floating point kind"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(tensor: &Tensor) -> Vec<f64> {
        Vec::<f64>::try_from(tensor.to_kind(Kind::Double).reshape([-1])).unwrap()
    }

    #[test]
    fn single_precision_is_the_rounding_of_double_precision() {
        let key = Key::derive(9, "test", 0, 0);
        let pairs = [Kind::Double, Kind::Float].map(|kind| {
            [
                uniform(key, &[5, 7], kind, -2.0, 3.0).unwrap(),
                normal(key, &[5, 7], kind).unwrap(),
                bernoulli(key, &[5, 7], kind, 0.4).unwrap(),
            ]
        });
        for (double, single) in pairs[0].iter().zip(&pairs[1]) {
            assert_eq!(double.size(), [5, 7]);
            assert_eq!((double.kind(), single.kind()), (Kind::Double, Kind::Float));
            for (d, s) in values(double).iter().zip(values(single)) {
                assert!((d - s).abs() < 1e-6, "{d} {s}");
            }
        }
    }

    #[test]
    fn uniform_never_reaches_its_upper_end() {
        let key = Key::derive(9, "test", 0, 0);
        // 24 bits scaled into [1, 1 + 2^-20) leave few distinct floats, so rounding up would be seen.
        let high = 1.0 + 1.0 / f64::from(1 << 20);
        let drawn = uniform(key, &[4096], Kind::Float, 1.0, high).unwrap();
        assert!(values(&drawn).iter().all(|v| (1.0..high).contains(v)));
    }

    #[test]
    fn the_global_generator_has_no_influence() {
        let key = Key::derive(9, "test", 0, 0);
        tch::manual_seed(1);
        let first = normal(key, &[64], Kind::Float).unwrap();
        tch::manual_seed(2);
        let second = normal(key, &[64], Kind::Float).unwrap();
        assert!(first.equal(&second));
    }

    #[test]
    fn integer_kinds_are_refused_by_name() {
        let key = Key::derive(9, "test", 0, 0);
        let error = uniform(key, &[1], Kind::Int64, 0.0, 1.0).unwrap_err();
        assert_eq!(
            error.to_string(),
            "draw random numbers of kind Int64: not a floating point kind"
        );
    }
}
