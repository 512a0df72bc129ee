//! The messages of the rendezvous: versioned JSON with camelCase names, of which unknown fields are
//! ignored. Every request and every answer is an [`Envelope`], so that version and job are checked before
//! anything else is read.
//!
//! Everything that members learn is state, not events: a lost answer is repaired by asking again, a
//! repeated request changes nothing.

mod beat;
mod join;
mod local;
mod news;
mod plan;
mod refusal;
mod report;
mod secret;

pub use beat::{Beat, BeatReply, Progress, RankBeat};
pub use join::{ExitReport, ExitStatus, JoinReply, JoinRequest, RestartReport};
pub use local::{FromRank, ToRank};
pub use news::{Ask, MemberNews, NewsRequest, PodNews, Revision};
pub use plan::{
    Base, BaseSource, EncodedPlan, MAX_HEAD_BYTES, PLAN_VERSION, Plan, PlanError, PlanHead, PlannedMember,
    Role, Share, plan_digest,
};
pub use refusal::{Refusal, StopCause};
pub use report::{
    DamagedCheckpoint, DoneReport, HeldState, LeaveCause, MemberMessage, MemberReport, RecoveryPhases,
    ReportReply, ReportRequest, SeenCheckpoint,
};
pub use secret::Secret;

use gradsync_formats::identity::JobUid;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// Largest body of a request, in bytes. A longer one is refused with [`Refusal::TooLarge`].
pub const MAX_REQUEST_BYTES: usize = 64 * 1024;
/// Longest time that a poll for news is held.
pub const MAX_HOLD: Duration = Duration::from_secs(20);
/// How often an agent beats.
pub const BEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Path of [`JoinRequest`].
pub const JOIN_PATH: &str = "/v1/join";
/// Path of [`ReportRequest`].
pub const REPORT_PATH: &str = "/v1/report";
/// Path of [`Beat`].
pub const BEAT_PATH: &str = "/v1/beat";
/// Path of [`NewsRequest`].
pub const NEWS_PATH: &str = "/v1/news";
/// Path of [`ExitReport`].
pub const EXITED_PATH: &str = "/v1/exited";

/// The protocol that this build speaks.
pub const PROTOCOL_VERSION: ProtocolVersion = ProtocolVersion { major: 1, minor: 0 };

/// A version of the protocol. The same major and minors at most one apart understand each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProtocolVersion {
    /// Raised when old and new cannot talk to each other.
    pub major: u32,
    /// Raised when fields or variants are added.
    pub minor: u32,
}

impl ProtocolVersion {
    /// Whether peers of these two versions may talk to each other.
    #[must_use]
    pub fn talks_to(self, other: ProtocolVersion) -> bool {
        self.major == other.major && self.minor.abs_diff(other.minor) <= 1
    }
}

impl fmt::Display for ProtocolVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// What every request and every answer is wrapped in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Envelope<T> {
    /// The sender's protocol.
    pub protocol: ProtocolVersion,
    /// The job concerned.
    pub job_uid: JobUid,
    /// The message; in an answer with an error status it is a [`Refusal`].
    pub body: T,
}

impl<T> Envelope<T> {
    /// `body` for job `job_uid`, in this build's protocol.
    pub fn new(job_uid: JobUid, body: T) -> Envelope<T> {
        Envelope {
            protocol: PROTOCOL_VERSION,
            job_uid,
            body,
        }
    }
}

#[cfg(test)]
mod tests;
