//! Members connected by TCP: one connection for each pair of ranks and channel, and one more for each
//! pair that carries only signs of life and the reason why a member stops.
//!
//! Each member binds a [`Listener`] to a free port, publishes its address, and, once the plan names all
//! addresses, calls [`connect`]. The higher rank calls the lower. A connection becomes part of the
//! group only after both sides have proved the generation's key; see `hello`. Each channel then has
//! an I/O thread of its own that works through its operations in order; see `lane`.

mod connect_error;
mod connection;
mod core;
mod door;
mod frame;
mod hello;
mod in_hand;
mod lane;
mod link;
mod mesh;
mod message;
mod socket;
mod work;

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::communicator::{Communicator, GroupIdentity};

pub use connect_error::{ConnectError, Difference};
pub use hello::Refusal;

/// The lane of the connection that carries signs of life; the lanes before it are the channels.
const LINK: u8 = crate::operation::Channel::ALL.len() as u8;
/// Connections for each pair of ranks.
const LANES: usize = LINK as usize + 1;

/// The port at which the other members of the next generation reach this one.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Binds a free port of the address. Peers may call as soon as it is bound: they wait for
    /// [`connect`].
    pub fn bind(ip: IpAddr) -> io::Result<Listener> {
        let socket = TcpListener::bind((ip, 0))?;
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        Ok(Listener { socket, address })
    }

    /// The address as bound, to be published.
    pub fn addr(&self) -> SocketAddr {
        self.address
    }
}

/// What all members of a group must have in common. Compared as opaque text at every connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HelloContext {
    /// Of the resolved configuration.
    pub run_config_hash: String,
    /// Of the parameters' names, shapes and types.
    pub layout_hash: String,
    /// Of the membership plan.
    pub plan_hash: String,
    /// Of the data source.
    pub data_fingerprint: String,
}

/// How long to wait for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// For all connections of the group to be made.
    pub connect_deadline: Duration,
    /// For an operation, from its issue.
    pub operation_deadline: Duration,
    /// For somebody who called to prove the key.
    pub handshake_deadline: Duration,
    /// Between two signs of life.
    pub heartbeat_interval: Duration,
    /// Silence after which a peer is lost, by this member's own monotonic clock.
    pub heartbeat_timeout: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            connect_deadline: Duration::from_secs(30),
            operation_deadline: Duration::from_secs(300),
            handshake_deadline: Duration::from_secs(5),
            heartbeat_interval: Duration::from_secs(1),
            heartbeat_timeout: Duration::from_secs(5),
        }
    }
}

/// Connects this member with all others of its generation. `peers` are the listeners' addresses by
/// rank; this member's own entry is not used. `key` is the generation's key, at least 16 bytes.
///
/// Calls are repeated with back-off until the deadline, so peers may come late. Afterwards the
/// listener only tells late callers that they are wrong here; it closes with the communicator.
pub fn connect(
    listener: Listener,
    identity: GroupIdentity,
    peers: &[SocketAddr],
    context: &HelloContext,
    key: &[u8],
    options: &Options,
) -> Result<Arc<dyn Communicator>, ConnectError> {
    let local = hello::Local {
        identity,
        context: context.clone(),
        key: hello::Key::new(key),
    };
    mesh::check_arguments(&local, peers, key)?;
    let door = door::Door::new(listener.socket, options.handshake_deadline);
    let (door, streams) = mesh::build(door, &local, peers, options)?;
    core::start(door, local, streams, options)
}
