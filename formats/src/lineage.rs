//! The lineage: which generations' commits count, and up to where each of them does.

use crate::identity::{Generation, Position};
use serde::{Deserialize, Serialize};

/// One generation on the lineage: it began at `base`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LineageEntry {
    /// The generation.
    pub generation: Generation,
    /// The position that it started from. Commits of earlier generations beyond it never happened.
    pub base: Position,
}

/// All generations of a job in order. A generation's commits count from its base (exclusive) up to the
/// base of the next generation (inclusive).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lineage(pub Vec<LineageEntry>);

impl Lineage {
    /// The lineage with one more generation at its end.
    #[must_use]
    pub fn extended(&self, generation: Generation, base: Position) -> Lineage {
        let mut entries = self.0.clone();
        entries.push(LineageEntry { generation, base });
        Lineage(entries)
    }

    /// The newest generation, or `Generation::NONE`.
    #[must_use]
    pub fn newest(&self) -> Generation {
        self.0.last().map_or(Generation::NONE, |e| e.generation)
    }

    /// Whether the state at `position` is part of this lineage: the initial state is, and so is what the
    /// first generation began from (another job's checkpoint has generation none); a commit c of
    /// generation g is if g stands on the lineage, c lies after g's base, and no later generation
    /// started from before c.
    #[must_use]
    pub fn contains(&self, position: Position) -> bool {
        if position == Position::INITIAL || self.0.first().is_some_and(|e| e.base == position) {
            return true;
        }
        let Some(at) = self.0.iter().position(|e| e.generation == position.generation) else {
            return false;
        };
        position.commit > self.0[at].base.commit
            && self.0[at + 1..]
                .iter()
                .all(|later| later.base.commit >= position.commit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(g: u64, commit: u64) -> Position {
        Position {
            generation: Generation(g),
            commit,
        }
    }

    #[test]
    fn commits_beyond_the_next_base_never_happened() {
        let lineage = Lineage::default()
            .extended(Generation(1), Position::INITIAL)
            .extended(Generation(2), at(1, 5))
            .extended(Generation(4), at(1, 3));
        assert!(lineage.contains(Position::INITIAL));
        assert!(lineage.contains(at(1, 3)));
        assert!(!lineage.contains(at(1, 4)), "generation 4 started from commit 3");
        assert!(!lineage.contains(at(2, 6)));
        assert!(lineage.contains(at(4, 4)));
        assert!(!lineage.contains(at(4, 3)), "commit 3 is generation 1's");
        assert!(!lineage.contains(at(3, 4)), "generation 3 is not on the lineage");
    }

    #[test]
    fn what_the_first_generation_began_from_is_on_the_lineage() {
        let other_jobs = at(0, 7);
        let lineage = Lineage::default()
            .extended(Generation(1), other_jobs)
            .extended(Generation(2), at(1, 9));
        assert!(lineage.contains(other_jobs));
        assert!(!lineage.contains(at(0, 8)));
        assert!(lineage.contains(at(1, 8)));
        assert!(!lineage.contains(at(1, 7)));
    }
}
