//! Makes the connections of a group: calls the lower ranks, takes the calls of the higher ones.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use crate::tcp::door::Door;
use crate::tcp::hello::{Hello, Kind, Local, MAX_PAYLOAD, Refusal, message};
use crate::tcp::message::{MessageReader, send_message};
use crate::tcp::socket::{nonce, start_connect, wait};
use crate::tcp::{ConnectError, Difference, HelloContext, LANES, LINK, Options};

const FIRST_BACKOFF: Duration = Duration::from_millis(20);
const LONGEST_BACKOFF: Duration = Duration::from_secs(1);
/// Once the group cannot come about, how long the other pairs have to find out as well.
const LAST_WORDS: Duration = Duration::from_secs(1);
const SHORTEST_KEY: usize = 16;

/// The streams to each rank, by lane; none to this rank itself.
pub(super) type Streams = Vec<Vec<TcpStream>>;

/// Refuses calls that can lead nowhere.
pub(super) fn check_arguments(local: &Local, peers: &[SocketAddr], key: &[u8]) -> Result<(), ConnectError> {
    let identity = &local.identity;
    let refuse = |text: String| Err(ConnectError::Arguments(text));
    if identity.world_size == 0 || identity.rank >= identity.world_size {
        return refuse(format!(
            "rank {} in a group of {}",
            identity.rank, identity.world_size
        ));
    }
    if peers.len() != identity.world_size {
        return refuse(format!(
            "{} addresses for a group of {}",
            peers.len(),
            identity.world_size
        ));
    }
    if key.len() < SHORTEST_KEY {
        return refuse(format!("a key of {} bytes, {SHORTEST_KEY} are needed", key.len()));
    }
    let longest = local.hello(LINK, [0; 32]).len() + 32;
    if longest > MAX_PAYLOAD {
        return refuse(format!(
            "a hello of {longest} bytes, at most {MAX_PAYLOAD} are read: shorten its hashes"
        ));
    }
    Ok(())
}

/// One connection that this member makes.
struct Call {
    rank: usize,
    lane: u8,
    backoff: Duration,
    stage: Stage,
}

enum Stage {
    Resting {
        until: Instant,
    },
    Connecting {
        stream: TcpStream,
    },
    Greeted {
        stream: TcpStream,
        reader: MessageReader,
        hello: Vec<u8>,
    },
    Proved {
        stream: TcpStream,
        reader: MessageReader,
    },
    Over,
}

/// What became of a call at one look.
enum Outcome {
    Waiting,
    Connected(TcpStream),
    Failed(String),
    Final(ConnectError),
}

struct Mesh<'a> {
    local: &'a Local,
    peers: &'a [SocketAddr],
    calls: Vec<Call>,
    streams: Vec<[Option<TcpStream>; LANES]>,
    causes: Vec<String>,
    failures: Vec<Option<ConnectError>>,
}

/// Connects until all is complete or decided, or the deadline has come.
pub(super) fn build(
    mut door: Door,
    local: &Local,
    peers: &[SocketAddr],
    options: &Options,
) -> Result<(Door, Streams), ConnectError> {
    let world = local.identity.world_size;
    let start = Instant::now();
    let mut deadline = start + options.connect_deadline;
    let calls = (0..local.identity.rank).flat_map(|rank| {
        let stage = move || Stage::Resting { until: start };
        (0..=LINK).map(move |lane| Call {
            rank,
            lane,
            backoff: FIRST_BACKOFF,
            stage: stage(),
        })
    });
    let mut mesh = Mesh {
        local,
        peers,
        calls: calls.collect(),
        streams: (0..world).map(|_| Default::default()).collect(),
        causes: vec!["it has not called".into(); world],
        failures: vec![None; world],
    };
    loop {
        let now = Instant::now();
        mesh.take_calls(&mut door, now);
        mesh.make_calls(now);
        let open: Vec<usize> = (0..world).filter(|rank| !mesh.is_decided(*rank)).collect();
        let failed = mesh.failures.iter().flatten().next();
        if open.is_empty() || now >= deadline {
            return match failed {
                Some(error) => Err(error.clone()),
                None if open.is_empty() => {
                    let lanes = |lanes: [Option<TcpStream>; LANES]| lanes.into_iter().flatten().collect();
                    Ok((door, mesh.streams.into_iter().map(lanes).collect()))
                }
                None => Err(ConnectError::Unreachable {
                    causes: open
                        .into_iter()
                        .map(|rank| (rank, mesh.causes[rank].clone()))
                        .collect(),
                    after: options.connect_deadline,
                }),
            };
        }
        if failed.is_some() {
            deadline = deadline.min(now + LAST_WORDS);
        }
        let until = mesh.next_look(&door).map_or(deadline, |next| next.min(deadline));
        let mut descriptors = Vec::new();
        door.descriptors(&mut descriptors);
        mesh.descriptors(&mut descriptors);
        wait(&mut descriptors, Some(until))?;
    }
}

impl Mesh<'_> {
    fn is_decided(&self, rank: usize) -> bool {
        rank == self.local.identity.rank
            || self.failures[rank].is_some()
            || self.streams[rank].iter().all(Option::is_some)
    }

    fn take_calls(&mut self, door: &mut Door, now: Instant) {
        let mine = self.local.identity.rank;
        let welcome = |hello: &Hello| {
            if hello.rank > mine {
                Ok(())
            } else {
                Err(Refusal::Membership)
            }
        };
        for admitted in door.serve(self.local, now, welcome) {
            let (rank, lane) = (admitted.hello.rank, usize::from(admitted.hello.lane));
            match compare(rank, &admitted.hello.context, &self.local.context) {
                // A caller that lost its first connection comes again: the newest counts.
                Ok(()) => self.streams[rank][lane] = Some(admitted.stream),
                Err(error) => self.failures[rank] = Some(error),
            }
        }
    }

    fn make_calls(&mut self, now: Instant) {
        for index in 0..self.calls.len() {
            let call = &mut self.calls[index];
            let rank = call.rank;
            if self.failures[rank].is_some() {
                call.stage = Stage::Over;
            }
            match call.proceed(self.local, self.peers[rank], now) {
                Outcome::Waiting => {}
                Outcome::Connected(stream) => {
                    self.streams[rank][usize::from(call.lane)] = Some(stream);
                }
                Outcome::Failed(cause) => {
                    self.causes[rank] = cause;
                    call.stage = Stage::Resting {
                        until: now + call.backoff,
                    };
                    call.backoff = (call.backoff * 2).min(LONGEST_BACKOFF);
                }
                Outcome::Final(error) => self.failures[rank] = Some(error),
            }
        }
    }

    fn next_look(&self, door: &Door) -> Option<Instant> {
        let calls = self.calls.iter().filter_map(|call| match call.stage {
            Stage::Resting { until } => Some(until),
            _ => None,
        });
        calls.chain(door.deadline()).min()
    }

    fn descriptors<'a>(&'a self, into: &mut Vec<PollFd<'a>>) {
        for call in &self.calls {
            let (stream, flags) = match &call.stage {
                Stage::Resting { .. } | Stage::Over => continue,
                Stage::Connecting { stream } => (stream, PollFlags::OUT),
                Stage::Greeted { stream, .. } | Stage::Proved { stream, .. } => (stream, PollFlags::IN),
            };
            into.push(PollFd::from_borrowed_fd(stream.as_fd(), flags));
        }
    }
}

impl Call {
    /// Goes on with the call as far as it can without waiting.
    fn proceed(&mut self, local: &Local, address: SocketAddr, now: Instant) -> Outcome {
        loop {
            match std::mem::replace(&mut self.stage, Stage::Over) {
                Stage::Over => return Outcome::Waiting,
                Stage::Resting { until } if now < until => {
                    self.stage = Stage::Resting { until };
                    return Outcome::Waiting;
                }
                Stage::Resting { .. } => match start_connect(address) {
                    Ok(stream) => self.stage = Stage::Connecting { stream },
                    Err(error) => return Outcome::Failed(format!("{address}: {error}")),
                },
                Stage::Connecting { stream } => {
                    match stream.take_error() {
                        Ok(None) => {}
                        Ok(Some(error)) | Err(error) => {
                            return Outcome::Failed(format!("{address}: {error}"));
                        }
                    }
                    if stream.peer_addr().is_err() {
                        self.stage = Stage::Connecting { stream };
                        return Outcome::Waiting;
                    }
                    let hello = match nonce() {
                        Ok(nonce) => local.hello(self.lane, nonce),
                        Err(error) => return Outcome::Failed(error.to_string()),
                    };
                    if let Err(error) = send_message(&stream, &message(Kind::Hello, &hello)) {
                        return Outcome::Failed(format!("{address}: {error}"));
                    }
                    self.stage = Stage::Greeted {
                        stream,
                        reader: MessageReader::default(),
                        hello,
                    };
                }
                Stage::Greeted {
                    stream,
                    mut reader,
                    hello,
                } => match reader.read(&stream) {
                    Ok(None) => {
                        self.stage = Stage::Greeted {
                            stream,
                            reader,
                            hello,
                        };
                        return Outcome::Waiting;
                    }
                    Ok(Some((Kind::Challenge, challenge))) => {
                        let (theirs, proof) = match local.answer(self.rank, &hello, &challenge) {
                            Ok(answer) => answer,
                            Err(refusal) => return Outcome::Failed(format!("{address}: {refusal}")),
                        };
                        // The proof goes out whatever comes of the comparison: the other side
                        // compares as well, and shall know with whom.
                        if let Err(error) = send_message(&stream, &message(Kind::Proof, &proof)) {
                            return Outcome::Failed(format!("{address}: {error}"));
                        }
                        if let Err(error) = compare(self.rank, &theirs.context, &local.context) {
                            return Outcome::Final(error);
                        }
                        self.stage = Stage::Proved { stream, reader };
                    }
                    other => return self.turned_down(local, address, other),
                },
                Stage::Proved { stream, mut reader } => match reader.read(&stream) {
                    Ok(None) => {
                        self.stage = Stage::Proved { stream, reader };
                        return Outcome::Waiting;
                    }
                    Ok(Some((Kind::Accepted, _))) => return Outcome::Connected(stream),
                    other => return self.turned_down(local, address, other),
                },
            }
        }
    }

    fn turned_down(
        &self,
        local: &Local,
        address: SocketAddr,
        answer: std::io::Result<Option<(Kind, Vec<u8>)>>,
    ) -> Outcome {
        let reason: Option<Refusal> = match answer {
            Err(error) => return Outcome::Failed(format!("{address}: {error}")),
            Ok(Some((Kind::Refused, payload))) => serde_json::from_slice(&payload).ok(),
            Ok(_) => None,
        };
        match reason {
            None => Outcome::Failed(format!("{address}: it sent a message out of turn")),
            // A peer that is still in an older generation may come; a wrong key may belong to
            // somebody who has the port of a peer that is not up yet.
            Some(Refusal::Generation { generation }) if generation < local.identity.generation => {
                Outcome::Failed(format!("{address}: it is still in generation {generation}"))
            }
            Some(Refusal::Key) => Outcome::Failed(format!("{address}: {}", Refusal::Key)),
            Some(reason) => Outcome::Final(ConnectError::Refused {
                rank: self.rank,
                reason,
            }),
        }
    }
}

/// The first fact that differs, in the order of what explains most.
fn compare(rank: usize, theirs: &HelloContext, here: &HelloContext) -> Result<(), ConnectError> {
    let facts = [
        (Difference::Plan, &theirs.plan_hash, &here.plan_hash),
        (
            Difference::RunConfig,
            &theirs.run_config_hash,
            &here.run_config_hash,
        ),
        (Difference::Layout, &theirs.layout_hash, &here.layout_hash),
        (Difference::Data, &theirs.data_fingerprint, &here.data_fingerprint),
    ];
    for (what, theirs, here) in facts {
        if theirs != here {
            return Err(ConnectError::Differs {
                rank,
                what,
                theirs: theirs.clone(),
                here: here.clone(),
            });
        }
    }
    Ok(())
}
