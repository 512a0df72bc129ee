//! `cargo xtask bench step`: trains the peers' models with `gradsync run`, in interleaved rounds, and takes
//! the times of the steps from the run records.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

use super::machine::Machine;
use super::step_report::{Measurement, Report};
use super::step_run::{self, Programs};

/// Steps at the start of each run that do not count: caches, allocator and connections warm up.
pub(crate) const DROPPED: usize = 5;

/// Arguments of `cargo xtask bench step`.
#[derive(Debug, clap::Args)]
pub(crate) struct StepArgs {
    /// Models.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "mlp,gpt,resnet")]
    models: Vec<Model>,
    /// Numbers of ranks. A single rank is always measured, too.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    ranks: Vec<usize>,
    /// Steps of each run that count; five more before them do not.
    #[arg(long, default_value_t = 30)]
    steps: usize,
    /// Rounds over all models and numbers of ranks.
    #[arg(long, default_value_t = 2)]
    rounds: usize,
    /// Cargo profile of the programs that are measured. Only release gives times worth telling.
    #[arg(long, value_enum, default_value_t = Profile::Release)]
    profile: Profile,
    /// Write the results as JSON to this file, too.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// A model of the task `synthetic`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Model {
    /// 25 million parameters, batch 32 per rank.
    Mlp,
    /// 5.3 million parameters, 8 sequences of 128 tokens per rank.
    Gpt,
    /// ResNet-18 on pictures of 32x32, batch 32 per rank.
    Resnet,
}

impl Model {
    /// Its name in `task.parameters.model`.
    pub(crate) fn parameter(self) -> &'static str {
        match self {
            Model::Mlp => "mlp",
            Model::Gpt => "gpt",
            Model::Resnet => "resnet-18",
        }
    }

    /// Samples per rank and step, as the peers take.
    pub(crate) fn batch_per_rank(self) -> usize {
        match self {
            Model::Mlp | Model::Resnet => 32,
            Model::Gpt => 8,
        }
    }
}

/// A Cargo profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Profile {
    Release,
    Dev,
}

impl Profile {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Profile::Release => "release",
            Profile::Dev => "dev",
        }
    }
}

pub(crate) fn run(root: &Path, args: &StepArgs) -> anyhow::Result<()> {
    ensure!(
        args.ranks.iter().all(|ranks| (1..=16).contains(ranks)),
        "--ranks: 1 to 16"
    );
    ensure!((1..=10_000).contains(&args.steps), "--steps: 1 to 10000");
    ensure!((1..=100).contains(&args.rounds), "--rounds: 1 to 100");
    let programs = Programs::build(root, args.profile)?;
    let machine = Machine::here();
    let mut measurements = Vec::new();
    for model in without_repeats(&args.models) {
        for ranks in with_single(&args.ranks) {
            measurements.push(Measurement::new(model, ranks));
        }
    }
    for round in 1..=args.rounds {
        for Measurement { model, ranks, steps } in &mut measurements {
            eprintln!(
                "round {round} of {}: {}, {ranks} ranks",
                args.rounds,
                model.parameter()
            );
            let mut seen = step_run::train(&programs, *model, *ranks, DROPPED + args.steps)?;
            steps.extend(seen.drain(DROPPED..));
        }
    }
    let report = Report {
        machine,
        profile: args.profile.name(),
        rounds: args.rounds,
        steps_per_round: args.steps,
        measurements,
    };
    print!("{report}");
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&report.to_json())? + "\n";
        std::fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

/// The numbers of ranks in order, a single one first: what the others are compared with.
fn with_single(ranks: &[usize]) -> Vec<usize> {
    let mut all: Vec<usize> = ranks.iter().copied().chain([1]).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn without_repeats(models: &[Model]) -> Vec<Model> {
    let mut once = Vec::new();
    for model in models {
        if !once.contains(model) {
            once.push(*model);
        }
    }
    once
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: StepArgs,
    }

    #[test]
    fn a_single_rank_is_always_measured_first_and_nothing_twice() {
        assert_eq!(with_single(&[4, 2, 2]), [1, 2, 4]);
        assert_eq!(with_single(&[1, 2]), [1, 2]);
        assert_eq!(
            without_repeats(&[Model::Gpt, Model::Mlp, Model::Gpt]),
            [Model::Gpt, Model::Mlp]
        );
    }

    #[test]
    fn all_models_are_measured_by_default_and_an_unknown_one_is_named() {
        let line = Line::try_parse_from(["step"]).unwrap();
        assert_eq!(line.args.models, [Model::Mlp, Model::Gpt, Model::Resnet]);
        let error = Line::try_parse_from(["step", "--models", "mlp,bert"]).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("bert") && text.contains("resnet"), "{text}");
    }
}
