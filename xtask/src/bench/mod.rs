//! `cargo xtask bench ...`: measurements that print a table and, on request, write JSON.

mod all_reduce;
mod all_reduce_rank;
mod all_reduce_raw;
mod all_reduce_report;
mod machine;
mod quartiles;
mod step;
mod step_record;
mod step_report;
mod step_run;

use std::path::Path;

/// What can be measured.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Bench {
    /// All-reduce over TCP beside the raw limit of the loopback sockets, in processes of its own.
    AllReduce(all_reduce::AllReduceArgs),
    /// One of those processes.
    #[command(hide = true)]
    AllReduceRank,
    /// Training steps of the models that peers are measured with, split into computing and waiting, with
    /// ranks in processes of their own beside a single rank.
    Step(step::StepArgs),
}

pub(crate) fn run(root: &Path, bench: Bench) -> anyhow::Result<()> {
    match bench {
        Bench::AllReduce(args) => all_reduce::run(&args),
        Bench::AllReduceRank => all_reduce_rank::run(),
        Bench::Step(args) => step::run(root, &args),
    }
}
