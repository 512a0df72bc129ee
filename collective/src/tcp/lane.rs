//! The I/O thread of one channel: works through its operations in the order of their issue.
//!
//! It never blocks but in `poll`. Bytes are sent straight from the buffer and results received
//! straight into it; contributions of peers wait in a few slots for each peer until all of a piece are
//! there, and are then combined into the buffer in rank order.

use std::io::{IoSlice, IoSliceMut, Read};
use std::net::TcpStream;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use crate::error::CollectiveError;
use crate::operation::Channel;
use crate::pending::Moved;
use crate::reduce::reduce_in_place;
use crate::tcp::core::{Core, Next, Queued};
use crate::tcp::frame::{Frame, HEADER, Phase};
use crate::tcp::socket::{Progress, received, send, wait};
use crate::tcp::work::{self, CHUNK, Exchange, Own, SLOTS, Verdict};

/// How long to wait for a buffer's readiness before looking whether to give up.
const READINESS_SLICE: Duration = Duration::from_millis(1);

/// A frame on its way out.
struct Outgoing {
    header: [u8; HEADER],
    range: Range<usize>,
    sent: usize,
}

/// Where the stream from a peer stands.
enum Incoming {
    /// Within a header.
    Header,
    /// A header is here whose payload cannot be received yet.
    Held(Frame),
    /// Within a payload, `got` bytes of which are here.
    Payload {
        phase: Phase,
        range: Range<usize>,
        got: usize,
    },
    /// Nothing more comes; in order or not.
    Closed { in_order: bool },
}

struct Connection {
    rank: usize,
    stream: TcpStream,
    outgoing: Option<Outgoing>,
    incoming: Incoming,
    header: [u8; HEADER],
    filled: usize,
    positions: Positions,
    /// Contributions that wait for those of others. Words, for the alignment of elements.
    slots: Vec<u64>,
}

/// Operations that the two ends of a connection have in common so far, by direction.
#[derive(Default)]
struct Positions {
    out: u64,
    into: u64,
}

/// The operation in hand.
struct Work {
    queued: Queued,
    started: Instant,
    own: Own,
    /// Byte up to which the own part is combined.
    combined: usize,
    /// By connection.
    exchanges: Vec<Exchange>,
    moved: Moved,
}

pub(super) struct Lane {
    core: Arc<Core>,
    channel: Channel,
    connections: Vec<Connection>,
    work: Option<Work>,
}

impl Lane {
    /// `streams` in rank order.
    pub(super) fn new(core: Arc<Core>, channel: Channel, streams: Vec<(usize, TcpStream)>) -> Lane {
        let connect = |(rank, stream)| Connection {
            rank,
            stream,
            outgoing: None,
            incoming: Incoming::Header,
            header: [0; HEADER],
            filled: 0,
            positions: Positions::default(),
            slots: Vec::new(),
        };
        Lane {
            core,
            channel,
            connections: streams.into_iter().map(connect).collect(),
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
        loop {
            if self.core.has_ended() {
                return Ok(());
            }
            if self.work.is_none() {
                match self.core.next(self.channel) {
                    Next::Operation(queued) => self.begin(*queued)?,
                    Next::Leave => {
                        self.say_goodbye();
                        return Ok(());
                    }
                    Next::Nothing => {}
                }
            }
            self.check_deadline()?;
            let mut progress = false;
            for index in 0..self.connections.len() {
                progress |= self.send(index)?;
                progress |= self.receive(index)?;
            }
            progress |= self.combine();
            if self.is_complete() {
                self.finish();
            } else if !progress {
                self.check_left()?;
                self.wait()?;
            }
        }
    }

    fn begin(&mut self, queued: Queued) -> Result<(), CollectiveError> {
        let identity = &self.core.local.identity;
        let (rank, world) = (identity.rank, identity.world_size);
        let own = work::own(&queued.operation, rank, world);
        let words = own.range.len().min(SLOTS * CHUNK).div_ceil(size_of::<u64>());
        let mut exchanges = Vec::with_capacity(self.connections.len());
        for connection in &mut self.connections {
            let peer = connection.rank;
            exchanges.push(Exchange::new(
                &queued.operation,
                rank,
                world,
                peer,
                queued.partner,
            ));
            if connection.slots.len() < words {
                connection.slots.resize(words, 0);
            }
        }
        let readiness = queued.readiness.clone();
        let combined = own.range.start;
        self.work = Some(Work {
            queued,
            started: Instant::now(),
            own,
            combined,
            exchanges,
            moved: Moved::default(),
        });
        let Some(readiness) = readiness else { return Ok(()) };
        while !readiness.wait_until(Instant::now() + READINESS_SLICE) {
            if self.core.has_ended() {
                return Ok(());
            }
            self.check_deadline()?;
        }
        Ok(())
    }

    /// Sends at most one frame, so that receiving gets its turn.
    fn send(&mut self, index: usize) -> Result<bool, CollectiveError> {
        let Some(work) = &mut self.work else {
            return Ok(false);
        };
        let connection = &mut self.connections[index];
        if matches!(connection.incoming, Incoming::Closed { .. }) {
            return Ok(false);
        }
        if connection.outgoing.is_none() {
            let Some((phase, range)) = work.exchanges[index].next_frame(work.combined) else {
                return Ok(false);
            };
            let frame = Frame::Data {
                position: connection.positions.out,
                operation: work.queued.operation.as_sent(),
                phase,
                range: range.start as u64..range.end as u64,
            };
            connection.outgoing = Some(Outgoing {
                header: frame.encode(),
                range,
                sent: 0,
            });
        }
        let Some(outgoing) = &mut connection.outgoing else {
            return Ok(false);
        };
        let payload = &work.queued.bytes()[outgoing.range.clone()];
        let parts = [
            IoSlice::new(&outgoing.header[outgoing.sent.min(HEADER)..]),
            IoSlice::new(&payload[outgoing.sent.saturating_sub(HEADER)..]),
        ];
        match send(&connection.stream, &parts) {
            Ok(Progress::Bytes(bytes)) => {
                outgoing.sent += bytes;
                work.moved.bytes_sent += bytes as u64;
                if outgoing.sent == HEADER + payload.len() {
                    connection.outgoing = None;
                }
                Ok(true)
            }
            Ok(Progress::Blocked | Progress::End) => Ok(false),
            Err(error) => {
                self.suspect(index, error.to_string());
                Ok(true)
            }
        }
    }

    /// Receives until the socket is empty or a payload complete.
    fn receive(&mut self, index: usize) -> Result<bool, CollectiveError> {
        let mut progress = false;
        loop {
            let connection = &mut self.connections[index];
            match &mut connection.incoming {
                Incoming::Closed { .. } => return Ok(progress),
                Incoming::Header if connection.filled == HEADER => {
                    let frame = Frame::decode(&connection.header)
                        .ok_or_else(|| transport(connection.rank, "bytes that are no frame header".into()))?;
                    connection.filled = 0;
                    connection.incoming = Incoming::Held(frame);
                }
                Incoming::Header => {
                    let result = connection
                        .stream
                        .read(&mut connection.header[connection.filled..]);
                    match received(result) {
                        Ok(Progress::Bytes(bytes)) => connection.filled += bytes,
                        Ok(Progress::Blocked) => return Ok(progress),
                        Ok(Progress::End) => {
                            self.suspect(index, "its connection closed".into());
                            return Ok(true);
                        }
                        Err(error) => {
                            self.suspect(index, error.to_string());
                            return Ok(true);
                        }
                    }
                }
                Incoming::Held(_) => {
                    if !self.open_frame(index)? {
                        return Ok(progress);
                    }
                }
                Incoming::Payload { .. } => match self.receive_payload(index)? {
                    Payload::Blocked => return Ok(progress),
                    Payload::Part => {}
                    Payload::Complete => return Ok(true),
                },
            }
            progress = true;
        }
    }

    /// Looks what the announced frame is for. False: for later.
    fn open_frame(&mut self, index: usize) -> Result<bool, CollectiveError> {
        let connection = &mut self.connections[index];
        let Incoming::Held(frame) = &connection.incoming else {
            return Ok(true);
        };
        let Frame::Data {
            position,
            operation,
            phase,
            range,
        } = frame.clone()
        else {
            connection.incoming = Incoming::Closed { in_order: true };
            return Ok(true);
        };
        let Some(work) = &mut self.work else {
            return Ok(false);
        };
        let exchange = &mut work.exchanges[index];
        if !exchange.receives() || exchange.is_received() {
            return Ok(false);
        }
        let expected = work.queued.operation.as_sent();
        if operation != expected {
            return Err(CollectiveError::Mismatch {
                channel: self.channel,
                position: connection.positions.into,
                rank: self.core.local.identity.rank,
                peer: connection.rank,
                expected: Box::new(work.queued.operation),
                got: Box::new(operation),
            });
        }
        if position != connection.positions.into {
            let cause = format!("operation {position} where {} was due", connection.positions.into);
            return Err(transport(connection.rank, cause));
        }
        work.moved.bytes_received += HEADER as u64;
        match exchange.judge(phase, &range, work.combined) {
            Verdict::Receive => {
                let range = range.start as usize..range.end as usize;
                connection.incoming = Incoming::Payload { phase, range, got: 0 };
                Ok(true)
            }
            Verdict::Nod => {
                exchange.received(phase, &(0..0));
                connection.incoming = Incoming::Header;
                Ok(true)
            }
            Verdict::Later => {
                work.moved.bytes_received -= HEADER as u64;
                Ok(false)
            }
            Verdict::Violation => Err(transport(
                connection.rank,
                format!("bytes {range:?} out of turn in {operation}"),
            )),
        }
    }

    fn receive_payload(&mut self, index: usize) -> Result<Payload, CollectiveError> {
        let connection = &mut self.connections[index];
        let (Some(work), Incoming::Payload { phase, range, got }) =
            (&mut self.work, &mut connection.incoming)
        else {
            return Ok(Payload::Blocked);
        };
        let target = match phase {
            Phase::Contribution => {
                let start = slot_start(&work.own, range.start);
                &mut bytemuck::cast_slice_mut::<u64, u8>(&mut connection.slots)[start..start + range.len()]
            }
            Phase::Result => &mut work.queued.bytes_mut()[range.clone()],
        };
        // The header of the next frame often is there already: one call less.
        let mut parts = [
            IoSliceMut::new(&mut target[*got..]),
            IoSliceMut::new(&mut connection.header[connection.filled..]),
        ];
        let bytes = match received(connection.stream.read_vectored(&mut parts)) {
            Ok(Progress::Bytes(bytes)) => bytes,
            Ok(Progress::Blocked) => return Ok(Payload::Blocked),
            Ok(Progress::End) => {
                self.suspect(index, "its connection closed".into());
                return Ok(Payload::Blocked);
            }
            Err(error) => {
                self.suspect(index, error.to_string());
                return Ok(Payload::Blocked);
            }
        };
        let of_payload = bytes.min(range.len() - *got);
        connection.filled += bytes - of_payload;
        work.moved.bytes_received += of_payload as u64;
        *got += of_payload;
        if *got < range.len() {
            return Ok(Payload::Part);
        }
        work.exchanges[index].received(*phase, range);
        connection.incoming = Incoming::Header;
        Ok(Payload::Complete)
    }

    /// Combines the pieces of which all contributions are here.
    fn combine(&mut self) -> bool {
        let rank = self.core.local.identity.rank;
        let Some(work) = &mut self.work else { return false };
        let Some(op) = work.queued.operation.op else {
            return false;
        };
        let mut progress = false;
        while work.combined < work.own.range.end {
            let piece = work.combined..work.own.range.end.min(work.combined + CHUNK);
            let all_here = work
                .exchanges
                .iter()
                .all(|exchange| exchange.taken() >= piece.end);
            let all_out = || {
                work.exchanges.iter().all(Exchange::is_sent)
                    && self
                        .connections
                        .iter()
                        .all(|connection| connection.outgoing.is_none())
            };
            if !all_here || (work.own.one_shot && !all_out()) {
                break;
            }
            let start = slot_start(&work.own, piece.start);
            let mut below: Vec<&[u8]> = Vec::with_capacity(self.connections.len());
            let mut above: Vec<&[u8]> = Vec::with_capacity(self.connections.len());
            for connection in &self.connections {
                let slot = &bytemuck::cast_slice::<u64, u8>(&connection.slots)[start..start + piece.len()];
                if connection.rank < rank {
                    below.push(slot)
                } else {
                    above.push(slot)
                }
            }
            let dtype = work.queued.operation.dtype;
            reduce_in_place(
                dtype,
                op,
                &below,
                &mut work.queued.bytes_mut()[piece.clone()],
                &above,
            );
            work.combined = piece.end;
            progress = true;
        }
        progress
    }

    fn is_complete(&self) -> bool {
        let Some(work) = &self.work else { return false };
        work.combined == work.own.range.end
            && work
                .exchanges
                .iter()
                .all(|exchange| exchange.is_sent() && exchange.is_received())
            && self
                .connections
                .iter()
                .all(|connection| connection.outgoing.is_none())
    }

    fn finish(&mut self) {
        let Some(mut work) = self.work.take() else { return };
        for (connection, exchange) in self.connections.iter_mut().zip(&work.exchanges) {
            connection.positions.out += u64::from(exchange.sends());
            connection.positions.into += u64::from(exchange.receives());
        }
        work.moved.wire_time = work.started.elapsed();
        self.core.put_down(self.channel);
        work.queued.complete(Ok(work.moved));
    }

    /// Marks a connection as broken; whether its peer is lost, and why, the link finds out.
    fn suspect(&mut self, index: usize, cause: String) {
        let connection = &mut self.connections[index];
        connection.incoming = Incoming::Closed { in_order: false };
        connection.outgoing = None;
        self.core.suspect(connection.rank, cause);
    }

    /// The operation in hand cannot be done without a peer that has left in order.
    fn check_left(&self) -> Result<(), CollectiveError> {
        let Some(work) = &self.work else { return Ok(()) };
        let left =
            |connection: &Connection| matches!(connection.incoming, Incoming::Closed { in_order: true });
        for (connection, exchange) in self.connections.iter().zip(&work.exchanges) {
            if left(connection) && !(exchange.is_sent() && exchange.is_received()) {
                let cause = "it left the group".into();
                return Err(CollectiveError::PeerLost {
                    rank: connection.rank,
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
                connection.outgoing.is_some() || !exchange.is_received() || !exchange.is_sent()
            });
        Err(CollectiveError::Deadline {
            operation: Box::new(work.queued.operation),
            channel: self.channel,
            after,
            waiting_for: waiting_for.map(|(connection, _)| connection.rank).collect(),
        })
    }

    fn wait(&self) -> Result<(), CollectiveError> {
        let waker = self.core.waker(self.channel);
        let mut descriptors = vec![PollFd::new(waker, PollFlags::IN)];
        for connection in &self.connections {
            let mut flags = PollFlags::empty();
            if matches!(connection.incoming, Incoming::Header | Incoming::Payload { .. }) {
                flags |= PollFlags::IN;
            }
            if connection.outgoing.is_some() {
                flags |= PollFlags::OUT;
            }
            // A connection that waits for nothing stays out: the system would report its end again
            // and again.
            if !flags.is_empty() {
                descriptors.push(PollFd::from_borrowed_fd(connection.stream.as_fd(), flags));
            }
        }
        let until = self
            .work
            .as_ref()
            .map(|work| work.queued.issued + self.core.options.operation_deadline);
        wait(&mut descriptors, until)
            .map_err(|error| transport(self.core.local.identity.rank, format!("wait: {error}")))?;
        if !descriptors[0].revents().is_empty() {
            waker.clear();
        }
        Ok(())
    }

    fn say_goodbye(&mut self) {
        for connection in &self.connections {
            // Best effort: who does not hear it sees the connection close.
            let _ = send(&connection.stream, &[IoSlice::new(&Frame::Goodbye.encode())]);
        }
    }
}

enum Payload {
    Blocked,
    Part,
    Complete,
}

/// Where the contribution to the piece at byte `start` of the buffer waits.
fn slot_start(own: &Own, start: usize) -> usize {
    (start - own.range.start) / CHUNK % SLOTS * CHUNK
}

fn transport(rank: usize, cause: String) -> CollectiveError {
    CollectiveError::Transport { rank, cause }
}

impl Drop for Lane {
    /// However the thread ends, nobody is left waiting.
    fn drop(&mut self) {
        let queue = self.core.close(self.channel);
        let in_hand = self.work.take().map(|work| work.queued);
        if in_hand.is_some() || !queue.is_empty() || std::thread::panicking() {
            let rank = self.core.local.identity.rank;
            self.core.end(transport(
                rank,
                format!("the thread of channel {} ended", self.channel),
            ));
        }
        let error = self.core.ended().unwrap_or(CollectiveError::Aborted {
            cause: crate::error::AbortCause::Dropped,
        });
        for queued in in_hand.into_iter().chain(queue) {
            queued.complete(Err(error.clone()));
        }
    }
}
