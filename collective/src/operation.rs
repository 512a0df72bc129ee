//! What ranks must agree on about an operation, and its fixed form on the wire.

use serde::{Deserialize, Serialize};

use crate::element::DType;

/// Independent lanes of a communicator: operations of one channel run in the order in which they
/// were issued, and no channel waits for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Channel {
    /// Gradient buckets.
    Gradients,
    /// Control records, plans, barriers.
    Control,
    /// Model and optimiser state: donors, digests.
    State,
    /// Pushes and pulls of sharded strategies.
    Pushes,
}

impl Channel {
    /// All channels, in the order of their index.
    pub const ALL: [Channel; 4] = [
        Channel::Gradients,
        Channel::Control,
        Channel::State,
        Channel::Pushes,
    ];

    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

impl std::fmt::Display for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Channel::Gradients => "gradients",
            Channel::Control => "control",
            Channel::State => "state",
            Channel::Pushes => "pushes",
        })
    }
}

/// How contributions are combined, element by element, in rank order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum ReduceOp {
    /// The sum.
    Sum = 1,
    /// The greatest; NaN if one is NaN.
    Max = 2,
    /// The least; NaN if one is NaN.
    Min = 3,
}

/// The type in which elements travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
#[repr(u8)]
pub enum WireType {
    /// The element type itself: nothing is lost.
    Same = 0,
    /// bfloat16, summed in binary32. Not yet carried by any transport: refused.
    Bf16 = 1,
    /// binary16, summed in binary32. Not yet carried by any transport: refused.
    F16 = 2,
}

/// Which operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum OperationKind {
    /// Everybody ends with the combination of all contributions.
    AllReduce = 1,
    /// Everybody ends with its part of the combination.
    ReduceScatter = 2,
    /// Everybody ends with the parts of all.
    AllGather = 3,
    /// Everybody ends with the root's content.
    Broadcast = 4,
    /// One rank's content goes to another.
    Send = 5,
    /// The other end of a send.
    Receive = 6,
    /// Nobody goes on before all have come.
    Barrier = 7,
}

impl OperationKind {
    const ALL: [OperationKind; 7] = [
        OperationKind::AllReduce,
        OperationKind::ReduceScatter,
        OperationKind::AllGather,
        OperationKind::Broadcast,
        OperationKind::Send,
        OperationKind::Receive,
        OperationKind::Barrier,
    ];
}

/// An operation without its memory: what all ranks must issue alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Operation {
    /// Which operation.
    pub kind: OperationKind,
    /// Elements of the buffer.
    pub elements: u64,
    /// Element type.
    pub dtype: DType,
    /// How contributions are combined, where they are.
    pub op: Option<ReduceOp>,
    /// The type on the wire.
    pub wire: WireType,
    /// The root of a broadcast, the receiving rank of a send or receive.
    pub rank: Option<u32>,
}

/// Bytes of an encoded operation.
pub(crate) const OPERATION_BYTES: usize = 16;

impl Operation {
    pub(crate) fn barrier() -> Operation {
        Operation {
            kind: OperationKind::Barrier,
            elements: 0,
            dtype: DType::U8,
            op: None,
            wire: WireType::Same,
            rank: None,
        }
    }

    /// Bytes of the buffer.
    pub fn byte_len(&self) -> u64 {
        self.elements.saturating_mul(self.dtype.size() as u64)
    }

    /// True for what all ranks of a group issue together.
    pub fn is_collective(&self) -> bool {
        !matches!(self.kind, OperationKind::Send | OperationKind::Receive)
    }

    /// What the other end of this operation sends along: itself, but a receive meets a send.
    pub(crate) fn as_sent(&self) -> Operation {
        match self.kind {
            OperationKind::Receive => Operation {
                kind: OperationKind::Send,
                ..*self
            },
            _ => *self,
        }
    }

    pub(crate) fn encode(&self) -> [u8; OPERATION_BYTES] {
        let mut bytes = [0; OPERATION_BYTES];
        bytes[0] = self.kind as u8;
        bytes[1] = self.dtype.code();
        bytes[2] = self.op.map_or(0, |op| op as u8);
        bytes[3] = self.wire as u8;
        bytes[4..8].copy_from_slice(&self.rank.unwrap_or(u32::MAX).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.elements.to_le_bytes());
        bytes
    }

    /// `None` for codes that this version does not know.
    pub(crate) fn decode(bytes: &[u8; OPERATION_BYTES]) -> Option<Operation> {
        let [kind, dtype, op, wire, rank @ .., e0, e1, e2, e3, e4, e5, e6, e7] = *bytes;
        let rank = u32::from_le_bytes(rank);
        Some(Operation {
            kind: OperationKind::ALL
                .into_iter()
                .find(|known| *known as u8 == kind)?,
            elements: u64::from_le_bytes([e0, e1, e2, e3, e4, e5, e6, e7]),
            dtype: DType::from_code(dtype)?,
            op: match op {
                0 => None,
                code => Some(
                    [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min]
                        .into_iter()
                        .find(|known| *known as u8 == code)?,
                ),
            },
            wire: [WireType::Same, WireType::Bf16, WireType::F16]
                .into_iter()
                .find(|known| *known as u8 == wire)?,
            rank: (rank != u32::MAX).then_some(rank),
        })
    }
}

impl std::fmt::Display for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match self.kind {
            OperationKind::AllReduce => "all-reduce",
            OperationKind::ReduceScatter => "reduce-scatter",
            OperationKind::AllGather => "all-gather",
            OperationKind::Broadcast => "broadcast",
            OperationKind::Send => "send",
            OperationKind::Receive => "receive",
            OperationKind::Barrier => return f.write_str("barrier"),
        };
        write!(f, "{name}")?;
        match self.op {
            Some(ReduceOp::Sum) => write!(f, " (sum)")?,
            Some(ReduceOp::Max) => write!(f, " (max)")?,
            Some(ReduceOp::Min) => write!(f, " (min)")?,
            None => {}
        }
        write!(f, " of {} {}", self.elements, self.dtype)?;
        match (self.kind, self.rank) {
            (OperationKind::Broadcast, Some(rank)) => write!(f, " from rank {rank}"),
            (_, Some(rank)) => write!(f, " to rank {rank}"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_survives_its_wire_form_and_unknown_codes_do_not_decode() {
        for kind in OperationKind::ALL {
            for dtype in DType::ALL {
                for op in [
                    None,
                    Some(ReduceOp::Sum),
                    Some(ReduceOp::Max),
                    Some(ReduceOp::Min),
                ] {
                    for wire in [WireType::Same, WireType::Bf16, WireType::F16] {
                        for rank in [None, Some(0), Some(7)] {
                            let sent = Operation {
                                kind,
                                elements: 1 << 40 | 5,
                                dtype,
                                op,
                                wire,
                                rank,
                            };
                            assert_eq!(Operation::decode(&sent.encode()), Some(sent));
                        }
                    }
                }
            }
        }
        let good = Operation::barrier().encode();
        for place in 0..4 {
            let mut bad = good;
            bad[place] = 99;
            assert_eq!(Operation::decode(&bad), None);
        }
    }
}
