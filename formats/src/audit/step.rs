//! Judges one commit after the other: grid, order, batch, cursor, agreement, coverage of epochs.

use super::Given;
use super::coverage::{Coverage, Use};
use super::header::Run;
use super::lines::Event;
use super::verdict::{Findings, GenerationVerdict, Place, Rule, Verdict};
use crate::grid::{part_count, part_samples};
use crate::identity::{Generation, Position};
use crate::manifest::DataProgress;
use crate::order::Order;
use crate::record::{CommitKind, ComputedPart, RecordLine};
use crate::run_config::Length;
use std::collections::BTreeMap;

/// So many numbers of dropped indices or missing parts stand in a sentence.
const SHOWN: usize = 5;

/// The state of the audit between two commits.
pub(super) struct Steps<'a> {
    run: &'a Run,
    pub(super) findings: Findings,
    /// Where in the data the next step must begin, and the steps applied.
    at: DataProgress,
    order: (u64, Order),
    coverage: Coverage,
    last: Position,
    commits: u64,
    applied: u64,
    whole_epochs: u64,
}

impl<'a> Steps<'a> {
    pub(super) fn new(run: &'a Run, findings: Findings) -> Steps<'a> {
        let at = normalised(run.origin, run.epoch_samples);
        let order = Order::new(run.seed, at.epoch, run.epoch_samples);
        let mut coverage = Coverage::new(run.epoch_samples);
        let mut findings = findings;
        if at != DataProgress::default() {
            findings.note(format!(
                "the job began from another job's checkpoint, at sample {} of epoch {}: what came before is that job's",
                at.cursor, at.epoch
            ));
            for index in order.indices(0..at.cursor) {
                coverage.mark(index);
            }
        }
        Steps {
            run,
            findings,
            at,
            order: (at.epoch, order),
            coverage,
            last: run.lineage.0.first().map_or(Position::INITIAL, |e| e.base),
            commits: 0,
            applied: 0,
            whole_epochs: 0,
        }
    }

    /// Commits that count and that nobody wrote about.
    pub(super) fn missing(&mut self, generation: Generation, first: u64, last: u64) {
        self.findings.violation(
            Rule::CommitMissing,
            None,
            format!("commits {first} to {last} of generation {generation} count, and no record has a line about them"),
        );
    }

    /// Judges the commit at `position`, about which members wrote `events`.
    pub(super) fn commit(&mut self, position: Position, events: &[Event]) {
        self.commits += 1;
        self.last = position;
        self.check_digests(position, events);
        let kind = self.check_agreement(position, events);
        let kind = kind.unwrap_or_else(|| {
            self.findings.violation(
                Rule::CommitMissing,
                events.first().map(|e| &e.place),
                format!("{position} counts, and no member recorded that it committed"),
            );
            CommitKind::Apply
        });
        let mut expected = self.at;
        if kind == CommitKind::Apply {
            self.applied += 1;
            let samples = self.check_samples(position, events);
            expected = DataProgress {
                step: self.at.step + 1,
                cursor: self.at.cursor.saturating_add(samples),
                ..self.at
            };
        }
        self.go_on(position, events, normalised(expected, self.run.epoch_samples));
    }

    /// All members recorded the same kind, progress and chain value. The kind, if one did.
    fn check_agreement(&mut self, position: Position, events: &[Event]) -> Option<CommitKind> {
        let mut first = None;
        for event in events {
            let RecordLine::Committed {
                kind,
                progress,
                chain,
                ..
            } = &event.line
            else {
                continue;
            };
            let Some((first_kind, first_progress, first_chain, place)) = first else {
                first = Some((kind, progress, chain, &event.place));
                continue;
            };
            let mut differ = |what: &str, here: String, there: String| {
                self.findings.violation(
                    Rule::MembersDisagree,
                    Some(&event.place),
                    format!("the {what} of {position} is {here}, and {there} in {place}"),
                );
            };
            if chain != first_chain {
                differ("chain value", chain.clone(), first_chain.clone());
            }
            if kind != first_kind {
                differ("kind", format!("{kind:?}"), format!("{first_kind:?}"));
            }
            if progress != first_progress {
                differ("progress", format!("{progress:?}"), format!("{first_progress:?}"));
            }
        }
        first.map(|(kind, ..)| *kind)
    }

    fn check_digests(&mut self, position: Position, events: &[Event]) {
        let mut digests = events.iter().filter_map(|e| match &e.line {
            RecordLine::Agreed { digest, .. } => Some((digest, &e.place)),
            _ => None,
        });
        let Some((first, first_place)) = digests.next() else {
            return;
        };
        for (digest, place) in digests.filter(|(d, _)| *d != first) {
            self.findings.violation(
                Rule::MembersDisagree,
                Some(place),
                format!("the state at {position} has digest {digest}, and {first} in {first_place}"),
            );
        }
    }

    /// The samples of an applied step: its place in the data, its grid, its indices. The step's true size.
    fn check_samples(&mut self, position: Position, events: &[Event]) -> u64 {
        let computed = events.iter().filter_map(|e| match &e.line {
            RecordLine::Computed {
                epoch,
                cursor,
                samples,
                parts,
                ..
            } => Some((&e.place, *epoch, *cursor, *samples, parts)),
            _ => None,
        });
        let computed: Vec<_> = computed.collect();
        if let Some((place, epoch, cursor, ..)) = computed.first()
            && (*epoch, *cursor) != (self.at.epoch, self.at.cursor)
        {
            self.findings.violation(
                Rule::WrongCursor,
                Some(place),
                format!(
                    "{position} begins at sample {cursor} of epoch {epoch}, the step before it ended at sample {} of epoch {}",
                    self.at.cursor, self.at.epoch
                ),
            );
            // What follows is judged from where training really was: one sentence for one mistake.
            self.move_to(*epoch, *cursor);
        }
        let left = self.run.epoch_samples.saturating_sub(self.at.cursor);
        let size = self.run.global_batch_size.min(left);
        let grid = part_count(size, self.run.micro_batch_size);
        let mut parts: BTreeMap<u64, &Place> = BTreeMap::new();
        let mut used = 0;
        for (place, epoch, cursor, samples, given) in computed {
            if (epoch, cursor, samples) != (self.at.epoch, self.at.cursor, size) {
                self.findings.violation(
                    Rule::WrongBatch,
                    Some(place),
                    format!(
                        "{position} is {samples} samples from sample {cursor} of epoch {epoch} here, and should be {size} from sample {} of epoch {}",
                        self.at.cursor, self.at.epoch
                    ),
                );
            }
            for part in given {
                used += part.indices.len() as u64;
                if let Some(other) = parts.insert(part.part, place) {
                    self.findings.violation(
                        Rule::PartDoubled,
                        Some(place),
                        format!(
                            "part {} of {position} was computed twice, also in {other}",
                            part.part
                        ),
                    );
                }
                self.check_part(position, place, part, size, grid);
            }
        }
        if (parts.range(..grid).count() as u64) < grid {
            let missing: Vec<String> = (0..grid)
                .filter(|j| !parts.contains_key(j))
                .take(SHOWN)
                .map(|j| j.to_string())
                .collect();
            self.findings.violation(
                Rule::PartMissing,
                None,
                format!(
                    "{} of the {grid} parts of {position} were computed by nobody: {}",
                    grid - parts.range(..grid).count() as u64,
                    missing.join(", ")
                ),
            );
        }
        if used != size {
            self.findings.violation(
                Rule::WrongBatch,
                None,
                format!("{position} used {used} samples instead of {size}"),
            );
        }
        size
    }

    /// One part has exactly the samples that the order puts there; its indices are counted.
    fn check_part(&mut self, position: Position, place: &Place, part: &ComputedPart, size: u64, grid: u64) {
        let number = part.part;
        if number >= grid {
            self.findings.violation(
                Rule::PartUnknown,
                Some(place),
                format!("{position} has {grid} parts, and part {number} was computed"),
            );
        } else {
            let range = part_samples(size, grid, number);
            let start = self.at.cursor + range.start;
            let expected = range.end - range.start;
            let mut order = self.order.1.indices(start..self.at.cursor + range.end);
            let differs = part.indices.iter().enumerate().find_map(|(i, index)| {
                let wanted = order.next()?;
                (wanted != *index).then_some((i, *index, wanted))
            });
            if part.indices.len() as u64 != expected {
                self.findings.violation(
                    Rule::WrongSamples,
                    Some(place),
                    format!(
                        "part {number} of {position} has {} samples, the grid gives it {expected}",
                        part.indices.len()
                    ),
                );
            }
            if let Some((i, index, wanted)) = differs {
                self.findings.violation(
                    Rule::WrongSamples,
                    Some(place),
                    format!(
                        "part {number} of {position} used index {index} as its sample {i}, the order of epoch {} has {wanted} there",
                        self.at.epoch
                    ),
                );
            }
        }
        for index in &part.indices {
            let (rule, problem) = match self.coverage.mark(*index) {
                Use::First => continue,
                Use::Again => (Rule::SampleDoubled, "was used again in"),
                Use::OutOfRange => (Rule::SampleUnknown, "is none of the data, and was used in"),
            };
            self.findings.violation(
                rule,
                Some(place),
                format!(
                    "index {index} {problem} epoch {} by part {number} of {position}",
                    self.at.epoch
                ),
            );
        }
    }

    /// Takes over where training stands after a commit, which must be `expected`.
    fn go_on(&mut self, position: Position, events: &[Event], expected: DataProgress) {
        let recorded = events.iter().find_map(|e| match &e.line {
            RecordLine::Committed { progress, .. } => {
                Some((normalised(*progress, self.run.epoch_samples), &e.place))
            }
            _ => None,
        });
        let mut now = expected;
        if let Some((progress, place)) = recorded
            && progress != expected
        {
            self.findings.violation(
                Rule::WrongCursor,
                Some(place),
                format!("after {position} training stands at {progress:?}, and should at {expected:?}"),
            );
            now = progress;
        }
        self.move_to(now.epoch, now.cursor);
        self.at = now;
    }

    /// Goes to sample `cursor` of `epoch`, closing the epochs that end before.
    fn move_to(&mut self, epoch: u64, cursor: u64) {
        if epoch > self.at.epoch {
            self.close_epoch();
            if epoch > self.at.epoch + 1 {
                self.findings.violation(
                    Rule::SampleDropped,
                    None,
                    format!("training went from epoch {} to epoch {epoch}", self.at.epoch),
                );
            }
        }
        if epoch != self.at.epoch {
            // Going back is a violation that was told; the earlier epoch is then counted anew.
            self.coverage = Coverage::new(self.run.epoch_samples);
            self.order = (epoch, Order::new(self.run.seed, epoch, self.run.epoch_samples));
        }
        self.at.epoch = epoch;
        self.at.cursor = cursor;
    }

    fn close_epoch(&mut self) {
        let dropped = self.coverage.samples() - self.coverage.used();
        if dropped == 0 {
            self.whole_epochs += 1;
            return;
        }
        let first: Vec<String> = self.coverage.unused(SHOWN).iter().map(u64::to_string).collect();
        self.findings.violation(
            Rule::SampleDropped,
            None,
            format!(
                "epoch {} ended without {dropped} of its {} indices: {}{}",
                self.at.epoch,
                self.coverage.samples(),
                first.join(", "),
                if dropped > SHOWN as u64 { ", ..." } else { "" }
            ),
        );
    }

    /// The verdict, once all commits were judged.
    pub(super) fn conclude(
        mut self,
        run: &Run,
        given: &Given,
        generations: Vec<GenerationVerdict>,
    ) -> Verdict {
        let at = self.at;
        if let Some(steps) = given.steps.filter(|steps| *steps != at.step) {
            self.findings.violation(
                Rule::NotComplete,
                None,
                format!(
                    "the run says that it applied {steps} steps, its record has {}",
                    at.step
                ),
            );
        }
        let (reached, wanted) = match run.length {
            Length::Steps(steps) => (at.step == steps, format!("{steps} steps")),
            Length::Epochs(epochs) => ((at.epoch, at.cursor) == (epochs, 0), format!("{epochs} epochs")),
        };
        if given.complete && !reached {
            self.findings.violation(
                Rule::NotComplete,
                None,
                format!(
                    "the run says that it is complete after {wanted}, its record ends after {} steps at sample {} of epoch {}",
                    at.step, at.cursor, at.epoch
                ),
            );
        }
        let findings = self.findings;
        Verdict {
            clean: findings.count == 0,
            job_uid: run.job.clone(),
            lineage: run.lineage.clone(),
            final_position: self.last,
            commits: self.commits,
            steps: self.applied,
            skips: self.commits - self.applied,
            epoch_samples: run.epoch_samples,
            whole_epochs: self.whole_epochs,
            partial_epoch: (at.cursor > 0).then_some((at.epoch, self.coverage.used())),
            generations,
            violations: findings.violations,
            violation_count: findings.count,
            notes: findings.notes,
        }
    }
}

/// The end of one epoch is the beginning of the next, however it was written.
fn normalised(progress: DataProgress, epoch_samples: u64) -> DataProgress {
    if epoch_samples > 0 && progress.cursor >= epoch_samples {
        DataProgress {
            epoch: progress.epoch + 1,
            cursor: 0,
            ..progress
        }
    } else {
        progress
    }
}
