//! What a run leaves when it ends: `metrics.jsonl` without superseded steps, the loss curve, `summary.json`.

use super::chart::{self, Panel, Series};
use super::history::{EvaluationMetric, History, MemberDigest, Metric, StepMetric};
use super::output::{OutputDirectory, OutputError};
use super::summary::{SUMMARY_VERSION, State, Summary};
use gradsync_formats::identity::JobUid;
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
        recoveries: history.recoveries().cloned().collect(),
        checkpoint: history.checkpoint().and_then(|(_, folder)| {
            let directory = ended.checkpoints.as_ref()?;
            Some(
                find_checkpoint(directory, &ended.job_uid, folder)
                    .display()
                    .to_string(),
            )
        }),
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

/// Writes metrics, chart and summary.
///
/// # Errors
/// When one of them cannot be written.
pub fn write(output: &OutputDirectory, summary: &Summary, history: &History) -> Result<(), OutputError> {
    output.write("metrics.jsonl", &metrics(history))?;
    let chart = chart::render(
        &format!("{}: {} steps", summary.name, summary.steps),
        &panels(history),
    );
    output.write("loss.svg", chart.as_bytes())?;
    // Last, since its presence says that all is there.
    output.write(
        "summary.json",
        &serde_json::to_vec_pretty(summary).unwrap_or_default(),
    )
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
