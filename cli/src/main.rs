//! gradsync: trains TrainingJobs from the command line.

use clap::Parser as _;
use gradsync::terminal::{self, ReaderGone};
use std::process::ExitCode;

fn main() -> ExitCode {
    match gradsync::commands::Cli::parse().run() {
        Ok(code) => code,
        Err(error) if error.is::<ReaderGone>() => ExitCode::from(terminal::PIPE_CLOSED),
        Err(error) => {
            terminal::put(&format!("error: {}\n", terminal::with_causes(&error)));
            ExitCode::from(2)
        }
    }
}
