//! The membership state machine: decides who is in the group, in which generation, from which state.
//!
//! One pure function, [`decide`]. No clock, no I/O, no randomness of its own; the service, the launcher and
//! the model test drive the same code. What it relies on:
//!
//! - A generation is persisted before it is published. A number that was tried once is never used again.
//! - A member's report carries a promise: generations up to `left` are over for this process, for ever. Late
//!   or repeated reports therefore stay true, and a report whose promise reaches the newest generation is
//!   exact, because nothing can change for that process before a later plan is published.
//! - Every commit of a generation needs all its members, so one member that left or ended fences it. The
//!   next one forms with at least one of its members, who holds its state, or after all are proven ended.

mod base;
mod completion;
mod fencing;
mod forming;
mod joining;
#[cfg(test)]
mod model;
mod news;
mod reason;
mod settings;
mod state;
#[cfg(test)]
mod tests;
mod unreachable;

pub use news::news_of;
pub use reason::Reason;
pub use settings::{Backoff, Monotonic, Settings, SizeBounds};
pub use state::{Charge, Ending, Formed, Member, Membership, NewGeneration, Outlook, Restarts, Saved};

use crate::wire::{
    DoneReport, EncodedPlan, ExitStatus, HeldState, LeaveCause, MemberReport, RecoveryPhases, Refusal,
    RestartReport, StopCause,
};
use gradsync_formats::identity::{Generation, MemberId, PodUid};
use state::Latch;
use std::sync::Arc;

/// Something that happened. Beats do not come here: the service keeps them and sends `Silent` when a
/// member's time is up.
#[derive(Clone, Debug)]
pub enum Event {
    /// A member presents itself, or says where it stands now.
    Join {
        /// Who.
        member: MemberId,
        /// Where it stands.
        report: Box<MemberReport>,
        /// What became of its predecessor.
        restart: RestartReport,
    },
    /// It has passed the opening barrier of a generation.
    Established {
        /// Who.
        member: MemberId,
        /// Which generation.
        generation: Generation,
    },
    /// It goes for good.
    Leave {
        /// Who.
        member: MemberId,
        /// Why.
        cause: LeaveCause,
    },
    /// It stands still as a donor.
    Frozen {
        /// Who.
        member: MemberId,
        /// In which generation.
        generation: Generation,
        /// The state that it offers.
        state: HeldState,
    },
    /// How it came into its generation.
    Recovered {
        /// Who.
        member: MemberId,
        /// The phases.
        phases: RecoveryPhases,
    },
    /// Training is over.
    Done {
        /// Who says so.
        member: MemberId,
        /// What it says.
        report: Box<DoneReport>,
    },
    /// No sign of life of a member for the timeout. This is no proof of anything.
    Silent(MemberId),
    /// Its parent has reaped the process.
    Exited {
        /// Whose process.
        member: MemberId,
        /// How it ended.
        status: ExitStatus,
    },
    /// A pod is proven ended with all its processes.
    PodEnded {
        /// Which.
        pod: PodUid,
        /// Its slot.
        slot: u32,
        /// How it ended, if that is to be charged.
        charge: Option<ExitStatus>,
    },
    /// Everybody shall stop at a boundary.
    StopWanted(StopCause),
    /// Other sizes.
    SizeChanged(SizeBounds),
    /// Another RunConfig.
    ConfigChanged {
        /// Its digest.
        digest: String,
    },
    /// The generation was persisted.
    Persisted(Generation),
    /// The generation was not persisted, or it is not known whether it was; this is what the store holds.
    PersistRefused {
        /// The generation that was tried.
        generation: Generation,
        /// What the store holds.
        found: Option<Box<Formed>>,
    },
    /// What the store holds, as asked for by [`Effect::ReadBack`].
    Found(Option<Box<Formed>>),
    /// The job's end was persisted.
    EndingPersisted,
    /// The job cannot be carried on, for a reason outside the membership.
    GiveUp {
        /// Why, in one line.
        error: String,
    },
    /// Time has passed.
    Tick,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Persist this generation, if the store still holds the one before; answer with `Persisted` or
    /// `PersistRefused`.
    Persist(Arc<NewGeneration>),
    /// The generation is persisted: its plan may be seen. What members see is [`news_of`]; this tells
    /// displays and logs.
    Publish(Generation, EncodedPlan),
    /// Answer this member's message with a refusal.
    Refuse(MemberId, Refusal),
    /// Send `Tick` at this time.
    WakeAt(Monotonic),
    /// A recovery reached a phase.
    Record(Phase),
    /// Persist the end of the job; answer with `EndingPersisted`.
    Latch(Ending),
    /// Persist the counted restarts.
    SaveRestarts(Restarts),
    /// Members speak of generations unknown here: read the store and answer with `Found`.
    ReadBack,
}

/// A point in a recovery; the service adds the time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Something ended the generation.
    Broken {
        /// Which generation.
        generation: Generation,
        /// What.
        cause: String,
    },
    /// The next one is published.
    Planned {
        /// Which.
        generation: Generation,
    },
    /// A member passed its opening barrier.
    Established {
        /// Which.
        generation: Generation,
    },
}

/// What follows from an event.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// To be done, in this order.
    pub effects: Vec<Effect>,
    /// What the machine does or waits for now.
    pub reason: Reason,
}

/// Takes in `event` at time `now` and says what is to be done.
pub fn decide(state: &mut Membership, event: Event, now: Monotonic) -> Outcome {
    let mut effects = Vec::new();
    let was_broken = state.cause.is_some();
    take_in(state, event, now, &mut effects);
    state.has_worked |= state.established;
    let reason = settle(state, now, &mut effects);
    if let (false, Some(cause)) = (was_broken, &state.cause) {
        effects.push(Effect::Record(Phase::Broken {
            generation: state.generation(),
            cause: cause.clone(),
        }));
    }
    state.reason = reason.clone();
    Outcome { effects, reason }
}

fn take_in(state: &mut Membership, event: Event, now: Monotonic, effects: &mut Vec<Effect>) {
    match event {
        Event::Join {
            member,
            report,
            restart,
        } => joining::join(state, member, *report, &restart, effects),
        Event::Established { member, generation } => {
            joining::established(state, &member, generation, effects)
        }
        Event::Leave { member, cause } => completion::leave(state, &member, cause, effects),
        Event::Frozen {
            member,
            generation,
            state: held,
        } => joining::with_member(state, &member, effects, |m| m.frozen = Some((generation, held))),
        Event::Recovered { member, phases } => {
            joining::with_member(state, &member, effects, |m| m.recovered = Some(phases));
        }
        Event::Done { member, report } => completion::done(state, &member, *report, effects),
        Event::Silent(member) => {
            state.unheard.remove(&member.incarnation);
            let heard = state.members.get_mut(&member.incarnation);
            if heard.is_none_or(|m| std::mem::replace(&mut m.live, false))
                && state.in_group(member.incarnation)
            {
                state.broke(|| format!("{member} gives no sign of life"));
            }
        }
        Event::Exited { member, status } => completion::exited(state, &member, &status, effects),
        Event::PodEnded { pod, slot, charge } => completion::pod_ended(state, &pod, slot, charge, effects),
        Event::StopWanted(cause) => {
            state.stop.get_or_insert(cause);
        }
        Event::SizeChanged(bounds) => state.settings.bounds = bounds,
        Event::ConfigChanged { digest } => {
            if state.settings.run_config_digest != digest {
                state.settings.run_config_digest = digest;
                forming::ask_reform(state, "the configuration was changed".into());
            }
        }
        Event::Persisted(generation) => forming::persisted(state, generation, effects),
        Event::PersistRefused { generation, found } => {
            forming::persist_refused(state, generation, found.map(|f| *f), now, effects);
        }
        Event::Found(found) => forming::found(state, found.map(|f| *f)),
        Event::EndingPersisted => {
            if let Latch::Saving(ending) = &state.latch {
                state.latch = Latch::Closed(ending.clone());
            }
        }
        Event::GiveUp { error } => completion::fail(state, error, effects),
        Event::Tick => {}
    }
}

/// Brings everything to rest: what can be done now is done, what cannot is waited for.
fn settle(state: &mut Membership, now: Monotonic, effects: &mut Vec<Effect>) -> Reason {
    match &state.latch {
        Latch::Closed(Ending::Complete { .. }) | Latch::Saving(Ending::Complete { .. }) => {
            return Reason::Complete;
        }
        Latch::Closed(Ending::Failed { error }) | Latch::Saving(Ending::Failed { error }) => {
            return Reason::Failed { error: error.clone() };
        }
        Latch::Open => {}
    }
    if let Some(attempt) = &state.attempt {
        return Reason::Persisting {
            generation: attempt.formed.generation,
        };
    }
    if let Some(stop) = &state.stop {
        return completion::stopping(state, stop);
    }
    if state.is_whole() {
        let generation = state.generation();
        if !state.established {
            return Reason::Opening { generation };
        }
        if !forming::wants_other_size(state, now, effects) {
            return Reason::Running { generation };
        }
    }
    forming::form(state, now, effects)
}
