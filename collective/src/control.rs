//! The fixed record that each member sends beside a step's gradients, and its fold.
//!
//! 64 bytes, little-endian: magic (4), flags (4), denominator (8), loss (8), checksum of the sequence
//! of collectives (8), previous chain value (16), spare (16). An all-gather on the control channel
//! brings all records to all members, each folds them in rank order, so all reach the same verdict.

use std::time::Instant;

use crate::buffer::{Buffer, BufferError};
use crate::communicator::Communicator;
use crate::element::DType;
use crate::error::CollectiveError;
use crate::operation::Channel;
use crate::pending::{Moved, Pending};

/// Bytes of a record on the wire.
pub const RECORD_BYTES: usize = 64;
const MAGIC: u32 = u32::from_le_bytes(*b"gsc1");

/// What members tell each other beside the numbers. Folded by OR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u32);

impl Flags {
    /// Nothing to tell.
    pub const NONE: Flags = Flags(0);
    /// This member's gradients hold an infinity or NaN.
    pub const NON_FINITE: Flags = Flags(1);
    /// This member wants the group formed anew at this boundary.
    pub const REFORM: Flags = Flags(2);
    /// This member wants to stop at this boundary.
    pub const STOP: Flags = Flags(4);

    /// True if all of `other` are set.
    pub fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::ops::BitOr for Flags {
    type Output = Flags;
    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

impl std::ops::BitOrAssign for Flags {
    fn bitor_assign(&mut self, other: Flags) {
        *self = *self | other;
    }
}

/// One member's record.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ControlRecord {
    /// Folded by OR.
    pub flags: Flags,
    /// Samples or tokens that this member's gradients hold. Folded by sum.
    pub denominator: u64,
    /// Sum of this member's losses. Folded by sum in rank order.
    pub loss: f64,
    /// [`Communicator::sequence_checksum`] at this boundary. Must be equal.
    pub sequence: u64,
    /// The chain value before this step. Must be equal.
    pub chain: u128,
    /// Not folded, for what later versions add. Zero.
    pub spare: [u64; 2],
}

/// What the group as a whole says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Folded {
    /// Any member's flags.
    pub flags: Flags,
    /// The true denominator.
    pub denominator: u64,
    /// The sum of the losses.
    pub loss: f64,
}

/// What must be equal on all members and was not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disagreement {
    /// Members issued different collective operations.
    Sequence,
    /// Members hold different histories.
    Chain,
}

impl std::fmt::Display for Disagreement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Disagreement::Sequence => "sequence of collective operations",
            Disagreement::Chain => "chain of committed steps",
        })
    }
}

/// Why records have no fold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// Members deviate from the majority (from rank 0's side on a tie).
    #[error("ranks {ranks:?} deviate in the {what} from the other members of the group")]
    Deviation {
        /// What differs. Where both do, the sequence: it is the cause.
        what: Disagreement,
        /// The ranks in the minority.
        ranks: Vec<usize>,
    },
    /// A record is not one.
    #[error("rank {rank} sent no control record of this version")]
    Malformed {
        /// Its sender.
        rank: usize,
    },
    /// The denominators' sum leaves its range.
    #[error("rank {rank} brings the sum of denominators above its range")]
    Overflow {
        /// The rank at which it did.
        rank: usize,
    },
    /// The exchange failed.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// Memory for the exchange.
    #[error(transparent)]
    Buffer(#[from] BufferError),
}

impl ControlRecord {
    /// The record's 64 bytes.
    pub fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.flags.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.denominator.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.loss.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[32..48].copy_from_slice(&self.chain.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.spare[0].to_le_bytes());
        bytes[56..64].copy_from_slice(&self.spare[1].to_le_bytes());
        bytes
    }

    /// The record of 64 bytes; `None` if they are none of this version.
    pub fn decode(bytes: &[u8; RECORD_BYTES]) -> Option<ControlRecord> {
        let word = |start: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[start..start + 8]);
            u64::from_le_bytes(word)
        };
        let first = word(0);
        if first as u32 != MAGIC {
            return None;
        }
        Some(ControlRecord {
            flags: Flags((first >> 32) as u32),
            denominator: word(8),
            loss: f64::from_bits(word(16)),
            sequence: word(24),
            chain: u128::from(word(32)) | u128::from(word(40)) << 64,
            spare: [word(48), word(56)],
        })
    }
}

/// Folds the records of all members, in rank order. All members reach the same result.
pub fn fold(records: &[ControlRecord]) -> Result<Folded, ControlError> {
    check_equal(records, Disagreement::Sequence, |record| {
        u128::from(record.sequence)
    })?;
    check_equal(records, Disagreement::Chain, |record| record.chain)?;
    let mut folded = Folded {
        flags: Flags::NONE,
        denominator: 0,
        loss: 0.0,
    };
    for (rank, record) in records.iter().enumerate() {
        folded.flags |= record.flags;
        folded.denominator = folded
            .denominator
            .checked_add(record.denominator)
            .ok_or(ControlError::Overflow { rank })?;
        // The first loss is taken as it is, so that one member alone keeps its bits.
        folded.loss = if rank == 0 {
            record.loss
        } else {
            folded.loss + record.loss
        };
    }
    Ok(folded)
}

fn check_equal(
    records: &[ControlRecord],
    what: Disagreement,
    value: impl Fn(&ControlRecord) -> u128,
) -> Result<(), ControlError> {
    let votes = |wanted: u128| records.iter().filter(|record| value(record) == wanted).count();
    // The first among equals wins, which is the side of the lowest rank.
    let mut agreed = match records.first() {
        Some(first) => value(first),
        None => return Ok(()),
    };
    for record in records {
        if votes(value(record)) > votes(agreed) {
            agreed = value(record);
        }
    }
    let ranks: Vec<usize> = (0..records.len())
        .filter(|rank| value(&records[*rank]) != agreed)
        .collect();
    if ranks.is_empty() {
        Ok(())
    } else {
        Err(ControlError::Deviation { what, ranks })
    }
}

/// An exchange of control records on its way.
#[must_use = "an exchange's verdict is seen only by finishing it"]
#[derive(Debug)]
pub struct Exchange {
    buffer: Buffer,
    pending: Pending,
}

/// Sends this member's record on the control channel; call it once the last local bucket is scanned.
pub fn exchange(communicator: &dyn Communicator, record: &ControlRecord) -> Result<Exchange, ControlError> {
    let identity = communicator.identity();
    let start = identity.rank * RECORD_BYTES;
    let buffer = Buffer::zeroed(identity.world_size * RECORD_BYTES, DType::U8)?;
    buffer
        .slice(start..start + RECORD_BYTES)?
        .copy_from_slice(&record.encode())?;
    let pending = communicator.all_gather(Channel::Control, buffer.clone());
    Ok(Exchange { buffer, pending })
}

impl Exchange {
    /// Waits for all records: their fold, the records by rank, and what was moved.
    pub fn finish(self, deadline: Instant) -> Result<(Folded, Vec<ControlRecord>, Moved), ControlError> {
        let moved = self.pending.wait(deadline)?;
        let bytes = self.buffer.to_vec::<u8>()?;
        let mut records = Vec::with_capacity(bytes.len() / RECORD_BYTES);
        for (rank, bytes) in bytes.as_chunks::<RECORD_BYTES>().0.iter().enumerate() {
            records.push(ControlRecord::decode(bytes).ok_or(ControlError::Malformed { rank })?);
        }
        Ok((fold(&records)?, records, moved))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn record(rank: u64) -> ControlRecord {
        ControlRecord {
            flags: Flags::NONE,
            denominator: 10 + rank,
            loss: 0.1 * (rank + 1) as f64,
            sequence: 7,
            chain: 1 << 100 | 9,
            spare: [rank, 0],
        }
    }

    #[test]
    fn a_record_survives_its_64_bytes_and_foreign_bytes_are_no_record() {
        let sent = ControlRecord {
            flags: Flags::STOP | Flags::REFORM,
            loss: f64::INFINITY,
            ..record(3)
        };
        assert_eq!(ControlRecord::decode(&sent.encode()), Some(sent));
        assert_eq!(ControlRecord::decode(&[0; 64]), None);
    }

    #[test]
    fn flags_are_joined_and_numbers_summed_in_rank_order() {
        let mut records: Vec<_> = (0..4).map(record).collect();
        records[2].flags = Flags::NON_FINITE;
        records[3].flags = Flags::STOP;
        let folded = fold(&records).unwrap();
        assert!(folded.flags.contains(Flags::NON_FINITE | Flags::STOP));
        assert!(!folded.flags.contains(Flags::REFORM));
        assert_eq!(folded.denominator, 46);
        assert_eq!(
            folded.loss.to_bits(),
            (0.1 + 0.2 + 0.1 * 3.0 + 0.1 * 4.0f64).to_bits()
        );
    }

    #[test]
    fn the_deviating_minority_is_named_and_rank_0_is_right_on_a_tie() {
        let mut records: Vec<_> = (0..3).map(record).collect();
        records[0].sequence = 8;
        let deviation = |what, ranks: &[usize]| {
            Err(ControlError::Deviation {
                what,
                ranks: ranks.to_vec(),
            })
        };
        assert_eq!(fold(&records), deviation(Disagreement::Sequence, &[0]));
        records[0].sequence = 7;
        records[2].chain = 4;
        assert_eq!(fold(&records), deviation(Disagreement::Chain, &[2]));
        assert_eq!(fold(&records[1..]), deviation(Disagreement::Chain, &[1]));
        records[2].sequence = 1;
        assert_eq!(fold(&records), deviation(Disagreement::Sequence, &[2]));
    }

    #[test]
    fn an_absurd_denominator_is_an_error_and_not_a_wrapped_sum() {
        let mut records: Vec<_> = (0..3).map(record).collect();
        records[1].denominator = u64::MAX;
        assert_eq!(fold(&records), Err(ControlError::Overflow { rank: 1 }));
    }

    #[test]
    fn all_members_reach_the_same_verdict_through_an_all_gather() {
        let group = crate::in_process::group(3, "job", 1);
        let started: Vec<_> = group
            .iter()
            .enumerate()
            .map(|(rank, member)| exchange(&**member, &record(rank as u64)).unwrap())
            .collect();
        let deadline = Instant::now() + Duration::from_secs(60);
        for exchange in started {
            let (folded, records, _) = exchange.finish(deadline).unwrap();
            assert_eq!(folded.denominator, 33);
            assert_eq!(records, (0..3).map(record).collect::<Vec<_>>());
        }
    }
}
