//! The header of every frame on a data connection.
//!
//! 64 bytes, little-endian: magic (4), kind (1), phase (1), zero (2), position (8), operation (16),
//! offset (8), length (8), zero (8), XXH3-64 of the bytes before (8). The whole operation travels in
//! each header, so that a rank that issued another one is found out before a byte of payload is read.

use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64;

use crate::operation::{OPERATION_BYTES, Operation};

pub(super) const HEADER: usize = 64;
const MAGIC: [u8; 4] = *b"gsf1";

/// What the payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Phase {
    /// The sender's own elements, to be combined.
    Contribution = 1,
    /// Final elements, to be put in place.
    Result = 2,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// A piece of an operation; an empty one says that the sender takes part without data.
    Data {
        /// Number of operations before this one from the sender to the receiver.
        position: u64,
        operation: Operation,
        phase: Phase,
        /// Bytes of the buffer.
        range: Range<u64>,
    },
    /// The sender leaves in order: no more frames come.
    Goodbye,
}

impl Frame {
    pub(super) fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&MAGIC);
        match self {
            Frame::Goodbye => bytes[4] = 2,
            Frame::Data {
                position,
                operation,
                phase,
                range,
            } => {
                bytes[4] = 1;
                bytes[5] = *phase as u8;
                bytes[8..16].copy_from_slice(&position.to_le_bytes());
                bytes[16..32].copy_from_slice(&operation.encode());
                bytes[32..40].copy_from_slice(&range.start.to_le_bytes());
                bytes[40..48].copy_from_slice(&(range.end - range.start).to_le_bytes());
            }
        }
        let hash = xxh3_64(&bytes[..HEADER - 8]);
        bytes[HEADER - 8..].copy_from_slice(&hash.to_le_bytes());
        bytes
    }

    /// `None` for bytes that are no header of this protocol.
    pub(super) fn decode(bytes: &[u8; HEADER]) -> Option<Frame> {
        let word = |start: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[start..start + 8]);
            u64::from_le_bytes(word)
        };
        if bytes[..4] != MAGIC || word(HEADER - 8) != xxh3_64(&bytes[..HEADER - 8]) {
            return None;
        }
        match bytes[4] {
            2 => Some(Frame::Goodbye),
            1 => {
                let mut operation = [0; OPERATION_BYTES];
                operation.copy_from_slice(&bytes[16..32]);
                let phase = [Phase::Contribution, Phase::Result]
                    .into_iter()
                    .find(|p| *p as u8 == bytes[5])?;
                let start = word(32);
                let end = start.checked_add(word(40))?;
                let operation = Operation::decode(&operation)?;
                Some(Frame::Data {
                    position: word(8),
                    operation,
                    phase,
                    range: start..end,
                })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_the_wire_and_any_flipped_bit_is_noticed() {
        let frame = Frame::Data {
            position: 9,
            operation: Operation::barrier(),
            phase: Phase::Result,
            range: 64..4096,
        };
        for frame in [frame, Frame::Goodbye] {
            let bytes = frame.encode();
            assert_eq!(Frame::decode(&bytes), Some(frame));
            for bit in 0..HEADER * 8 {
                let mut flipped = bytes;
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Frame::decode(&flipped), None, "bit {bit}");
            }
        }
    }
}
