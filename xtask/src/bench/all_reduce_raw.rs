//! Bare sockets that carry what an all-reduce must: the limit beside which it is measured.
//!
//! Each rank sends 2 S / N bytes to every other and receives as many, both at once, without adding
//! anything up: 2 (N - 1) / N S in each direction.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

/// As much as is handed to the system at a time.
const PIECE: usize = 256 << 10;
/// How far sending may run ahead of receiving: without a bound the system's buffers grow until their
/// memory is no longer in the cache, and the bare sockets would be no limit.
const AHEAD: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct RawPeers {
    peers: Vec<TcpStream>,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
}

impl RawPeers {
    /// Connects this rank with all others: the higher calls the lower.
    pub(crate) fn connect(
        listener: &TcpListener,
        rank: usize,
        addresses: &[SocketAddr],
    ) -> anyhow::Result<RawPeers> {
        let mut peers = Vec::new();
        for address in &addresses[..rank] {
            peers.push(TcpStream::connect(address).with_context(|| format!("call {address}"))?);
        }
        for _ in rank + 1..addresses.len() {
            peers.push(listener.accept().context("take a call")?.0);
        }
        for peer in &peers {
            peer.set_nodelay(true)?;
            peer.set_nonblocking(true)?;
            // Where it is not allowed, both sides of the comparison keep the default.
            let _ = sockopt::set_tcp_congestion(peer, "reno");
        }
        Ok(RawPeers {
            peers,
            outgoing: vec![0; PIECE],
            incoming: vec![0; PIECE],
        })
    }

    pub(crate) fn congestion(&self) -> anyhow::Result<String> {
        let peer = self.peers.first().context("no peers")?;
        Ok(sockopt::tcp_congestion(peer)?)
    }

    /// Sends and receives what belongs to an all-reduce of `bytes`.
    pub(crate) fn exchange(&mut self, bytes: usize) -> anyhow::Result<()> {
        let each = 2 * bytes / (self.peers.len() + 1);
        let mut left = vec![(each, each); self.peers.len()];
        while left.iter().any(|(out, into)| out + into > 0) {
            let mut progress = false;
            for (peer, (out, into)) in self.peers.iter_mut().zip(&mut left) {
                let sendable = sendable(*out, *into);
                progress |= step(sendable, |piece| peer.write(&self.outgoing[..piece]), out)?;
                // What has come is taken out before more is sent: fewer and larger calls.
                while step(*into, |piece| peer.read(&mut self.incoming[..piece]), into)? {
                    progress = true;
                }
            }
            if !progress {
                self.wait(&left)?;
            }
        }
        Ok(())
    }

    fn wait(&self, left: &[(usize, usize)]) -> anyhow::Result<()> {
        let mut descriptors = Vec::new();
        for (peer, (out, into)) in self.peers.iter().zip(left) {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::OUT, sendable(*out, *into) > 0);
            flags.set(PollFlags::IN, *into > 0);
            if !flags.is_empty() {
                descriptors.push(PollFd::from_borrowed_fd(peer.as_fd(), flags));
            }
        }
        let timeout = Timespec {
            tv_sec: PATIENCE.as_secs() as i64,
            tv_nsec: 0,
        };
        if poll(&mut descriptors, Some(&timeout))? == 0 {
            bail!("no byte moved in {PATIENCE:?}");
        }
        Ok(())
    }
}

/// How much of `out` may be sent while `into` is still to come: both began with the same number.
fn sendable(out: usize, into: usize) -> usize {
    out.min((out + AHEAD).saturating_sub(into))
}

/// Moves one piece if there is something left and the socket is ready.
fn step(
    available: usize,
    transfer: impl FnOnce(usize) -> std::io::Result<usize>,
    left: &mut usize,
) -> anyhow::Result<bool> {
    if available == 0 {
        return Ok(false);
    }
    match transfer(available.min(PIECE)) {
        Ok(0) => bail!("a peer closed its connection"),
        Ok(bytes) => {
            *left -= bytes;
            Ok(true)
        }
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
