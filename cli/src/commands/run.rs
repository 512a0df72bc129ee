//! `gradsync run JOB.yaml`: trains a TrainingJob on this machine.

use crate::run::launch;
use crate::run::prepare::{self, Request};
use crate::run::summary::State;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

/// Exit code: trained to the end.
pub const COMPLETE: u8 = 0;
/// Exit code: training failed, or how it ended could not be written; the error is printed and stands in
/// `summary.json`.
pub const FAILED: u8 = 1;
/// Exit code: an argument, the manifest or the output directory cannot be used, or the workers found a
/// mistake before the first step; the same directory can be used again.
pub const BAD_INPUT: u8 = 2;
/// Exit code: stopped by a signal; the same command goes on from the last checkpoint.
pub const STOPPED: u8 = 130;

/// Arguments of `gradsync run`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 complete; 1 failed while it trained (or its output could not be written); \
    2 bad input: an argument, the manifest or the output directory, or what the workers found wrong before the \
    first step, such as an unknown task, a task parameter, missing or corrupt data, or a checkpoint of another \
    model (mend it and run the same command again); 130 stopped (run the same command again to go on).\n\
    Ctrl-C, SIGTERM and SIGHUP (unless it was ignored, as by nohup) let the workers finish their step, write a \
    checkpoint and stop; a second signal ends them at once."
)]
pub struct RunArgs {
    /// Manifest of one TrainingJob. `-` reads standard input.
    #[arg(value_name = "JOB.yaml")]
    pub manifest: PathBuf,
    /// Number of workers, instead of `spec.workers.replicas`. The result does not depend on it beyond
    /// rounding: the micro-batch grid stays the manifest's.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub workers: Option<u32>,
    /// Output directory [default: gradsync-out/<name>].
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Where a path of the container lies on this machine. Without it a hostPath volume is used as it is,
    /// and any other volume lies in the output directory.
    #[arg(long, value_name = "PATH=DIR")]
    pub map: Vec<String>,
    /// Change a field of the manifest's spec, such as `training.seed=2`; `null` removes it.
    #[arg(long, value_name = "FIELD=VALUE")]
    pub set: Vec<String>,
    /// The trainer program [default: gradsync-trainer beside gradsync, or in PATH].
    #[arg(long, value_name = "FILE")]
    pub trainer: Option<PathBuf>,
    /// Only go on with an unfinished run: an error if there is none in the output directory.
    #[arg(long, conflicts_with = "fresh")]
    pub resume: bool,
    /// Only start a new run: an error if the output directory is not empty.
    #[arg(long)]
    pub fresh: bool,
    /// Plain lines instead of a progress bar, as without a terminal.
    #[arg(long)]
    pub plain: bool,
    /// Seconds that the workers get to stop in order after Ctrl-C, SIGTERM or SIGHUP.
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub grace: u64,
    /// Address of the rendezvous service that the workers meet at; port 0 takes any free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
}

impl RunArgs {
    /// Trains; the exit code tells how it ended.
    ///
    /// # Errors
    /// When nothing could be started: the manifest, an argument or the output directory cannot be used.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let prepared = prepare::prepare(&Request {
            manifest: self.manifest,
            workers: self.workers,
            out: self.out,
            map: self.map,
            set: self.set,
            trainer: self.trainer,
            resume: self.resume,
            fresh: self.fresh,
        })?;
        let options = launch::Options {
            plain: self.plain,
            grace: std::time::Duration::from_secs(self.grace),
            listen: self.listen,
        };
        let outcome = launch::launch(prepared, &options)?;
        Ok(ExitCode::from(match outcome.state {
            State::Failed if outcome.bad_input => BAD_INPUT,
            State::Failed => FAILED,
            _ if !outcome.written => FAILED,
            State::Complete => COMPLETE,
            State::Stopped => STOPPED,
        }))
    }
}
