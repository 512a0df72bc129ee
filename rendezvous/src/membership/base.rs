//! Which state a new generation starts from.

use super::state::{Formed, Member};
use crate::wire::{Base, BaseSource, SeenCheckpoint};
use gradsync_formats::identity::{Generation, Position};
use gradsync_formats::lineage::Lineage;
use gradsync_formats::run_config::ResumePolicy;
use std::collections::BTreeMap;

/// The base of a new generation, what the first one started from, the lineage before it, and the folder of the
/// newest usable checkpoint on it.
pub(super) struct Chosen {
    pub(super) base: Base,
    pub(super) root: Base,
    pub(super) lineage: Lineage,
    pub(super) checkpoint: Option<Base>,
}

/// The furthest state on the lineage that all of `planned` can have: the memory that every one of them
/// holds, a whole checkpoint that one of them sees, or what the first generation started from. Memory wins
/// a tie, because it costs nothing.
pub(super) fn choose(
    formed: Option<&Formed>,
    planned: &[&Member],
    resume: ResumePolicy,
    damaged: &BTreeMap<String, String>,
) -> Chosen {
    let checkpoints = || {
        planned
            .iter()
            .flat_map(|m| &m.report.checkpoints)
            .filter(|c| !damaged.contains_key(&c.path))
    };
    let Some(formed) = formed else {
        return first(planned, resume, checkpoints());
    };
    let on_lineage = |p: Position| p == formed.root.position || formed.lineage.contains(p);
    let mut best = formed.root.clone();
    let furthest = checkpoints()
        .filter(|c| on_lineage(c.position))
        .max_by(|a, b| (a.position, &b.path).cmp(&(b.position, &a.path)));
    if let Some(checkpoint) = furthest
        && checkpoint.position.commit > best.position.commit
    {
        best = from_checkpoint(checkpoint);
    }
    if let Some(memory) = common_memory(planned)
        && on_lineage(memory.position)
        && memory.position.commit >= best.position.commit
    {
        best = memory;
    }
    // One that nobody sees at the moment may only be away, but one beyond the new base does not count any more.
    let known = furthest
        .map(from_checkpoint)
        .or_else(|| formed.checkpoint.clone());
    Chosen {
        checkpoint: known.filter(|c| c.position.commit <= best.position.commit),
        base: best,
        root: formed.root.clone(),
        lineage: formed.lineage.clone(),
    }
}

/// Refuses `base` if it is what the very first generation started from although a later checkpoint of this job was
/// known when the newest one, `before`, was formed: it has gone or cannot be read any more, and all steps would be
/// lost in silence.
pub(super) fn refuse_to_start_over(before: &Formed, base: &Base) -> Result<(), String> {
    let started = Some(&before.base).filter(|base| **base != before.root);
    let known = before.checkpoint.as_ref().or(started);
    // One that holds no step more than the beginning keeps nothing from being lost.
    let further = known.filter(|known| known.position.commit > before.root.position.commit);
    match further.map(|known| &known.source) {
        Some(BaseSource::Checkpoint { path }) if *base == before.root => Err(format!(
            "start from {} again: when generation {} was formed there was checkpoint {path}, and no worker sees a usable \
             checkpoint of this job any more; mount the volume that holds it at checkpoint.directory and resume in a \
             new run with checkpoint.resume: {{policy: Path, path: ...}}, or start a new run to give these steps up",
            base.position, before.generation,
        )),
        _ => Ok(()),
    }
}

/// The very first generation that this service knows of, or the first after its memory was lost.
fn first<'a>(
    planned: &[&Member],
    resume: ResumePolicy,
    checkpoints: impl Iterator<Item = &'a SeenCheckpoint>,
) -> Chosen {
    let initial = Base {
        position: Position::INITIAL,
        source: BaseSource::Initial,
        state_digest: None,
        chain: None,
    };
    let fresh = |base: Base| Chosen {
        root: base.clone(),
        base,
        lineage: Lineage::default(),
        checkpoint: None,
    };
    match resume {
        ResumePolicy::Never => fresh(initial),
        ResumePolicy::Path => {
            let given = planned.iter().find_map(|m| m.report.resume_from.as_ref());
            // Another job's generations mean nothing here: its commits count, its generation is none.
            fresh(given.map_or(initial, |c| Base {
                position: Position {
                    commit: c.position.commit,
                    generation: Generation::NONE,
                },
                ..from_checkpoint(c)
            }))
        }
        ResumePolicy::Latest => {
            let newest =
                checkpoints.max_by_key(|c| (c.position.generation, c.position.commit, c.path.clone()));
            match newest {
                None => fresh(initial),
                Some(checkpoint) => Chosen {
                    base: from_checkpoint(checkpoint),
                    root: initial,
                    checkpoint: Some(from_checkpoint(checkpoint)),
                    lineage: if checkpoint.lineage.contains(checkpoint.position) {
                        checkpoint.lineage.clone()
                    } else {
                        Lineage::default().extended(checkpoint.position.generation, Position::INITIAL)
                    },
                },
            }
        }
    }
}

fn from_checkpoint(checkpoint: &SeenCheckpoint) -> Base {
    Base {
        position: checkpoint.position,
        source: BaseSource::Checkpoint {
            path: checkpoint.path.clone(),
        },
        state_digest: Some(checkpoint.state_digest.clone()),
        chain: Some(checkpoint.chain.clone()),
    }
}

/// The state that all of `planned` hold, if they hold the same.
fn common_memory(planned: &[&Member]) -> Option<Base> {
    let held = planned.first()?.report.held.as_ref()?;
    planned
        .iter()
        .all(|m| m.report.held.as_ref() == Some(held))
        .then(|| Base {
            position: held.position,
            source: BaseSource::Memory,
            state_digest: Some(held.state_digest.clone()),
            chain: Some(held.chain.clone()),
        })
}

/// `lineage` with `generation` from `base` at its end, without generations that contribute nothing any
/// more: those that began at or beyond `base`.
pub(super) fn extend(lineage: &Lineage, generation: Generation, base: Position) -> Lineage {
    let kept = lineage.0.iter().filter(|e| e.base.commit < base.commit);
    Lineage(kept.copied().collect()).extended(generation, base)
}
