//! The trainer program: one executable that is agent and rank, for the tasks that it is given.

use crate::agent::run::AgentArgs;
use crate::agent::{exit_code, run};
use crate::rank;
use crate::task::Task;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Trains as a worker of a TrainingJob. `gradsync run` and the operator start it.
#[derive(Debug, Parser)]
#[command(version, about, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The first process of a worker: starts one rank for each device and keeps them alive.
    Agent(Box<AgentArgs>),
    /// One rank; started by an agent.
    Rank,
    /// List the tasks that this program knows.
    Tasks,
}

/// What `main` of a trainer does: runs as agent or rank, for the given tasks. Logs go to standard error;
/// `RUST_LOG` chooses how much (default: `info`).
#[must_use]
pub fn main(tasks: &[Box<dyn Task>]) -> ExitCode {
    let arguments = Arguments::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let code = match arguments.command {
        Command::Agent(arguments) => match run::run(*arguments) {
            Ok(code) => code,
            Err(error) => {
                eprintln!("error: {error}");
                exit_code::FAULT
            }
        },
        Command::Rank => rank::run(tasks),
        Command::Tasks => {
            for task in tasks {
                println!("{}", task.name());
            }
            exit_code::FINISHED
        }
    };
    ExitCode::from(code)
}
