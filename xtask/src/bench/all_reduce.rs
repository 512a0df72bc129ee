//! `cargo xtask bench all-reduce`: starts one process for each rank and leads them through interleaved
//! rounds: at each size first our all-reduce, then bare sockets that carry the same bytes.

use std::io::{BufRead, BufReader, Lines, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, bail, ensure};
use serde::{Deserialize, Serialize};

use super::all_reduce_report::{Measurement, Report, Sample};

/// Arguments of `cargo xtask bench all-reduce`.
#[derive(Debug, clap::Args)]
pub(crate) struct AllReduceArgs {
    /// Numbers of ranks.
    #[arg(long, value_delimiter = ',', default_values_t = [2, 4])]
    ranks: Vec<usize>,
    /// Message sizes in KiB.
    #[arg(long, value_delimiter = ',', default_values_t = [4, 64, 256, 1024, 4096, 16384, 65536, 262144])]
    kib: Vec<usize>,
    /// Rounds over all sizes.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Write the results as JSON to this file, too.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// What a rank says first: where it listens.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) group: SocketAddr,
    pub(crate) raw: SocketAddr,
}

/// What it is told then.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Start {
    pub(crate) rank: usize,
    pub(crate) group: Vec<SocketAddr>,
    pub(crate) raw: Vec<SocketAddr>,
}

/// What it says when it is connected.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Connected {
    /// Congestion control of the bare sockets; the group's are asked for the same.
    pub(crate) congestion: String,
}

/// What is carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum What {
    /// Our all-reduce of a buffer.
    AllReduce,
    /// As many bytes through bare sockets.
    Raw,
}

/// A batch to measure.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Batch {
    pub(crate) what: What,
    pub(crate) bytes: usize,
    pub(crate) iterations: u32,
}

/// What a rank measured, for one iteration.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) seconds: f64,
    pub(crate) cpu_seconds: f64,
}

struct Rank {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Drop for Rank {
    fn drop(&mut self) {
        // A rank ends when its input does; one that does not is ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Rank {
    fn spawn() -> anyhow::Result<Rank> {
        let program = std::env::current_exe().context("find this program")?;
        let mut child = Command::new(program)
            .args(["bench", "all-reduce-rank"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start a rank")?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("start a rank: no pipes");
        };
        Ok(Rank {
            child,
            input,
            output: BufReader::new(output).lines(),
        })
    }

    fn tell(&mut self, message: &impl Serialize) -> anyhow::Result<()> {
        writeln!(self.input, "{}", serde_json::to_string(message)?).context("tell a rank")
    }

    fn hear<T: for<'a> Deserialize<'a>>(&mut self) -> anyhow::Result<T> {
        let line = self
            .output
            .next()
            .context("a rank ended early")?
            .context("hear a rank")?;
        serde_json::from_str(&line).with_context(|| format!("understand {line:?} of a rank"))
    }
}

pub(crate) fn run(args: &AllReduceArgs) -> anyhow::Result<()> {
    ensure!(
        args.ranks.iter().all(|ranks| (2..=16).contains(ranks)),
        "--ranks: 2 to 16"
    );
    ensure!(
        args.kib.iter().all(|kib| (1..=1 << 20).contains(kib)),
        "--kib: 1 to 1048576"
    );
    ensure!((1..=1000).contains(&args.rounds), "--rounds: 1 to 1000");
    let mut report = Report::new(args.rounds);
    for &ranks in &args.ranks {
        measure(args, ranks, &mut report)?;
    }
    print!("{report}");
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&report)? + "\n";
        std::fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

fn measure(args: &AllReduceArgs, world: usize, report: &mut Report) -> anyhow::Result<()> {
    let mut ranks = Vec::new();
    for _ in 0..world {
        ranks.push(Rank::spawn()?);
    }
    let mut start = Start {
        rank: 0,
        group: Vec::new(),
        raw: Vec::new(),
    };
    for rank in &mut ranks {
        let hello: Hello = rank.hear()?;
        start.group.push(hello.group);
        start.raw.push(hello.raw);
    }
    for rank in &mut ranks {
        rank.tell(&start)?;
        start.rank += 1;
    }
    for rank in &mut ranks {
        report.congestion = rank.hear::<Connected>()?.congestion;
    }
    let mut measurements: Vec<Measurement> = args
        .kib
        .iter()
        .map(|kib| Measurement::new(world, kib * 1024))
        .collect();
    for round in 0..args.rounds {
        for measurement in &mut measurements {
            let bytes = measurement.bytes;
            let iterations = iterations(bytes);
            let ours = batch(
                &mut ranks,
                Batch {
                    what: What::AllReduce,
                    bytes,
                    iterations,
                },
            )?;
            let raw = batch(
                &mut ranks,
                Batch {
                    what: What::Raw,
                    bytes,
                    iterations,
                },
            )?;
            measurement.samples.push(Sample { ours, raw });
        }
        eprintln!("{world} ranks: round {} of {}", round + 1, args.rounds);
    }
    report.measurements.append(&mut measurements);
    Ok(())
}

/// Enough for a batch to outlast the clock and the scheduler, few enough for a round in seconds.
fn iterations(bytes: usize) -> u32 {
    ((64 << 20) / bytes).clamp(2, 200) as u32
}

/// One batch on all ranks at once: the slowest rank's time, all ranks' CPU time.
fn batch(ranks: &mut [Rank], batch: Batch) -> anyhow::Result<Measured> {
    for rank in ranks.iter_mut() {
        rank.tell(&batch)?;
    }
    let mut total = Measured {
        seconds: 0.0,
        cpu_seconds: 0.0,
    };
    for rank in ranks {
        let measured: Measured = rank.hear()?;
        total.seconds = total.seconds.max(measured.seconds);
        total.cpu_seconds += measured.cpu_seconds;
    }
    Ok(total)
}
