//! What has happened so far, gathered from the members' run records: the source of the progress view,
//! `metrics.jsonl`, the loss curve and the summary. Pure: record lines in, facts out.

use gradsync_formats::identity::{Generation, MemberId, Position};
use gradsync_formats::lineage::Lineage;
use gradsync_formats::manifest::DataProgress;
use gradsync_formats::record::{CommitKind, RecordLine};
use gradsync_formats::run_config::Length;
use serde::Serialize;
use std::collections::BTreeMap;

mod ways_back;

pub use ways_back::{Fallback, Recovery, with_service};

/// One committed step, as rank 0 saw it: a line of `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StepMetric {
    /// Optimiser steps applied, this one included.
    pub step: u64,
    /// Commits so far, skips included.
    pub commit: u64,
    /// The generation that committed it.
    pub generation: Generation,
    /// Epoch after the step, from 0.
    pub epoch: u64,
    /// Mean loss over the step's samples; null when it is not finite.
    pub loss: Option<f64>,
    /// Samples of the step over all members.
    pub samples: u64,
    /// Seconds that the step took.
    pub seconds: f64,
    /// Of these, in forward and backward.
    pub compute_seconds: f64,
    /// Of these, waiting for communication after backward.
    pub wait_seconds: f64,
    /// Whether the optimiser stepped.
    pub kind: CommitKind,
    /// Where in the data training stands after it.
    #[serde(skip)]
    pub progress: DataProgress,
}

/// One evaluation: a line of `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EvaluationMetric {
    /// Optimiser steps applied.
    pub step: u64,
    /// The evaluated state's commit.
    pub commit: u64,
    /// Its generation.
    pub generation: Generation,
    /// Mean loss over the evaluation data; null when it is not finite.
    pub loss: Option<f64>,
    /// The task's metrics, such as accuracy.
    pub metrics: BTreeMap<String, f64>,
}

/// Digest of the whole replicated state on one member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberDigest {
    /// The member's rank.
    pub rank: u32,
    /// Its slot.
    pub slot: u32,
    /// The digest, hex.
    pub digest: String,
}

#[derive(Clone, Debug)]
struct Writer {
    generation: Generation,
    rank: u32,
    member: MemberId,
    samples: BTreeMap<u64, u64>,
}

/// Everything that the records have said.
#[derive(Clone, Debug, Default)]
pub struct History {
    lineage: Lineage,
    /// The lineage up to and with each generation that wrote a record.
    lineages: BTreeMap<Generation, Lineage>,
    writers: BTreeMap<String, Writer>,
    steps: BTreeMap<(u64, Generation), StepMetric>,
    evaluations: BTreeMap<(u64, Generation), EvaluationMetric>,
    agreed: BTreeMap<(u64, Generation, u32), MemberDigest>,
    checkpoints: BTreeMap<(u64, Generation), String>,
    recoveries: BTreeMap<Generation, Recovery>,
    world_sizes: BTreeMap<Generation, u32>,
    epoch_samples: Option<u64>,
    global_batch_size: Option<u64>,
    length: Option<Length>,
    lines: u64,
    news: Vec<Metric>,
}

/// Something measured.
#[derive(Clone, Debug, PartialEq)]
pub enum Metric {
    /// A committed step.
    Step(StepMetric),
    /// An evaluation.
    Evaluation(EvaluationMetric),
}

impl History {
    /// How many steps and evaluations were taken in, superseded ones included.
    #[must_use]
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// The steps and evaluations that were taken in since the last call.
    pub fn news(&mut self) -> Vec<Metric> {
        std::mem::take(&mut self.news)
    }

    /// Takes one line of the record file `file`. Lines of a file whose first line is missing are of no
    /// use and ignored.
    pub fn take(&mut self, file: &str, line: RecordLine) {
        if let RecordLine::Opened { .. } = line {
            self.open(file, line);
            return;
        }
        let Some(writer) = self.writers.get_mut(file) else {
            return;
        };
        match line {
            RecordLine::Opened { .. } => {}
            RecordLine::Computed {
                position, samples, ..
            } => {
                // Only the step that is being computed now is of interest.
                writer.samples.clear();
                writer.samples.insert(position.commit, samples);
            }
            RecordLine::Committed {
                position,
                kind,
                progress,
                loss,
                seconds,
                compute_seconds,
                wait_seconds,
                ..
            } => {
                let samples = writer.samples.remove(&position.commit).unwrap_or(0);
                if writer.rank == 0 {
                    let metric = StepMetric {
                        step: progress.step,
                        commit: position.commit,
                        generation: position.generation,
                        epoch: progress.epoch,
                        loss: finite(&loss),
                        samples,
                        seconds,
                        compute_seconds,
                        wait_seconds,
                        kind,
                        progress,
                    };
                    self.note(Metric::Step(metric.clone()));
                    self.steps.insert(key(position), metric);
                }
            }
            RecordLine::Evaluated {
                position,
                step,
                loss,
                metrics,
            } => {
                let metric = EvaluationMetric {
                    step,
                    commit: position.commit,
                    generation: position.generation,
                    loss: finite(&loss),
                    metrics,
                };
                self.note(Metric::Evaluation(metric.clone()));
                self.evaluations.insert(key(position), metric);
            }
            RecordLine::Agreed { position, digest } => {
                let member = MemberDigest {
                    rank: writer.rank,
                    slot: writer.member.slot,
                    digest,
                };
                self.agreed
                    .insert((position.commit, position.generation, writer.rank), member);
            }
            RecordLine::Checkpointed { position, path, .. } => {
                self.checkpoints.insert(key(position), path);
            }
            RecordLine::Recovered {
                generation,
                reason,
                detect_ms,
                form_ms,
                state_ms,
                first_step_ms,
            } => {
                let recovery = Recovery {
                    generation,
                    reason: Some(reason),
                    detect_ms: Some(detect_ms),
                    form_ms: Some(form_ms),
                    state_ms: Some(state_ms),
                    first_step_ms: Some(first_step_ms),
                };
                self.recoveries.entry(generation).or_default().take(recovery);
            }
        }
    }

    fn note(&mut self, metric: Metric) {
        self.lines += 1;
        self.news.push(metric);
    }

    fn open(&mut self, file: &str, line: RecordLine) {
        let RecordLine::Opened {
            generation,
            member,
            rank,
            world_size,
            lineage,
            epoch_samples,
            global_batch_size,
            length,
            ..
        } = line
        else {
            return;
        };
        self.lineages.entry(generation).or_insert_with(|| lineage.clone());
        if lineage.newest() >= self.lineage.newest() {
            self.lineage = lineage;
            self.epoch_samples = Some(epoch_samples);
            self.global_batch_size = Some(global_batch_size);
            self.length = Some(length);
        }
        self.world_sizes.insert(generation, world_size);
        self.writers.insert(
            file.to_owned(),
            Writer {
                generation,
                rank,
                member,
                samples: BTreeMap::new(),
            },
        );
    }

    /// The newest lineage that a member has written down.
    #[must_use]
    pub fn lineage(&self) -> &Lineage {
        &self.lineage
    }

    /// The committed steps that count, in order.
    pub fn steps(&self) -> impl DoubleEndedIterator<Item = &StepMetric> {
        self.steps
            .iter()
            .filter(|((commit, generation), _)| self.counts(*commit, *generation))
            .map(|(_, metric)| metric)
    }

    /// The evaluations that count, in order.
    pub fn evaluations(&self) -> impl DoubleEndedIterator<Item = &EvaluationMetric> {
        self.evaluations
            .iter()
            .filter(|((commit, generation), _)| self.counts(*commit, *generation))
            .map(|(_, metric)| metric)
    }

    /// The newest checkpoint that counts: its commit and folder.
    #[must_use]
    pub fn checkpoint(&self) -> Option<(u64, &str)> {
        self.checkpoints
            .iter()
            .rev()
            .find(|((commit, generation), _)| self.counts(*commit, *generation))
            .map(|((commit, _), path)| (*commit, path.as_str()))
    }

    /// The digests of the state at the newest compared position that counts, by rank.
    #[must_use]
    pub fn digests(&self) -> Vec<MemberDigest> {
        let newest = self
            .agreed
            .keys()
            .rev()
            .find(|(commit, generation, _)| self.counts(*commit, *generation));
        let Some((commit, generation, _)) = newest else {
            return vec![];
        };
        self.agreed
            .range((*commit, *generation, 0)..=(*commit, *generation, u32::MAX))
            .map(|(_, digest)| digest.clone())
            .collect()
    }

    /// Ranks of the newest generation.
    #[must_use]
    pub fn world_size(&self) -> Option<u32> {
        self.world_sizes.last_key_value().map(|(_, size)| *size)
    }

    /// Newest generation that wrote a record.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.writers
            .values()
            .map(|w| w.generation)
            .max()
            .unwrap_or(Generation::NONE)
    }

    /// Optimiser steps of the whole run, once the length of an epoch is known.
    #[must_use]
    pub fn total_steps(&self) -> Option<u64> {
        match self.length? {
            Length::Steps(steps) => Some(steps),
            Length::Epochs(epochs) => {
                Some(epochs * self.epoch_samples?.div_ceil(self.global_batch_size?.max(1)))
            }
        }
    }

    /// Passes over the data after `step`, the last one possibly not whole.
    #[must_use]
    pub fn epochs_at(&self, step: &StepMetric) -> f64 {
        let part = match self.epoch_samples {
            Some(samples) if samples > 0 => step.progress.cursor as f64 / samples as f64,
            _ => 0.0,
        };
        step.progress.epoch as f64 + part
    }

    /// Samples per second over the newest `window` steps of the newest generation.
    #[must_use]
    pub fn samples_per_second(&self, window: usize) -> Option<f64> {
        let (_, samples, seconds) = self.lately(window);
        (seconds > 0.0).then(|| samples as f64 / seconds)
    }

    /// Seconds per step over the newest `window` steps of the newest generation.
    #[must_use]
    pub fn seconds_per_step(&self, window: usize) -> Option<f64> {
        let (steps, _, seconds) = self.lately(window);
        (steps > 0).then(|| seconds / f64::from(steps))
    }

    /// Steps, samples and seconds of the newest `window` steps of the newest generation.
    fn lately(&self, window: usize) -> (u32, u64, f64) {
        let newest = self.steps().next_back().map(|m| m.generation);
        self.steps()
            .rev()
            .take_while(|m| Some(m.generation) == newest)
            .take(window)
            .fold((0, 0, 0.0), |(k, n, s), m| (k + 1, n + m.samples, s + m.seconds))
    }

    fn counts(&self, commit: u64, generation: Generation) -> bool {
        self.lineage.contains(Position { commit, generation })
    }
}

fn key(position: Position) -> (u64, Generation) {
    (position.commit, position.generation)
}

fn finite(text: &str) -> Option<f64> {
    text.parse().ok().filter(|v: &f64| v.is_finite())
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(super) use tests::history as three_steps;
