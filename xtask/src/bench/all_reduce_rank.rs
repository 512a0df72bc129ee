//! One rank of the all-reduce benchmark: does what it is told on its input, answers on its output.

use std::io::BufRead;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use gradsync_collective::tcp::{HelloContext, Listener, Options, connect};
use gradsync_collective::{Buffer, Channel, Communicator, DType, GroupIdentity, ReduceOp, WireType};
use serde::Serialize;

use super::all_reduce::{Batch, Connected, Hello, Measured, Start, What};
use super::all_reduce_raw::RawPeers;

const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn run() -> anyhow::Result<()> {
    let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let listener = Listener::bind(here).context("bind a port for the group")?;
    let raw = TcpListener::bind((here, 0)).context("bind a port for bare sockets")?;
    say(&Hello {
        group: listener.addr(),
        raw: raw.local_addr()?,
    })?;
    let mut input = std::io::stdin().lock().lines();
    let start: Start =
        serde_json::from_str(&input.next().context("no start")??).context("understand the start")?;
    let identity = GroupIdentity {
        job_uid: "bench".into(),
        generation: 1,
        rank: start.rank,
        world_size: start.group.len(),
    };
    // The group lives for one measurement on this machine: its key keeps out strays, not foes.
    let key = format!("all-reduce benchmark on {:?}", start.group);
    let options = Options {
        operation_deadline: PATIENCE,
        ..Options::default()
    };
    let context = HelloContext::default();
    let member = connect(
        listener,
        identity,
        &start.group,
        &context,
        key.as_bytes(),
        &options,
    )
    .context("connect the group")?;
    let mut peers = RawPeers::connect(&raw, start.rank, &start.raw).context("connect bare sockets")?;
    say(&Connected {
        congestion: peers.congestion()?,
    })?;
    let mut kept: Option<Buffer> = None;
    for line in input {
        let batch: Batch = serde_json::from_str(&line?).context("understand a batch")?;
        let measured = match batch.what {
            What::Raw => measure(&member, batch, || peers.exchange(batch.bytes))?,
            What::AllReduce => {
                let buffer = match kept.take() {
                    Some(buffer) if buffer.byte_len() == batch.bytes => buffer,
                    _ => Buffer::zeroed(batch.bytes / 4, DType::F32)?,
                };
                check(&member, &buffer)?;
                let measured = measure(&member, batch, || all_reduce(&member, &buffer))?;
                kept = Some(buffer);
                measured
            }
        };
        say(&measured)?;
    }
    Ok(())
}

fn say(message: &impl Serialize) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(message)?);
    Ok(())
}

fn all_reduce(member: &Arc<dyn Communicator>, buffer: &Buffer) -> anyhow::Result<()> {
    let pending = member.all_reduce(Channel::Gradients, buffer.clone(), ReduceOp::Sum, WireType::Same);
    pending.wait(Instant::now() + PATIENCE)?;
    Ok(())
}

/// A benchmark of wrong sums would be none. Leaves zeros, which stay zeros however often they are
/// summed.
fn check(member: &Arc<dyn Communicator>, buffer: &Buffer) -> anyhow::Result<()> {
    let identity = member.identity();
    buffer.copy_from_slice(&vec![identity.rank as f32 + 1.0; buffer.elements()])?;
    all_reduce(member, buffer)?;
    let world = identity.world_size;
    let expected = (world * (world + 1) / 2) as f32;
    ensure!(
        buffer.to_vec::<f32>()?.iter().all(|value| *value == expected),
        "a sum is wrong"
    );
    buffer.copy_from_slice(&vec![0f32; buffer.elements()])?;
    Ok(())
}

/// Time and CPU time of one iteration, after one that is not counted.
fn measure(
    member: &Arc<dyn Communicator>,
    batch: Batch,
    mut run: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Measured> {
    run()?;
    member.barrier(Channel::Control).wait(Instant::now() + PATIENCE)?;
    let (start, cpu) = (Instant::now(), cpu_seconds());
    for _ in 0..batch.iterations {
        run()?;
    }
    let count = f64::from(batch.iterations);
    Ok(Measured {
        seconds: start.elapsed().as_secs_f64() / count,
        cpu_seconds: (cpu_seconds() - cpu) / count,
    })
}

/// CPU time of this process, user and system, all threads.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
