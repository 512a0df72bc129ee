//! What a stream of draws is for: derived from the seed, a domain and two numbers by hashing, so that two
//! different purposes never share a stream.

use super::philox::philox4x32_10;
use sha2::{Digest as _, Sha256};

/// One stream of 2^65 draws of 64 bits. Small and `Copy`; holds no position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    philox: [u32; 2],
    stream: [u32; 2],
}

impl Key {
    /// The stream of `(seed, domain, a, b)`: for example `(seed, "model", step, part)`. Each of the four
    /// separates streams; the domain is hashed with its length, so no two spellings collide.
    #[must_use]
    pub fn derive(seed: u64, domain: &str, a: u64, b: u64) -> Self {
        Self::hash(&seed.to_le_bytes(), domain, a, b)
    }

    /// A stream below this one: for example one for each dropout layer of a model.
    #[must_use]
    pub fn child(&self, domain: &str, index: u64) -> Self {
        let mut parent = [0u8; 16];
        for (bytes, word) in parent
            .chunks_exact_mut(4)
            .zip(self.philox.iter().chain(&self.stream))
        {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        Self::hash(&parent, domain, index, 0)
    }

    /// The 64 random bits of draw `index`: half `index % 2` of block `index / 2`.
    #[must_use]
    #[inline]
    pub fn bits(&self, index: u64) -> u64 {
        self.pair(index / 2)[(index % 2) as usize]
    }

    /// Draws `2 * block` and `2 * block + 1`.
    #[must_use]
    #[inline]
    pub(super) fn pair(&self, block: u64) -> [u64; 2] {
        let counter = [block as u32, (block >> 32) as u32, self.stream[0], self.stream[1]];
        let [a, b, c, d] = philox4x32_10(counter, self.philox);
        [
            u64::from(a) | (u64::from(b) << 32),
            u64::from(c) | (u64::from(d) << 32),
        ]
    }

    fn hash(root: &[u8], domain: &str, a: u64, b: u64) -> Self {
        let mut hasher = Sha256::new();
        hasher.update((root.len() as u64).to_le_bytes());
        hasher.update(root);
        hasher.update((domain.len() as u64).to_le_bytes());
        hasher.update(domain.as_bytes());
        hasher.update(a.to_le_bytes());
        hasher.update(b.to_le_bytes());
        let digest = hasher.finalize();
        let word = |at: usize| {
            u32::from_le_bytes([
                digest[4 * at],
                digest[4 * at + 1],
                digest[4 * at + 2],
                digest[4 * at + 3],
            ])
        };
        Self {
            philox: [word(0), word(1)],
            stream: [word(2), word(3)],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_part_of_the_name_separates_streams() {
        let base = Key::derive(1, "model", 2, 3);
        let others = [
            Key::derive(2, "model", 2, 3),
            Key::derive(1, "augmentation", 2, 3),
            Key::derive(1, "model", 3, 3),
            Key::derive(1, "model", 2, 4),
            Key::derive(1, "model", 3, 2),
            base.child("dropout", 0),
            base.child("dropout", 1),
            base.child("dropou", 0),
        ];
        let distinct: HashSet<_> = others.iter().chain([&base]).collect();
        assert_eq!(distinct.len(), others.len() + 1);
        assert_eq!(base, Key::derive(1, "model", 2, 3));
    }

    #[test]
    fn draws_are_fixed_for_ever() {
        // A change here changes every initial weight, dropout mask and augmentation of every run.
        let key = Key::derive(1, "golden", 2, 3);
        let draws: Vec<u64> = (0..3).map(|i| key.bits(i)).collect();
        assert_eq!(draws, GOLDEN);
        assert_eq!(key.child("dropout", 7).bits(1 << 40), GOLDEN_CHILD);
    }

    // Computed by a second implementation in another language.
    const GOLDEN: [u64; 3] = [
        0x1aa8_2d91_bdcf_0c33,
        0x939a_0af4_3567_aab3,
        0x9128_2bb5_b74f_380a,
    ];
    const GOLDEN_CHILD: u64 = 0xe572_6fcf_226d_e7dd;
}
