//! One run of the step benchmark: the programs, the manifest, and the process that trains.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};

use super::step::{Model, Profile};
use super::step_record::{self, Step};

/// Longest time in which a run says nothing: it tells its progress all the time.
const SILENCE: Duration = Duration::from_secs(600);
/// Lines of output that are shown of a run that went wrong.
const SHOWN: usize = 30;

/// The programs that are measured.
#[derive(Debug)]
pub(crate) struct Programs {
    gradsync: PathBuf,
    trainer: PathBuf,
}

impl Programs {
    /// Builds them.
    pub(crate) fn build(root: &Path, profile: Profile) -> anyhow::Result<Programs> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let status = Command::new(cargo)
            .current_dir(root)
            .args(["build", "--profile", profile.name()])
            .args(["-p", "gradsync", "-p", "gradsync-trainer"])
            .status()
            .context("start cargo")?;
        ensure!(status.success(), "build gradsync and gradsync-trainer: {status}");
        // This program lies in <target>/<profile>, and so do they.
        let own = std::env::current_exe().context("find this program")?;
        let target = own.ancestors().nth(2).context("find the target directory")?;
        let directory = target.join(match profile {
            Profile::Release => "release",
            Profile::Dev => "debug",
        });
        let programs = Programs {
            gradsync: directory.join("gradsync"),
            trainer: directory.join("gradsync-trainer"),
        };
        for program in [&programs.gradsync, &programs.trainer] {
            ensure!(
                program.is_file(),
                "{}: it was built, but not to this place",
                program.display()
            );
        }
        Ok(programs)
    }
}

/// Trains `steps` steps of `model` on `ranks` ranks; returns the times of all steps, the first ones too.
pub(crate) fn train(
    programs: &Programs,
    model: Model,
    ranks: usize,
    steps: usize,
) -> anyhow::Result<Vec<Step>> {
    let place = tempfile::tempdir().context("make a temporary directory")?;
    let out = place.path().join("out");
    let job = place.path().join("job.json");
    std::fs::write(&job, manifest(model, ranks, steps).to_string())
        .with_context(|| format!("write {}", job.display()))?;
    let (reader, writer) = std::io::pipe().context("make a pipe")?;
    // The command, which holds the write ends, ends with this statement: the pipe then ends with the run.
    let child = Command::new(&programs.gradsync)
        .arg("run")
        .arg(&job)
        .arg("--out")
        .arg(&out)
        .arg("--trainer")
        .arg(&programs.trainer)
        .arg("--plain")
        .stdin(Stdio::null())
        .stdout(writer.try_clone().context("make a pipe")?)
        .stderr(writer)
        .spawn()
        .with_context(|| format!("start {}", programs.gradsync.display()))?;
    let mut child = Guard(child);
    let (sender, lines) = sync_channel(64);
    std::thread::spawn(move || {
        for line in BufReader::new(reader).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    let (last, ended) = follow(&lines, SILENCE);
    let shown = || Vec::from(last.clone()).join("\n");
    ensure!(
        ended,
        "train {} on {ranks} ranks: nothing was heard for {SILENCE:?}; its last words:\n{}",
        model.parameter(),
        shown()
    );
    let status: ExitStatus = child.0.wait().context("wait for gradsync run")?;
    if !status.success() {
        bail!(
            "train {} on {ranks} ranks: {status}\n{}",
            model.parameter(),
            shown()
        );
    }
    let seen = step_record::read(&out.join("records"), ranks)?;
    ensure!(
        seen.len() == steps,
        "train {} on {ranks} ranks: the record holds {} steps, not {steps}",
        model.parameter(),
        seen.len()
    );
    Ok(seen)
}

/// Takes lines until they end (true) or none comes for `silence` (false); with the last of them.
fn follow(lines: &Receiver<String>, silence: Duration) -> (VecDeque<String>, bool) {
    let mut last = VecDeque::new();
    loop {
        match lines.recv_timeout(silence) {
            Ok(line) => {
                if last.len() == SHOWN {
                    last.pop_front();
                }
                last.push_back(line);
            }
            Err(RecvTimeoutError::Disconnected) => return (last, true),
            Err(RecvTimeoutError::Timeout) => return (last, false),
        }
    }
}

/// Ends the run when it is not waited for: its workers end with it.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The job: one part of the grid for each rank, no checkpoints, no evaluation on the way, and no CPU limit,
/// which means one thread for each rank.
fn manifest(model: Model, ranks: usize, steps: usize) -> Value {
    let batch = model.batch_per_rank();
    let global = batch * ranks;
    // Every step is full: an epoch holds whole steps.
    let parameters = json!({"model": model.parameter(), "samples": global * 8, "testSamples": batch});
    json!({
        "apiVersion": "gradsync.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "bench-step"},
        "spec": {
            "task": {"name": "synthetic", "parameters": parameters},
            "training": {
                "globalBatchSize": global,
                "steps": steps,
                "seed": 1,
                "optimizer": {"name": "AdamW", "learningRate": 1e-4},
            },
            "precision": {"mode": "fp32"},
            "accumulation": {"microBatchSize": batch},
            "workers": {"replicas": ranks},
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_has_one_part_of_the_grid_and_epochs_hold_whole_steps() {
        for model in [Model::Mlp, Model::Gpt, Model::Resnet] {
            for ranks in [1, 2, 3] {
                let spec = &manifest(model, ranks, 35)["spec"];
                let config = gradsync_formats::run_config::resolve("bench-step", spec).unwrap();
                let global = config.training.global_batch_size;
                assert_eq!(global, config.micro_batch_size * ranks as u64);
                assert_eq!(config.workers.replicas as usize, ranks);
                assert_eq!(
                    spec["task"]["parameters"]["samples"].as_u64().unwrap() % global,
                    0
                );
                assert!(config.checkpoint.is_none());
            }
        }
    }

    #[test]
    fn the_last_words_are_kept_and_silence_is_told_from_the_end() {
        let (sender, lines) = sync_channel(SHOWN + 2);
        for number in 0..SHOWN + 2 {
            sender.send(number.to_string()).unwrap();
        }
        let (last, ended) = follow(&lines, Duration::ZERO);
        assert!(!ended);
        assert_eq!(last.len(), SHOWN);
        assert_eq!(last.front().unwrap(), "2");
        drop(sender);
        assert!(follow(&lines, Duration::ZERO).1);
    }
}
