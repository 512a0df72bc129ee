//! The operation that a channel's thread has in hand.

use std::ops::Range;
use std::time::Instant;

use crate::agreement::segment_hash;
use crate::communicator::GroupIdentity;
use crate::operation::OperationKind;
use crate::pending::Moved;
use crate::reduce::reduce_in_place;
use crate::tcp::connection::Connection;
use crate::tcp::core::Queued;
use crate::tcp::work::{self, CHUNK, Exchange, Own, SLOTS};

pub(super) struct InHand {
    pub(super) queued: Queued,
    pub(super) own: Own,
    /// Byte up to which the own part is combined.
    pub(super) combined: usize,
    /// By connection.
    pub(super) exchanges: Vec<Exchange>,
    pub(super) moved: Moved,
    started: Instant,
    /// Of the final bytes so far, where the operation takes it on the way.
    hash: Option<u64>,
}

impl InHand {
    pub(super) fn new(queued: Queued, identity: &GroupIdentity, connections: &mut [Connection]) -> InHand {
        let (rank, world) = (identity.rank, identity.world_size);
        let own = work::own(&queued.operation, rank, world);
        let mut exchanges = Vec::with_capacity(connections.len());
        for connection in connections {
            let peer = connection.rank();
            exchanges.push(Exchange::new(
                &queued.operation,
                rank,
                world,
                peer,
                queued.partner,
            ));
            connection.reserve(own.range.len().min(SLOTS * CHUNK));
        }
        let on_the_way = queued.wants_hash && queued.operation.kind == OperationKind::AllReduce;
        InHand {
            combined: own.range.start,
            own,
            exchanges,
            moved: Moved::default(),
            started: Instant::now(),
            hash: on_the_way.then_some(0),
            queued,
        }
    }

    /// Byte of the slots at which the contribution to the piece at byte `start` of the buffer waits.
    pub(super) fn slot(&self, start: usize) -> usize {
        (start - self.own.range.start) / CHUNK % SLOTS * CHUNK
    }

    /// Takes note of bytes that have their final value, while they are in the cache.
    pub(super) fn is_final(&mut self, range: Range<usize>) {
        let Some(hash) = self.hash else { return };
        let dtype = self.queued.operation.dtype;
        let first = (range.start / dtype.size()) as u64;
        self.hash = Some(hash.wrapping_add(segment_hash(dtype, &self.queued.bytes()[range], first)));
    }

    /// Combines the pieces of which all contributions are here. True if there was one.
    pub(super) fn combine(&mut self, rank: usize, connections: &[Connection]) -> bool {
        let Some(op) = self.queued.operation.op else {
            return false;
        };
        let mut progress = false;
        while self.combined < self.own.range.end {
            let piece = self.combined..self.own.range.end.min(self.combined + CHUNK);
            let all_here = self
                .exchanges
                .iter()
                .all(|exchange| exchange.taken() >= piece.end);
            if !all_here || (self.own.one_shot && !self.is_sent(connections)) {
                break;
            }
            let slot = self.slot(piece.start);
            let mut below: Vec<&[u8]> = Vec::with_capacity(connections.len());
            let mut above: Vec<&[u8]> = Vec::with_capacity(connections.len());
            for connection in connections {
                let side = if connection.rank() < rank {
                    &mut below
                } else {
                    &mut above
                };
                side.push(&connection.slots()[slot..slot + piece.len()]);
            }
            let dtype = self.queued.operation.dtype;
            reduce_in_place(
                dtype,
                op,
                &below,
                &mut self.queued.bytes_mut()[piece.clone()],
                &above,
            );
            self.combined = piece.end;
            self.is_final(piece);
            progress = true;
        }
        progress
    }

    fn is_sent(&self, connections: &[Connection]) -> bool {
        self.exchanges.iter().all(Exchange::is_sent) && connections.iter().all(Connection::is_flushed)
    }

    pub(super) fn is_complete(&self, connections: &[Connection]) -> bool {
        self.combined == self.own.range.end
            && self.exchanges.iter().all(Exchange::is_received)
            && self.is_sent(connections)
    }

    /// What the operation moved, at its end.
    pub(super) fn summary(&self) -> Moved {
        let all = || segment_hash(self.queued.operation.dtype, self.queued.bytes(), 0);
        Moved {
            wire_time: self.started.elapsed(),
            content_hash: self.queued.wants_hash.then(|| self.hash.unwrap_or_else(all)),
            ..self.moved
        }
    }
}
