//! How a rank opens its data plane for one generation: the transport is an argument of training.

use gradsync_collective::tcp::{self, ConnectError, Difference, HelloContext, Listener, Options};
use gradsync_collective::{Communicator, GroupIdentity};
use gradsync_rendezvous::wire::{Plan, PlanHead};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
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

/// TCP between all members.
#[derive(Debug)]
pub struct TcpTransport {
    ip: IpAddr,
    operation: Duration,
    listener: Option<Listener>,
}

impl TcpTransport {
    /// Listens on a free port of `ip` for each generation. An operation of the group must end within
    /// `operation`.
    #[must_use]
    pub fn new(ip: IpAddr, operation: Duration) -> TcpTransport {
        TcpTransport {
            ip,
            operation,
            listener: None,
        }
    }
}

impl Transport for TcpTransport {
    fn listen(&mut self) -> Result<Vec<String>, ConnectFailure> {
        // The old port goes first: whoever still calls there is of a generation that is over.
        self.listener = None;
        let listener =
            Listener::bind(self.ip).map_err(|error| failure(format!("listen on {}: {error}", self.ip)))?;
        let address = listener.addr().to_string();
        self.listener = Some(listener);
        Ok(vec![address])
    }

    fn connect(
        &mut self,
        plan: &Plan,
        head: &PlanHead,
        agreement: &Agreement,
        within: Duration,
    ) -> Result<Arc<dyn Communicator>, ConnectFailure> {
        let listener = self
            .listener
            .take()
            .ok_or_else(|| failure("connect the group: no listener was opened for it".to_owned()))?;
        let mut peers = Vec::with_capacity(plan.members.len());
        for member in plan.members.iter().take(plan.world_size as usize) {
            peers.push(resolve(&member.addresses).ok_or_else(|| ConnectFailure {
                unreachable: vec![member.rank],
                different: false,
                message: format!(
                    "connect to {}: none of its addresses {:?} is one",
                    member.id, member.addresses
                ),
            })?);
        }
        let identity = GroupIdentity {
            job_uid: plan.job_uid.to_string(),
            generation: plan.generation.0,
            rank: head.rank as usize,
            world_size: plan.world_size as usize,
        };
        let context = HelloContext {
            run_config_hash: agreement.run_config.clone(),
            layout_hash: agreement.parameter_layout.clone(),
            plan_hash: agreement.plan.clone(),
            data_fingerprint: agreement.data.clone(),
        };
        let options = Options {
            connect_deadline: within,
            operation_deadline: self.operation,
            ..Options::default()
        };
        tcp::connect(
            listener,
            identity,
            &peers,
            &context,
            head.key.reveal().as_bytes(),
            &options,
        )
        .map_err(|error| ConnectFailure {
            unreachable: error
                .ranks()
                .iter()
                .filter_map(|rank| u32::try_from(*rank).ok())
                .collect(),
            different: matches!(error, ConnectError::Differs { what, .. } if what != Difference::Plan),
            message: error.to_string(),
        })
    }
}

fn failure(message: String) -> ConnectFailure {
    ConnectFailure {
        unreachable: Vec::new(),
        different: false,
        message,
    }
}

fn resolve(addresses: &[String]) -> Option<SocketAddr> {
    addresses
        .iter()
        .find_map(|address| address.to_socket_addrs().ok()?.next())
}
