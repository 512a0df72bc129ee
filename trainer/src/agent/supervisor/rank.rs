//! One rank as its supervisor knows it.

use super::event::Action;
use gradsync_formats::identity::{Generation, Incarnation};
use gradsync_rendezvous::wire::{Ask, EncodedPlan, ExitStatus, MemberNews, Progress, StopCause, ToRank};
use std::time::Duration;

#[derive(Debug)]
pub(super) enum Life {
    /// A start is due at some time.
    Waiting,
    Running(Box<Running>),
    /// No process, none to be started.
    Ended(u8),
}

#[derive(Debug)]
pub(super) struct Running {
    pub(super) incarnation: Incarnation,
    pub(super) joined: bool,
    pub(super) news: Option<(Option<EncodedPlan>, MemberNews)>,
    pub(super) told: Option<ToRank>,
    /// It was told that there is nothing left to do for it.
    pub(super) told_end: bool,
    /// It has said that it leaves: it beats no more, and how it ends is still to come.
    pub(super) leaving: bool,
    /// The first commit seen in its beats, to know whether it has made another.
    pub(super) first_commit: Option<u64>,
    pub(super) last_commit: u64,
    pub(super) step_counter: u64,
    pub(super) thread_counter: u64,
    /// Whether it has ever given a sign of life.
    pub(super) heard: bool,
    /// When it gave the last one, or was started, in the time that the agent has been at work.
    pub(super) heard_at: Duration,
    pub(super) progress: Option<Progress>,
    pub(super) killed: bool,
    pub(super) error: Option<String>,
}

#[derive(Debug)]
pub(super) struct Rank {
    pub(super) life: Life,
    pub(super) started: u32,
    pub(super) fruitless: u32,
    pub(super) predecessor: Option<(Incarnation, ExitStatus)>,
}

impl Running {
    /// A process that has just been started, at time `now`.
    pub(super) fn new(incarnation: Incarnation, now: Duration) -> Running {
        Running {
            incarnation,
            joined: false,
            news: None,
            told: None,
            told_end: false,
            leaving: false,
            first_commit: None,
            last_commit: 0,
            step_counter: 0,
            thread_counter: 0,
            heard: false,
            heard_at: now,
            progress: None,
            killed: false,
            error: None,
        }
    }
}

/// Tells a rank its news unless it knows them. A stop of this agent comes before what the service asks.
pub(super) fn tell_news(
    local: u32,
    running: &mut Running,
    stop: Option<&StopCause>,
    actions: &mut Vec<Action>,
) {
    let (plan, mut news) = match (&running.news, stop) {
        (Some(known), _) => known.clone(),
        (None, Some(_)) => (
            None,
            MemberNews {
                head: None,
                floor: Generation::NONE,
                ask: Ask::None,
            },
        ),
        (None, None) => return,
    };
    let for_ever = matches!(
        news.ask,
        Ask::Finished { .. } | Ask::Failed { .. } | Ask::Refused { .. }
    );
    running.told_end |= for_ever;
    if let (Some(cause), false) = (stop, for_ever) {
        news.ask = Ask::Stop { cause: cause.clone() };
    }
    let message = ToRank::News { plan, news };
    if running.told.as_ref() != Some(&message) {
        running.told = Some(message.clone());
        actions.push(Action::Tell { local, message });
    }
}
