//! Which samples the next step uses, and which of its parts this member computes. Pure.

use gradsync_formats::grid;
use gradsync_formats::manifest::DataProgress;
use gradsync_formats::order::Order;
use gradsync_formats::run_config::Length;
use std::ops::Range;

/// How far the run goes and what one step takes from the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Course {
    /// Samples of one epoch.
    pub epoch_samples: u64,
    /// B: samples per step, but for the last of an epoch.
    pub global_batch_size: u64,
    /// m: the fixed micro-batch size.
    pub micro_batch_size: u64,
    /// The run's seed.
    pub seed: u64,
    /// Steps or epochs.
    pub length: Length,
}

impl Course {
    /// Steps of one epoch; the last may be short.
    #[must_use]
    pub fn steps_per_epoch(&self) -> u64 {
        self.epoch_samples.div_ceil(self.global_batch_size.max(1))
    }

    /// Steps of the whole run.
    #[must_use]
    pub fn total_steps(&self) -> u64 {
        match self.length {
            Length::Steps(steps) => steps,
            Length::Epochs(epochs) => epochs.saturating_mul(self.steps_per_epoch()),
        }
    }

    /// Whether nothing is left to do.
    #[must_use]
    pub fn is_finished(&self, progress: &DataProgress) -> bool {
        progress.step >= self.total_steps()
    }

    /// Where in the data training stands after a step of `samples` samples was applied.
    #[must_use]
    pub fn advanced(&self, progress: &DataProgress, samples: u64) -> DataProgress {
        let cursor = progress.cursor + samples;
        if cursor >= self.epoch_samples {
            DataProgress {
                step: progress.step + 1,
                epoch: progress.epoch + 1,
                cursor: 0,
            }
        } else {
            DataProgress {
                step: progress.step + 1,
                epoch: progress.epoch,
                cursor,
            }
        }
    }

    /// The work of the step that follows `progress`, for share `index` of `of`.
    #[must_use]
    pub fn work(&self, progress: &DataProgress, index: u32, of: u32) -> Work {
        let samples = self.global_batch_size.min(self.epoch_samples - progress.cursor);
        let parts = grid::part_count(samples, self.micro_batch_size);
        Work {
            epoch: progress.epoch,
            cursor: progress.cursor,
            samples,
            parts,
            mine: grid::parts_of_share(parts, index, of),
            order: Order::new(self.seed, progress.epoch, self.epoch_samples),
        }
    }
}

/// The samples of one step and this member's share of its parts.
#[derive(Clone, Debug)]
pub struct Work {
    /// Epoch of the samples.
    pub epoch: u64,
    /// Position of the step's first sample in the epoch's order.
    pub cursor: u64,
    /// S: samples of the whole step.
    pub samples: u64,
    /// n: parts of the whole step.
    pub parts: u64,
    /// The parts that this member computes; may be none.
    pub mine: Range<u64>,
    order: Order,
}

impl Work {
    /// The data indices of part `part`.
    #[must_use]
    pub fn indices(&self, part: u64) -> Vec<u64> {
        let offsets = grid::part_samples(self.samples, self.parts, part);
        self.order
            .indices(self.cursor + offsets.start..self.cursor + offsets.end)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn course() -> Course {
        Course {
            epoch_samples: 23,
            global_batch_size: 7,
            micro_batch_size: 3,
            seed: 5,
            length: Length::Epochs(2),
        }
    }

    #[test]
    fn every_index_of_every_epoch_is_used_exactly_once_by_any_number_of_members() {
        for of in 1..=5 {
            let mut progress = DataProgress::default();
            let mut used = [0u32; 23];
            let mut sizes = vec![];
            while !course().is_finished(&progress) {
                let samples = course().work(&progress, 0, of).samples;
                for index in 0..of {
                    let work = course().work(&progress, index, of);
                    for part in work.mine.clone() {
                        work.indices(part).iter().for_each(|&i| used[i as usize] += 1);
                    }
                }
                sizes.push(samples);
                progress = course().advanced(&progress, samples);
            }
            assert_eq!(
                sizes,
                [7, 7, 7, 2, 7, 7, 7, 2],
                "the last short step has its true size"
            );
            assert!(used.iter().all(|&times| times == 2), "{used:?}");
            assert_eq!(
                progress,
                DataProgress {
                    step: 8,
                    epoch: 2,
                    cursor: 0
                }
            );
        }
    }
}
