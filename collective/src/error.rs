//! What ends an operation without a result, and what a member tells others when it stops.

use std::time::Duration;

use crate::operation::{Channel, Operation};

/// Why a member ends its communicator by itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AbortCause {
    /// The membership changes: the next generation takes over.
    #[error("the group is formed anew")]
    Reform,
    /// Training stops.
    #[error("training stops")]
    Stop,
    /// The member cannot go on; the text says why.
    #[error("{0}")]
    Failure(String),
    /// The communicator was dropped with operations pending.
    #[error("the communicator was dropped")]
    Dropped,
}

/// Why an operation has no result. After any of these but `Refused` the communicator is dead: every
/// later operation ends with the same error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// A peer's connection ended, or it was silent for too long.
    #[error("rank {rank} is lost: {cause}")]
    PeerLost {
        /// The rank that is lost.
        rank: usize,
        /// How it was noticed.
        cause: String,
    },
    /// An operation was not complete at its deadline.
    #[error(
        "{operation} on channel {channel} was not complete after {after:?}, waiting for ranks {waiting_for:?}"
    )]
    Deadline {
        /// The operation.
        operation: Box<Operation>,
        /// Its channel.
        channel: Channel,
        /// Time since it was issued.
        after: Duration,
        /// Ranks from or to which bytes were still outstanding.
        waiting_for: Vec<usize>,
    },
    /// Two ranks issued different operations at the same place of a channel's sequence.
    #[error(
        "rank {rank} and rank {peer} disagree at operation {position} of channel {channel}: expected {expected}, got {got}"
    )]
    Mismatch {
        /// The channel.
        channel: Channel,
        /// Place in the sequence of operations between the two ranks, from 0.
        position: u64,
        /// The rank that noticed.
        rank: usize,
        /// The rank that it differs from.
        peer: usize,
        /// What `rank` issued.
        expected: Box<Operation>,
        /// What `peer` issued.
        got: Box<Operation>,
    },
    /// The operation cannot be done as asked; nothing was sent and the communicator still works.
    #[error("{operation} refused: {reason}")]
    Refused {
        /// The operation.
        operation: Box<Operation>,
        /// Why, and the way out.
        reason: String,
    },
    /// This member called `abort` or dropped the communicator.
    #[error("aborted: {cause}")]
    Aborted {
        /// Why.
        cause: AbortCause,
    },
    /// The communicator has ended, but its thread did not let go of the operation's buffer, which
    /// stays taken.
    #[error("the transport did not let go of its buffer within {after:?} of the communicator's end")]
    Stuck {
        /// Time waited.
        after: Duration,
    },
    /// The transport itself broke: a system call, or bytes against the protocol.
    #[error("transport to rank {rank}: {cause}")]
    Transport {
        /// The peer at the other end.
        rank: usize,
        /// What went wrong.
        cause: String,
    },
}

impl CollectiveError {
    /// The rank that the error points at, if it points at one: what a member reports when it rejoins.
    pub fn suspect(&self) -> Option<usize> {
        match self {
            CollectiveError::PeerLost { rank, .. } | CollectiveError::Transport { rank, .. } => Some(*rank),
            CollectiveError::Deadline { waiting_for, .. } => waiting_for.first().copied(),
            _ => None,
        }
    }
}
