//! Why a group's connections were not made.

use std::time::Duration;

use crate::tcp::hello::Refusal;

/// What two members must have in common and have not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// The resolved configuration.
    RunConfig,
    /// The parameters' layout.
    Layout,
    /// The membership plan.
    Plan,
    /// The data.
    Data,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Difference::RunConfig => "runs another configuration: hash",
            Difference::Layout => "has another parameter layout: hash",
            Difference::Plan => "follows another membership plan: hash",
            Difference::Data => "reads different data: fingerprint",
        })
    }
}

/// Why [`connect`](super::connect) gave no communicator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Some members were not connected at the deadline.
    #[error("connect to ranks {:?} within {after:?}: {}", ranks(causes), describe(causes))]
    Unreachable {
        /// Each of them with the last thing that went wrong.
        causes: Vec<(usize, String)>,
        /// The deadline.
        after: Duration,
    },
    /// A member of the group has other facts than this one.
    #[error("rank {rank} {what} {theirs}, here {here}")]
    Differs {
        /// The member.
        rank: usize,
        /// Which fact.
        what: Difference,
        /// Its value there.
        theirs: String,
        /// Its value here.
        here: String,
    },
    /// A member does not take this one into its group.
    #[error("rank {rank} refuses the connection: {reason}")]
    Refused {
        /// The member.
        rank: usize,
        /// Its reason.
        reason: Refusal,
    },
    /// The call itself makes no sense.
    #[error("connect a group: {0}")]
    Arguments(String),
    /// The system refuses a resource.
    #[error("connect a group: {0}")]
    System(String),
}

impl ConnectError {
    /// The ranks that the error points at: what a member reports when it rejoins.
    pub fn ranks(&self) -> Vec<usize> {
        match self {
            ConnectError::Unreachable { causes, .. } => ranks(causes),
            ConnectError::Differs { rank, .. } | ConnectError::Refused { rank, .. } => vec![*rank],
            ConnectError::Arguments(_) | ConnectError::System(_) => Vec::new(),
        }
    }
}

impl From<std::io::Error> for ConnectError {
    fn from(error: std::io::Error) -> ConnectError {
        ConnectError::System(error.to_string())
    }
}

fn ranks(causes: &[(usize, String)]) -> Vec<usize> {
    causes.iter().map(|(rank, _)| *rank).collect()
}

fn describe(causes: &[(usize, String)]) -> String {
    let texts: Vec<String> = causes
        .iter()
        .map(|(rank, cause)| format!("rank {rank}: {cause}"))
        .collect();
    texts.join("; ")
}
