//! The run as it is going on: follows the records, writes `metrics.jsonl` as steps are committed, and makes
//! the picture for the view.

use super::finish::{MetricLine, metric_line};
use super::history::{Fallback, History};
use super::prepare::Prepared;
use super::tail::RecordTail;
use super::view::Snapshot;
use anyhow::Context as _;
use gradsync_rendezvous::server::ServiceSnapshot;
use gradsync_rendezvous::wire::ExitStatus;
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use tokio::time::Instant;

/// Steps over which the speed is averaged.
const SPEED_WINDOW: usize = 20;

/// See the module.
pub struct Live {
    tail: RecordTail,
    history: History,
    metrics: File,
    metrics_path: PathBuf,
    workers: u32,
    started: Instant,
    commits_before: u64,
    first_commit: Option<f64>,
}

impl Live {
    /// Follows the records of `prepared`, whose launcher was started at `started`. Those of earlier starts
    /// are read first.
    ///
    /// # Errors
    /// When the records cannot be read or the metrics not be written.
    pub fn new(prepared: &Prepared, started: Instant) -> anyhow::Result<Live> {
        let metrics_path = prepared.output.join("metrics.jsonl");
        let metrics =
            File::create(&metrics_path).with_context(|| format!("write {}", metrics_path.display()))?;
        let mut live = Live {
            tail: RecordTail::new(&prepared.output.join("records")),
            history: History::default(),
            metrics,
            metrics_path,
            workers: prepared.workers,
            started,
            commits_before: 0,
            first_commit: None,
        };
        while live.read()? {}
        live.commits_before = live.history.lines();
        live.first_commit = None;
        Ok(live)
    }

    /// Takes in what the workers have written since; says whether there was anything.
    ///
    /// # Errors
    /// When the records cannot be read or the metrics not be written.
    pub fn read(&mut self) -> anyhow::Result<bool> {
        let history = &mut self.history;
        let read = self
            .tail
            .poll(|file, line| history.take(file, line))
            .context("read the run record");
        let mut bytes = vec![];
        for line in self.history.news() {
            bytes.extend(metric_line(&MetricLine::from(&line)));
        }
        if self.first_commit.is_none() && self.history.lines() > self.commits_before {
            self.first_commit = Some(self.started.elapsed().as_secs_f64());
        }
        self.metrics
            .write_all(&bytes)
            .with_context(|| format!("write {}", self.metrics_path.display()))?;
        read
    }

    /// The newest commit that counts.
    #[must_use]
    pub fn commit(&self) -> u64 {
        self.history.steps().next_back().map_or(0, |m| m.commit)
    }

    /// Generations that began before the newest checkpoint, in order.
    #[must_use]
    pub fn fallbacks(&self) -> Vec<Fallback> {
        self.history.fallbacks()
    }

    /// Folder of the newest checkpoint that counts.
    #[must_use]
    pub fn checkpoint(&self) -> Option<&str> {
        self.history.checkpoint().map(|(_, folder)| folder)
    }

    /// The history, and the seconds until the first commit of this start.
    #[must_use]
    pub fn into_history(self) -> (History, Option<f64>) {
        (self.history, self.first_commit)
    }

    /// The picture for the view. `ended` has for each slot without an agent how the last one ended.
    #[must_use]
    pub fn snapshot(&self, service: &ServiceSnapshot, ended: &[Option<&ExitStatus>]) -> Snapshot {
        let last = self.history.steps().next_back();
        let speed = self.history.samples_per_second(SPEED_WINDOW);
        let total = self.history.total_steps();
        let left = total
            .zip(last)
            .map(|(total, last)| total.saturating_sub(last.step));
        let step_seconds = self.history.seconds_per_step(SPEED_WINDOW);
        Snapshot {
            step: last.map_or(0, |m| m.step),
            total_steps: total,
            epoch: last.map_or(0, |m| {
                if m.progress.cursor == 0 {
                    m.epoch.max(1)
                } else {
                    m.epoch + 1
                }
            }),
            loss: last.and_then(|m| m.loss),
            samples_per_second: speed,
            eta_seconds: left
                .zip(step_seconds)
                .map(|(left, seconds)| left as f64 * seconds),
            phase: service.reason.clone(),
            workers: (0..self.workers)
                .map(|slot| worker_text(slot, service, ended.get(slot as usize).copied().flatten()))
                .collect(),
        }
    }
}

fn worker_text(slot: u32, service: &ServiceSnapshot, ended: Option<&ExitStatus>) -> String {
    if let Some(status) = ended {
        return status.to_string();
    }
    let ranks: Vec<String> = service
        .members
        .iter()
        .filter(|m| m.id.slot == slot)
        .map(|m| match (m.rank, m.live, m.activity.as_str()) {
            (_, false, _) => "no sign of life".to_owned(),
            (Some(rank), true, "") => format!("rank {rank}"),
            (Some(rank), true, activity) => format!("rank {rank} {activity}"),
            (None, true, "") => "waiting".to_owned(),
            (None, true, activity) => activity.to_owned(),
        })
        .collect();
    if ranks.is_empty() {
        "starting".to_owned()
    } else {
        ranks.join(", ")
    }
}
