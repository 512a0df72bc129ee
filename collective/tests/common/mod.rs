//! Groups for tests, and the plain sum that they are compared with.
#![allow(dead_code, missing_docs, unreachable_pub)]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gradsync_collective::tcp::{ConnectError, HelloContext, Listener, Options, connect};
use gradsync_collective::{Communicator, GroupIdentity, in_process};

pub const KEY: &[u8] = b"the key of this generation, 32 by";
pub type Group = Vec<Arc<dyn Communicator>>;

/// Far enough away that only a hang reaches it.
pub fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

pub fn identity(rank: usize, world_size: usize) -> GroupIdentity {
    GroupIdentity {
        job_uid: "job".into(),
        generation: 7,
        rank,
        world_size,
    }
}

pub fn listeners(world: usize) -> (Vec<Listener>, Vec<SocketAddr>) {
    let listeners: Vec<Listener> = (0..world)
        .map(|_| Listener::bind(IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap())
        .collect();
    let addresses = listeners.iter().map(Listener::addr).collect();
    (listeners, addresses)
}

/// Connects a group, each rank on a thread of its own, with its own context and key.
pub fn connect_each(
    world: usize,
    options: Options,
    context: impl Fn(usize) -> HelloContext + Sync,
    key: impl Fn(usize) -> Vec<u8> + Sync,
) -> Vec<Result<Arc<dyn Communicator>, ConnectError>> {
    let (listeners, addresses) = listeners(world);
    std::thread::scope(|scope| {
        let threads: Vec<_> = listeners
            .into_iter()
            .enumerate()
            .map(|(rank, listener)| {
                let (addresses, context, key) = (&addresses, &context, &key);
                scope.spawn(move || {
                    let identity = identity(rank, world);
                    connect(
                        listener,
                        identity,
                        addresses,
                        &context(rank),
                        &key(rank),
                        &options,
                    )
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

pub fn tcp_with(world: usize, options: Options) -> Group {
    connect_each(world, options, |_| HelloContext::default(), |_| KEY.to_vec())
        .into_iter()
        .map(Result::unwrap)
        .collect()
}

pub fn tcp(world: usize) -> Group {
    tcp_with(world, Options::default())
}

pub fn in_process(world: usize) -> Group {
    in_process::group(world, "job", 7)
}

/// Both transports, by name.
pub fn transports(world: usize) -> [(&'static str, Group); 2] {
    [("in-process", in_process(world)), ("tcp", tcp(world))]
}

/// Runs one function per rank on threads of their own and gives the results by rank.
pub fn each_rank<T: Send>(group: &Group, run: impl Fn(usize, &dyn Communicator) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = group
            .iter()
            .enumerate()
            .map(|(rank, member)| {
                let run = &run;
                scope.spawn(move || run(rank, &**member))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
