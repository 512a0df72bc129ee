//! One round of synchronisation: the gradient buckets of one step and what was launched for them.

use crate::step::StepError;
use gradsync_collective::{Buffer, Channel, Communicator, Moved, Pending, ReduceOp, WireType};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Something that happened in a step, in order. Overlap is proven by this order, not by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Backward of a micro-batch began; the flag says whether it is the member's last.
    BackwardBegan {
        /// Whether hooks are armed.
        last: bool,
    },
    /// A bucket's reduction was launched.
    Launched(usize),
    /// Backward of the member's last micro-batch ended.
    BackwardEnded,
    /// The control record was sent.
    ControlSent,
    /// All buckets are reduced.
    Reduced,
    /// The step was committed.
    Committed,
}

/// The recorded order of events of the newest step. Cloned handles see the same record.
#[derive(Clone, Debug, Default)]
pub struct Trace(Arc<Mutex<Vec<Event>>>);

impl Trace {
    /// Notes an event.
    pub fn note(&self, event: Event) {
        self.0
            .lock()
            .expect("no thread panics while it holds the trace")
            .push(event);
    }

    /// Forgets the last step.
    pub fn clear(&self) {
        self.0
            .lock()
            .expect("no thread panics while it holds the trace")
            .clear();
    }

    /// What happened since the last clear.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        self.0
            .lock()
            .expect("no thread panics while it holds the trace")
            .clone()
    }
}

/// The buckets of one step and their reductions in flight. Made anew for each step: a failed step leaves
/// nothing behind.
pub struct Round {
    communicator: Arc<dyn Communicator>,
    buckets: Vec<Buffer>,
    ready: Vec<bool>,
    pending: Vec<Pending>,
    deadline: Duration,
    trace: Trace,
    moved: Moved,
    hashes: Vec<Option<u64>>,
}

impl Round {
    /// A round over `buckets` in plan order; every reduction must end within `deadline` of its wait.
    #[must_use]
    pub fn new(
        communicator: Arc<dyn Communicator>,
        buckets: Vec<Buffer>,
        deadline: Duration,
        trace: Trace,
    ) -> Round {
        let ready = vec![false; buckets.len()];
        Round {
            communicator,
            buckets,
            ready,
            pending: Vec::new(),
            deadline,
            trace,
            moved: Moved::default(),
            hashes: Vec::new(),
        }
    }

    /// Number of buckets in the plan.
    #[must_use]
    pub fn bucket_count(&self) -> usize {
        self.buckets.len()
    }

    /// Number of buckets launched so far: also the next one's number.
    #[must_use]
    pub fn launched(&self) -> usize {
        self.pending.len()
    }

    /// Notes that this member's part of a bucket is complete.
    pub fn mark_ready(&mut self, bucket: usize) {
        if let Some(flag) = self.ready.get_mut(bucket) {
            *flag = true;
        }
    }

    /// Whether a bucket is complete; a number beyond the last is not.
    #[must_use]
    pub fn is_ready(&self, bucket: usize) -> bool {
        self.ready.get(bucket).copied().unwrap_or(false)
    }

    /// Starts the sum of the next bucket over all members, in place.
    pub fn launch_next(&mut self) {
        let number = self.pending.len();
        let Some(buffer) = self.buckets.get(number) else {
            return;
        };
        self.trace.note(Event::Launched(number));
        self.pending.push(self.communicator.all_reduce(
            Channel::Gradients,
            buffer.clone().with_content_hash(),
            ReduceOp::Sum,
            WireType::Same,
        ));
    }

    /// Waits for everything launched.
    ///
    /// # Errors
    /// The first reduction's error.
    pub fn wait_all(&mut self) -> Result<(), StepError> {
        for pending in self.pending.drain(..) {
            let moved = pending.wait(Instant::now() + self.deadline)?;
            self.moved.bytes_sent += moved.bytes_sent;
            self.moved.bytes_received += moved.bytes_received;
            self.moved.wire_time += moved.wire_time;
            self.hashes.push(moved.content_hash);
        }
        self.trace.note(Event::Reduced);
        Ok(())
    }

    /// Content hash of each reduced bucket in plan order, where its reduction took it on the way.
    #[must_use]
    pub fn hashes(&self) -> &[Option<u64>] {
        &self.hashes
    }

    /// Bytes and time of the round so far.
    #[must_use]
    pub fn moved(&self) -> &Moved {
        &self.moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gradsync_collective::agreement::buffer_hash;
    use gradsync_collective::in_process;

    #[test]
    fn each_reduction_brings_the_hash_of_its_bucket_and_no_pass_of_its_own_is_needed() {
        let buckets: Vec<Buffer> = [vec![1.0f64, -2.0, 3.5], vec![0.25; 7]]
            .iter()
            .map(|values| Buffer::from_slice(values).unwrap())
            .collect();
        let communicator = in_process::group(1, "job", 1).remove(0);
        let mut round = Round::new(
            communicator,
            buckets.clone(),
            Duration::from_secs(10),
            Trace::default(),
        );
        round.launch_next();
        round.launch_next();
        round.wait_all().unwrap();
        let expected: Vec<Option<u64>> = buckets.iter().map(|bucket| buffer_hash(bucket).ok()).collect();
        assert_eq!(round.hashes(), expected);
    }
}
