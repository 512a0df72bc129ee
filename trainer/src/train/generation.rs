//! One generation from its plan to its end: connect, obtain the base state, pass the opening barrier,
//! step until an error or an agreed boundary.

use super::closing;
use super::session::Session;
use super::standing::Standing;
use super::warm::Warm;
use super::{LastEnd, Summary, Surroundings};
use crate::state::TrainingState;
use crate::step::{Committed, Fatal, StepError};
use crate::strategy::Trace;
use crate::transport::{Agreement, ConnectFailure};
use gradsync_collective::{AbortCause, Channel, CollectiveError, Communicator};
use gradsync_formats::identity::MemberId;
use gradsync_rendezvous::wire::{MemberMessage, Plan, PlanHead};
use std::sync::Arc;
use std::time::Instant;

/// A fault that is not in the state itself, such as a flipped bit, is gone after the return to a good state.
/// One that comes back so often without progress in between would do so for ever.
const MOST_DIVERGENCES: u32 = 3;

/// Is told of every commit.
pub trait Observer: Send {
    /// A step was committed; `state` is the state after it.
    fn committed(&mut self, state: &TrainingState, committed: &Committed, trace: &Trace) {
        let _ = (state, committed, trace);
    }
}

impl Observer for () {}

/// A plan that was accepted.
pub(crate) struct Entered {
    pub(crate) plan: Plan,
    pub(crate) digest: String,
    pub(crate) head: PlanHead,
    /// How the generation before ended, if this process was in one.
    pub(crate) since: Option<LastEnd>,
}

/// How a generation ended for this member.
pub(crate) enum Exit {
    /// This process is done.
    Ended(Box<Summary>),
    /// Join again.
    Again(LastEnd),
    /// This process cannot go on.
    Fatal(Fatal),
}

/// Takes part in a generation until it ends.
pub(crate) fn run(
    warm: &mut Warm<'_>,
    entered: Entered,
    standing: &mut Standing,
    around: &mut Surroundings<'_>,
) -> Exit {
    let plan = entered.plan.clone();
    let agreement = Agreement {
        run_config: warm.run_config_digest.clone(),
        parameter_layout: warm.fingerprints.parameter_layout.clone(),
        plan: entered.digest.clone(),
        data: warm.fingerprints.data.clone(),
    };
    let began = around.clock.now();
    let communicator =
        match around
            .transport
            .connect(&plan, &entered.head, &agreement, around.patience.connect)
        {
            Ok(communicator) => communicator,
            Err(failure) => return not_connected(&plan, failure, standing, began, around),
        };
    let result = live(warm, &entered, &communicator, standing, around);
    let again = |reason: String, began: Instant, now: Instant| {
        Exit::Again(LastEnd {
            reason,
            detect: now.saturating_duration_since(began),
            aborted: now,
        })
    };
    match result {
        // At an agreed boundary the connections are let go in order and not aborted: a peer may still be
        // reading the last frames of it, and must come to the same boundary.
        Ok(Left::Ended(summary)) => {
            drop(communicator);
            Exit::Ended(summary)
        }
        Ok(Left::Reform { reason }) => {
            drop(communicator);
            let now = around.clock.now();
            again(reason, now, now)
        }
        Err(Trouble {
            error: StepError::Fatal(fatal),
            ..
        }) => {
            // Peers see this rank leave at once and need not wait for a deadline.
            communicator.abort(AbortCause::Failure(fatal.message.clone()));
            Exit::Fatal(fatal)
        }
        Err(Trouble {
            error: StepError::Diverged { mine, message },
            since,
        }) => {
            communicator.abort(AbortCause::Failure(message.clone()));
            let commit = warm.position().commit;
            let times = standing.diverged(commit);
            if times >= MOST_DIVERGENCES {
                return Exit::Fatal(Fatal::user(format!(
                    "go on after step {commit}: for the {times}rd time without progress members differ: {message}; \
                     the memory of a worker is faulty, or the task does not give the same result twice"
                )));
            }
            if mine {
                warm.drop_state();
            }
            again(message, since, around.clock.now())
        }
        Err(Trouble {
            error: StepError::Lost(error),
            since,
        }) => {
            communicator.abort(AbortCause::Reform);
            standing.blame(suspects(&plan, &error));
            again(error.to_string(), since, around.clock.now())
        }
    }
}

/// An error and when the phase in which it came began.
struct Trouble {
    error: StepError,
    since: Instant,
}

/// How a live generation was left without an error.
pub(super) enum Left {
    Ended(Box<Summary>),
    Reform { reason: String },
}

fn not_connected(
    plan: &Plan,
    failure: ConnectFailure,
    standing: &mut Standing,
    began: Instant,
    around: &Surroundings<'_>,
) -> Exit {
    if failure.different {
        return Exit::Fatal(Fatal::user(failure.message));
    }
    standing.blame(members_of(plan, &failure.unreachable));
    let now = around.clock.now();
    Exit::Again(LastEnd {
        reason: failure.message,
        detect: now.saturating_duration_since(began),
        aborted: now,
    })
}

fn members_of(plan: &Plan, ranks: &[u32]) -> Vec<MemberId> {
    plan.members
        .iter()
        .filter(|m| ranks.contains(&m.rank))
        .map(|m| m.id.clone())
        .collect()
}

fn suspects(plan: &Plan, error: &CollectiveError) -> Vec<MemberId> {
    let ranks: Vec<u32> = error
        .suspect()
        .and_then(|rank| u32::try_from(rank).ok())
        .into_iter()
        .collect();
    members_of(plan, &ranks)
}

fn live(
    warm: &mut Warm<'_>,
    entered: &Entered,
    communicator: &Arc<dyn Communicator>,
    standing: &mut Standing,
    around: &mut Surroundings<'_>,
) -> Result<Left, Trouble> {
    let began = around.clock.now();
    let since_began = |error: StepError| Trouble { error, since: began };
    open(warm, entered, communicator, standing, around).map_err(since_began)?;
    let opened = around.clock.now();
    let mut session = Session::new(warm, entered, communicator, around).map_err(since_began)?;
    if !warm.course.is_finished(&warm.state.progress()) {
        let since = around.clock.now();
        session
            .make_up(warm, around)
            .map_err(|error| Trouble { error, since })?;
    }
    let mut first = true;
    loop {
        if warm.course.is_finished(&warm.state.progress()) {
            let since = around.clock.now();
            return closing::finish(warm, &mut session, entered, around)
                .map(|summary| Left::Ended(Box::new(summary)))
                .map_err(|error| Trouble { error, since });
        }
        let since = around.clock.now();
        let outcome = session
            .advance(warm, entered, around)
            .map_err(|error| Trouble { error, since })?;
        if first {
            first = false;
            let now = around.clock.now();
            session
                .report_recovery(entered, began, opened, now, around)
                .map_err(since_began)?;
        }
        if let Some(left) = outcome {
            return Ok(left);
        }
    }
}

/// Obtains the base state and passes the opening barrier.
fn open(
    warm: &mut Warm<'_>,
    entered: &Entered,
    communicator: &Arc<dyn Communicator>,
    standing: &mut Standing,
    around: &mut Surroundings<'_>,
) -> Result<(), StepError> {
    let plan = &entered.plan;
    around.group.alive(Some(warm.progress_report("obtaining state")));
    warm.obtain(plan, entered.head.rank, communicator.as_ref(), standing, around)?;
    if let Some(checkpoints) = &warm.checkpoints {
        checkpoints.prove_shared(plan, communicator.as_ref(), around.patience.operation)?;
    }
    warm.agree_on_buckets(communicator.as_ref(), around.patience.operation, around.clock)?;
    warm.agree_on_past(plan, communicator.as_ref(), around.patience.operation)?;
    communicator
        .barrier(Channel::Control)
        .wait(around.clock.now() + around.patience.connect)?;
    standing.establish(plan.generation);
    let message = MemberMessage::Established {
        generation: plan.generation,
    };
    // Training does not wait for the service: the group is established by its barrier.
    if let Err(error) = around.group.tell(message) {
        tracing::warn!(%error, "could not report the opening barrier");
    }
    tracing::info!(
        generation = %plan.generation, rank = entered.head.rank, world = plan.world_size,
        base = %plan.base.position, reason = plan.reason, "entered the generation"
    );
    Ok(())
}
