//! The I/O thread of one channel: works through its operations in the order of their issue.
//!
//! It never blocks but in `poll`. Bytes are sent straight from the buffer and results received
//! straight into it; contributions of peers wait in a few slots for each peer until all of a piece are
//! there, and are then combined into the buffer in rank order.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use crate::error::CollectiveError;
use crate::operation::Channel;
use crate::tcp::connection::{Connection, Step, transport};
use crate::tcp::core::{Core, Next, Queued};
use crate::tcp::in_hand::InHand;
use crate::tcp::socket::wait;

/// How long to wait for a buffer's readiness before looking whether to give up.
const READINESS_SLICE: Duration = Duration::from_millis(1);

pub(super) struct Lane {
    core: Arc<Core>,
    channel: Channel,
    connections: Vec<Connection>,
    work: Option<InHand>,
}

impl Lane {
    /// `streams` in rank order.
    pub(super) fn new(core: Arc<Core>, channel: Channel, streams: Vec<(usize, TcpStream)>) -> Lane {
        let connections = streams
            .into_iter()
            .map(|(rank, stream)| Connection::new(rank, stream));
        Lane {
            core,
            channel,
            connections: connections.collect(),
            work: None,
        }
    }

    /// Runs until the communicator ends or is left.
    pub(super) fn run(mut self) {
        if let Err(error) = self.serve() {
            self.core.end(error);
        }
    }

    fn serve(&mut self) -> Result<(), CollectiveError> {
        let rank = self.core.local.identity.rank;
        loop {
            if self.core.has_ended() {
                return Ok(());
            }
            if self.work.is_none() {
                match self.core.next(self.channel) {
                    Next::Operation(queued) => self.begin(*queued)?,
                    Next::Leave => {
                        self.connections.iter().for_each(Connection::say_goodbye);
                        return Ok(());
                    }
                    Next::Nothing => {}
                }
            }
            self.check_deadline()?;
            let mut progress = false;
            for index in 0..self.connections.len() {
                progress |= self.exchange(index)?;
            }
            if let Some(work) = &mut self.work {
                progress |= work.combine(rank, &self.connections);
                if work.is_complete(&self.connections) {
                    self.finish();
                    continue;
                }
            }
            if !progress {
                self.check_left()?;
                self.wait()?;
            }
        }
    }

    fn begin(&mut self, queued: Queued) -> Result<(), CollectiveError> {
        let readiness = queued.readiness.clone();
        self.work = Some(InHand::new(
            queued,
            &self.core.local.identity,
            &mut self.connections,
        ));
        let Some(readiness) = readiness else { return Ok(()) };
        while !readiness.wait_until(Instant::now() + READINESS_SLICE) {
            if self.core.has_ended() {
                break;
            }
            self.check_deadline()?;
        }
        Ok(())
    }

    /// Moves what can move between this rank and one peer. True if something did.
    fn exchange(&mut self, index: usize) -> Result<bool, CollectiveError> {
        let connection = &mut self.connections[index];
        let sent = match &mut self.work {
            Some(work) => connection.send(work, index),
            None => Step::Blocked,
        };
        let here = (self.channel, self.core.local.identity.rank);
        let received = connection.receive(self.work.as_mut(), index, here)?;
        let mut progress = false;
        for step in [sent, received] {
            match step {
                Step::Moved => progress = true,
                Step::Blocked => {}
                Step::Broken(cause) => {
                    // Whether the peer is lost, and why, the link finds out.
                    connection.close();
                    self.core.suspect(connection.rank(), cause);
                }
            }
        }
        Ok(progress)
    }

    fn finish(&mut self) {
        let Some(work) = self.work.take() else { return };
        for (connection, exchange) in self.connections.iter_mut().zip(&work.exchanges) {
            connection.count(exchange.sends(), exchange.receives());
        }
        let moved = work.summary();
        self.core.put_down(self.channel);
        work.queued.complete(Ok(moved));
    }

    /// The operation in hand cannot be done without a peer that has left in order.
    fn check_left(&self) -> Result<(), CollectiveError> {
        let Some(work) = &self.work else { return Ok(()) };
        for (connection, exchange) in self.connections.iter().zip(&work.exchanges) {
            if connection.has_left() && !(exchange.is_sent() && exchange.is_received()) {
                let cause = "it left the group".into();
                return Err(CollectiveError::PeerLost {
                    rank: connection.rank(),
                    cause,
                });
            }
        }
        Ok(())
    }

    /// The time of the operation in hand is up, by the group's deadline or its waiter's patience.
    fn check_deadline(&self) -> Result<(), CollectiveError> {
        let Some(work) = &self.work else { return Ok(()) };
        let after = work.queued.issued.elapsed();
        if after < self.core.options.operation_deadline && !self.core.is_overdue(self.channel, &work.queued) {
            return Ok(());
        }
        let waiting_for = self
            .connections
            .iter()
            .zip(&work.exchanges)
            .filter(|(connection, exchange)| {
                !(connection.is_flushed() && exchange.is_received() && exchange.is_sent())
            });
        Err(CollectiveError::Deadline {
            operation: Box::new(work.queued.operation),
            channel: self.channel,
            after,
            waiting_for: waiting_for.map(|(connection, _)| connection.rank()).collect(),
        })
    }

    fn wait(&self) -> Result<(), CollectiveError> {
        let waker = self.core.waker(self.channel);
        let mut descriptors = vec![PollFd::new(waker, PollFlags::IN)];
        descriptors.extend(self.connections.iter().filter_map(Connection::interest));
        let deadline = self.core.options.operation_deadline;
        let until = self.work.as_ref().map(|work| work.queued.issued + deadline);
        wait(&mut descriptors, until)
            .map_err(|error| transport(self.core.local.identity.rank, format!("wait: {error}")))?;
        if !descriptors[0].revents().is_empty() {
            waker.clear();
        }
        Ok(())
    }
}

impl Drop for Lane {
    /// However the thread ends, nobody is left waiting.
    fn drop(&mut self) {
        let queue = self.core.close(self.channel);
        let in_hand = self.work.take().map(|work| work.queued);
        if in_hand.is_some() || !queue.is_empty() || std::thread::panicking() {
            // The first cause counts: this one only if there is no other.
            let rank = self.core.local.identity.rank;
            self.core.end(transport(
                rank,
                format!("the thread of channel {} ended", self.channel),
            ));
        }
        let error = self.core.last_error();
        for queued in in_hand.into_iter().chain(queue) {
            queued.complete(Err(error.clone()));
        }
    }
}
