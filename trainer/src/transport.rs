//! How a rank opens its data plane for one generation: the transport is an argument of training.

use gradsync_collective::Communicator;
use gradsync_rendezvous::wire::{Plan, PlanHead};
use std::sync::Arc;
use std::time::Duration;

/// What members must agree on before their first byte of data: hashes, compared when they connect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Agreement {
    /// Digest of the RunConfig.
    pub run_config: String,
    /// Digest of names, shapes and types of the model's tensors.
    pub parameter_layout: String,
    /// Digest of the membership plan.
    pub plan: String,
    /// Fingerprint of the training data.
    pub data: String,
}

/// Makes the connections of one generation after another.
pub trait Transport: Send {
    /// Opens a listener for the next generation and returns where it can be reached, best first. An
    /// earlier listener that was not used is closed.
    ///
    /// # Errors
    /// When no address can be listened on.
    fn listen(&mut self) -> Result<Vec<String>, ConnectFailure>;

    /// Connects to all members of `plan`, with the newest listener.
    ///
    /// # Errors
    /// Names the members that could not be reached, or what differs.
    fn connect(
        &mut self,
        plan: &Plan,
        head: &PlanHead,
        agreement: &Agreement,
        within: Duration,
    ) -> Result<Arc<dyn Communicator>, ConnectFailure>;
}

/// Why the group could not be connected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ConnectFailure {
    /// Ranks of the plan that could not be reached.
    pub unreachable: Vec<u32>,
    /// Whether trying again with the same members cannot help: they differ in what must be equal.
    pub different: bool,
    /// What happened.
    pub message: String,
}
