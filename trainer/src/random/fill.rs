//! Distributions over the draws of a key, written into slices. Element `i` of the output is draw
//! `start + i` of the key, whatever the length of the slice.

use super::key::Key;

/// Uniform in [0, 1) with 53 random bits.
pub fn fill_uniform_f64(key: Key, start: u64, out: &mut [f64]) {
    fill(key, start, out, unit_f64);
}

/// Uniform in [0, 1): the leading 24 bits of what [`fill_uniform_f64`] gives at the same position, so the
/// two differ by less than 2^-24 and 1 is never reached by rounding.
pub fn fill_uniform_f32(key: Key, start: u64, out: &mut [f32]) {
    fill(key, start, out, unit_f32);
}

/// Standard normal, in double precision (single precision is its rounding): the Box-Muller transform of
/// one block gives elements `2 * block` and `2 * block + 1`. The transcendental functions are those of
/// the `libm` crate, so every machine gets the same bits.
pub fn fill_normal(key: Key, start: u64, out: &mut [f64]) {
    let mut at = 0;
    while at < out.len() {
        let position = start.wrapping_add(at as u64);
        let pair = normal_pair(key.pair(position / 2));
        let first = (position % 2) as usize;
        let take = (2 - first).min(out.len() - at);
        out[at..at + take].copy_from_slice(&pair[first..first + take]);
        at += take;
    }
}

/// True with probability `keep`: where the uniform draw of the position is below `keep`.
pub fn bernoulli_mask(key: Key, start: u64, keep: f64, out: &mut [bool]) {
    fill(key, start, out, |bits| unit_f64(bits) < keep);
}

#[inline]
pub(super) fn unit_f64(bits: u64) -> f64 {
    (bits >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

#[inline]
pub(super) fn unit_f32(bits: u64) -> f32 {
    (bits >> 40) as f32 * (1.0 / (1u32 << 24) as f32)
}

/// Writes `value(draw)` for each position; whole blocks at a time where the range allows.
#[inline]
pub(super) fn fill<T>(key: Key, start: u64, out: &mut [T], value: impl Fn(u64) -> T) {
    let mut position = start;
    let (head, rest) = out.split_at_mut(((start % 2) as usize).min(out.len()));
    for first in head {
        *first = value(key.bits(position));
        position = position.wrapping_add(1);
    }
    for pair in rest.chunks_mut(2) {
        let bits = key.pair(position / 2);
        for (element, bits) in pair.iter_mut().zip(bits) {
            *element = value(bits);
        }
        position = position.wrapping_add(2);
    }
}

fn normal_pair([first, second]: [u64; 2]) -> [f64; 2] {
    // 1 - u lies in (0, 1], where the logarithm is finite.
    let radius = libm::sqrt(-2.0 * libm::log(1.0 - unit_f64(first)));
    let (sine, cosine) = libm::sincos(std::f64::consts::TAU * unit_f64(second));
    [radius * cosine, radius * sine]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key() -> Key {
        Key::derive(5, "test", 0, 0)
    }

    proptest! {
        #[test]
        fn a_position_has_its_value_whatever_range_is_asked_for(start in 0u64..1000, length in 0usize..40) {
            let mut whole = vec![0.0; 1100];
            fill_uniform_f64(key(), 0, &mut whole);
            let mut part = vec![0.0; length];
            fill_uniform_f64(key(), start, &mut part);
            prop_assert_eq!(&part[..], &whole[start as usize..start as usize + length]);

            fill_normal(key(), 0, &mut whole);
            fill_normal(key(), start, &mut part);
            prop_assert_eq!(&part[..], &whole[start as usize..start as usize + length]);

            let mut all = vec![false; 1100];
            bernoulli_mask(key(), 0, 0.3, &mut all);
            let mut some = vec![false; length];
            bernoulli_mask(key(), start, 0.3, &mut some);
            prop_assert_eq!(&some[..], &all[start as usize..start as usize + length]);
        }
    }

    #[test]
    fn single_and_double_precision_see_the_same_draws() {
        let (mut double, mut single) = (vec![0.0; 4096], vec![0.0; 4096]);
        fill_uniform_f64(key(), 3, &mut double);
        fill_uniform_f32(key(), 3, &mut single);
        for (d, s) in double.iter().zip(&single) {
            let difference = d - f64::from(*s);
            assert!((0.0..1.0 / f64::from(1u32 << 24)).contains(&difference));
        }
    }

    #[test]
    fn normal_draws_are_fixed_for_ever() {
        let mut drawn = [0.0; 3];
        fill_normal(Key::derive(1, "golden", 2, 3), 1, &mut drawn);
        let golden = [
            -0.217_009_713_582_339_92,
            -0.287_825_405_929_758_6,
            1.261_459_612_896_568_5,
        ];
        for (d, g) in drawn.iter().zip(golden) {
            assert!((d - g).abs() < 1e-15, "{d} {g}");
        }
    }

    #[test]
    fn the_extreme_draws_stay_in_range() {
        assert_eq!(unit_f64(0), 0.0);
        assert_eq!(unit_f32(0), 0.0);
        assert!(unit_f64(u64::MAX) < 1.0);
        assert!(unit_f32(u64::MAX) < 1.0);
        for value in normal_pair([u64::MAX, 0])
            .iter()
            .chain(&normal_pair([0, u64::MAX]))
        {
            assert!(value.is_finite());
        }
    }

    #[test]
    fn moments_and_frequencies_are_those_of_the_distributions() {
        let n = 200_000;
        let mut draws = vec![0.0; n];
        fill_uniform_f64(key(), 0, &mut draws);
        let mean = draws.iter().sum::<f64>() / n as f64;
        assert!((mean - 0.5).abs() < 0.003, "{mean}");
        fill_normal(key(), 0, &mut draws);
        let moment = |k: i32| draws.iter().map(|x| x.powi(k)).sum::<f64>() / n as f64;
        for (k, expected, tolerance) in [(1, 0.0, 0.01), (2, 1.0, 0.02), (3, 0.0, 0.04), (4, 3.0, 0.12)] {
            assert!(
                (moment(k) - expected).abs() < tolerance,
                "moment {k}: {}",
                moment(k)
            );
        }
        let products = draws.chunks_exact(2).map(|p| p[0] * p[1]).sum::<f64>() / (n / 2) as f64;
        assert!(products.abs() < 0.015, "the two of a block correlate: {products}");
        let mut kept = vec![false; n];
        bernoulli_mask(key(), 0, 0.8, &mut kept);
        let share = kept.iter().filter(|k| **k).count() as f64 / n as f64;
        assert!((share - 0.8).abs() < 0.004, "{share}");
    }
}
