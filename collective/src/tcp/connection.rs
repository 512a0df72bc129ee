//! One data connection to one peer: frames out, frames in, never blocking.

use std::io::{IoSlice, IoSliceMut, Read};
use std::net::TcpStream;
use std::ops::Range;
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags};

use crate::error::CollectiveError;
use crate::operation::Channel;
use crate::tcp::frame::{Frame, HEADER, Phase};
use crate::tcp::in_hand::InHand;
use crate::tcp::socket::{Progress, received, send};
use crate::tcp::work::Verdict;

/// A frame on its way out.
struct Outgoing {
    header: [u8; HEADER],
    range: Range<usize>,
    sent: usize,
}

/// Where the stream from the peer stands.
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

/// What came of a try to move bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Bytes have moved, or a state has changed.
    Moved,
    /// Nothing can move now.
    Blocked,
    /// The connection has ended; the text says how it showed.
    Broken(String),
}

pub(super) struct Connection {
    rank: usize,
    stream: TcpStream,
    outgoing: Option<Outgoing>,
    incoming: Incoming,
    header: [u8; HEADER],
    filled: usize,
    /// Operations that the two ends have in common so far, by direction.
    sent: u64,
    received: u64,
    /// Contributions that wait for those of others. Words, for the alignment of elements.
    slots: Vec<u64>,
}

impl Connection {
    pub(super) fn new(rank: usize, stream: TcpStream) -> Connection {
        Connection {
            rank,
            stream,
            outgoing: None,
            incoming: Incoming::Header,
            header: [0; HEADER],
            filled: 0,
            sent: 0,
            received: 0,
            slots: Vec::new(),
        }
    }

    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    /// Makes room for that many bytes of contributions.
    pub(super) fn reserve(&mut self, bytes: usize) {
        let words = bytes.div_ceil(size_of::<u64>());
        if self.slots.len() < words {
            self.slots.resize(words, 0);
        }
    }

    pub(super) fn slots(&self) -> &[u8] {
        bytemuck::cast_slice(&self.slots)
    }

    /// True if no frame is on its way out.
    pub(super) fn is_flushed(&self) -> bool {
        self.outgoing.is_none()
    }

    /// True once the peer has said that nothing more comes.
    pub(super) fn has_left(&self) -> bool {
        matches!(self.incoming, Incoming::Closed { in_order: true })
    }

    /// Nothing moves here any more.
    pub(super) fn close(&mut self) {
        self.incoming = Incoming::Closed { in_order: false };
        self.outgoing = None;
    }

    /// An operation is over that had these directions.
    pub(super) fn count(&mut self, sends: bool, receives: bool) {
        self.sent += u64::from(sends);
        self.received += u64::from(receives);
    }

    pub(super) fn say_goodbye(&self) {
        // Best effort: who does not hear it sees the connection close.
        let _ = send(&self.stream, &[IoSlice::new(&Frame::Goodbye.encode())]);
    }

    /// What to wait for. A connection that waits for nothing stays out: the system would report its
    /// end again and again.
    pub(super) fn interest(&self) -> Option<PollFd<'_>> {
        let mut flags = PollFlags::empty();
        flags.set(
            PollFlags::IN,
            matches!(self.incoming, Incoming::Header | Incoming::Payload { .. }),
        );
        flags.set(PollFlags::OUT, self.outgoing.is_some());
        (!flags.is_empty()).then(|| PollFd::from_borrowed_fd(self.stream.as_fd(), flags))
    }

    /// Sends at most one frame of the operation in hand, so that receiving gets its turn.
    pub(super) fn send(&mut self, work: &mut InHand, index: usize) -> Step {
        if matches!(self.incoming, Incoming::Closed { .. }) {
            return Step::Blocked;
        }
        let outgoing = match &mut self.outgoing {
            Some(outgoing) => outgoing,
            none => {
                let Some((phase, range)) = work.exchanges[index].next_frame(work.combined) else {
                    return Step::Blocked;
                };
                let frame = Frame::Data {
                    position: self.sent,
                    operation: work.queued.operation.as_sent(),
                    phase,
                    range: range.start as u64..range.end as u64,
                };
                none.insert(Outgoing {
                    header: frame.encode(),
                    range,
                    sent: 0,
                })
            }
        };
        let payload = &work.queued.bytes()[outgoing.range.clone()];
        let parts = [
            IoSlice::new(&outgoing.header[outgoing.sent.min(HEADER)..]),
            IoSlice::new(&payload[outgoing.sent.saturating_sub(HEADER)..]),
        ];
        match send(&self.stream, &parts) {
            Ok(Progress::Bytes(bytes)) => {
                outgoing.sent += bytes;
                work.moved.bytes_sent += bytes as u64;
                if outgoing.sent == HEADER + payload.len() {
                    self.outgoing = None;
                }
                Step::Moved
            }
            Ok(Progress::Blocked | Progress::End) => Step::Blocked,
            Err(error) => Step::Broken(error.to_string()),
        }
    }

    /// Receives until the socket is empty, or a payload complete, or a frame here for which it is too
    /// early. `here` is the channel and this member's rank, for error texts.
    pub(super) fn receive(
        &mut self,
        mut work: Option<&mut InHand>,
        index: usize,
        here: (Channel, usize),
    ) -> Result<Step, CollectiveError> {
        let mut result = Step::Blocked;
        loop {
            let in_payload = matches!(self.incoming, Incoming::Payload { .. });
            let step = match &self.incoming {
                Incoming::Closed { .. } => Step::Blocked,
                Incoming::Header => self.read_header()?,
                Incoming::Held(frame) => {
                    let frame = frame.clone();
                    self.open(frame, work.as_deref_mut(), index, here)?
                }
                Incoming::Payload { .. } => match work.as_deref_mut() {
                    Some(work) => self.read_payload(work, index),
                    None => Step::Blocked,
                },
            };
            match step {
                Step::Moved if in_payload && matches!(self.incoming, Incoming::Header) => {
                    return Ok(Step::Moved);
                }
                Step::Moved => result = Step::Moved,
                Step::Blocked => return Ok(result),
                Step::Broken(cause) => return Ok(Step::Broken(cause)),
            }
        }
    }

    fn read_header(&mut self) -> Result<Step, CollectiveError> {
        if self.filled < HEADER {
            match received(self.stream.read(&mut self.header[self.filled..])) {
                Ok(Progress::Bytes(bytes)) => self.filled += bytes,
                other => return Ok(not_moved(other)),
            }
        }
        if self.filled == HEADER {
            let frame = Frame::decode(&self.header)
                .ok_or_else(|| transport(self.rank, "bytes that are no frame header".into()))?;
            self.filled = 0;
            self.incoming = Incoming::Held(frame);
        }
        Ok(Step::Moved)
    }

    /// Looks what an announced frame is for. Blocked: for later.
    fn open(
        &mut self,
        frame: Frame,
        work: Option<&mut InHand>,
        index: usize,
        (channel, rank): (Channel, usize),
    ) -> Result<Step, CollectiveError> {
        let Frame::Data {
            position,
            operation,
            phase,
            range,
        } = frame
        else {
            self.incoming = Incoming::Closed { in_order: true };
            return Ok(Step::Moved);
        };
        let Some(work) = work else {
            return Ok(Step::Blocked);
        };
        let exchange = &mut work.exchanges[index];
        if !exchange.receives() || exchange.is_received() {
            return Ok(Step::Blocked);
        }
        if operation != work.queued.operation.as_sent() {
            return Err(CollectiveError::Mismatch {
                channel,
                position: self.received,
                rank,
                peer: self.rank,
                expected: Box::new(work.queued.operation),
                got: Box::new(operation),
            });
        }
        if position != self.received {
            let cause = format!("operation {position} where {} was due", self.received);
            return Err(transport(self.rank, cause));
        }
        self.incoming = match exchange.judge(phase, &range, work.combined) {
            Verdict::Receive => {
                let range = range.start as usize..range.end as usize;
                Incoming::Payload { phase, range, got: 0 }
            }
            Verdict::Nod => {
                exchange.received(phase, &(0..0));
                Incoming::Header
            }
            Verdict::Later => return Ok(Step::Blocked),
            Verdict::Violation => {
                let cause = format!("bytes {range:?} out of turn in {operation}");
                return Err(transport(self.rank, cause));
            }
        };
        work.moved.bytes_received += HEADER as u64;
        Ok(Step::Moved)
    }

    fn read_payload(&mut self, work: &mut InHand, index: usize) -> Step {
        let Incoming::Payload { phase, range, got } = &mut self.incoming else {
            return Step::Blocked;
        };
        let target = match phase {
            Phase::Contribution => {
                let slot = work.slot(range.start);
                &mut bytemuck::cast_slice_mut::<u64, u8>(&mut self.slots)[slot..slot + range.len()]
            }
            Phase::Result => &mut work.queued.bytes_mut()[range.clone()],
        };
        // The header of the next frame often is there already: one call less.
        let mut parts = [
            IoSliceMut::new(&mut target[*got..]),
            IoSliceMut::new(&mut self.header[self.filled..]),
        ];
        let bytes = match received(self.stream.read_vectored(&mut parts)) {
            Ok(Progress::Bytes(bytes)) => bytes,
            other => return not_moved(other),
        };
        let of_payload = bytes.min(range.len() - *got);
        self.filled += bytes - of_payload;
        work.moved.bytes_received += of_payload as u64;
        *got += of_payload;
        if *got == range.len() {
            work.exchanges[index].received(*phase, range);
            if *phase == Phase::Result {
                work.is_final(range.clone());
            }
            self.incoming = Incoming::Header;
        }
        Step::Moved
    }
}

/// The step of a read that brought no bytes.
fn not_moved(result: std::io::Result<Progress>) -> Step {
    match result {
        Ok(Progress::End) => Step::Broken("its connection closed".into()),
        Ok(_) => Step::Blocked,
        Err(error) => Step::Broken(error.to_string()),
    }
}

pub(super) fn transport(rank: usize, cause: String) -> CollectiveError {
    CollectiveError::Transport { rank, cause }
}
