//! Hashes by which members prove to each other that they hold the same numbers.
//!
//! The content hash is a sum over elements of a mix of (bits, position): position-keyed, so that two
//! swapped elements show, and additive, so that segments can be hashed in any order, where and when
//! they are in the cache, and added up. It guards against faults, not against an adversary.

use xxhash_rust::xxh3::xxh3_128;

use crate::buffer::{Buffer, BufferError};
use crate::element::DType;

/// The hash of a segment: elements of `dtype` in `bytes` (a partial element at the end is left out),
/// of which the first has index `first` in the whole buffer. The hashes of a buffer's segments add up
/// (wrapping) to the hash of the buffer.
pub fn segment_hash(dtype: DType, bytes: &[u8], first: u64) -> u64 {
    let whole = &bytes[..bytes.len() / dtype.size() * dtype.size()];
    match dtype.size() {
        1 => sum(whole, first, |byte| u32::from(*byte)),
        2 => sum(whole.as_chunks::<2>().0, first, |word| {
            u32::from(u16::from_le_bytes(*word))
        }),
        // Elements of eight bytes are hashed as two words with an index each.
        8 => sum(whole.as_chunks::<4>().0, first.wrapping_mul(2), |word| {
            u32::from_le_bytes(*word)
        }),
        _ => sum(whole.as_chunks::<4>().0, first, |word| u32::from_le_bytes(*word)),
    }
}

/// The sum over words of (word xor constant) times an odd key of the word's index. One product of 32
/// by 32 bits for each word, which every vector unit has: the hash must not cost more than the memory
/// that it reads.
fn sum<T>(words: &[T], first: u64, bits: impl Fn(&T) -> u32) -> u64 {
    let mut total = 0u64;
    let mut start = 0;
    // The upper half of the index changes so rarely that the inner loop does without it.
    while start < words.len() {
        let index = first.wrapping_add(start as u64);
        let (low, high) = (index as u32, (index >> 32) as u32);
        let run = (words.len() - start).min((u32::MAX - low) as usize + 1);
        let offset = high.wrapping_mul(0x85EB_CA77);
        for (step, word) in words[start..start + run].iter().enumerate() {
            let key = low.wrapping_add(step as u32).wrapping_mul(0x9E37_79B1) ^ offset;
            let key = (key ^ key >> 15) | 1;
            total = total.wrapping_add(u64::from(bits(word) ^ 0xC2B2_AE3D) * u64::from(key));
        }
        start += run;
    }
    total
}

/// The content hash of a whole buffer. Refused while an operation that writes it is pending.
pub fn buffer_hash(buffer: &Buffer) -> Result<u64, BufferError> {
    Ok(segment_hash(buffer.dtype(), buffer.lease(false)?.bytes(), 0))
}

/// What a commit did: enters the chain, since a skip leaves other state than an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CommitKind {
    /// The update was applied.
    Apply = 1,
    /// The step was skipped for non-finite gradients.
    Skip = 2,
}

/// The chain value after a commit: a hash of the one before it, the content hashes of the decoded
/// buckets in plan order, the kind of commit, and the cursor in the data order.
pub fn chain(previous: u128, bucket_hashes: &[u64], kind: CommitKind, cursor: u64) -> u128 {
    let mut bytes = Vec::with_capacity(33 + 8 * bucket_hashes.len());
    bytes.extend_from_slice(&previous.to_le_bytes());
    bytes.extend_from_slice(&cursor.to_le_bytes());
    bytes.push(kind as u8);
    bytes.extend_from_slice(&(bucket_hashes.len() as u64).to_le_bytes());
    for hash in bucket_hashes {
        bytes.extend_from_slice(&hash.to_le_bytes());
    }
    xxh3_128(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    proptest! {
        #[test]
        fn segments_hashed_in_any_order_add_up_to_the_whole(
            bytes in proptest::collection::vec(any::<u8>(), 0..600),
            cuts in proptest::collection::vec(0usize..80, 0..6),
            dtype in 0usize..8,
        ) {
            let dtype = DType::ALL[dtype];
            let elements = bytes.len() / dtype.size();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(elements)).collect();
            cuts.extend([0, elements]);
            cuts.sort();
            let parts = cuts.windows(2).rev().map(|cut| {
                segment_hash(dtype, &bytes[cut[0] * dtype.size()..cut[1] * dtype.size()], cut[0] as u64)
            });
            let total = parts.fold(0u64, u64::wrapping_add);
            prop_assert_eq!(total, segment_hash(dtype, &bytes, 0));
        }
    }

    #[test]
    fn every_single_flipped_bit_and_every_swap_shows() {
        let values: Vec<f32> = (0..512).map(|i| (i as f32 * 0.37).sin()).collect();
        let hash = |values: &[f32]| segment_hash(DType::F32, bytemuck::cast_slice(values), 0);
        let mut seen = HashSet::from([hash(&values)]);
        for index in 0..values.len() {
            for bit in 0..32 {
                let mut flipped = values.clone();
                flipped[index] = f32::from_bits(flipped[index].to_bits() ^ 1 << bit);
                assert!(
                    seen.insert(hash(&flipped)),
                    "flip of bit {bit} of element {index}"
                );
            }
        }
        for index in 0..values.len() - 1 {
            let mut swapped = values.clone();
            swapped.swap(index, index + 1);
            assert!(seen.insert(hash(&swapped)), "swap at {index}");
        }
    }

    #[test]
    fn signed_zeros_and_elements_beyond_32_bit_positions_are_told_apart() {
        let hash = |value: f64, first| segment_hash(DType::F64, &value.to_le_bytes(), first);
        assert_ne!(hash(0.0, 0), hash(-0.0, 0));
        assert_ne!(hash(1.0, 1), hash(1.0, 1 + (1 << 40)));
        // A segment that crosses the boundary is the sum of its halves.
        let bytes = [7u8; 64];
        let first = (1 << 32) - 5;
        let halves = [(0, 16), (16, 64)]
            .map(|(start, end)| segment_hash(DType::F32, &bytes[start..end], first + start as u64 / 4));
        assert_eq!(
            segment_hash(DType::F32, &bytes, first),
            halves[0].wrapping_add(halves[1])
        );
    }

    #[test]
    fn the_chain_depends_on_history_content_kind_and_cursor() {
        let start = chain(0, &[1, 2], CommitKind::Apply, 64);
        let others = [
            chain(1, &[1, 2], CommitKind::Apply, 64),
            chain(0, &[2, 1], CommitKind::Apply, 64),
            chain(0, &[1, 2], CommitKind::Skip, 64),
            chain(0, &[1, 2], CommitKind::Apply, 65),
            chain(0, &[1], CommitKind::Apply, 64),
        ];
        assert!(others.iter().all(|other| *other != start));
    }

    #[test]
    fn the_hashes_are_fixed_for_all_time() {
        let bytes: Vec<u8> = (0..=255).collect();
        let hashes = DType::ALL.map(|dtype| segment_hash(dtype, &bytes, 3));
        assert_eq!(hashes, GOLDEN);
        assert_eq!(chain(1, &[2, 3], CommitKind::Apply, 4), GOLDEN_CHAIN);
    }
    const GOLDEN: [u64; 8] = [
        15237485635881735438,
        2773671130596884540,
        8304347171188276142,
        8304347171188276142,
        15237485635881735438,
        2773671130596884540,
        10357058725172549254,
        2773671130596884540,
    ];
    const GOLDEN_CHAIN: u128 = 127735427110725398021562757761864372374;
}
