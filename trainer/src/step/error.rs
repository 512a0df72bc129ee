//! Why a step did not commit.

use gradsync_collective::CollectiveError;

/// Why a step did not commit, or the group ended.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// A peer or the connection to it is gone. All committed state is as it was.
    #[error("synchronise with the group: {0}")]
    Lost(#[from] CollectiveError),
    /// Members hold different states or histories. The group is formed anew; a member whose own state is in
    /// doubt drops it.
    #[error("{message}")]
    Diverged {
        /// Whether this member's state cannot be trusted.
        mine: bool,
        /// What differs, naming ranks.
        message: String,
    },
    /// This run cannot go on.
    #[error(transparent)]
    Fatal(#[from] Fatal),
}

/// An error that ends this process. The kind says whether starting it again can help.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct Fatal {
    /// What kind of error.
    pub kind: FatalKind,
    /// What happened, where, and the way out.
    pub message: String,
}

/// Whether a restart can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FatalKind {
    /// The configuration, the data or the arithmetic is at fault: it would happen again.
    User,
    /// This process is at fault: a fresh one may do better.
    Process,
    /// The service does not take this process into the job, or the job has failed already: nothing is left
    /// for it to do. The group may go on without it.
    Refused,
    /// The agent is gone, and with it the way to the group: nobody's mistake.
    Abandoned,
}

impl Fatal {
    /// An error that a restart cannot mend.
    pub fn user(message: impl std::fmt::Display) -> Fatal {
        Fatal {
            kind: FatalKind::User,
            message: message.to_string(),
        }
    }

    /// The service's last word to this process.
    pub fn refused(message: impl std::fmt::Display) -> Fatal {
        Fatal {
            kind: FatalKind::Refused,
            message: message.to_string(),
        }
    }

    /// The end of the way to the group.
    pub fn abandoned(message: impl std::fmt::Display) -> Fatal {
        Fatal {
            kind: FatalKind::Abandoned,
            message: message.to_string(),
        }
    }

    /// An error that a fresh process may not have.
    pub fn process(message: impl std::fmt::Display) -> Fatal {
        Fatal {
            kind: FatalKind::Process,
            message: message.to_string(),
        }
    }
}
