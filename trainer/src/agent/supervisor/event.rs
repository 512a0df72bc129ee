//! What an agent's supervisor is told, and what it says is to be done.

use gradsync_formats::identity::Incarnation;
use gradsync_rendezvous::wire::{
    ExitReport, ExitStatus, FromRank, JoinReply, JoinRequest, PodNews, Refusal, ReportRequest, ToRank,
};
use std::time::Duration;

/// Something that happened. `local` is a local rank.
#[derive(Clone, Debug)]
pub enum Event {
    /// A start that was asked for is due: answered with [`Action::Start`].
    StartDue {
        /// Which rank.
        local: u32,
    },
    /// The process runs.
    Started {
        /// Which rank.
        local: u32,
        /// Its name.
        incarnation: Incarnation,
    },
    /// The rank said something.
    FromRank {
        /// Which rank.
        local: u32,
        /// What.
        message: FromRank,
    },
    /// The rank said something that is no message.
    Nonsense {
        /// Which rank.
        local: u32,
        /// What is wrong.
        problem: String,
    },
    /// The process has ended and was reaped.
    Exited {
        /// Which rank.
        local: u32,
        /// How.
        status: ExitStatus,
    },
    /// The service answered a join.
    Joined {
        /// Whose.
        incarnation: Incarnation,
        /// What.
        answer: Box<Result<JoinReply, Refusal>>,
    },
    /// The service answered a report.
    Reported {
        /// Whose.
        incarnation: Incarnation,
        /// The report's number.
        number: u64,
        /// What.
        answer: Result<(), Refusal>,
    },
    /// The service has forgotten a rank that it had taken in, and refuses to take it in again.
    NotTakenBack {
        /// Whom.
        incarnation: Incarnation,
        /// Why.
        refusal: Box<Refusal>,
    },
    /// The service has news.
    News(Box<PodNews>),
    /// The agent was told to stop; a second time means at once.
    StopSignal {
        /// Which signal, for people.
        name: String,
        /// How long the ranks may take.
        grace: Duration,
    },
    /// The time is up that was set with [`Action::KillAfter`].
    KillDue,
    /// Time has passed.
    Tick {
        /// Since the agent's start.
        now: Duration,
    },
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Start the rank's process; answered by [`Event::Started`].
    Start {
        /// Which rank.
        local: u32,
        /// How many were started before.
        number: u32,
    },
    /// Send [`Event::StartDue`] after this long.
    StartAfter {
        /// Which rank.
        local: u32,
        /// How long.
        wait: Duration,
    },
    /// Say this to the rank.
    Tell {
        /// Which rank.
        local: u32,
        /// What.
        message: ToRank,
    },
    /// Send this join to the service until it answers.
    Join(Box<JoinRequest>),
    /// Send this report to the service until it answers.
    Report {
        /// The rank's number for it.
        number: u64,
        /// What.
        request: Box<ReportRequest>,
    },
    /// Send this proof of an end to the service until it answers.
    ReportExit(ExitReport),
    /// Kill the rank's process.
    Kill {
        /// Which rank.
        local: u32,
        /// Why, for the log.
        reason: String,
    },
    /// Send [`Event::KillDue`] after this long.
    KillAfter(Duration),
    /// End the agent.
    Exit {
        /// With this code.
        code: u8,
        /// The error to leave as last word.
        error: Option<String>,
    },
}
