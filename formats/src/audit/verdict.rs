//! What the audit found, for people and as JSON.

use crate::identity::{Generation, JobUid, Position};
use crate::lineage::Lineage;
use serde::Serialize;
use std::fmt;

/// So many violations and notes are kept; the rest is counted.
const KEPT: usize = 100;

/// Where in the records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// The record's name.
    pub file: String,
    /// Line number, from 1.
    pub line: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} line {}", self.file, self.line)
    }
}

/// The rule that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Rule {
    /// An index of a finished epoch was never used.
    SampleDropped,
    /// An index was used more than once in its epoch.
    SampleDoubled,
    /// An index that the data does not have.
    SampleUnknown,
    /// A part has other samples than the order puts there.
    WrongSamples,
    /// A step does not have exactly the global batch (or what is left of the epoch).
    WrongBatch,
    /// A part of the grid that nobody computed.
    PartMissing,
    /// A part of the grid that was computed twice.
    PartDoubled,
    /// A part that the grid does not have.
    PartUnknown,
    /// A step begins elsewhere in the data than the step before it ended.
    WrongCursor,
    /// A commit on the lineage that no record holds.
    CommitMissing,
    /// Members disagree about what a commit was.
    MembersDisagree,
    /// Generations, bases or positions that do not follow each other.
    LineageBroken,
    /// Members trained with different settings.
    SettingsDiffer,
    /// The run says that it is complete and is not.
    NotComplete,
}

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Which.
    pub rule: Rule,
    /// What was found and what should have been, in a sentence.
    pub sentence: String,
    /// Where, if a line shows it.
    pub place: Option<Place>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)?;
        match &self.place {
            Some(place) => write!(f, " ({place})"),
            None => Ok(()),
        }
    }
}

/// One generation, as the records show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GenerationVerdict {
    /// The generation.
    pub generation: Generation,
    /// Members that wrote a record.
    pub records: u64,
    /// Whether it is on the lineage.
    pub on_lineage: bool,
    /// Its first and last commit that count; None when none does.
    pub commits: Option<(u64, u64)>,
    /// First and last commit that it recorded and that a later generation's base made void.
    pub superseded: Option<(u64, u64)>,
    /// Last step that was computed and that no member recorded as committed.
    pub uncommitted: Option<u64>,
}

/// The audit's result.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    /// Whether no rule was broken.
    pub clean: bool,
    /// The job.
    pub job_uid: JobUid,
    /// The lineage that was judged by.
    pub lineage: Lineage,
    /// The last commit that counts.
    pub final_position: Position,
    /// Commits that count, skips included.
    pub commits: u64,
    /// Of these, steps that were applied.
    pub steps: u64,
    /// Of these, skips.
    pub skips: u64,
    /// Samples of one epoch.
    pub epoch_samples: u64,
    /// Epochs of which every index was used, each exactly once if the verdict is clean.
    pub whole_epochs: u64,
    /// The epoch that is not finished and how many of its indices were used.
    pub partial_epoch: Option<(u64, u64)>,
    /// All generations that left records, in order.
    pub generations: Vec<GenerationVerdict>,
    /// The broken rules: the first hundred.
    pub violations: Vec<Violation>,
    /// All broken rules, counted.
    pub violation_count: u64,
    /// What is worth knowing and breaks no rule: the first hundred.
    pub notes: Vec<String>,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.clean {
            writeln!(f, "clean: every rule holds up to {}", self.final_position)?;
        } else {
            writeln!(
                f,
                "broken: {} violations up to {}",
                self.violation_count, self.final_position
            )?;
        }
        writeln!(
            f,
            "  commits: {} ({} steps, {} skips), generations on the lineage: {}",
            self.commits,
            self.steps,
            self.skips,
            self.lineage.0.len()
        )?;
        if self.clean {
            writeln!(
                f,
                "  whole epochs: {}, each used every one of {} indices exactly once",
                self.whole_epochs, self.epoch_samples
            )?;
        }
        if let Some((epoch, used)) = self.partial_epoch {
            writeln!(
                f,
                "  epoch {epoch} has used {used} of {} indices so far",
                self.epoch_samples
            )?;
        }
        for g in &self.generations {
            if let Some((first, last)) = g.superseded {
                writeln!(
                    f,
                    "  generation {}: commits {first} to {last} were superseded and do not count",
                    g.generation
                )?;
            }
            if let Some(last) = g.uncommitted {
                writeln!(
                    f,
                    "  generation {}: steps up to commit {last} were computed and never committed",
                    g.generation
                )?;
            }
        }
        for note in &self.notes {
            writeln!(f, "  note: {note}")?;
        }
        for violation in &self.violations {
            writeln!(f, "  violation: {violation}")?;
        }
        let more = self.violation_count - self.violations.len() as u64;
        if more > 0 {
            writeln!(f, "  and {more} more")?;
        }
        Ok(())
    }
}

/// Violations and notes as they are found.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) violations: Vec<Violation>,
    pub(super) count: u64,
    pub(super) notes: Vec<String>,
}

impl Findings {
    pub(super) fn violation(&mut self, rule: Rule, place: Option<&Place>, sentence: String) {
        self.count += 1;
        if self.violations.len() < KEPT {
            self.violations.push(Violation {
                rule,
                sentence,
                place: place.cloned(),
            });
        }
    }

    pub(super) fn note(&mut self, text: String) {
        if self.notes.len() < KEPT {
            self.notes.push(text);
        }
    }
}
