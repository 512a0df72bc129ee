//! Which indices of one epoch were used: a bit set that grows with what is put in.

use std::collections::HashMap;

const PAGE_WORDS: usize = 512;
const PAGE_BITS: u64 = PAGE_WORDS as u64 * 64;

/// The indices used so far of an epoch of `samples` samples. Its pages are made when first touched, so
/// that a record with a false size costs no memory.
#[derive(Debug)]
pub(super) struct Coverage {
    samples: u64,
    pages: HashMap<u64, Box<[u64; PAGE_WORDS]>>,
    used: u64,
}

/// What became of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    First,
    Again,
    OutOfRange,
}

impl Coverage {
    pub(super) fn new(samples: u64) -> Coverage {
        Coverage {
            samples,
            pages: HashMap::new(),
            used: 0,
        }
    }

    pub(super) fn samples(&self) -> u64 {
        self.samples
    }

    /// Distinct indices used.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    pub(super) fn mark(&mut self, index: u64) -> Use {
        if index >= self.samples {
            return Use::OutOfRange;
        }
        let page = self
            .pages
            .entry(index / PAGE_BITS)
            .or_insert_with(|| Box::new([0; PAGE_WORDS]));
        let word = &mut page[(index % PAGE_BITS / 64) as usize];
        let bit = 1 << (index % 64);
        if *word & bit != 0 {
            return Use::Again;
        }
        *word |= bit;
        self.used += 1;
        Use::First
    }

    /// The first `limit` indices that were not used.
    pub(super) fn unused(&self, limit: usize) -> Vec<u64> {
        let mut found = vec![];
        for page in 0..self.samples.div_ceil(PAGE_BITS) {
            let words = self.pages.get(&page);
            for word in 0..PAGE_WORDS {
                let value = words.map_or(0, |w| w[word]);
                if value == u64::MAX {
                    continue;
                }
                let first = page * PAGE_BITS + word as u64 * 64;
                for bit in (0..64).filter(|bit| value & (1 << bit) == 0) {
                    if first + bit >= self.samples || found.len() == limit {
                        return found;
                    }
                    found.push(first + bit);
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_counts_once_and_the_unused_are_found() {
        let samples = 2 * PAGE_BITS + 70;
        let mut c = Coverage::new(samples);
        for index in (0..samples).filter(|i| ![3, PAGE_BITS, samples - 1].contains(i)) {
            assert_eq!(c.mark(index), Use::First);
        }
        assert_eq!(c.mark(5), Use::Again);
        assert_eq!(c.mark(samples), Use::OutOfRange);
        assert_eq!(c.mark(u64::MAX), Use::OutOfRange);
        assert_eq!(c.used(), samples - 3);
        assert_eq!(c.unused(10), [3, PAGE_BITS, samples - 1]);
        assert_eq!(c.unused(1), [3]);
        assert_eq!(Coverage::new(u64::MAX).unused(2), [0, 1]);
    }
}
