//! gradsync: trains TrainingJobs from the command line.

use clap::Parser as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    match gradsync::commands::Cli::parse().run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}
