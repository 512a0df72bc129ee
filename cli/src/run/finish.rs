//! What a run leaves when it ends: `metrics.jsonl` without superseded steps, the loss curve, `summary.json`.

use super::chart::{self, Panel, Series};
use super::history::{EvaluationMetric, Fallback, History, MemberDigest, Metric, Recovery, StepMetric};
use super::kept::{self, Kept};
use super::output::{OutputDirectory, OutputError};
use super::summary::{SUMMARY_VERSION, State, Summary};
use gradsync_formats::identity::JobUid;
use gradsync_formats::lineage::Lineage;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A line of `metrics.jsonl`.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum MetricLine<'a> {
    /// A committed step.
    Step(&'a StepMetric),
    /// An evaluation.
    Evaluation(&'a EvaluationMetric),
}

impl<'a> From<&'a Metric> for MetricLine<'a> {
    fn from(metric: &'a Metric) -> MetricLine<'a> {
        match metric {
            Metric::Step(step) => MetricLine::Step(step),
            Metric::Evaluation(evaluation) => MetricLine::Evaluation(evaluation),
        }
    }
}

/// How a run ended, as far as the records do not tell.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The manifest's name.
    pub name: String,
    /// The job.
    pub job_uid: JobUid,
    /// How.
    pub state: State,
    /// By which error.
    pub error: Option<String>,
    /// Seconds of this start.
    pub wall_seconds: f64,
    /// Of these, until its first commit.
    pub setup_seconds: Option<f64>,
    /// Charged restarts.
    pub restarts: u32,
    /// What the ranks reported at the end; empty unless complete.
    pub digests: Vec<MemberDigest>,
    /// The way into each generation but the first.
    pub recoveries: Vec<Recovery>,
    /// Returns beyond the newest checkpoint.
    pub fallbacks: Vec<Fallback>,
    /// The checkpoint directory on this machine.
    pub checkpoints: Option<PathBuf>,
}

/// The summary. Pure but for looking where the checkpoint lies.
#[must_use]
pub fn summarise(ended: &Ended, history: &History) -> Summary {
    let last = history.steps().next_back();
    let evaluation = history.evaluations().next_back();
    let digests = if ended.digests.is_empty() {
        history.digests()
    } else {
        ended.digests.clone()
    };
    let different: BTreeSet<&str> = digests.iter().map(|d| d.digest.as_str()).collect();
    let (samples, seconds) = history
        .steps()
        .fold((0, 0.0), |(n, s), m| (n + m.samples, s + m.seconds));
    Summary {
        version: SUMMARY_VERSION,
        name: ended.name.clone(),
        job_uid: ended.job_uid.clone(),
        state: ended.state,
        error: ended.error.clone(),
        steps: last.map_or(0, |m| m.step),
        total_steps: history.total_steps(),
        epochs: last.map_or(0.0, |m| history.epochs_at(m)),
        final_loss: last.and_then(|m| m.loss),
        evaluation_loss: evaluation.and_then(|m| m.loss),
        metrics: evaluation.map(|m| m.metrics.clone()).unwrap_or_default(),
        samples_per_second: (seconds > 0.0).then(|| samples as f64 / seconds),
        wall_seconds: ended.wall_seconds,
        setup_seconds: ended.setup_seconds,
        world_size: history.world_size(),
        digests_agree: (!different.is_empty()).then_some(different.len() == 1),
        state_digests: digests,
        generation: history.generation(),
        restarts: ended.restarts,
        recoveries: ended.recoveries.clone(),
        fallbacks: ended.fallbacks.clone(),
        checkpoint: history.checkpoint().and_then(|(_, folder)| {
            let directory = ended.checkpoints.as_ref()?;
            Some(
                find_checkpoint(directory, &ended.job_uid, folder)
                    .display()
                    .to_string(),
            )
        }),
        checkpoint_step: None,
        lost_steps: 0,
        go_on: None,
    }
}

/// Adds what a run that did not complete can go on from, as it lies on the disk: the records say only what
/// was written once. `lineage` is the one that a resume goes on with; what is not on it is lost. `command` makes
/// the command that begins a new run from a checkpoint.
pub fn add_kept(
    summary: &mut Summary,
    ended: &Ended,
    history: &History,
    lineage: &Lineage,
    command: impl FnOnce(&Kept) -> Option<String>,
) {
    if ended.state == State::Complete {
        return;
    }
    let kept = ended
        .checkpoints
        .as_ref()
        .and_then(|directory| kept::newest(directory, &ended.job_uid, lineage));
    summary.checkpoint = kept.as_ref().map(|kept| kept.folder.display().to_string());
    summary.checkpoint_step = kept.as_ref().map(|kept| kept.step);
    summary.lost_steps = kept::lost_steps(history, kept.as_ref());
    // Without checkpoints nothing else was to be expected.
    if ended.state == State::Stopped && ended.checkpoints.is_some() {
        let loss = kept::loss_text(summary.checkpoint_step, summary.lost_steps);
        summary.error = match (summary.error.take(), loss) {
            (Some(error), Some(loss)) => Some(format!("{error}; {loss}")),
            (error, loss) => error.or(loss),
        };
    }
    // A run that failed before its first step may be mended in place.
    if ended.state == State::Failed && summary.steps > 0 {
        summary.go_on = kept.as_ref().and_then(command);
    }
}

fn find_checkpoint(directory: &Path, job: &JobUid, folder: &str) -> PathBuf {
    let below_job = directory.join(&job.0).join(folder);
    if below_job.exists() {
        below_job
    } else {
        directory.join(folder)
    }
}

/// Writes metrics, chart and summary. The summary is written even where the others cannot be, being the
/// smallest and the one that counts.
///
/// # Errors
/// The first of those that cannot be written.
pub fn write(output: &OutputDirectory, summary: &Summary, history: &History) -> Result<(), OutputError> {
    let metrics = output.write("metrics.jsonl", &metrics(history));
    let chart = chart::render(
        &format!("{}: {} steps", summary.name, summary.steps),
        &panels(history),
    );
    let chart = output.write("loss.svg", chart.as_bytes());
    // Last, so that whoever waits for it finds the others as they stay.
    let summary = output.write(
        "summary.json",
        &serde_json::to_vec_pretty(summary).unwrap_or_default(),
    );
    metrics.and(chart).and(summary)
}

/// One line of `metrics.jsonl`, with its end.
#[must_use]
pub fn metric_line(line: &MetricLine<'_>) -> Vec<u8> {
    // Text keys and finite numbers only: there is nothing that could not be written.
    let mut bytes = serde_json::to_vec(line).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

fn metrics(history: &History) -> Vec<u8> {
    let mut evaluations: BTreeMap<u64, Vec<&EvaluationMetric>> = BTreeMap::new();
    for evaluation in history.evaluations() {
        evaluations.entry(evaluation.commit).or_default().push(evaluation);
    }
    let mut bytes = vec![];
    for step in history.steps() {
        bytes.extend(metric_line(&MetricLine::Step(step)));
        for evaluation in evaluations.remove(&step.commit).unwrap_or_default() {
            bytes.extend(metric_line(&MetricLine::Evaluation(evaluation)));
        }
    }
    bytes
}

fn panels(history: &History) -> Vec<Panel> {
    let series = |name: &str, points: Vec<(f64, f64)>, marked| Series {
        name: name.to_owned(),
        points,
        marked,
    };
    let training = history
        .steps()
        .filter_map(|m| Some((m.step as f64, m.loss?)))
        .collect();
    let evaluated = history
        .evaluations()
        .filter_map(|m| Some((m.step as f64, m.loss?)))
        .collect();
    let mut metrics: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for evaluation in history.evaluations() {
        for (name, value) in &evaluation.metrics {
            metrics
                .entry(name)
                .or_default()
                .push((evaluation.step as f64, *value));
        }
    }
    let mut panels = vec![Panel {
        label: "loss".into(),
        series: vec![
            series("training", training, false),
            series("evaluation", evaluated, true),
        ],
    }];
    for (name, points) in metrics {
        panels.push(Panel {
            label: name.to_owned(),
            series: vec![series(name, points, true)],
        });
    }
    panels
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(state: State, error: Option<&str>, checkpoints: Option<&Path>) -> Ended {
        Ended {
            name: "job".into(),
            job_uid: JobUid("u".into()),
            state,
            error: error.map(str::to_owned),
            wall_seconds: 1.0,
            setup_seconds: None,
            restarts: 0,
            digests: vec![],
            recoveries: vec![],
            fallbacks: vec![],
            checkpoints: checkpoints.map(Path::to_owned),
        }
    }

    #[test]
    fn a_stop_without_a_checkpoint_of_the_last_step_says_what_is_lost() {
        let place = tempfile::tempdir().unwrap();
        let history = super::super::history::three_steps();
        let told = |error, checkpoints| {
            let ended = ended(State::Stopped, error, checkpoints);
            let mut summary = summarise(&ended, &history);
            add_kept(&mut summary, &ended, &history, history.lineage(), |_| None);
            (summary.error, summary.lost_steps)
        };
        let loss = "there is no checkpoint: 3 committed steps are lost on resume";
        assert_eq!(told(None, Some(place.path())), (Some(loss.into()), 3));
        assert_eq!(
            told(Some("killed"), Some(place.path())),
            (Some(format!("killed; {loss}")), 3)
        );
        assert_eq!(told(None, None), (None, 3), "the manifest asks for none");
    }
}
