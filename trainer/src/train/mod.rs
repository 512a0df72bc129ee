//! The outer loop of a rank, in one process from its first join to its end:
//! join, obtain the plan, obtain the state, train until an error or a boundary, join again.

mod again;
mod checkpoints;
mod closing;
mod generation;
mod joining;
mod leaving;
mod looking;
mod obtain;
mod session;
mod standing;
mod warm;

pub use generation::Observer;

use crate::clock::Clock;
use crate::group::{Group, GroupError, Next};
use crate::record::ToDisk;
use crate::step::Fatal;
use crate::task::{PathMap, Task};
use crate::transport::Transport;
use generation::{Entered, Exit};
use gradsync_formats::identity::Position;
use gradsync_formats::store::{Store, StoreError};
use gradsync_rendezvous::wire::{Ask, LeaveCause, MemberMessage};
use joining::{Attempt, Attempts};
use looking::{Look, Looks};
use standing::{Seen, Standing};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use warm::Warm;

/// Opens a checkpoint directory, given as the container sees it.
pub type OpenStore<'a> = dyn Fn(&str) -> Result<Arc<dyn Store>, StoreError> + 'a;

/// How a rank is connected to the world. Everything that is not arithmetic is an argument.
pub struct Surroundings<'a> {
    /// The rendezvous.
    pub group: &'a mut dyn Group,
    /// The data plane.
    pub transport: &'a mut dyn Transport,
    /// Time.
    pub clock: &'a dyn Clock,
    /// Opens the checkpoint directory, given as the container sees it.
    pub open_store: &'a OpenStore<'a>,
    /// Told of every commit; tests look at the state through it.
    pub observer: &'a mut dyn Observer,
    /// Where paths of the manifest lie here.
    pub paths: PathMap,
    /// Where run records go; none: nowhere.
    pub records: Option<PathBuf>,
    /// Brings a record to the disk.
    pub to_disk: &'a ToDisk<'a>,
    /// Deadlines.
    pub patience: Patience,
}

/// How long a rank waits for others before it takes them for lost.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// One collective operation: it must cover what another rank may do in between, such as a checkpoint.
    pub operation: Duration,
    /// Connecting to all members of a plan and passing its opening barrier.
    pub connect: Duration,
    /// An answer of the rendezvous to a join; after that the member keeps its state and joins again.
    pub answer: Duration,
    /// The first pause before it does; doubled each time, up to `answer`.
    pub join_pause: Duration,
    /// A plan: others may have to be started first. Joining without an answer is given up after as long.
    pub plan: Duration,
    /// The answer to a farewell, which tells what the exit code tells too.
    pub farewell: Duration,
    /// The acknowledgement that completion is persisted.
    pub acknowledgement: Duration,
    /// How long a member that holds no state waits for a checkpoint directory that cannot be read, before it
    /// joins. One that holds a state waits as long as for a plan.
    pub directory: Duration,
    /// In a group, the first pause before what a checkpoint directory refused is tried again; more follow, each
    /// twice as long, for about two minutes.
    pub reread: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience {
            operation: Duration::from_secs(300),
            connect: Duration::from_secs(30),
            answer: Duration::from_secs(60),
            join_pause: Duration::from_secs(1),
            plan: Duration::from_secs(24 * 3600),
            farewell: Duration::from_secs(10),
            acknowledgement: Duration::from_secs(600),
            directory: Duration::from_secs(120),
            reread: Duration::from_millis(250),
        }
    }
}

/// How training ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Why it ended.
    pub end: End,
    /// The last commit.
    pub position: Position,
    /// Optimiser steps.
    pub steps: u64,
    /// Whole epochs.
    pub epochs: u64,
    /// Mean loss of the last step; NaN if none was made by this process.
    pub loss: f64,
    /// Metrics of the last evaluation.
    pub metrics: BTreeMap<String, f64>,
    /// Digest of the replicated state, hex.
    pub state_digest: String,
}

/// Why training ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All steps are done and completion is persisted.
    Complete,
    /// All stopped at an agreed boundary, as asked.
    Stopped,
    /// Somebody else has finished the job.
    AlreadyFinished,
}

/// Trains the job's task until it is complete, stopped or cannot go on.
///
/// # Errors
/// The reason why this process cannot go on; the group may. It has been reported to the rendezvous.
pub fn train(tasks: &[Box<dyn Task>], around: &mut Surroundings<'_>) -> Result<Summary, Fatal> {
    let result = outer_loop(tasks, around);
    if let Err(fatal) = &result
        && fatal.kind == crate::step::FatalKind::User
    {
        let error = fatal.message.clone();
        leave(around, LeaveCause::Fatal { error });
    }
    result
}

fn outer_loop(tasks: &[Box<dyn Task>], around: &mut Surroundings<'_>) -> Result<Summary, Fatal> {
    let mut standing = Standing::default();
    let mut warm: Option<Warm<'_>> = None;
    let mut last_end: Option<LastEnd> = None;
    let mut attempts = Attempts::default();
    let mut looks = Looks::default();
    loop {
        let seen = match &mut warm {
            None => Ok(Seen::default()),
            Some(warm) => look_around(warm, &mut looks, &standing, around)?,
        };
        let attempt = match seen {
            Ok(seen) => attempts.join(standing.report(seen), around)?,
            Err(pause) => Attempt::NotYet(pause),
        };
        let wait = match attempt {
            Attempt::Finished(reason) => return Ok(finished_elsewhere(warm.as_ref(), &reason)),
            Attempt::Joined(joined) => {
                if warm
                    .as_ref()
                    .is_none_or(|warm| warm.run_config_digest != joined.run_config_digest)
                {
                    // The first join, or another configuration: load, then say that we are ready.
                    drop(warm.take());
                    warm = Some(Warm::load(tasks, &joined, around)?);
                    continue;
                }
                around.patience.plan
            }
            Attempt::NotYet(pause) => pause,
        };
        let deadline = around.clock.now() + wait;
        let next = match around.group.next(standing.left(), deadline) {
            Err(GroupError::Deadline { .. }) if attempts.are_open() || looks.are_open() => continue,
            next => next.map_err(|error| group_fatal(&error))?,
        };
        match next {
            Next::Floor(floor) => standing.leave(floor, None),
            Next::Ask(Ask::Rejoin { reason }) => {
                tracing::info!(reason, "joining again");
                if looks.are_open() {
                    // It is asked for until it is done, which takes the directory.
                    std::thread::sleep(around.patience.join_pause);
                }
            }
            Next::Ask(Ask::Stop { cause }) => {
                tracing::info!(reason = cause.reason, "stopping before a group was formed");
                let position = position_of(warm.as_ref());
                let checkpoint = match &warm {
                    Some(warm) => leaving::save_what_is_held(warm, &standing, around),
                    None => None,
                };
                leave(around, LeaveCause::Stopped { position, checkpoint });
                return match &warm {
                    Some(warm) => warm.summary(End::Stopped),
                    None => Ok(nothing_done(None, End::Stopped)),
                };
            }
            Next::Ask(Ask::Finished { reason }) => return Ok(finished_elsewhere(warm.as_ref(), &reason)),
            Next::Ask(Ask::Failed { reason }) => {
                return Err(Fatal::refused(format!("the job has failed: {reason}")));
            }
            Next::Ask(Ask::Refused { refusal }) => return Err(joining::refused(&refusal)),
            Next::Ask(Ask::None | Ask::Reform { .. }) => {}
            Next::Plan { plan, digest, head } => {
                // Only who said that it is ready is planned.
                let Some(warm) = &mut warm else { continue };
                standing.accept(plan.generation, &digest);
                warm.accepted = plan.lineage.clone();
                let generation = plan.generation;
                let entered = Entered {
                    plan: *plan,
                    digest,
                    head,
                    since: last_end.take(),
                };
                let exit = generation::run(warm, entered, &mut standing, around);
                match exit {
                    Exit::Ended(summary) => return Ok(*summary),
                    Exit::Fatal(fatal) => return Err(fatal),
                    Exit::Again(end) => {
                        tracing::info!(%generation, reason = end.reason, "left the generation");
                        standing.leave(generation, Some(end.reason.clone()));
                        last_end = Some(end);
                    }
                }
            }
        }
    }
}

/// When and why the last generation ended, for the phases of a recovery.
#[derive(Clone, Debug)]
pub(crate) struct LastEnd {
    pub(crate) reason: String,
    /// From the fault to the abort, as far as this member can tell.
    pub(crate) detect: Duration,
    /// When the connections were aborted.
    pub(crate) aborted: std::time::Instant,
}

/// What goes into the report before a join: the state held, the listener, the checkpoints in sight. Or, where
/// these cannot be read now, the pause before the next look.
fn look_around(
    warm: &mut Warm<'_>,
    looks: &mut Looks,
    standing: &Standing,
    around: &mut Surroundings<'_>,
) -> Result<Result<Seen, Duration>, Fatal> {
    let found = match looks.look(warm, standing, around)? {
        Look::Found(found) => found,
        Look::Away(pause) => return Ok(Err(pause)),
    };
    warm.damaged = warm.damaged.take().max(found.damaged);
    let addresses = around.transport.listen().map_err(Fatal::process)?;
    let held = warm.held()?;
    Ok(Ok(Seen {
        held,
        addresses,
        run_config_digest: Some(warm.run_config_digest.clone()),
        fingerprints: Some(warm.fingerprints.clone()),
        directory_nonce: None,
        checkpoints: found.whole,
        resume_from: found.resume_from,
    }))
}

fn leave(around: &mut Surroundings<'_>, cause: LeaveCause) {
    let deadline = around.clock.now() + around.patience.farewell;
    if let Err(error) = around.group.report(MemberMessage::Leave { cause }, deadline) {
        tracing::warn!(%error, "could not report why this rank leaves");
    }
}

fn finished_elsewhere(warm: Option<&Warm<'_>>, reason: &str) -> Summary {
    tracing::info!(reason, "the job is finished");
    nothing_done(warm, End::AlreadyFinished)
}

fn position_of(warm: Option<&Warm<'_>>) -> Position {
    warm.map_or(Position::INITIAL, |warm| warm.position())
}

/// The summary of a process that has nothing to tell of its own.
fn nothing_done(warm: Option<&Warm<'_>>, end: End) -> Summary {
    Summary {
        end,
        position: position_of(warm),
        steps: 0,
        epochs: 0,
        loss: f64::NAN,
        metrics: BTreeMap::new(),
        state_digest: String::new(),
    }
}

fn group_fatal(error: &GroupError) -> Fatal {
    match error {
        GroupError::Refused(refusal) => joining::refused(refusal),
        GroupError::AgentGone(_) => Fatal::abandoned(error),
        GroupError::Overtaken | GroupError::Deadline { .. } => Fatal::process(error),
    }
}
