//! The thread that keeps signs of life and tells why a member stops.
//!
//! Its connections carry nothing else, so that a reason never waits behind data and silence means
//! silence. It alone decides that a peer is lost: a data connection that ends may have ended because
//! its owner stopped for a reason that is on its way here. Afterwards it also minds the door.

use std::io::{IoSlice, Read};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use serde::{Deserialize, Serialize};

use crate::error::CollectiveError;
use crate::operation::{Channel, Operation};
use crate::tcp::core::{Core, Suspect};
use crate::tcp::door::Door;
use crate::tcp::hello::{MAX_PAYLOAD, Refusal};
use crate::tcp::socket::{Progress, received, send, wait};

/// How long a reason may be on its way after a data connection ended.
const REASON_DEADLINE: Duration = Duration::from_millis(250);
/// Kind (1), zero (1), length of the payload (2).
const HEADER: usize = 4;
const BEAT: u8 = 1;
const FAULT: u8 = 2;
const GOODBYE: u8 = 3;

/// Why a member stops, as told to the others.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Fault {
    Mismatch {
        channel: Channel,
        position: u64,
        rank: usize,
        peer: usize,
        expected: Operation,
        got: Operation,
    },
    Lost {
        rank: usize,
        cause: String,
    },
    Stopped {
        cause: String,
    },
}

impl Fault {
    fn of(error: &CollectiveError) -> Fault {
        match error {
            CollectiveError::Mismatch {
                channel,
                position,
                rank,
                peer,
                expected,
                got,
            } => Fault::Mismatch {
                channel: *channel,
                position: *position,
                rank: *rank,
                peer: *peer,
                expected: **expected,
                got: **got,
            },
            CollectiveError::PeerLost { rank, cause } | CollectiveError::Transport { rank, cause } => {
                Fault::Lost {
                    rank: *rank,
                    cause: bounded(cause.clone()),
                }
            }
            other => Fault::Stopped {
                cause: bounded(other.to_string()),
            },
        }
    }

    /// What `sender`'s fault means for the member `here`.
    fn seen_from(self, here: usize, sender: usize) -> CollectiveError {
        match self {
            Fault::Mismatch {
                channel,
                position,
                rank,
                peer,
                expected,
                got,
            } => CollectiveError::Mismatch {
                channel,
                position,
                rank,
                peer,
                expected: Box::new(expected),
                got: Box::new(got),
            },
            Fault::Lost { rank, cause } if rank != here && rank != sender => CollectiveError::PeerLost {
                rank,
                cause: bounded(format!("rank {sender} says: {cause}")),
            },
            Fault::Lost { cause, .. } => CollectiveError::PeerLost {
                rank: sender,
                cause: bounded(format!("it ended its connections to this rank: {cause}")),
            },
            Fault::Stopped { cause } => CollectiveError::PeerLost {
                rank: sender,
                cause: bounded(format!("it stopped: {cause}")),
            },
        }
    }
}

/// Texts are passed on from rank to rank: keeps them from growing on the way.
fn bounded(mut text: String) -> String {
    let mut end = 512.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    Left,
}

struct Peer {
    rank: usize,
    stream: TcpStream,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    heard: Instant,
    state: State,
}

pub(super) struct Link {
    core: Arc<Core>,
    peers: Vec<Peer>,
    door: Door,
    suspects: Vec<Suspect>,
    next_beat: Instant,
}

impl Link {
    pub(super) fn new(core: Arc<Core>, streams: Vec<(usize, TcpStream)>, door: Door) -> Link {
        let now = Instant::now();
        let connect = |(rank, stream)| Peer {
            rank,
            stream,
            inbox: Vec::new(),
            outbox: Vec::new(),
            heard: now,
            state: State::Open,
        };
        Link {
            core,
            peers: streams.into_iter().map(connect).collect(),
            door,
            suspects: Vec::new(),
            next_beat: now,
        }
    }

    pub(super) fn run(mut self) {
        if let Err(error) = self.serve() {
            self.core.end(error);
        }
        let farewell = match self.core.ended() {
            Some(error) => serde_json::to_vec(&Fault::of(&error)).map(|payload| message(FAULT, &payload)),
            None => Ok(message(GOODBYE, &[])),
        };
        for peer in &mut self.peers {
            // Best effort: who does not hear it sees the connection close.
            peer.outbox
                .extend_from_slice(farewell.as_deref().unwrap_or_default());
            let _ = peer.flush();
            peer.drain();
        }
    }

    fn serve(&mut self) -> Result<(), CollectiveError> {
        let mut last_look = Instant::now();
        while !self.core.has_ended() && !self.core.is_leaving() {
            let now = Instant::now();
            // If this process itself stood still, its peers were not silent.
            let pause = now
                .saturating_duration_since(last_look)
                .saturating_sub(self.longest_wait());
            last_look = now;
            for peer in &mut self.peers {
                peer.heard += pause;
                peer.listen(self.core.local.identity.rank, now)?;
            }
            self.beat(now);
            self.judge(now)?;
            let refuse = |_: &_| Err(Refusal::Complete);
            self.door.serve(&self.core.local, now, refuse);
            self.wait(now)?;
        }
        Ok(())
    }

    fn longest_wait(&self) -> Duration {
        self.core.options.heartbeat_interval
    }

    fn beat(&mut self, now: Instant) {
        if now >= self.next_beat {
            self.next_beat = now + self.core.options.heartbeat_interval;
            for peer in self.peers.iter_mut().filter(|peer| peer.outbox.is_empty()) {
                peer.outbox = message(BEAT, &[]);
            }
        }
        for peer in &mut self.peers {
            // A broken connection shows when it is read.
            let _ = peer.flush();
        }
    }

    /// Who is lost: the silent, and the suspects of whom no reason came.
    fn judge(&mut self, now: Instant) -> Result<(), CollectiveError> {
        self.suspects.extend(self.core.take_suspects());
        for suspect in &self.suspects {
            let state = self
                .peers
                .iter()
                .find(|peer| peer.rank == suspect.rank)
                .map(|peer| peer.state);
            if state == Some(State::Left) {
                return Err(lost(suspect.rank, "it left the group".into()));
            }
            if now >= suspect.since + REASON_DEADLINE {
                return Err(lost(suspect.rank, suspect.cause.clone()));
            }
        }
        let patience = self.core.options.heartbeat_timeout;
        for peer in self.peers.iter().filter(|peer| peer.state == State::Open) {
            if now >= peer.heard + patience {
                return Err(lost(peer.rank, format!("no sign of life for {patience:?}")));
            }
        }
        Ok(())
    }

    fn wait(&self, now: Instant) -> Result<(), CollectiveError> {
        let waker = self.core.link_waker();
        let mut descriptors = vec![PollFd::new(waker, PollFlags::IN)];
        for peer in self.peers.iter().filter(|peer| peer.state == State::Open) {
            let out = if peer.outbox.is_empty() {
                PollFlags::empty()
            } else {
                PollFlags::OUT
            };
            descriptors.push(PollFd::from_borrowed_fd(peer.stream.as_fd(), PollFlags::IN | out));
        }
        self.door.descriptors(&mut descriptors);
        let patience = self.core.options.heartbeat_timeout;
        let open = self.peers.iter().filter(|peer| peer.state == State::Open);
        let until = open
            .map(|peer| peer.heard + patience)
            .chain(
                self.suspects
                    .iter()
                    .map(|suspect| suspect.since + REASON_DEADLINE),
            )
            .chain(self.door.deadline())
            .fold(self.next_beat, Instant::min)
            .min(now + self.longest_wait());
        wait(&mut descriptors, Some(until))
            .map_err(|error| lost(self.core.local.identity.rank, format!("wait: {error}")))?;
        if !descriptors[0].revents().is_empty() {
            waker.clear();
        }
        Ok(())
    }
}

impl Peer {
    /// Takes in what has come. An error is the end of the group.
    fn listen(&mut self, here: usize, now: Instant) -> Result<(), CollectiveError> {
        if self.state == State::Left {
            return Ok(());
        }
        let mut bytes = [0; 1024];
        loop {
            let ended = match received(self.stream.read(&mut bytes)) {
                Ok(Progress::Bytes(count)) => {
                    self.heard = now;
                    self.inbox.extend_from_slice(&bytes[..count]);
                    self.take_messages(here)?;
                    None
                }
                Ok(Progress::Blocked) => return Ok(()),
                Ok(Progress::End) => Some("its process or connection ended".to_owned()),
                Err(error) => Some(error.to_string()),
            };
            match ended {
                _ if self.state == State::Left => return Ok(()),
                Some(cause) => return Err(lost(self.rank, cause)),
                None => {}
            }
        }
    }

    fn take_messages(&mut self, here: usize) -> Result<(), CollectiveError> {
        let mut taken = 0;
        while let Some([kind, _, low, high]) = self.inbox[taken..].first_chunk::<HEADER>() {
            let length = usize::from(u16::from_le_bytes([*low, *high]));
            if length > MAX_PAYLOAD {
                return Err(lost(self.rank, "it sent bytes that are no message".into()));
            }
            let Some(payload) = self.inbox[taken + HEADER..].get(..length) else {
                break;
            };
            match *kind {
                FAULT => {
                    let fault: Fault = serde_json::from_slice(payload).unwrap_or(Fault::Stopped {
                        cause: "it gave no reason that is known here".into(),
                    });
                    return Err(fault.seen_from(here, self.rank));
                }
                GOODBYE => self.state = State::Left,
                // Later versions may have more to say: it is still a sign of life.
                _ => {}
            }
            taken += HEADER + length;
        }
        self.inbox.drain(..taken);
        Ok(())
    }

    /// Takes out what has come: unread bytes would make the system tear the connection down at once and
    /// perhaps lose what was said last.
    fn drain(&mut self) {
        let mut bytes = [0; 1024];
        for _ in 0..64 {
            if !matches!(received(self.stream.read(&mut bytes)), Ok(Progress::Bytes(_))) {
                return;
            }
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        while !self.outbox.is_empty() {
            match send(&self.stream, &[IoSlice::new(&self.outbox)])? {
                Progress::Bytes(bytes) => drop(self.outbox.drain(..bytes)),
                Progress::Blocked | Progress::End => break,
            }
        }
        Ok(())
    }
}

fn message(kind: u8, payload: &[u8]) -> Vec<u8> {
    let length = payload.len().min(MAX_PAYLOAD) as u16;
    let [low, high] = length.to_le_bytes();
    let mut bytes = vec![kind, 0, low, high];
    bytes.extend_from_slice(&payload[..usize::from(length)]);
    bytes
}

fn lost(rank: usize, cause: String) -> CollectiveError {
    CollectiveError::PeerLost { rank, cause }
}
