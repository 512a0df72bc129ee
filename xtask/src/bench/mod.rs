//! `cargo xtask bench ...`: measurements that print a table and, on request, write JSON.

mod all_reduce;
mod all_reduce_rank;
mod all_reduce_raw;
mod all_reduce_report;

/// What can be measured.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Bench {
    /// All-reduce over TCP beside the raw limit of the loopback sockets, in processes of its own.
    AllReduce(all_reduce::AllReduceArgs),
    /// One of those processes.
    #[command(hide = true)]
    AllReduceRank,
}

pub(crate) fn run(bench: Bench) -> anyhow::Result<()> {
    match bench {
        Bench::AllReduce(args) => all_reduce::run(&args),
        Bench::AllReduceRank => all_reduce_rank::run(),
    }
}
