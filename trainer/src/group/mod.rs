//! The group as a rank sees it: who it is, what the rendezvous service wants of it, and how it answers.
//! In a pod the messages go through the agent; in tests they stay in memory.

use gradsync_formats::identity::{Generation, JobUid, MemberId};
use gradsync_formats::run_config::RunConfig;
use gradsync_rendezvous::wire::{
    Ask, MemberMessage, MemberReport, Plan, PlanHead, Progress, Refusal, StopCause,
};
use std::time::Instant;

/// A rank's connection to the rendezvous. Calls block, at most until the deadline that they are given.
pub trait Group: Send {
    /// The job that this rank works for.
    fn job(&self) -> &JobUid;
    /// Who this rank is.
    fn member(&self) -> &MemberId;

    /// Joins, or joins again, with where this rank stands.
    ///
    /// # Errors
    /// When the service refuses the join, the agent is gone, the deadline passes, or something is asked for
    /// that ends this member's part whatever the answer.
    fn join(&mut self, report: MemberReport, deadline: Instant) -> Result<Joined, GroupError>;

    /// Waits until the service offers a plan of a generation above `left`, or wants something else that an
    /// idle member must act on.
    ///
    /// # Errors
    /// When the agent is gone or the deadline passes.
    fn next(&mut self, left: Generation, deadline: Instant) -> Result<Next, GroupError>;

    /// What the service wants of a member that works in `generation`, without waiting.
    fn asked(&mut self, generation: Generation) -> Asked;

    /// Sends a report and waits until it was taken in.
    ///
    /// # Errors
    /// When the report is refused, the agent is gone or the deadline passes.
    fn report(&mut self, message: MemberMessage, deadline: Instant) -> Result<(), GroupError>;

    /// Sends a report without waiting until it was taken in: it is repeated in the background until it is.
    ///
    /// # Errors
    /// When the agent is gone.
    fn tell(&mut self, message: MemberMessage) -> Result<(), GroupError>;

    /// Notes that the step loop is alive, and how far it is. Never blocks.
    fn alive(&mut self, progress: Option<Progress>);
}

/// Answer to a join.
#[derive(Clone, Debug, PartialEq)]
pub struct Joined {
    /// The configuration in force.
    pub run_config: RunConfig,
    /// Its digest, to be given back in reports.
    pub run_config_digest: String,
    /// Generations up to this one are over.
    pub floor: Generation,
}

/// What an idle member is to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// Enter this generation.
    Plan {
        /// The plan.
        plan: Box<Plan>,
        /// Its digest, for reports.
        digest: String,
        /// This member's part in it.
        head: PlanHead,
    },
    /// Raise the promise to this generation and join again: all up to it are over.
    Floor(Generation),
    /// The service asks for something else: anything but `None` and `Reform`.
    Ask(Ask),
}

/// What is wanted of a member at work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Nothing: go on.
    Nothing,
    /// Leave this generation at the next agreed boundary and join again.
    Reform {
        /// Write a checkpoint at the boundary first.
        checkpoint: bool,
        /// Why, for people.
        reason: String,
    },
    /// The generation is over already: leave at once and join again.
    Over {
        /// Why, for people.
        reason: String,
    },
    /// Stop at the next agreed boundary, write a checkpoint, and exit.
    Stop(StopCause),
    /// The job is finished: exit with success.
    Finished(String),
    /// The job has failed: exit with an error.
    Failed(String),
    /// This member cannot be in the job: exit with an error. The others may go on.
    Refused(String),
    /// The agent, through which all messages go, is gone: this process must end too.
    AgentGone(String),
}

/// Why the rendezvous could not be spoken to.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// It refused for good.
    #[error("{0}")]
    Refused(Box<Refusal>),
    /// The agent, through which all messages go, has ended: this process must end too.
    #[error("speak with the agent: {0}")]
    AgentGone(String),
    /// Something came before the answer that ends this member's part; [`Group::next`] says what.
    #[error("wait for the answer to a join: something else is asked for first")]
    Overtaken,
    /// No answer in time.
    #[error("wait for {waited_for}: nothing came within {seconds} s")]
    Deadline {
        /// What was waited for.
        waited_for: &'static str,
        /// For how long.
        seconds: u64,
    },
}
