//! A group whose ranks are threads of one process, for tests: the same operations, arithmetic and
//! errors as over TCP, without connections, and without threads of its own. The last rank to issue an
//! operation carries it out for all. Nothing crosses a wire, so handles count no bytes.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use crate::agreement::segment_hash;
use crate::communicator::{Communicator, GroupIdentity, Issued, partition};
use crate::element::DType;
use crate::error::{AbortCause, CollectiveError};
use crate::operation::{Channel, Operation, OperationKind, ReduceOp};
use crate::pending::{Completion, Moved, Overdue, Pending};
use crate::reduce::reduce_in_place;
use crate::region::Lease;
use crate::sequence;

/// Operations that may wait on one channel of one rank.
const QUEUE_BOUND: usize = 1024;

/// One communicator for each rank of a group of `world` members.
pub fn group(world: usize, job_uid: &str, generation: u64) -> Vec<Arc<dyn Communicator>> {
    let state = Mutex::new(State {
        waiting: (0..world).map(|_| Default::default()).collect(),
        ended: vec![None; world],
    });
    let shared = Arc::new(Shared { state });
    (0..world)
        .map(|rank| {
            let identity = GroupIdentity {
                job_uid: job_uid.to_owned(),
                generation,
                rank,
                world_size: world,
            };
            let checksums = Default::default();
            Arc::new(Member {
                identity,
                shared: shared.clone(),
                checksums,
            }) as Arc<dyn Communicator>
        })
        .collect()
}

struct Waiting {
    operation: Operation,
    peer: Option<usize>,
    lease: Option<Lease>,
    wants_hash: bool,
    completion: Arc<Completion>,
    issued: Instant,
    position: u64,
}

impl Waiting {
    fn content_hash(&self) -> Option<u64> {
        let bytes = self.lease.as_ref().map_or(&[][..], Lease::bytes);
        self.wants_hash
            .then(|| segment_hash(self.operation.dtype, bytes, 0))
    }
}

#[derive(Default)]
struct Lane {
    queue: VecDeque<Waiting>,
    issued: u64,
}

struct State {
    /// By rank and channel.
    waiting: Vec<[Lane; Channel::ALL.len()]>,
    /// Why each rank's communicator is dead, if it is.
    ended: Vec<Option<CollectiveError>>,
}

/// One lock for all channels: whoever holds it may touch the buffers, so that nobody does once
/// `abort` has held it.
struct Shared {
    state: Mutex<State>,
}

struct Member {
    identity: GroupIdentity,
    shared: Arc<Shared>,
    checksums: Mutex<[u64; Channel::ALL.len()]>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// What the head of a rank's queue can do now.
enum Turn {
    Wait,
    Run(Vec<usize>),
    Mismatch { peer: usize },
    Lost { peer: usize },
}

impl State {
    /// Ends all ranks: `rank` with its own error, the others with theirs.
    fn end(&mut self, rank: usize, own: CollectiveError, others: CollectiveError) {
        for other in 0..self.ended.len() {
            self.end_one(
                other,
                if other == rank {
                    own.clone()
                } else {
                    others.clone()
                },
            );
        }
    }

    fn end_one(&mut self, rank: usize, error: CollectiveError) {
        let error = self.ended[rank].get_or_insert(error).clone();
        for lane in &mut self.waiting[rank] {
            for Waiting {
                lease, completion, ..
            } in lane.queue.drain(..)
            {
                drop(lease);
                completion.complete(Err(error.clone()));
            }
        }
    }

    fn head(&self, rank: usize, channel: Channel) -> Option<&Waiting> {
        self.waiting[rank][channel.index()].queue.front()
    }

    fn turn(&self, rank: usize, channel: Channel) -> Turn {
        let Some(head) = self.head(rank, channel) else {
            return Turn::Wait;
        };
        let taking_part: Vec<usize> = match head.peer {
            Some(peer) => vec![rank.min(peer), rank.max(peer)],
            None => (0..self.ended.len()).collect(),
        };
        let mut all_here = true;
        for peer in taking_part.iter().copied().filter(|peer| *peer != rank) {
            match self.head(peer, channel) {
                Some(other) if other.peer.is_some_and(|target| target != rank) => all_here = false,
                Some(other) if !meets(&head.operation, &other.operation) => return Turn::Mismatch { peer },
                Some(_) => {}
                None if self.ended[peer].is_some() => return Turn::Lost { peer },
                None => all_here = false,
            }
        }
        if all_here {
            Turn::Run(taking_part)
        } else {
            Turn::Wait
        }
    }

    /// Carries out what can be at the heads of a channel's queues, until nothing can.
    fn advance(&mut self, channel: Channel) {
        let mut rank = 0;
        while rank < self.ended.len() {
            match self.turn(rank, channel) {
                Turn::Wait => {
                    rank += 1;
                    continue;
                }
                Turn::Run(taking_part) => self.run(&taking_part, channel),
                Turn::Mismatch { peer } => {
                    if let (Some(mine), Some(other)) = (self.head(rank, channel), self.head(peer, channel)) {
                        let error = CollectiveError::Mismatch {
                            channel,
                            position: mine.position,
                            rank,
                            peer,
                            expected: Box::new(mine.operation),
                            got: Box::new(other.operation),
                        };
                        self.end(rank, error.clone(), error);
                    }
                }
                Turn::Lost { peer } => {
                    let cause = "it left the group".to_owned();
                    self.end_one(rank, CollectiveError::PeerLost { rank: peer, cause });
                }
            }
            rank = 0;
        }
    }

    fn run(&mut self, taking_part: &[usize], channel: Channel) {
        let world = self.ended.len();
        let mut parties: Vec<(usize, Waiting)> = Vec::with_capacity(taking_part.len());
        for rank in taking_part {
            let head = self.waiting[*rank][channel.index()].queue.pop_front();
            parties.extend(head.map(|head| (*rank, head)));
        }
        carry_out(&mut parties, world);
        for (_, waiting) in parties {
            let content_hash = waiting.content_hash();
            let wire_time = waiting.issued.elapsed();
            drop(waiting.lease);
            waiting.completion.complete(Ok(Moved {
                wire_time,
                content_hash,
                ..Moved::default()
            }));
        }
    }
}

/// True if two operations are the two sides of one.
fn meets(one: &Operation, other: &Operation) -> bool {
    one.as_sent() == other.as_sent() && (one.is_collective() || one.kind != other.kind)
}

/// Moves the bytes of one operation; `parties` are in rank order.
fn carry_out(parties: &mut [(usize, Waiting)], world: usize) {
    let Some((_, first)) = parties.first() else { return };
    let operation = first.operation;
    let sender = parties
        .iter()
        .position(|(_, waiting)| waiting.operation.kind == OperationKind::Send);
    let mut leases: Vec<&mut Lease> = parties
        .iter_mut()
        .filter_map(|(_, waiting)| waiting.lease.as_mut())
        .collect();
    let whole = 0..operation.byte_len() as usize;
    for owner in 0..world {
        let part = partition(operation.elements as usize, world, owner);
        let part = part.start * operation.dtype.size()..part.end * operation.dtype.size();
        match (operation.kind, operation.op) {
            (OperationKind::ReduceScatter, Some(op)) => {
                reduce_part(&mut leases, owner, part, operation.dtype, op);
            }
            (OperationKind::AllReduce, Some(op)) => {
                reduce_part(&mut leases, owner, part.clone(), operation.dtype, op);
                copy_part(&mut leases, owner, part);
            }
            (OperationKind::AllGather, _) => copy_part(&mut leases, owner, part),
            (OperationKind::Broadcast, _) if operation.rank == Some(owner as u32) => {
                copy_part(&mut leases, owner, whole.clone());
            }
            (OperationKind::Send | OperationKind::Receive, _) if sender == Some(owner) => {
                copy_part(&mut leases, owner, whole.clone());
            }
            _ => {}
        }
    }
}

/// Combines a range of all buffers into the owner's, as its I/O thread does over TCP.
fn reduce_part(leases: &mut [&mut Lease], owner: usize, part: Range<usize>, dtype: DType, op: ReduceOp) {
    let (below, rest) = leases.split_at_mut(owner);
    let Some((own, above)) = rest.split_first_mut() else {
        return;
    };
    let below: Vec<&[u8]> = below.iter().map(|lease| &lease.bytes()[part.clone()]).collect();
    let above: Vec<&[u8]> = above.iter().map(|lease| &lease.bytes()[part.clone()]).collect();
    reduce_in_place(dtype, op, &below, &mut own.bytes_mut()[part.clone()], &above);
}

/// Copies a range of one buffer to all others.
fn copy_part(leases: &mut [&mut Lease], from: usize, part: Range<usize>) {
    let Some(content) = leases.get(from).map(|lease| lease.bytes()[part.clone()].to_vec()) else {
        return;
    };
    for (_, lease) in leases.iter_mut().enumerate().filter(|(index, _)| *index != from) {
        lease.bytes_mut()[part.clone()].copy_from_slice(&content);
    }
}

impl Member {
    fn checksums(&self) -> MutexGuard<'_, [u64; Channel::ALL.len()]> {
        self.checksums
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn leave(&self, cause: AbortCause) {
        let rank = self.identity.rank;
        let mut state = self.shared.state();
        let pending = state.waiting[rank].iter().any(|lane| !lane.queue.is_empty());
        let in_order = !pending && !matches!(cause, AbortCause::Failure(_));
        let lost = format!("it left the group: {cause}");
        let own = CollectiveError::Aborted { cause };
        if in_order {
            state.end_one(rank, own);
            for channel in Channel::ALL {
                state.advance(channel);
            }
        } else {
            state.end(rank, own, CollectiveError::PeerLost { rank, cause: lost });
        }
    }
}

struct GiveUp {
    rank: usize,
    shared: Arc<Shared>,
}

impl Overdue for GiveUp {
    fn give_up(&self, completion: &Completion) {
        let mut state = self.shared.state();
        let overdue = Channel::ALL.into_iter().find_map(|channel| {
            let queue = &state.waiting[self.rank][channel.index()].queue;
            let waiting = queue
                .iter()
                .find(|waiting| std::ptr::eq(&*waiting.completion, completion))?;
            let missing = |peer: &usize| *peer != self.rank && state.head(*peer, channel).is_none();
            Some(CollectiveError::Deadline {
                operation: Box::new(waiting.operation),
                channel,
                after: waiting.issued.elapsed(),
                waiting_for: (0..state.ended.len()).filter(missing).collect(),
            })
        });
        if let Some(error) = overdue {
            let cause = format!("it gave up: {error}");
            state.end(
                self.rank,
                error,
                CollectiveError::PeerLost {
                    rank: self.rank,
                    cause,
                },
            );
        }
    }
}

impl Communicator for Member {
    fn identity(&self) -> &GroupIdentity {
        &self.identity
    }

    fn issue(&self, channel: Channel, issued: Issued) -> Pending {
        let refused = |reason: String| {
            Pending::ready(Err(CollectiveError::Refused {
                operation: Box::new(issued.operation),
                reason,
            }))
        };
        let rank = self.identity.rank;
        if let Some(reason) = issued.obstacle(&self.identity) {
            return refused(reason);
        }
        if issued
            .buffer
            .as_ref()
            .is_some_and(|buffer| buffer.readiness().is_some())
        {
            return refused("an in-process group takes only memory that is ready".into());
        }
        let mut state = self.shared.state();
        if let Some(error) = &state.ended[rank] {
            return Pending::ready(Err(error.clone()));
        }
        if state.waiting[rank][channel.index()].queue.len() >= QUEUE_BOUND {
            return refused(format!(
                "{QUEUE_BOUND} operations wait on this channel, wait for some first"
            ));
        }
        let lease = match issued
            .buffer
            .as_ref()
            .map(|buffer| buffer.lease(issued.writes(rank)))
        {
            Some(Err(error)) => return refused(error.to_string()),
            Some(Ok(lease)) => Some(lease),
            None => None,
        };
        let checksum = &mut self.checksums()[channel.index()];
        *checksum = sequence::extend(*checksum, &issued.operation);
        let completion = Arc::new(Completion::default());
        let lane = &mut state.waiting[rank][channel.index()];
        lane.queue.push_back(Waiting {
            operation: issued.operation,
            peer: issued.peer,
            lease,
            wants_hash: issued.wants_content_hash(),
            completion: completion.clone(),
            issued: Instant::now(),
            position: lane.issued,
        });
        lane.issued += 1;
        state.advance(channel);
        Pending::new(
            completion,
            Arc::new(GiveUp {
                rank,
                shared: self.shared.clone(),
            }),
        )
    }

    fn sequence_checksum(&self, channel: Channel) -> u64 {
        self.checksums()[channel.index()]
    }

    fn abort(&self, cause: AbortCause) {
        self.leave(cause);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.leave(AbortCause::Dropped);
    }
}
