//! System calls on sockets: options, non-blocking connect, vectored send, waiting, waking.

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, Timespec, eventfd, poll};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use socket2::{Domain, Protocol, Socket, Type};

/// Starts a connection that is complete, or has failed, when the socket becomes writable.
pub(super) fn start_connect(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    match socket.connect(&address.into()) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {}
        Err(error) => return Err(error),
    }
    Ok(socket.into())
}

/// Sets what a connection of a group needs. `silence` is how long sent bytes may stay unacknowledged;
/// it counts a window closed by a peer that does not read, too, so it must not be shorter than a peer
/// may take to come to an operation.
pub(super) fn prepare(stream: &TcpStream, silence: Duration) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    let socket = socket2::SockRef::from(stream);
    socket.set_tcp_user_timeout(Some(silence))?;
    if stream.peer_addr().is_ok_and(|peer| is_local(peer.ip())) {
        // Short links suffer under bbr, the default of many hosts; where reno is not allowed, the
        // default stays.
        let _ = socket.set_tcp_congestion(b"reno");
    }
    Ok(())
}

/// True for loopback, private and link-local addresses: links within a machine or a site.
fn is_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_loopback() || v4.is_private() || v4.is_link_local(),
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => is_local(IpAddr::V4(v4)),
            None => v6.is_loopback() || v6.is_unique_local() || v6.is_unicast_link_local(),
        },
    }
}

/// What a non-blocking transfer came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Bytes(usize),
    Blocked,
    End,
}

/// Sends what the socket takes, without a signal for a closed one.
pub(super) fn send(stream: &TcpStream, parts: &[IoSlice<'_>]) -> io::Result<Progress> {
    loop {
        match sendmsg(
            stream,
            parts,
            &mut SendAncillaryBuffer::default(),
            SendFlags::NOSIGNAL,
        ) {
            Ok(bytes) => return Ok(Progress::Bytes(bytes)),
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => return Ok(Progress::Blocked),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Turns the result of a read into progress; a read of nothing is the end of the stream.
pub(super) fn received(result: io::Result<usize>) -> io::Result<Progress> {
    match result {
        Ok(0) => Ok(Progress::End),
        Ok(bytes) => Ok(Progress::Bytes(bytes)),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
            ) =>
        {
            Ok(Progress::Blocked)
        }
        Err(error) => Err(error),
    }
}

/// Waits until a descriptor is ready or the time has come; a signal counts as readiness.
pub(super) fn wait(descriptors: &mut [PollFd<'_>], until: Option<Instant>) -> io::Result<()> {
    let timeout = until.map(|until| {
        let left = until.saturating_duration_since(Instant::now());
        // Rounded up: waking before the time would only mean waiting again.
        let left = left + Duration::from_micros(1);
        Timespec {
            tv_sec: left.as_secs().min(1 << 30) as i64,
            tv_nsec: left.subsec_nanos().into(),
        }
    });
    match poll(descriptors, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Makes a waiting thread look up.
pub(super) struct Waker(OwnedFd);

impl Waker {
    pub(super) fn new() -> io::Result<Waker> {
        Ok(Waker(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub(super) fn wake(&self) {
        // Fails only when the counter is full, and then the thread wakes anyway.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    pub(super) fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A fresh nonce.
pub(super) fn nonce() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bytes)
}
