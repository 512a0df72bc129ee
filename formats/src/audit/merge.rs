//! Brings the members' records of each generation together, commit by commit.

use super::header::{Run, generation_of};
use super::lines::{Event, Reader};
use super::step::Steps;
use super::verdict::{GenerationVerdict, Rule};
use super::{AuditError, Given};
use crate::identity::{Generation, Position};
use crate::record::RecordLine;
use std::collections::BTreeMap;

/// Walks all generations in order and hands each commit that counts to `steps`.
pub(super) fn walk(
    run: &Run,
    members: Vec<(RecordLine, Reader<'_, '_>)>,
    given: &Given,
    steps: &mut Steps<'_>,
) -> Result<Vec<GenerationVerdict>, AuditError> {
    let mut by_generation: BTreeMap<Generation, Vec<Reader<'_, '_>>> = BTreeMap::new();
    for entry in &run.lineage.0 {
        by_generation.entry(entry.generation).or_default();
    }
    for (opened, reader) in members {
        by_generation
            .entry(generation_of(&opened))
            .or_default()
            .push(reader);
    }
    let mut verdicts = vec![];
    for (generation, readers) in by_generation {
        let records = readers.len() as u64;
        let mut group = Group::new(generation, readers);
        let at = run.lineage.0.iter().position(|e| e.generation == generation);
        if let Some(at) = at {
            let base = run.lineage.0[at].base.commit;
            let later = run.lineage.0[at + 1..].iter().map(|e| e.base.commit).min();
            let end = later.or(given.final_position.map(|p| p.commit));
            group.counted(base, end, steps)?;
        }
        group.rest(end_is_open(at, run, given), steps)?;
        if records > 0 || group.commits.is_some() {
            verdicts.push(GenerationVerdict {
                generation,
                records,
                on_lineage: at.is_some(),
                commits: group.commits,
                superseded: group.superseded,
                uncommitted: group.uncommitted,
            });
        }
    }
    Ok(verdicts)
}

fn end_is_open(at: Option<usize>, run: &Run, given: &Given) -> bool {
    at.is_some_and(|at| at + 1 == run.lineage.0.len()) && given.final_position.is_none()
}

/// The members of one generation.
struct Group<'f, 'a> {
    generation: Generation,
    readers: Vec<Reader<'f, 'a>>,
    commits: Option<(u64, u64)>,
    superseded: Option<(u64, u64)>,
    uncommitted: Option<u64>,
}

impl<'f, 'a> Group<'f, 'a> {
    fn new(generation: Generation, readers: Vec<Reader<'f, 'a>>) -> Group<'f, 'a> {
        Group {
            generation,
            readers,
            commits: None,
            superseded: None,
            uncommitted: None,
        }
    }

    /// Judges the commits in (base, end]: a later generation began from `end`, or the run ended there.
    /// Without an end they count for as long as a member recorded them.
    fn counted(&mut self, base: u64, end: Option<u64>, steps: &mut Steps<'_>) -> Result<(), AuditError> {
        let mut commit = base;
        while end.is_none_or(|end| commit < end) {
            commit += 1;
            let next = self.next_commit()?;
            if next.is_none_or(|next| next > commit) {
                // Nobody wrote anything about this commit: one sentence for the whole gap.
                let before_next = next.map(|next| next - 1);
                let Some(last) = [before_next, end].into_iter().flatten().min() else {
                    return Ok(());
                };
                steps.missing(self.generation, commit, last);
                commit = last;
                continue;
            }
            let events = self.take(commit, base, steps)?;
            let committed = |e: &Event| matches!(e.line, RecordLine::Committed { .. });
            if end.is_none() && !events.iter().any(committed) {
                // The end of the run so far: computed, and cut off before it was committed.
                let computed = |e: &Event| matches!(e.line, RecordLine::Computed { .. });
                self.uncommitted = events.iter().any(computed).then_some(commit);
                return Ok(());
            }
            let position = Position {
                commit,
                generation: self.generation,
            };
            steps.commit(position, &events);
            let first = self.commits.map_or(commit, |(first, _)| first);
            self.commits = Some((first, commit));
        }
        Ok(())
    }

    /// The smallest commit that any reader comes to next.
    fn next_commit(&mut self) -> Result<Option<u64>, AuditError> {
        let mut smallest = None;
        for reader in &mut self.readers {
            if let Some(event) = reader.peek()? {
                let commit = event.position.commit;
                smallest = Some(smallest.map_or(commit, |s: u64| s.min(commit)));
            }
        }
        Ok(smallest)
    }

    /// All lines about `commit`. Lines that lie behind or belong to another generation are violations.
    fn take(&mut self, commit: u64, base: u64, steps: &mut Steps<'_>) -> Result<Vec<Event>, AuditError> {
        let mut events = vec![];
        for reader in &mut self.readers {
            while reader.peek()?.is_some_and(|e| e.position.commit <= commit) {
                let Some(event) = reader.next()? else { break };
                let behind = event.position.commit <= base;
                if behind && matches!(event.line, RecordLine::Agreed { .. }) {
                    // The state that the generation began from may be compared, too.
                    continue;
                }
                let problem = if event.position.generation != self.generation {
                    format!("is of generation {}", event.position.generation)
                } else if behind {
                    format!("lies before the generation's base, commit {base},")
                } else if event.position.commit < commit {
                    format!("follows commit {}", commit - 1)
                } else {
                    events.push(event);
                    continue;
                };
                steps.findings.violation(
                    Rule::LineageBroken,
                    Some(&event.place),
                    format!(
                        "a line about {} {problem} in a record of generation {}",
                        event.position, self.generation
                    ),
                );
            }
        }
        Ok(events)
    }

    /// Reads what does not count to its end. With an open end, a commit here has a gap before it.
    fn rest(&mut self, open_end: bool, steps: &mut Steps<'_>) -> Result<(), AuditError> {
        for reader in &mut self.readers {
            while let Some(event) = reader.next()? {
                let commit = event.position.commit;
                match event.line {
                    RecordLine::Committed { .. } if open_end => steps.findings.violation(
                        Rule::CommitMissing,
                        Some(&event.place),
                        format!(
                            "{} was recorded, and no member recorded a commit before it",
                            event.position
                        ),
                    ),
                    RecordLine::Computed { .. } if open_end => {
                        self.uncommitted = Some(self.uncommitted.unwrap_or(commit).max(commit));
                    }
                    RecordLine::Committed { .. } | RecordLine::Computed { .. } => {
                        let (first, last) = self.superseded.unwrap_or((commit, commit));
                        self.superseded = Some((first.min(commit), last.max(commit)));
                    }
                    _ => {}
                }
            }
            if reader.is_torn() {
                steps.findings.note(format!(
                    "{}: its last line is torn, its member was killed while writing",
                    reader.name()
                ));
            }
        }
        Ok(())
    }
}
