//! Where callers come in: strangers until they have proved the key.
//!
//! Whatever a stranger does (says nothing, dribbles bytes, talks another protocol, holds another key)
//! costs one bounded entry here until its deadline and never reaches the group.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use tracing::warn;

use crate::tcp::hello::{self, Hello, Kind, Local, Refusal, message};
use crate::tcp::message::{MessageReader, send_message};
use crate::tcp::socket::nonce;

/// Strangers at a time; the oldest makes room for the next.
const MAX_STRANGERS: usize = 256;
/// Callers taken in at one look, so that a flood of them does not hold up the thread.
const MAX_ACCEPTS: usize = 64;
/// At most one warning in this time.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(10);
/// How long to leave callers outside when the system has no descriptor for them.
const CLOSED_FOR: Duration = Duration::from_millis(100);

enum Stage {
    Hello,
    Proof { hello: Box<Hello>, expected: [u8; 32] },
}

struct Stranger {
    stream: TcpStream,
    from: SocketAddr,
    deadline: Instant,
    reader: MessageReader,
    stage: Stage,
}

/// A caller that has proved the key.
pub(super) struct Admitted {
    pub(super) hello: Hello,
    pub(super) stream: TcpStream,
}

pub(super) struct Door {
    listener: TcpListener,
    patience: Duration,
    strangers: Vec<Stranger>,
    closed_until: Option<Instant>,
    complained: Option<Instant>,
    unmentioned: u64,
}

enum Outcome {
    Waiting,
    Admitted(Box<Hello>),
    Dropped(String),
}

impl Door {
    pub(super) fn new(listener: TcpListener, patience: Duration) -> Door {
        Door {
            listener,
            patience,
            strangers: Vec::new(),
            closed_until: None,
            complained: None,
            unmentioned: 0,
        }
    }

    /// What to wait for besides [`Door::deadline`].
    pub(super) fn descriptors<'a>(&'a self, into: &mut Vec<PollFd<'a>>) {
        if self.closed_until.is_none() {
            into.push(PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN));
        }
        for stranger in &self.strangers {
            into.push(PollFd::from_borrowed_fd(stranger.stream.as_fd(), PollFlags::IN));
        }
    }

    /// When to look again even if nothing happens.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.strangers
            .iter()
            .map(|stranger| stranger.deadline)
            .chain(self.closed_until)
            .min()
    }

    /// Takes in callers and goes on with the handshakes, without waiting. `welcome` says whether a
    /// caller has a place here.
    pub(super) fn serve(
        &mut self,
        local: &Local,
        now: Instant,
        welcome: impl Fn(&Hello) -> Result<(), Refusal>,
    ) -> Vec<Admitted> {
        self.accept(now);
        let mut admitted = Vec::new();
        let mut kept = Vec::with_capacity(self.strangers.len());
        for mut stranger in std::mem::take(&mut self.strangers) {
            match stranger.proceed(local, now, &welcome) {
                Outcome::Waiting => kept.push(stranger),
                Outcome::Admitted(hello) => {
                    admitted.push(Admitted {
                        hello: *hello,
                        stream: stranger.stream,
                    });
                }
                Outcome::Dropped(reason) => self.complain(stranger.from, &reason, now),
            }
        }
        self.strangers = kept;
        admitted
    }

    fn accept(&mut self, now: Instant) {
        if self.closed_until.is_some_and(|until| now < until) {
            return;
        }
        self.closed_until = None;
        for _ in 0..MAX_ACCEPTS {
            let (stream, from) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    // A caller that has gone already, or no descriptors left: the port stays
                    // readable, so looking again at once would spin.
                    self.closed_until = Some(now + CLOSED_FOR);
                    return;
                }
            };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            if self.strangers.len() >= MAX_STRANGERS {
                let oldest = self.strangers.remove(0);
                self.complain(oldest.from, "too many callers at once", now);
            }
            self.strangers.push(Stranger {
                stream,
                from,
                deadline: now + self.patience,
                reader: MessageReader::default(),
                stage: Stage::Hello,
            });
        }
    }

    fn complain(&mut self, from: SocketAddr, reason: &str, now: Instant) {
        if self
            .complained
            .is_some_and(|last| now.duration_since(last) < COMPLAINT_INTERVAL)
        {
            self.unmentioned += 1;
            return;
        }
        warn!(%from, reason, unmentioned = self.unmentioned, "dropped a caller at the data port");
        self.complained = Some(now);
        self.unmentioned = 0;
    }
}

impl Stranger {
    fn proceed(
        &mut self,
        local: &Local,
        now: Instant,
        welcome: &impl Fn(&Hello) -> Result<(), Refusal>,
    ) -> Outcome {
        loop {
            let (kind, payload) = match self.reader.read(&self.stream) {
                Ok(Some(message)) => message,
                Ok(None) if now >= self.deadline => {
                    return Outcome::Dropped("it did not prove the key in time".into());
                }
                Ok(None) => return Outcome::Waiting,
                Err(error) => return Outcome::Dropped(error.to_string()),
            };
            match (&mut self.stage, kind) {
                (Stage::Hello, Kind::Hello) => match self.challenge(local, &payload, welcome) {
                    Ok(stage) => self.stage = stage,
                    Err(reason) => return Outcome::Dropped(reason),
                },
                (Stage::Proof { hello, expected }, Kind::Proof) => {
                    if !hello::proves(expected, &payload) {
                        // Best effort: the caller is dropped whether it hears why or not.
                        let _ = send_message(&self.stream, &hello::refusal(&Refusal::Key));
                        return Outcome::Dropped(Refusal::Key.to_string());
                    }
                    // A caller that found a difference has hung up by now; it is known all the
                    // same, and a stream that is broken shows when it is used.
                    let _ = send_message(&self.stream, &message(Kind::Accepted, &[]));
                    return Outcome::Admitted(hello.clone());
                }
                _ => return Outcome::Dropped("it sent a message out of turn".into()),
            }
        }
    }

    fn challenge(
        &self,
        local: &Local,
        payload: &[u8],
        welcome: &impl Fn(&Hello) -> Result<(), Refusal>,
    ) -> Result<Stage, String> {
        let nonce = nonce().map_err(|error| error.to_string())?;
        let answer = local
            .challenge(payload, nonce)
            .and_then(|answer| welcome(&answer.0).map(|()| answer).map_err(Some));
        match answer {
            Ok((hello, challenge, expected)) => {
                send_message(&self.stream, &message(Kind::Challenge, &challenge))
                    .map_err(|error| error.to_string())?;
                Ok(Stage::Proof {
                    hello: Box::new(hello),
                    expected,
                })
            }
            Err(Some(refusal)) => {
                let _ = send_message(&self.stream, &hello::refusal(&refusal));
                Err(refusal.to_string())
            }
            Err(None) => Err("its hello is none".into()),
        }
    }
}
