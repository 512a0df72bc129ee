//! The micro-batch grid of a step (design: "One step of training"). It depends on the batch and the
//! micro-batch size only, never on the number of members.

use std::ops::Range;

/// Number of parts of a step of `samples` samples: ceil(samples / micro_batch_size).
#[must_use]
pub fn part_count(samples: u64, micro_batch_size: u64) -> u64 {
    samples.div_ceil(micro_batch_size.max(1))
}

/// The samples of part `part` of `parts`, as offsets within the step: [floor(j*S/n), floor((j+1)*S/n)).
#[must_use]
pub fn part_samples(samples: u64, parts: u64, part: u64) -> Range<u64> {
    let at = |j: u64| ((u128::from(j) * u128::from(samples)) / u128::from(parts.max(1))) as u64;
    at(part)..at(part + 1)
}

/// The parts that share `index` of `of` computes: contiguous, counts differ by at most one, possibly none.
#[must_use]
pub fn parts_of_share(parts: u64, index: u32, of: u32) -> Range<u64> {
    part_samples(parts, u64::from(of), u64::from(index))
}

/// The micro-batch size that the specification means: `micro_batch_size` as given, else
/// ceil(B / (ranks * accumulation_steps)).
#[must_use]
pub fn resolve_micro_batch_size(
    global_batch_size: u64,
    ranks: u64,
    accumulation_steps: u64,
    micro_batch_size: Option<u64>,
) -> u64 {
    micro_batch_size
        .unwrap_or_else(|| global_batch_size.div_ceil((ranks * accumulation_steps).max(1)))
        .clamp(1, global_batch_size.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_sample_is_in_exactly_one_part_and_every_part_in_exactly_one_share(
            samples in 1u64..2000, micro in 1u64..300, of in 1u32..9,
        ) {
            let n = part_count(samples, micro);
            let mut next_sample = 0;
            let mut next_part = 0;
            let mut counts = vec![];
            for index in 0..of {
                let share = parts_of_share(n, index, of);
                prop_assert_eq!(share.start, next_part);
                next_part = share.end;
                counts.push(share.end - share.start);
                for j in share {
                    let range = part_samples(samples, n, j);
                    prop_assert_eq!(range.start, next_sample);
                    prop_assert!(range.end - range.start <= micro);
                    prop_assert!(range.end > range.start);
                    next_sample = range.end;
                }
            }
            prop_assert_eq!(next_part, n);
            prop_assert_eq!(next_sample, samples);
            prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
        }
    }
}
