//! Developer tasks: `cargo xtask <task>`.

mod bench;
mod broken_rules;
mod crds;

use clap::{Parser, Subcommand};
use std::path::Path;
use std::process::ExitCode;

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Developer tasks of gradsync")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Write the CustomResourceDefinition, or check that it is up to date.
    Crds(crds::CrdsArgs),
    /// Break each invariant in a copy of the sources and see that its test fails.
    BrokenRules(broken_rules::BrokenRulesArgs),
    /// Measure.
    #[command(subcommand)]
    Bench(bench::Bench),
}

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap_or(Path::new("."));
    let done = match Cli::parse().task {
        Task::Crds(args) => crds::run(root, &args),
        Task::BrokenRules(args) => broken_rules::run(root, &args),
        Task::Bench(bench) => bench::run(root, bench),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
