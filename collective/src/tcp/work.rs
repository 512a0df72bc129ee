//! What an operation moves between this rank and one peer: pure bookkeeping of byte ranges.
//!
//! A big all-reduce is a direct reduce-scatter and all-gather: each rank owns a part, receives all
//! contributions to it, combines them in rank order, and passes the result on to all. A small one is a
//! one-shot exchange: everybody sends everything to everybody and owns the whole. Both combine each
//! element in rank order, so that the choice changes no bit.

use std::ops::Range;

use crate::communicator::partition;
use crate::operation::{Operation, OperationKind};
use crate::tcp::frame::Phase;

/// Bytes of a piece on its way: small enough for the second-level cache, a whole number of elements.
pub(super) const CHUNK: usize = 256 << 10;
/// Contributions of one peer that may wait for those of others.
pub(super) const SLOTS: usize = 4;
/// Largest all-reduce that is done by a one-shot exchange, in bytes.
pub(super) const ONE_SHOT: u64 = 64 << 10;

/// The part that this rank combines, if the operation reduces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Own {
    pub(super) range: Range<usize>,
    /// Everything is sent before it is overwritten: no combining before all is on its way.
    pub(super) one_shot: bool,
}

pub(super) fn own(operation: &Operation, rank: usize, world: usize) -> Own {
    match operation.kind {
        OperationKind::AllReduce if operation.byte_len() <= ONE_SHOT => Own {
            range: 0..operation.byte_len() as usize,
            one_shot: true,
        },
        OperationKind::AllReduce | OperationKind::ReduceScatter => Own {
            range: part(operation, world, rank),
            one_shot: false,
        },
        _ => Own {
            range: 0..0,
            one_shot: false,
        },
    }
}

fn part(operation: &Operation, world: usize, rank: usize) -> Range<usize> {
    let part = partition(operation.elements as usize, world, rank);
    part.start * operation.dtype.size()..part.end * operation.dtype.size()
}

/// What is left to be exchanged with one peer. Ranges shrink from the front.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Exchange {
    /// An empty frame is to be sent, for want of data.
    nod_out: bool,
    /// An empty frame is to be received.
    nod_in: bool,
    /// To be sent, there from the start.
    give: Range<usize>,
    give_phase: Phase,
    /// To be sent as it is combined.
    pass_on: Range<usize>,
    /// Contributions to be received.
    take: Range<usize>,
    /// Results to be received.
    place: Range<usize>,
    sends: bool,
    receives: bool,
}

/// What to do with a frame that a peer announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Receive its payload now.
    Receive,
    /// There is no room before others have sent theirs.
    Later,
    /// It says that the peer has no data.
    Nod,
    /// It is not what the protocol has here.
    Violation,
}

impl Exchange {
    /// What `operation` moves between `rank` and `peer`; `partner` is the other side of a
    /// point-to-point operation.
    pub(super) fn new(
        operation: &Operation,
        rank: usize,
        world: usize,
        peer: usize,
        partner: Option<usize>,
    ) -> Exchange {
        let whole = 0..operation.byte_len() as usize;
        let own = own(operation, rank, world);
        let mut exchange = Exchange {
            nod_out: false,
            nod_in: false,
            give: 0..0,
            give_phase: Phase::Result,
            pass_on: 0..0,
            take: 0..0,
            place: 0..0,
            sends: true,
            receives: true,
        };
        match operation.kind {
            OperationKind::AllReduce if own.one_shot => {
                exchange.give_phase = Phase::Contribution;
                exchange.give = whole.clone();
                exchange.take = whole;
            }
            OperationKind::AllReduce | OperationKind::ReduceScatter => {
                let theirs = part(operation, world, peer);
                exchange.give_phase = Phase::Contribution;
                exchange.give = theirs.clone();
                exchange.take = own.range.clone();
                if operation.kind == OperationKind::AllReduce {
                    exchange.pass_on = own.range;
                    exchange.place = theirs;
                }
            }
            OperationKind::AllGather => {
                exchange.give = part(operation, world, rank);
                exchange.place = part(operation, world, peer);
            }
            OperationKind::Broadcast => {
                let root = operation.rank.unwrap_or(0) as usize;
                if root == rank {
                    exchange.give = whole;
                } else if root == peer {
                    exchange.place = whole;
                } else {
                    // The others hear of this rank through the root, which hears from all.
                    exchange.sends = false;
                    exchange.receives = false;
                }
            }
            OperationKind::Send => {
                exchange.sends = partner == Some(peer);
                exchange.receives = false;
                exchange.give = whole;
            }
            OperationKind::Receive => {
                exchange.receives = partner == Some(peer);
                exchange.sends = false;
                exchange.place = whole;
            }
            OperationKind::Barrier => {}
        }
        if !exchange.sends {
            exchange.give = 0..0;
        }
        if !exchange.receives {
            exchange.place = 0..0;
        }
        exchange.nod_out = exchange.sends && exchange.give.is_empty() && exchange.pass_on.is_empty();
        exchange.nod_in = exchange.receives && exchange.take.is_empty() && exchange.place.is_empty();
        exchange
    }

    /// True if the operation sends to this peer at all.
    pub(super) fn sends(&self) -> bool {
        self.sends
    }

    /// True if the operation receives from this peer at all.
    pub(super) fn receives(&self) -> bool {
        self.receives
    }

    /// The next frame for the peer, given that results are there up to byte `combined`. Results go
    /// first: they are still in the cache.
    pub(super) fn next_frame(&mut self, combined: usize) -> Option<(Phase, Range<usize>)> {
        let ready = combined.min(self.pass_on.end);
        if self.pass_on.start < ready {
            let end = ready.min(self.pass_on.start + CHUNK);
            let range = self.pass_on.start..end;
            self.pass_on.start = end;
            return Some((Phase::Result, range));
        }
        if !self.give.is_empty() {
            let end = self.give.end.min(self.give.start + CHUNK);
            let range = self.give.start..end;
            self.give.start = end;
            return Some((self.give_phase, range));
        }
        std::mem::take(&mut self.nod_out).then_some((self.give_phase, 0..0))
    }

    /// Judges an announced frame, given the byte up to which contributions are combined.
    pub(super) fn judge(&self, phase: Phase, range: &Range<u64>, combined: usize) -> Verdict {
        let (Ok(start), Ok(end)) = (usize::try_from(range.start), usize::try_from(range.end)) else {
            return Verdict::Violation;
        };
        if start == end {
            return if self.nod_in {
                Verdict::Nod
            } else {
                Verdict::Violation
            };
        }
        match phase {
            Phase::Contribution => {
                let expected = self.take.start..self.take.end.min(self.take.start + CHUNK);
                if (start..end) != expected {
                    Verdict::Violation
                } else if start >= combined + SLOTS * CHUNK {
                    Verdict::Later
                } else {
                    Verdict::Receive
                }
            }
            Phase::Result if start == self.place.start && end <= self.place.end => Verdict::Receive,
            Phase::Result => Verdict::Violation,
        }
    }

    /// A frame has come whole.
    pub(super) fn received(&mut self, phase: Phase, range: &Range<usize>) {
        match phase {
            _ if range.is_empty() => self.nod_in = false,
            Phase::Contribution => self.take.start = range.end,
            Phase::Result => self.place.start = range.end,
        }
    }

    /// The byte up to which the peer's contributions are here.
    pub(super) fn taken(&self) -> usize {
        self.take.start
    }

    pub(super) fn is_sent(&self) -> bool {
        self.give.is_empty() && self.pass_on.is_empty() && !self.nod_out
    }

    pub(super) fn is_received(&self) -> bool {
        self.take.is_empty() && self.place.is_empty() && !self.nod_in
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, ReduceOp, WireType};

    fn all_reduce(elements: u64) -> Operation {
        Operation {
            kind: OperationKind::AllReduce,
            elements,
            dtype: DType::F32,
            op: Some(ReduceOp::Sum),
            wire: WireType::Same,
            rank: None,
        }
    }

    #[test]
    fn i8_a_big_all_reduce_sends_each_byte_twice_less_the_own_part() {
        for world in 2..=5usize {
            let operation = all_reduce(100_003);
            for rank in 0..world {
                let mut bytes = 0;
                for peer in (0..world).filter(|peer| *peer != rank) {
                    let mut exchange = Exchange::new(&operation, rank, world, peer, None);
                    while let Some((_, range)) = exchange.next_frame(usize::MAX) {
                        bytes += range.len();
                    }
                    assert!(exchange.is_sent());
                }
                let own = own(&operation, rank, world).range.len();
                assert_eq!(bytes, (400_012 - own) + (world - 1) * own);
            }
        }
    }

    #[test]
    fn results_are_sent_only_as_far_as_they_are_combined_and_before_contributions() {
        let mut exchange = Exchange::new(&all_reduce(1 << 20), 0, 2, 1, None);
        assert!(matches!(exchange.next_frame(0), Some((Phase::Contribution, _))));
        assert_eq!(exchange.next_frame(CHUNK), Some((Phase::Result, 0..CHUNK)));
        assert!(matches!(
            exchange.next_frame(CHUNK),
            Some((Phase::Contribution, _))
        ));
    }

    #[test]
    fn frames_out_of_place_are_violations_and_those_too_early_wait() {
        let mut exchange = Exchange::new(&all_reduce(1 << 22), 0, 2, 1, None);
        let chunk = CHUNK as u64;
        let judge = |exchange: &Exchange, range| exchange.judge(Phase::Contribution, &range, 0);
        assert_eq!(judge(&exchange, 0..chunk), Verdict::Receive);
        assert_eq!(judge(&exchange, 0..chunk - 4), Verdict::Violation);
        assert_eq!(judge(&exchange, chunk..2 * chunk), Verdict::Violation);
        assert_eq!(judge(&exchange, 0..0), Verdict::Violation);
        assert_eq!(judge(&exchange, 0..u64::MAX), Verdict::Violation);
        for slot in 0..SLOTS {
            exchange.received(Phase::Contribution, &(slot * CHUNK..(slot + 1) * CHUNK));
        }
        let next = SLOTS as u64 * chunk;
        assert_eq!(judge(&exchange, next..next + chunk), Verdict::Later);
        assert_eq!(
            exchange.judge(Phase::Contribution, &(next..next + chunk), CHUNK),
            Verdict::Receive
        );
        let half = 1 << 23;
        assert_eq!(
            exchange.judge(Phase::Result, &(half..half + 8), 0),
            Verdict::Receive
        );
        assert_eq!(
            exchange.judge(Phase::Result, &(half..2 * half + 4), 0),
            Verdict::Violation
        );
    }

    #[test]
    fn every_rank_nods_to_every_other_where_it_has_nothing_to_send() {
        let barrier = Operation::barrier();
        let mut exchange = Exchange::new(&barrier, 0, 3, 2, None);
        assert!(!exchange.is_sent() && !exchange.is_received());
        assert_eq!(exchange.next_frame(0), Some((Phase::Result, 0..0)));
        assert_eq!(exchange.judge(Phase::Result, &(0..0), 0), Verdict::Nod);
        exchange.received(Phase::Result, &(0..0));
        assert!(exchange.is_sent() && exchange.is_received());
        let broadcast = Operation {
            kind: OperationKind::Broadcast,
            elements: 10,
            rank: Some(1),
            ..barrier
        };
        let to_root = Exchange::new(&broadcast, 0, 3, 1, None);
        assert!(to_root.sends() && to_root.receives() && !to_root.is_sent());
        let between = Exchange::new(&broadcast, 0, 3, 2, None);
        assert!(!between.sends() && !between.receives() && between.is_sent() && between.is_received());
    }
}
