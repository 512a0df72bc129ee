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
    match dtype.size() {
        1 => sum(bytes.iter().map(|byte| u32::from(*byte)), first),
        2 => sum(
            bytes
                .as_chunks::<2>()
                .0
                .iter()
                .map(|word| u32::from(u16::from_le_bytes(*word))),
            first,
        ),
        // Elements of eight bytes are hashed as two words with an index each.
        8 => sum(words(bytes, 8), first.wrapping_mul(2)),
        size => sum(words(bytes, size), first),
    }
}

fn words(bytes: &[u8], size: usize) -> impl Iterator<Item = u32> {
    let whole = bytes.len() / size * size;
    bytes[..whole]
        .as_chunks::<4>()
        .0
        .iter()
        .map(|word| u32::from_le_bytes(*word))
}

fn sum(words: impl Iterator<Item = u32>, first: u64) -> u64 {
    let mut total = 0u64;
    for (index, word) in words.enumerate() {
        total = total.wrapping_add(mix(word, first.wrapping_add(index as u64)));
    }
    total
}

/// Spreads a word and its position over 64 bits with 32 by 32 bit products only, which every vector
/// unit has. The second product makes the mix non-linear in the word.
#[inline(always)]
fn mix(word: u32, index: u64) -> u64 {
    let low = (index as u32).wrapping_mul(0x9E37_79B1) ^ ((index >> 32) as u32).wrapping_mul(0x85EB_CA77);
    let product = u64::from(word ^ 0xC2B2_AE3D) * u64::from(low | 1);
    let folded = (product as u32) ^ ((product >> 32) as u32) ^ low;
    product.wrapping_add(u64::from(folded) * u64::from(0x27D4_EB2F_u32 ^ (low >> 3)))
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
        17714857970023028891,
        9004696746912107042,
        4958735846570958031,
        4958735846570958031,
        17714857970023028891,
        9004696746912107042,
        7772407046373948562,
        9004696746912107042,
    ];
    const GOLDEN_CHAIN: u128 = 127735427110725398021562757761864372374;
}
