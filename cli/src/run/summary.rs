//! `summary.json`: how a run ended, and the same for people at the end of the terminal output.

use super::history::{Fallback, MemberDigest, Recovery};
use super::kept::loss_text;
use gradsync_formats::identity::{Generation, JobUid};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// Version of `summary.json`. 2: `recoveries` lists every generation but the first, and phases that nobody measured
/// are null.
pub const SUMMARY_VERSION: u32 = 2;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// Trained to the end; finished for ever.
    Complete,
    /// Stopped by the user; the same command goes on from the last checkpoint.
    Stopped,
    /// Ended by an error; finished for ever if training had begun.
    Failed,
}

/// `OUT/summary.json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// Format version.
    pub version: u32,
    /// The manifest's name.
    pub name: String,
    /// The job's UID.
    pub job_uid: JobUid,
    /// How it ended.
    pub state: State,
    /// The one error that ended it.
    pub error: Option<String>,
    /// Optimiser steps applied.
    pub steps: u64,
    /// Steps of the whole run; null before the data's length was known.
    pub total_steps: Option<u64>,
    /// Passes over the data, the last one possibly not whole.
    pub epochs: f64,
    /// Mean loss of the last step; null when there is none or it is not finite.
    pub final_loss: Option<f64>,
    /// The last evaluation's loss.
    pub evaluation_loss: Option<f64>,
    /// The last evaluation's metrics, such as accuracy.
    pub metrics: BTreeMap<String, f64>,
    /// Samples per second over all committed steps (time between steps, such as evaluation and
    /// checkpoints, left out).
    pub samples_per_second: Option<f64>,
    /// Seconds from the launcher's start to its end, this start only.
    pub wall_seconds: f64,
    /// Of these, until the first step was committed.
    pub setup_seconds: Option<f64>,
    /// Ranks of the last group.
    pub world_size: Option<u32>,
    /// Digest of the whole state on each rank at the newest comparison.
    pub state_digests: Vec<MemberDigest>,
    /// Whether these are all equal; null without any.
    pub digests_agree: Option<bool>,
    /// The last generation.
    pub generation: Generation,
    /// Restarts charged against `failurePolicy.maxRestarts` in this start.
    pub restarts: u32,
    /// Each generation but the first: why it was formed, and the phases of the recovery as far as they
    /// were measured.
    pub recoveries: Vec<Recovery>,
    /// Checkpoints that a generation could not use and had to go back beyond.
    pub fallbacks: Vec<Fallback>,
    /// The newest checkpoint's folder on this machine.
    pub checkpoint: Option<String>,
    /// The step that it holds; null for a complete run.
    pub checkpoint_step: Option<u64>,
    /// Committed steps that are in no checkpoint, of a run that is not complete: a resume computes them
    /// again.
    pub lost_steps: u64,
    /// The command that begins a new run from that checkpoint, where this one is finished for ever.
    pub go_on: Option<String>,
}

/// What of an earlier summary decides whether the directory can be used again.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EarlierSummary {
    /// How the earlier run ended.
    pub state: State,
    /// Its steps.
    pub steps: u64,
}

impl Summary {
    /// The summary as a few lines for people.
    #[must_use]
    pub fn for_people(&self, output: &Path) -> String {
        let mut text = String::new();
        let state = match self.state {
            State::Complete => "complete",
            State::Stopped => "stopped",
            State::Failed => "failed",
        };
        let of = self
            .total_steps
            .filter(|total| *total != self.steps)
            .map_or_else(String::new, |total| format!(" of {total}"));
        let _ = writeln!(
            text,
            "{} {state}: {}{of} steps, {} epochs, {} wall",
            self.name,
            self.steps,
            decimals(self.epochs),
            duration(self.wall_seconds)
        );
        if let Some(error) = &self.error {
            let _ = writeln!(text, "  error        {error}");
        }
        if let Some(loss) = self.final_loss {
            let _ = writeln!(text, "  loss         {}", decimals(loss));
        }
        let metrics: Vec<String> = self
            .evaluation_loss
            .iter()
            .map(|loss| format!("loss {}", decimals(*loss)))
            .chain(
                self.metrics
                    .iter()
                    .map(|(name, value)| format!("{name} {}", decimals(*value))),
            )
            .collect();
        if !metrics.is_empty() {
            let _ = writeln!(text, "  evaluation   {}", metrics.join(", "));
        }
        if let (Some(speed), Some(world)) = (self.samples_per_second, self.world_size) {
            let _ = writeln!(
                text,
                "  speed        {speed:.0} samples/s on {world} {}",
                plural(world, "rank")
            );
        }
        match (self.digests_agree, self.state_digests.first()) {
            (Some(true), Some(first)) => {
                let count = self.state_digests.len();
                let _ = writeln!(
                    text,
                    "  state        {} (equal on all {count} ranks)",
                    first.digest
                );
            }
            (Some(false), _) => {
                let each: Vec<String> = self
                    .state_digests
                    .iter()
                    .map(|d| format!("rank {} {}", d.rank, d.digest))
                    .collect();
                let _ = writeln!(text, "  state        DIFFERS: {}", each.join(", "));
            }
            _ => {}
        }
        for recovery in &self.recoveries {
            let time = match recovery.total_ms() {
                Some(total) => format!("{total:.0} ms"),
                None => "not measured to its end".to_owned(),
            };
            let reason = recovery.reason.as_deref().unwrap_or("reason unknown");
            let _ = writeln!(
                text,
                "  recovery     generation {}: {time} ({reason})",
                recovery.generation
            );
        }
        for fallback in &self.fallbacks {
            let _ = writeln!(text, "  passed over  {fallback}");
        }
        // The error of a stop says it already.
        if let Some(loss) = loss_text(self.checkpoint_step, self.lost_steps)
            && !self.error.as_ref().is_some_and(|error| error.contains(&loss))
        {
            let _ = writeln!(text, "  lost         {loss}");
        }
        if let Some(checkpoint) = &self.checkpoint {
            let _ = writeln!(text, "  checkpoint   {checkpoint}");
        }
        let _ = writeln!(text, "  output       {}", output.display());
        if let Some(command) = &self.go_on {
            let _ = writeln!(
                text,
                "  to go on     this run is finished for ever; once the cause is mended, a new one goes on with\n    {command}"
            );
        }
        text
    }
}

/// `count` followed by `noun`'s right form.
fn plural(count: u32, noun: &str) -> String {
    if count == 1 {
        noun.to_owned()
    } else {
        format!("{noun}s")
    }
}

/// A number with as many decimals as a reader needs.
fn decimals(value: f64) -> String {
    if value == value.trunc() && value.abs() < 1e9 {
        format!("{value:.0}")
    } else if value.abs() >= 1e-3 {
        format!("{value:.4}")
    } else {
        format!("{value:.3e}")
    }
}

/// Seconds as `1 h 02 min`, `3 min 20 s` or `4.2 s`.
#[must_use]
pub fn duration(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        0..60 => format!("{seconds:.1} s"),
        60..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary() -> Summary {
        Summary {
            version: SUMMARY_VERSION,
            name: "job".into(),
            job_uid: JobUid("u".into()),
            state: State::Complete,
            error: None,
            steps: 10,
            total_steps: Some(10),
            epochs: 3.0,
            final_loss: Some(0.25),
            evaluation_loss: Some(0.3),
            metrics: [("accuracy".to_owned(), 0.9012)].into(),
            samples_per_second: Some(1234.5),
            wall_seconds: 200.0,
            setup_seconds: Some(2.0),
            world_size: Some(2),
            state_digests: vec![
                MemberDigest {
                    rank: 0,
                    slot: 0,
                    digest: "aa".into(),
                },
                MemberDigest {
                    rank: 1,
                    slot: 1,
                    digest: "aa".into(),
                },
            ],
            digests_agree: Some(true),
            generation: Generation(1),
            restarts: 0,
            recoveries: vec![],
            fallbacks: vec![],
            checkpoint: None,
            checkpoint_step: None,
            lost_steps: 0,
            go_on: None,
        }
    }

    #[test]
    fn people_read_the_state_the_metric_and_whether_the_ranks_agree() {
        let text = summary().for_people(Path::new("/out"));
        for part in [
            "job complete: 10 steps, 3 epochs, 3 min 20 s",
            "accuracy 0.9012",
            "equal on all 2 ranks",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn a_disagreement_cannot_be_overlooked() {
        let mut differing = summary();
        differing.digests_agree = Some(false);
        differing.state_digests[1].digest = "bb".into();
        assert!(
            differing
                .for_people(Path::new("/out"))
                .contains("DIFFERS: rank 0 aa, rank 1 bb")
        );
    }

    #[test]
    fn the_state_of_an_earlier_summary_is_read_back() {
        let bytes = serde_json::to_vec(&summary()).unwrap();
        let earlier: EarlierSummary = serde_json::from_slice(&bytes).unwrap();
        assert_eq!((earlier.state, earlier.steps), (State::Complete, 10));
    }
}
