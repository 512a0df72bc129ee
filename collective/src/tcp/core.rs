//! What the threads of one communicator share: queues, the end and its cause, who still runs.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Instant;

use crate::agreement::segment_hash;
use crate::buffer::{Buffer, Readiness};
use crate::communicator::{Communicator, GroupIdentity, Issued};
use crate::error::{AbortCause, CollectiveError};
use crate::operation::{Channel, Operation};
use crate::pending::{Completion, Moved, Overdue, Pending, SETTLED_WITHIN};
use crate::region::Lease;
use crate::sequence;
use crate::tcp::door::Door;
use crate::tcp::hello::Local;
use crate::tcp::lane::Lane;
use crate::tcp::link::Link;
use crate::tcp::mesh::Streams;
use crate::tcp::socket::{Waker, prepare};
use crate::tcp::{ConnectError, LINK, Options};

/// Operations that may wait on one channel.
const QUEUE_BOUND: usize = 1024;

/// An operation in a channel's queue.
pub(super) struct Queued {
    pub(super) operation: Operation,
    pub(super) partner: Option<usize>,
    pub(super) lease: Option<Lease>,
    pub(super) wants_hash: bool,
    pub(super) readiness: Option<Arc<dyn Readiness>>,
    pub(super) issued: Instant,
    pub(super) completion: Arc<Completion>,
}

impl Queued {
    pub(super) fn bytes(&self) -> &[u8] {
        self.lease.as_ref().map_or(&[], Lease::bytes)
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        self.lease.as_mut().map_or(&mut [], Lease::bytes_mut)
    }

    /// Gives the memory back, then tells the waiter.
    pub(super) fn complete(self, result: Result<Moved, CollectiveError>) {
        drop(self.lease);
        self.completion.complete(result);
    }
}

#[derive(Default)]
struct Inbox {
    queue: VecDeque<Queued>,
    checksum: u64,
    /// The thread has an operation in hand.
    busy: bool,
    /// No more operations come: go when the queue is empty.
    leaving: bool,
    /// The thread is gone.
    closed: bool,
}

struct LaneState {
    inbox: Mutex<Inbox>,
    waker: Waker,
    /// Some waiter has lost its patience: look whose.
    impatient: AtomicBool,
}

/// A data connection that ended: whether its peer is lost, the link decides.
pub(super) struct Suspect {
    pub(super) rank: usize,
    pub(super) cause: String,
    pub(super) since: Instant,
}

pub(super) struct Core {
    pub(super) local: Local,
    pub(super) options: Options,
    lanes: Vec<LaneState>,
    link: Waker,
    suspects: Mutex<Vec<Suspect>>,
    has_ended: AtomicBool,
    ended: Mutex<Option<CollectiveError>>,
    leaving: AtomicBool,
    /// Why this member left, if it did so in order.
    departure: Mutex<Option<AbortCause>>,
    running: Mutex<usize>,
    stopped: Condvar,
}

/// What a channel's thread finds in its queue.
pub(super) enum Next {
    Operation(Box<Queued>),
    Nothing,
    Leave,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What these locks guard is whole between any two statements, panic or not.
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Starts the threads of a connected group.
pub(super) fn start(
    door: Door,
    local: Local,
    streams: Streams,
    options: &Options,
) -> Result<Arc<dyn Communicator>, ConnectError> {
    let mut by_lane: Vec<Vec<(usize, std::net::TcpStream)>> = (0..=LINK).map(|_| Vec::new()).collect();
    for (rank, streams) in streams.into_iter().enumerate() {
        for (lane, stream) in streams.into_iter().enumerate() {
            let silence = if lane == usize::from(LINK) {
                options.heartbeat_timeout
            } else {
                options.operation_deadline
            };
            prepare(&stream, silence)?;
            by_lane[lane].push((rank, stream));
        }
    }
    let mut lanes = Vec::new();
    for _ in Channel::ALL {
        lanes.push(LaneState {
            inbox: Mutex::default(),
            waker: Waker::new()?,
            impatient: AtomicBool::new(false),
        });
    }
    let core = Arc::new(Core {
        local,
        options: *options,
        lanes,
        link: Waker::new()?,
        suspects: Mutex::default(),
        has_ended: AtomicBool::new(false),
        ended: Mutex::default(),
        leaving: AtomicBool::new(false),
        departure: Mutex::default(),
        running: Mutex::new(0),
        stopped: Condvar::new(),
    });
    // From here on dropping the member ends whatever threads already run.
    let member = Member { core: core.clone() };
    if core.local.identity.world_size == 1 {
        return Ok(Arc::new(member));
    }
    let links = by_lane.pop().unwrap_or_default();
    for (channel, streams) in Channel::ALL.into_iter().zip(by_lane) {
        let lane = Lane::new(core.clone(), channel, streams);
        spawn(&core, &format!("{channel}"), move || lane.run())?;
    }
    let link = Link::new(core.clone(), links, door);
    spawn(&core, "link", move || link.run())?;
    Ok(Arc::new(member))
}

fn spawn(core: &Arc<Core>, name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), ConnectError> {
    *locked(&core.running) += 1;
    let guard = Running(core.clone());
    let name = format!("{name}-{}", core.local.identity.rank);
    // When the thread cannot be made, the closure is dropped and with it the guard.
    std::thread::Builder::new().name(name).spawn(move || {
        let _guard = guard;
        run();
    })?;
    Ok(())
}

/// Counts a thread as running until it is dropped, however the thread ends.
struct Running(Arc<Core>);

impl Drop for Running {
    fn drop(&mut self) {
        *locked(&self.0.running) -= 1;
        self.0.stopped.notify_all();
    }
}

impl Core {
    /// Ends the communicator; the first cause counts.
    pub(super) fn end(&self, error: CollectiveError) {
        locked(&self.ended).get_or_insert(error);
        self.has_ended.store(true, Ordering::Release);
        self.wake_all();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    pub(super) fn ended(&self) -> Option<CollectiveError> {
        locked(&self.ended).clone()
    }

    /// What operations end with after the communicator's end or this member's leave.
    pub(super) fn last_error(&self) -> CollectiveError {
        let departed = || CollectiveError::Aborted {
            cause: locked(&self.departure).clone().unwrap_or(AbortCause::Dropped),
        };
        self.ended().unwrap_or_else(departed)
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    fn wake_all(&self) {
        self.link.wake();
        for lane in &self.lanes {
            lane.waker.wake();
        }
    }

    /// Returns when no thread is left. One that does not stop in time keeps its buffers, which nobody
    /// else gets then: leaving it behind harms no memory.
    fn wait_until_stopped(&self) {
        let deadline = Instant::now() + SETTLED_WITHIN;
        let mut running = locked(&self.running);
        while *running > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                tracing::error!(
                    threads = *running,
                    "threads of an ended communicator did not stop in {SETTLED_WITHIN:?}"
                );
                return;
            }
            running = match self.stopped.wait_timeout(running, left) {
                Ok((running, _)) => running,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    /// Goes: in order if nothing is pending, so that peers which have yet to finish an operation whose
    /// part here is done can do so; else at once. Returns when no thread is left.
    fn leave(&self, cause: AbortCause) {
        locked(&self.departure).get_or_insert(cause.clone());
        let mut pending = false;
        for lane in &self.lanes {
            let mut inbox = locked(&lane.inbox);
            pending |= inbox.busy || !inbox.queue.is_empty();
            inbox.leaving = true;
        }
        if pending {
            self.end(CollectiveError::Aborted { cause });
        }
        self.leaving.store(true, Ordering::Release);
        self.wake_all();
        self.wait_until_stopped();
    }

    /// Asks the link whether the peer of an ended data connection is lost.
    pub(super) fn suspect(&self, rank: usize, cause: String) {
        locked(&self.suspects).push(Suspect {
            rank,
            cause,
            since: Instant::now(),
        });
        self.link.wake();
    }

    pub(super) fn take_suspects(&self) -> Vec<Suspect> {
        std::mem::take(&mut locked(&self.suspects))
    }

    pub(super) fn link_waker(&self) -> &Waker {
        &self.link
    }

    pub(super) fn waker(&self, channel: Channel) -> &Waker {
        &self.lanes[channel.index()].waker
    }

    /// True if the waiter of an operation of the channel, in hand or queued, has lost its patience. It
    /// may have done so just when its operation was completed: then nothing is overdue.
    pub(super) fn is_overdue(&self, channel: Channel, in_hand: &Queued) -> bool {
        let lane = &self.lanes[channel.index()];
        lane.impatient.swap(false, Ordering::AcqRel)
            && (in_hand.completion.is_overdue()
                || locked(&lane.inbox)
                    .queue
                    .iter()
                    .any(|queued| queued.completion.is_overdue()))
    }

    /// The thread of `channel` has nothing in hand: what now?
    pub(super) fn next(&self, channel: Channel) -> Next {
        let mut inbox = locked(&self.lanes[channel.index()].inbox);
        match inbox.queue.pop_front() {
            Some(queued) => {
                inbox.busy = true;
                Next::Operation(Box::new(queued))
            }
            None if inbox.leaving => Next::Leave,
            None => Next::Nothing,
        }
    }

    /// The operation in hand is done, and its waiter about to be told.
    pub(super) fn put_down(&self, channel: Channel) {
        locked(&self.lanes[channel.index()].inbox).busy = false;
    }

    /// The thread of `channel` goes: takes what is left of its queue.
    pub(super) fn close(&self, channel: Channel) -> VecDeque<Queued> {
        let mut inbox = locked(&self.lanes[channel.index()].inbox);
        inbox.closed = true;
        std::mem::take(&mut inbox.queue)
    }
}

/// The handle that users hold: its drop is this member's leave.
struct Member {
    core: Arc<Core>,
}

struct GiveUp {
    core: Arc<Core>,
    channel: Channel,
}

impl Overdue for GiveUp {
    fn give_up(&self, completion: &Completion) {
        // The channel's thread knows whom it waits for. It ends the communicator, and with it every
        // operation of the channel, promptly: nothing it does blocks.
        let lane = &self.core.lanes[self.channel.index()];
        completion.mark_overdue();
        lane.impatient.store(true, Ordering::Release);
        lane.waker.wake();
    }
}

impl Communicator for Member {
    fn identity(&self) -> &GroupIdentity {
        &self.core.local.identity
    }

    fn issue(&self, channel: Channel, issued: Issued) -> Pending {
        let core = &self.core;
        let identity = &core.local.identity;
        let refused = |reason: String| {
            Pending::ready(Err(CollectiveError::Refused {
                operation: Box::new(issued.operation),
                reason,
            }))
        };
        if let Some(reason) = issued.obstacle(identity) {
            return refused(reason);
        }
        let lane = &core.lanes[channel.index()];
        let mut inbox = locked(&lane.inbox);
        if core.has_ended() || inbox.leaving || inbox.closed {
            return Pending::ready(Err(core.last_error()));
        }
        if inbox.queue.len() >= QUEUE_BOUND {
            return refused(format!(
                "{QUEUE_BOUND} operations wait on this channel, wait for some first"
            ));
        }
        let lease = match issued
            .buffer
            .as_ref()
            .map(|buffer| buffer.lease(issued.writes(identity.rank)))
        {
            Some(Err(error)) => return refused(error.to_string()),
            Some(Ok(lease)) => Some(lease),
            None => None,
        };
        inbox.checksum = sequence::extend(inbox.checksum, &issued.operation);
        let wants_hash = issued.wants_content_hash();
        if identity.world_size == 1 {
            let bytes = lease.as_ref().map_or(&[][..], Lease::bytes);
            let content_hash = wants_hash.then(|| segment_hash(issued.operation.dtype, bytes, 0));
            return Pending::ready(Ok(Moved {
                content_hash,
                ..Moved::default()
            }));
        }
        let completion = Arc::new(Completion::default());
        inbox.queue.push_back(Queued {
            operation: issued.operation,
            partner: issued.peer,
            lease,
            wants_hash,
            readiness: issued.buffer.as_ref().and_then(Buffer::readiness),
            issued: Instant::now(),
            completion: completion.clone(),
        });
        drop(inbox);
        lane.waker.wake();
        Pending::new(
            completion,
            Arc::new(GiveUp {
                core: core.clone(),
                channel,
            }),
        )
    }

    fn sequence_checksum(&self, channel: Channel) -> u64 {
        locked(&self.core.lanes[channel.index()].inbox).checksum
    }

    fn abort(&self, cause: AbortCause) {
        match cause {
            AbortCause::Stop | AbortCause::Reform => self.core.leave(cause),
            AbortCause::Failure(_) | AbortCause::Dropped => {
                self.core.end(CollectiveError::Aborted { cause });
                self.core.wait_until_stopped();
            }
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.core.leave(AbortCause::Dropped);
    }
}
