//! Why the service refuses something, as data and as text for people.

use super::ProtocolVersion;
use gradsync_formats::identity::{Generation, JobUid, MemberId};
use serde::{Deserialize, Serialize};

/// A typed refusal: the body of every answer with an error status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Refusal {
    /// Another job's service.
    #[error("refuse message for job {given}: this is the rendezvous of job {expected}")]
    WrongJob {
        /// The job served.
        expected: JobUid,
        /// The job named.
        given: JobUid,
    },
    /// The message speaks for a generation that is over or was never formed.
    #[error("refuse message of generation {given}: the present one is {current}; join again")]
    StaleGeneration {
        /// The newest generation.
        current: Generation,
        /// The one named.
        given: Generation,
    },
    /// The process has not joined, or has ended.
    #[error("refuse message of {member}: it is not known here; join again")]
    UnknownMember {
        /// Who.
        member: MemberId,
    },
    /// The bearer token proves no pod of this job, or another one than the message speaks for.
    #[error("refuse message: {problem}")]
    BadToken {
        /// What is wrong, without the token.
        problem: String,
    },
    /// Too far apart.
    #[error("refuse protocol {given}: this service speaks {supported}; use images of neighbouring versions")]
    ProtocolVersion {
        /// What the service speaks.
        supported: ProtocolVersion,
        /// What the sender speaks.
        given: ProtocolVersion,
    },
    /// The job is complete.
    #[error("the job is finished: {reason}")]
    Finished {
        /// How it finished.
        reason: String,
    },
    /// The job has failed.
    #[error("the job has failed: {reason}")]
    Failed {
        /// Why.
        reason: String,
    },
    /// A member with another model.
    #[error(
        "refuse {member}: its parameters are laid out as {given}, those of {peer} as {expected}; \
         all workers need the same task, model and image"
    )]
    DifferentLayout {
        /// Who.
        member: MemberId,
        /// Whom it was compared with.
        peer: String,
        /// The peer's task and layout digest.
        expected: String,
        /// Its own.
        given: String,
    },
    /// A member that sees other data.
    #[error(
        "refuse {member}: it reads other training data than {peer}: its fingerprint `data` is {given}, there it is \
         {expected}; give all workers the same files"
    )]
    DifferentData {
        /// Who.
        member: MemberId,
        /// Whom it was compared with.
        peer: String,
        /// The peer's fingerprint.
        expected: String,
        /// Its own.
        given: String,
    },
    /// A member that sees another checkpoint directory.
    #[error(
        "refuse {member}: it sees another checkpoint directory than {peer} (nonce {given}, expected {expected}); \
         mount one shared volume, or set checkpoint.shared: false"
    )]
    DifferentDirectory {
        /// Who.
        member: MemberId,
        /// Whom it was compared with.
        peer: String,
        /// The peer's nonce.
        expected: String,
        /// Its own.
        given: String,
    },
    /// The request is longer than allowed.
    #[error("refuse request: its body is longer than {limit} bytes")]
    TooLarge {
        /// Largest body.
        limit: usize,
    },
    /// The pod sends too much.
    #[error("refuse request: pod sends more than {per_second} requests per second; wait {retry_after_ms} ms")]
    RateLimited {
        /// Requests allowed per second.
        per_second: u32,
        /// When to try again.
        retry_after_ms: u64,
    },
    /// Not a message of this protocol.
    #[error("refuse request: {problem}")]
    Malformed {
        /// What could not be read.
        problem: String,
    },
    /// Try again: the service is starting, stopping or cannot persist.
    #[error("the rendezvous cannot answer now: {problem}; try again")]
    Unavailable {
        /// What is the matter.
        problem: String,
    },
}

impl Refusal {
    /// Whether the same request may succeed later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Refusal::RateLimited { .. } | Refusal::Unavailable { .. })
    }

    /// Whether joining again is the way out.
    #[must_use]
    pub fn wants_join(&self) -> bool {
        matches!(
            self,
            Refusal::UnknownMember { .. } | Refusal::BadToken { .. } | Refusal::StaleGeneration { .. }
        )
    }
}

/// Why everybody is asked to stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StopCause {
    /// In a few words, such as "interrupted by the user".
    pub reason: String,
    /// How long from now stopping may take before processes are killed.
    pub within_ms: u64,
}
