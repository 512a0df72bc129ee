//! The handle of an issued operation, and the cell through which its result comes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::error::CollectiveError;

/// What an operation moved. The sum of several has no content hash.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moved {
    /// Bytes this member sent, headers included.
    pub bytes_sent: u64,
    /// Bytes this member received, headers included.
    pub bytes_received: u64,
    /// Time from the operation's turn on its channel until it was complete.
    pub wire_time: Duration,
    /// Content hash of the buffer afterwards, if the buffer asked for it.
    pub content_hash: Option<u64>,
}

impl std::ops::AddAssign for Moved {
    fn add_assign(&mut self, other: Moved) {
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
        self.wire_time += other.wire_time;
        // Hashes of different buffers have no sum that means anything.
        self.content_hash = None;
    }
}

/// How long after its end a transport's threads may take to let go of what they hold. They block in
/// nothing but a poll that the end wakes, so only a readiness event that never returns can use it up.
pub(crate) const SETTLED_WITHIN: Duration = Duration::from_secs(30);

/// An operation on its way. Dropping it does not end the operation.
#[must_use = "an operation's result is seen only by waiting for it"]
pub struct Pending {
    completion: Arc<Completion>,
    overdue: Option<Arc<dyn Overdue>>,
}

/// Ends an operation that was not complete when its waiter's patience ended.
pub(crate) trait Overdue: Send + Sync {
    /// Ends the communicator; the operation of `completion` is complete when this returns.
    fn give_up(&self, completion: &Completion);
}

impl Pending {
    pub(crate) fn new(completion: Arc<Completion>, overdue: Arc<dyn Overdue>) -> Pending {
        Pending {
            completion,
            overdue: Some(overdue),
        }
    }

    /// An operation that is complete already.
    pub(crate) fn ready(result: Result<Moved, CollectiveError>) -> Pending {
        let completion = Arc::new(Completion::default());
        completion.complete(result);
        Pending {
            completion,
            overdue: None,
        }
    }

    /// Waits for the result. At `deadline` the whole communicator is ended, since its ranks can no
    /// longer be at the same place; when this returns, the transport no longer touches the buffer.
    /// Should the transport's thread not answer even then, the error is
    /// [`Stuck`](CollectiveError::Stuck) and the buffer stays taken: no other operation gets it.
    pub fn wait(self, deadline: Instant) -> Result<Moved, CollectiveError> {
        self.wait_and_settle(deadline, SETTLED_WITHIN)
    }

    fn wait_and_settle(self, deadline: Instant, settled_within: Duration) -> Result<Moved, CollectiveError> {
        if let Some(result) = self.completion.wait_until(deadline) {
            return result;
        }
        if let Some(overdue) = &self.overdue {
            overdue.give_up(&self.completion);
        }
        let settled = self.completion.wait_until(Instant::now() + settled_within);
        settled.unwrap_or(Err(CollectiveError::Stuck {
            after: settled_within,
        }))
    }

    /// True when `wait` would return at once.
    pub fn is_done(&self) -> bool {
        self.completion.state().is_some()
    }
}

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pending").field("done", &self.is_done()).finish()
    }
}

/// Where a result is put, once, and waited for.
#[derive(Default)]
pub(crate) struct Completion {
    result: Mutex<Option<Result<Moved, CollectiveError>>>,
    done: Condvar,
    overdue: AtomicBool,
}

impl Completion {
    /// The first result counts.
    pub(crate) fn complete(&self, result: Result<Moved, CollectiveError>) {
        let mut state = self.state();
        if state.is_none() {
            *state = Some(result);
            self.done.notify_all();
        }
    }

    /// Says that the waiter has lost its patience.
    pub(crate) fn mark_overdue(&self) {
        self.overdue.store(true, Ordering::Release);
    }

    pub(crate) fn is_overdue(&self) -> bool {
        self.overdue.load(Ordering::Acquire)
    }

    fn state(&self) -> MutexGuard<'_, Option<Result<Moved, CollectiveError>>> {
        self.result
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn wait_until(&self, deadline: Instant) -> Option<Result<Moved, CollectiveError>> {
        let mut state = self.state();
        loop {
            if state.is_some() {
                return state.clone();
            }
            let left = deadline
                .checked_duration_since(Instant::now())
                .filter(|left| !left.is_zero())?;
            state = match self.done.wait_timeout(state, left) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A transport whose thread never answers.
    struct Deaf;

    impl Overdue for Deaf {
        fn give_up(&self, _: &Completion) {}
    }

    #[test]
    fn a_transport_that_never_answers_ends_the_wait_with_stuck() {
        let pending = Pending::new(Arc::default(), Arc::new(Deaf));
        let result = pending.wait_and_settle(Instant::now(), Duration::ZERO);
        let after = Duration::ZERO;
        assert_eq!(result, Err(CollectiveError::Stuck { after }));
    }
}
