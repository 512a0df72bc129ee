//! The arithmetic of a reduction: contributions to each element combined in rank order.
//!
//! One function serves every transport, so that all agree bit for bit. It works in blocks that stay
//! in the first-level cache; the narrow floats accumulate in binary32 and are rounded once.

use bytemuck::Pod;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::element::DType;
use crate::operation::ReduceOp;

/// Elements of a block.
const BLOCK: usize = 1024;

/// Combines the contributions of all ranks, in rank order, into `own`, which on entry holds the
/// contribution between `below` (the lower ranks') and `above` (the higher ranks'). All slices have
/// the same length, a whole number of elements, and are aligned to them.
pub(crate) fn reduce_in_place(dtype: DType, op: ReduceOp, below: &[&[u8]], own: &mut [u8], above: &[&[u8]]) {
    let sources = Sources { below, own, above };
    match dtype {
        DType::F32 => with_float::<f32>(op, sources),
        DType::F64 => with_float::<f64>(op, sources),
        DType::F16 => with_float::<f16>(op, sources),
        DType::Bf16 => with_float::<bf16>(op, sources),
        DType::I32 => with_integer::<i32>(op, sources, i32::wrapping_add),
        DType::I64 => with_integer::<i64>(op, sources, i64::wrapping_add),
        DType::U8 => with_integer::<u8>(op, sources, u8::wrapping_add),
        DType::U64 => with_integer::<u64>(op, sources, u64::wrapping_add),
    }
}

struct Sources<'a> {
    below: &'a [&'a [u8]],
    own: &'a mut [u8],
    above: &'a [&'a [u8]],
}

/// How elements enter and leave the accumulator.
trait Lane: Pod {
    type Wide: Copy + Default;
    fn load(from: &[Self], to: &mut [Self::Wide]);
    fn store(from: &[Self::Wide], to: &mut [Self]);
    fn combine(
        accumulator: &mut [Self::Wide],
        source: &[Self],
        combine: impl Fn(Self::Wide, Self::Wide) -> Self::Wide,
    );
}

macro_rules! lane_of_itself {
    ($($rust:ty),*) => {$(
        impl Lane for $rust {
            type Wide = $rust;
            fn load(from: &[$rust], to: &mut [$rust]) { to.copy_from_slice(from); }
            fn store(from: &[$rust], to: &mut [$rust]) { to.copy_from_slice(from); }
            fn combine(accumulator: &mut [$rust], source: &[$rust], combine: impl Fn($rust, $rust) -> $rust) {
                for (left, right) in accumulator.iter_mut().zip(source) {
                    *left = combine(*left, *right);
                }
            }
        }
    )*};
}
lane_of_itself!(f32, f64, i32, i64, u8, u64);

macro_rules! lane_of_f32 {
    ($($rust:ty),*) => {$(
        impl Lane for $rust {
            type Wide = f32;
            fn load(from: &[$rust], to: &mut [f32]) { from.convert_to_f32_slice(to); }
            fn store(from: &[f32], to: &mut [$rust]) { to.convert_from_f32_slice(from); }
            fn combine(accumulator: &mut [f32], source: &[$rust], combine: impl Fn(f32, f32) -> f32) {
                let mut wide = [0.0; BLOCK];
                let wide = &mut wide[..source.len()];
                Self::load(source, wide);
                f32::combine(accumulator, wide, combine);
            }
        }
    )*};
}
lane_of_f32!(f16, bf16);

fn with_float<T: Lane>(op: ReduceOp, sources: Sources<'_>)
where
    T::Wide: PartialOrd + std::ops::Add<Output = T::Wide>,
{
    // A comparison with NaN is false: NaN on the right falls through to it, and on the left it is
    // the only value that is unequal to itself.
    #[allow(clippy::eq_op)]
    match op {
        ReduceOp::Sum => fold::<T>(sources, |left, right| left + right),
        ReduceOp::Max => fold::<T>(sources, |l, r| if l > r || l != l { l } else { r }),
        ReduceOp::Min => fold::<T>(sources, |l, r| if l < r || l != l { l } else { r }),
    }
}

fn with_integer<T: Lane<Wide = T> + Ord>(op: ReduceOp, sources: Sources<'_>, add: impl Fn(T, T) -> T) {
    match op {
        ReduceOp::Sum => fold::<T>(sources, add),
        ReduceOp::Max => fold::<T>(sources, T::max),
        ReduceOp::Min => fold::<T>(sources, T::min),
    }
}

fn fold<T: Lane>(sources: Sources<'_>, combine: impl Fn(T::Wide, T::Wide) -> T::Wide) {
    let Sources { below, own, above } = sources;
    let own: &mut [T] = bytemuck::cast_slice_mut(own);
    let mut accumulator = [T::Wide::default(); BLOCK];
    for start in (0..own.len()).step_by(BLOCK) {
        let end = (start + BLOCK).min(own.len());
        let own = &mut own[start..end];
        let accumulator = &mut accumulator[..end - start];
        match below.split_first() {
            None => T::load(own, accumulator),
            Some((first, rest)) => {
                T::load(part(first, start, end), accumulator);
                for source in rest {
                    T::combine(accumulator, part(source, start, end), &combine);
                }
                T::combine(accumulator, own, &combine);
            }
        }
        for source in above {
            T::combine(accumulator, part(source, start, end), &combine);
        }
        T::store(accumulator, own);
    }
}

fn part<T: Pod>(source: &[u8], start: usize, end: usize) -> &[T] {
    &bytemuck::cast_slice::<u8, T>(source)[start..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Element;

    fn reduce<T: Element>(op: ReduceOp, contributions: &[Vec<T>], rank: usize) -> Vec<T> {
        let bytes: Vec<&[u8]> = contributions
            .iter()
            .map(|values| bytemuck::cast_slice(values))
            .collect();
        let mut own = contributions[rank].clone();
        reduce_in_place(
            T::DTYPE,
            op,
            &bytes[..rank],
            bytemuck::cast_slice_mut(&mut own),
            &bytes[rank + 1..],
        );
        own
    }

    #[test]
    fn i4_every_rank_gets_the_rank_order_sum_whatever_its_place() {
        // Chosen so that another order gives other bits.
        let contributions: Vec<Vec<f32>> = [1.0, 1e8, -1e8, 3.0, 1e-3]
            .map(|scale| (0..2500).map(|i| scale * (1.0 + i as f32 / 7.0)).collect())
            .to_vec();
        let naive: Vec<f32> = (0..2500)
            .map(|i| {
                contributions[1..]
                    .iter()
                    .fold(contributions[0][i], |sum, values| sum + values[i])
            })
            .collect();
        for rank in 0..5 {
            let sum = reduce(ReduceOp::Sum, &contributions, rank);
            assert!(sum == naive, "rank {rank} does not sum in rank order");
        }
        let backwards: Vec<Vec<f32>> = contributions.into_iter().rev().collect();
        assert_ne!(reduce(ReduceOp::Sum, &backwards, 0), naive);
    }

    #[test]
    fn narrow_floats_are_summed_wide_and_rounded_once() {
        // 256 + 1 is lost in bfloat16 at each step; summed wide, four ones are not.
        let contributions: Vec<Vec<bf16>> = [256.0, 1.0, 1.0, 1.0, 1.0]
            .map(|value| vec![bf16::from_f32(value); 3])
            .to_vec();
        assert_eq!(
            reduce(ReduceOp::Sum, &contributions, 2),
            vec![bf16::from_f32(260.0); 3]
        );
    }

    #[test]
    fn a_nan_of_any_rank_is_seen_in_sum_max_and_min() {
        for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min] {
            for place in 0..3 {
                let mut contributions = vec![vec![1.0f64], vec![2.0], vec![-5.0]];
                contributions[place][0] = f64::NAN;
                assert!(reduce(op, &contributions, 1)[0].is_nan());
            }
        }
        let contributions = vec![vec![1.0f64], vec![2.0], vec![-5.0]];
        assert_eq!(reduce(ReduceOp::Max, &contributions, 0), [2.0]);
        assert_eq!(reduce(ReduceOp::Min, &contributions, 0), [-5.0]);
    }

    #[test]
    fn integer_sums_wrap_instead_of_panicking() {
        assert_eq!(reduce(ReduceOp::Sum, &[vec![u8::MAX], vec![2]], 0), [1]);
        assert_eq!(reduce(ReduceOp::Sum, &[vec![i64::MIN], vec![-1]], 1), [i64::MAX]);
        assert_eq!(reduce(ReduceOp::Max, &[vec![-3i32], vec![-4]], 1), [-3]);
    }
}
