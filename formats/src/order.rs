//! The order of samples: a keyed bijection of an epoch's indices, computed per index, nothing stored.
//!
//! A Feistel network over the smallest power of two that holds the epoch permutes it; results outside the
//! epoch are fed back until one falls inside (cycle walking: at most two passes on average, because the
//! epoch fills more than half of the domain). The bits are split into two halves that may differ by one;
//! each round replaces one half by its XOR with a keyed function of the other, which can be undone
//! whatever the function is: hence a bijection for every key. The order is part of the format: run records
//! are audited against it, so that golden vectors in the tests fix it.

use std::ops::Range;

/// Rounds of the network. Four would do for a large epoch; tiny halves (one or two bits) need more before
/// neighbours look unrelated.
const ROUNDS: usize = 8;

/// The golden ratio in 64 bits: the increment of the SplitMix64 sequence, from which the keys come.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The order of one epoch: a permutation of `[0, samples)` that depends on (seed, epoch, samples) alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    samples: u64,
    left_bits: u32,
    left_mask: u64,
    right_mask: u64,
    keys: [u64; ROUNDS],
}

impl Order {
    /// The order of epoch `epoch` (from 0) of a data set of `samples` samples.
    #[must_use]
    pub fn new(seed: u64, epoch: u64, samples: u64) -> Self {
        let bits = u64::BITS - samples.saturating_sub(1).leading_zeros();
        let left_bits = bits / 2;
        let right_bits = bits - left_bits;
        let start = mix(mix(seed.wrapping_add(GOLDEN)) ^ epoch.wrapping_mul(GOLDEN));
        let mut keys = [0; ROUNDS];
        for (round, key) in (1u64..).zip(&mut keys) {
            *key = mix(start.wrapping_add(round.wrapping_mul(GOLDEN)));
        }
        Order {
            samples,
            left_bits,
            left_mask: low_bits(left_bits),
            right_mask: low_bits(right_bits),
            keys,
        }
    }

    /// Samples of the epoch.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// The sample at `position` of the epoch; none past its end.
    #[must_use]
    pub fn index(&self, position: u64) -> Option<u64> {
        (position < self.samples).then(|| self.walk(position))
    }

    /// The samples at `positions`, in order; positions past the end of the epoch are left out.
    pub fn indices(&self, positions: Range<u64>) -> impl Iterator<Item = u64> + '_ {
        let end = positions.end.min(self.samples);
        (positions.start.min(end)..end).map(|position| self.walk(position))
    }

    /// The samples of the step that starts after `cursor` samples of the epoch: `batch_size` of them, or
    /// fewer at the end of the epoch, none past it.
    pub fn batch(&self, cursor: u64, batch_size: u64) -> impl Iterator<Item = u64> + '_ {
        self.indices(cursor..cursor.saturating_add(batch_size))
    }

    /// Follows the permutation of the power of two from `position`, which must be inside the epoch, to the
    /// next value inside it. It ends, since the cycle leads back to `position` itself.
    fn walk(&self, position: u64) -> u64 {
        let mut value = self.permute(position);
        while value >= self.samples {
            value = self.permute(value);
        }
        value
    }

    fn permute(&self, value: u64) -> u64 {
        let mut left = value & self.left_mask;
        let mut right = value >> self.left_bits;
        for pair in self.keys.chunks_exact(2) {
            left ^= mix(right ^ pair[0]) & self.left_mask;
            right ^= mix(left ^ pair[1]) & self.right_mask;
        }
        (right << self.left_bits) | left
    }
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014; constants by Stafford): every input bit reaches
/// every output bit.
fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A mask of the lowest `bits` bits; `bits` is at most 32 here.
fn low_bits(bits: u32) -> u64 {
    (1 << bits) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn whole(seed: u64, epoch: u64, samples: u64) -> Vec<u64> {
        Order::new(seed, epoch, samples).batch(0, samples).collect()
    }

    #[test]
    fn golden_vectors_fix_the_order() {
        assert_eq!(whole(0, 0, 10), [0, 2, 3, 4, 7, 6, 1, 8, 9, 5]);
        assert_eq!(whole(1, 0, 10), [1, 5, 2, 8, 0, 6, 4, 3, 7, 9]);
        assert_eq!(whole(1, 1, 10), [1, 7, 3, 0, 2, 9, 4, 8, 6, 5]);
        let at = |seed, epoch, samples, position| Order::new(seed, epoch, samples).index(position);
        assert_eq!(at(1, 0, 60_000, 0), Some(35_218));
        assert_eq!(at(1, 2, 60_000, 59_999), Some(27_121));
        assert_eq!(
            at(u64::MAX, u64::MAX, 1 << 40, 12_345_678_901),
            Some(1_002_674_340_619)
        );
        assert_eq!(at(7, 3, (1 << 40) + 1, 1 << 40), Some(182_374_487_594));
        assert_eq!(at(7, 3, u64::MAX, u64::MAX - 1), Some(9_916_490_450_536_195_114));
    }

    #[test]
    fn every_epoch_up_to_five_thousand_samples_is_a_permutation() {
        for samples in 1..=5000u64 {
            let order = Order::new(samples ^ 0x5eed, samples % 7, samples);
            let mut seen = vec![false; samples as usize];
            for position in 0..samples {
                let index = order.index(position).unwrap();
                assert!(index < samples, "{index} of {samples}");
                assert!(
                    !std::mem::replace(&mut seen[index as usize], true),
                    "{index} of {samples} twice"
                );
            }
        }
    }

    #[test]
    fn positions_past_the_end_have_no_sample() {
        let order = Order::new(3, 0, 10);
        assert_eq!(order.index(10), None);
        assert_eq!(order.batch(8, 4).count(), 2);
        assert_eq!(order.batch(10, 4).count(), 0);
        assert_eq!(order.batch(u64::MAX, 4).count(), 0);
        assert_eq!(order.indices(std::ops::Range { start: 12, end: 11 }).count(), 0);
        let empty = Order::new(3, 0, 0);
        assert_eq!(empty.index(0), None);
        assert_eq!(empty.batch(0, 4).count(), 0);
    }

    #[test]
    fn steps_of_an_epoch_put_together_are_the_epoch() {
        let order = Order::new(9, 4, 103);
        let steps: Vec<u64> = (0..103)
            .step_by(10)
            .flat_map(|cursor| order.batch(cursor, 10))
            .collect();
        assert_eq!(steps, whole(9, 4, 103));
    }

    #[test]
    fn the_first_sample_is_uniform_over_epochs_also_for_small_data_sets() {
        for samples in [2u64, 3, 7, 10, 33] {
            let draws = 2000 * samples;
            let mut counts = vec![0u64; samples as usize];
            for epoch in 0..draws {
                counts[Order::new(42, epoch, samples).index(0).unwrap() as usize] += 1;
            }
            // Chi-squared with samples - 1 degrees of freedom: mean s - 1, deviation sqrt(2 (s - 1)).
            let chi: f64 = counts.iter().map(|&c| (c as f64 - 2000.0).powi(2) / 2000.0).sum();
            let freedom = (samples - 1) as f64;
            assert!(
                chi < freedom + 6.0 * (2.0 * freedom).sqrt(),
                "{samples}: {counts:?}"
            );
        }
    }

    #[test]
    fn neighbours_are_unrelated() {
        // A shuffle of n has on average one fixed point and one pair of successive successors.
        let mut fixed = 0;
        let mut successors = 0;
        for epoch in 0..200 {
            let order = whole(5, epoch, 1000);
            fixed += (0..)
                .zip(&order)
                .filter(|(position, index)| position == *index)
                .count();
            successors += order.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
        }
        assert!((140..260).contains(&fixed), "{fixed} fixed points in 200 orders");
        assert!(
            (140..260).contains(&successors),
            "{successors} successors in 200 orders"
        );
    }

    proptest! {
        #[test]
        fn large_epochs_stay_inside_and_do_not_collide(
            seed: u64, epoch: u64, bits in 13u32..=40, offset: u64, start: u64,
        ) {
            let samples = (1 << (bits - 1)) + 1 + offset % (1 << (bits - 1));
            let order = Order::new(seed, epoch, samples);
            let start = start % samples;
            let mut indices: Vec<u64> = order.batch(start, 500).collect();
            let count = indices.len() as u64;
            prop_assert_eq!(count, 500.min(samples - start));
            prop_assert!(indices.iter().all(|&index| index < samples));
            indices.sort_unstable();
            indices.dedup();
            prop_assert_eq!(indices.len() as u64, count);
        }

        #[test]
        fn epochs_and_seeds_differ(seed: u64, epoch in 0u64..u64::MAX, samples in 50u64..5000) {
            let order = whole(seed, epoch, samples);
            prop_assert_ne!(&order, &whole(seed, epoch + 1, samples));
            prop_assert_ne!(&order, &whole(seed.wrapping_add(1), epoch, samples));
        }
    }
}
