//! One module for each subcommand: its arguments and what it does with them.

pub mod audit;
pub mod checkpoint;
pub mod format;
pub mod run;
pub mod validate;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Trains TrainingJobs from the command line.
#[derive(Debug, Parser)]
#[command(name = "gradsync", version, about, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a job on this machine.
    Run(Box<run::RunArgs>),
    /// Check manifests as the API server would, without a cluster.
    Validate(validate::ValidateArgs),
    /// Prove from the run record that each epoch used every sample exactly once.
    Audit(audit::AuditArgs),
    /// List, inspect or export checkpoints.
    Checkpoint(checkpoint::CheckpointArgs),
}

impl Cli {
    /// Runs the chosen subcommand. The exit code tells: 0 done, 1 the answer is no.
    ///
    /// # Errors
    /// When the subcommand could not do its work at all.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Run(args) => args.run(),
            Command::Validate(args) => args.run(),
            Command::Audit(args) => args.run(),
            Command::Checkpoint(args) => args.run(),
        }
    }
}
