//! The one interface through which members exchange data, whatever carries it.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::buffer::Buffer;
use crate::error::AbortCause;
use crate::operation::{Channel, Operation, OperationKind, ReduceOp, WireType};
use crate::pending::Pending;

/// Who this member is, in which generation of which job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupIdentity {
    /// UID of the job.
    pub job_uid: String,
    /// Generation of the group: only grows.
    pub generation: u64,
    /// This member's rank, below `world_size`.
    pub rank: usize,
    /// Number of members.
    pub world_size: usize,
}

/// A member's connections for one generation. Dropped and made anew when the generation changes;
/// never repaired.
///
/// Every call returns at once. All ranks issue the same collective operations in the same order on
/// each channel; where they do not, all get [`CollectiveError::Mismatch`](crate::CollectiveError),
/// never a hang. Buffers are worked on in place, and are nobody else's until the handle is done. The
/// elements of a buffer are split among the ranks as [`partition`] says.
pub trait Communicator: Send + Sync {
    /// Job, generation, rank, world size.
    fn identity(&self) -> &GroupIdentity;

    /// Issues an operation: what the named calls below come to, and all that a transport has to carry.
    fn issue(&self, channel: Channel, issued: Issued) -> Pending;

    /// Everybody's buffer becomes the combination of all, in rank order.
    fn all_reduce(&self, channel: Channel, buffer: Buffer, op: ReduceOp, wire: WireType) -> Pending {
        let issued = Issued::new(OperationKind::AllReduce, buffer).reducing(op, wire);
        self.issue(channel, issued)
    }

    /// This rank's part of its buffer becomes the combination of that part of all buffers; the other
    /// parts keep what they held.
    fn reduce_scatter(&self, channel: Channel, buffer: Buffer, op: ReduceOp, wire: WireType) -> Pending {
        let issued = Issued::new(OperationKind::ReduceScatter, buffer).reducing(op, wire);
        self.issue(channel, issued)
    }

    /// Each rank's part of the buffer reaches all others.
    fn all_gather(&self, channel: Channel, buffer: Buffer) -> Pending {
        self.issue(channel, Issued::new(OperationKind::AllGather, buffer))
    }

    /// Everybody's buffer becomes that of rank `root`.
    fn broadcast(&self, channel: Channel, buffer: Buffer, root: usize) -> Pending {
        let issued = Issued::new(OperationKind::Broadcast, buffer).rooted_at(root);
        self.issue(channel, issued)
    }

    /// Sends the buffer to rank `to`, which receives it with the same length and type. Done when the
    /// bytes are handed over to the system; two ranks that send to each other on one channel must
    /// not both do it first.
    fn send(&self, channel: Channel, buffer: Buffer, to: usize) -> Pending {
        self.issue(channel, Issued::new(OperationKind::Send, buffer).between(to, to))
    }

    /// Receives into the buffer what rank `from` sends.
    fn receive(&self, channel: Channel, buffer: Buffer, from: usize) -> Pending {
        let to = self.identity().rank;
        self.issue(
            channel,
            Issued::new(OperationKind::Receive, buffer).between(to, from),
        )
    }

    /// Done when all ranks have issued it.
    fn barrier(&self, channel: Channel) -> Pending {
        self.issue(channel, Issued::barrier())
    }

    /// Checksum of the collective operations issued so far on a channel (kind, elements, type,
    /// operator, in order): equal on all ranks at every boundary.
    fn sequence_checksum(&self, channel: Channel) -> u64;

    /// Ends the communicator, from any thread: all handles end with `Aborted`, the peers see this
    /// rank leave. When it returns, no thread of the transport touches any region (but for one that is
    /// stuck in a readiness event: its buffer stays taken).
    ///
    /// For `Stop` and `Reform` with nothing pending, as for a drop, it is a leave in order: peers that
    /// have yet to finish an operation whose part here is done can still do so (a closing barrier,
    /// say), and lose this rank only when they need it again.
    fn abort(&self, cause: AbortCause);
}

/// The elements of a buffer of `elements` that belong to `rank` among `world`: contiguous, in rank
/// order, counts differ by at most one.
pub fn partition(elements: usize, world: usize, rank: usize) -> Range<usize> {
    let bound = |rank: usize| (elements as u128 * rank as u128 / world.max(1) as u128) as usize;
    bound(rank)..bound(rank + 1)
}

/// An operation as issued: what peers must agree on, the memory, and the one peer of a
/// point-to-point operation.
///
/// Made by the named calls of [`Communicator`] alone, so that a transport need not check its form.
pub struct Issued {
    pub(crate) operation: Operation,
    pub(crate) buffer: Option<Buffer>,
    pub(crate) peer: Option<usize>,
}

impl Issued {
    /// What peers must agree on.
    pub fn operation(&self) -> &Operation {
        &self.operation
    }

    /// The memory, which a barrier has none of.
    pub fn buffer(&self) -> Option<&Buffer> {
        self.buffer.as_ref()
    }

    pub(crate) fn new(kind: OperationKind, buffer: Buffer) -> Issued {
        let operation = Operation {
            kind,
            elements: buffer.elements() as u64,
            dtype: buffer.dtype(),
            ..Operation::barrier()
        };
        Issued {
            operation,
            buffer: Some(buffer),
            peer: None,
        }
    }

    pub(crate) fn barrier() -> Issued {
        Issued {
            operation: Operation::barrier(),
            buffer: None,
            peer: None,
        }
    }

    pub(crate) fn reducing(mut self, op: ReduceOp, wire: WireType) -> Issued {
        self.operation.op = Some(op);
        self.operation.wire = wire;
        self
    }

    pub(crate) fn rooted_at(mut self, root: usize) -> Issued {
        self.operation.rank = Some(root as u32);
        self
    }

    pub(crate) fn between(mut self, to: usize, peer: usize) -> Issued {
        self.operation.rank = Some(to as u32);
        self.peer = Some(peer);
        self
    }

    /// What makes the operation impossible in this group, if anything does.
    pub(crate) fn obstacle(&self, identity: &GroupIdentity) -> Option<String> {
        let world = identity.world_size;
        if self.operation.wire != WireType::Same {
            return Some(format!(
                "wire type {:?} is not carried by this transport, use Same",
                self.operation.wire
            ));
        }
        if let Some(rank) = self.operation.rank
            && rank as usize >= world
        {
            return Some(format!("rank {rank} is not in a group of {world}"));
        }
        match self.peer {
            Some(peer) if peer >= world => Some(format!("rank {peer} is not in a group of {world}")),
            Some(peer) if peer == identity.rank => Some("a rank cannot send to itself".into()),
            _ => None,
        }
    }

    pub(crate) fn wants_content_hash(&self) -> bool {
        self.buffer.as_ref().is_some_and(Buffer::wants_content_hash)
    }

    /// True if the buffer is written.
    pub(crate) fn writes(&self, rank: usize) -> bool {
        match self.operation.kind {
            OperationKind::Send => false,
            OperationKind::Broadcast => self.operation.rank != Some(rank as u32),
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::partition;

    #[test]
    fn the_parts_of_all_ranks_tile_the_buffer_evenly() {
        for elements in [0, 1, 2, 5, 64, 1000, 1001] {
            for world in 1..=7 {
                let parts: Vec<_> = (0..world).map(|rank| partition(elements, world, rank)).collect();
                assert_eq!(parts[0].start, 0);
                assert_eq!(parts[world - 1].end, elements);
                assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
                let sizes: Vec<_> = parts.iter().map(|part| part.len()).collect();
                assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
            }
        }
    }
}
