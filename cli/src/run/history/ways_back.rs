//! How the group came back each time: the phases of recoveries, and returns to a checkpoint that was not
//! the newest one. Pure.

use super::History;
use gradsync_formats::identity::{Generation, Position};
use gradsync_rendezvous::server::{GenerationSnapshot, RecoverySnapshot};
use serde::Serialize;
use std::collections::BTreeMap;

/// How the group came back once. What nobody measured, such as the phases of a recovery that was itself
/// interrupted, is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Recovery {
    /// The generation that was formed.
    pub generation: Generation,
    /// Why the earlier one ended.
    pub reason: Option<String>,
    /// Fault to abort, milliseconds.
    pub detect_ms: Option<f64>,
    /// Abort to plan.
    pub form_ms: Option<f64>,
    /// Plan to state in place and connections up.
    pub state_ms: Option<f64>,
    /// To the first commit.
    pub first_step_ms: Option<f64>,
}

impl Recovery {
    /// All phases together, if each is known.
    #[must_use]
    pub fn total_ms(&self) -> Option<f64> {
        Some(self.detect_ms? + self.form_ms? + self.state_ms? + self.first_step_ms?)
    }

    /// Takes in another member's measurement: the slowest is what the group waited for.
    pub(super) fn take(&mut self, other: Recovery) {
        let slower = |a: Option<f64>, b: Option<f64>| match (a, b) {
            (Some(a), Some(b)) => Some(a.max(b)),
            (a, b) => a.or(b),
        };
        self.generation = other.generation;
        self.reason = self.reason.take().or(other.reason);
        self.detect_ms = slower(self.detect_ms, other.detect_ms);
        self.form_ms = slower(self.form_ms, other.form_ms);
        self.state_ms = slower(self.state_ms, other.state_ms);
        self.first_step_ms = slower(self.first_step_ms, other.first_step_ms);
    }
}

/// A generation went back beyond the newest checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Fallback {
    /// Which generation.
    pub generation: Generation,
    /// Folder of the checkpoint that it could not use.
    pub passed_over: String,
    /// Why not, where that can still be told.
    pub reason: Option<String>,
    /// Folder of the one that it began from; null for the beginning.
    pub used: Option<String>,
}

impl std::fmt::Display for Fallback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "checkpoint {} could not be used", self.passed_over)?;
        if let Some(reason) = &self.reason {
            write!(f, " ({reason})")?;
        }
        match &self.used {
            Some(used) => write!(f, ": generation {} went back to {used}", self.generation),
            None => write!(f, ": generation {} went back to the beginning", self.generation),
        }
    }
}

impl History {
    /// Every generation but the first, with what is known of the way into it.
    #[must_use]
    pub fn recoveries(&self) -> Vec<Recovery> {
        let mut all = self.recoveries.clone();
        for generation in self.lineages.keys().filter(|g| **g > Generation(1)) {
            all.entry(*generation).or_insert_with(|| Recovery {
                generation: *generation,
                ..Recovery::default()
            });
        }
        all.into_values().collect()
    }

    /// Generations that began before the newest checkpoint of the history that they went on with, in order.
    #[must_use]
    pub fn fallbacks(&self) -> Vec<Fallback> {
        self.lineages
            .values()
            .zip(self.lineages.iter().skip(1))
            .filter_map(|(earlier, (generation, lineage))| {
                let base = lineage.0.iter().find(|e| e.generation == *generation)?.base;
                let counts = |(commit, generation): &(u64, Generation)| {
                    *generation <= earlier.newest()
                        && earlier.contains(Position {
                            commit: *commit,
                            generation: *generation,
                        })
                };
                let ((commit, _), passed_over) =
                    self.checkpoints.iter().rev().find(|(key, _)| counts(key))?;
                (base.commit < *commit).then(|| Fallback {
                    generation: *generation,
                    passed_over: passed_over.clone(),
                    reason: None,
                    used: self.checkpoints.get(&super::key(base)).cloned(),
                })
            })
            .collect()
    }
}

/// Adds to the recoveries of the records what the service saw of its own start: generations that never
/// came to a record, why each was formed, and the phases that it can time itself.
#[must_use]
pub fn with_service(
    recorded: Vec<Recovery>,
    generations: &[GenerationSnapshot],
    seen: &[RecoverySnapshot],
) -> Vec<Recovery> {
    let mut all: BTreeMap<Generation, Recovery> = recorded.into_iter().map(|r| (r.generation, r)).collect();
    for formed in generations.iter().filter(|g| g.generation > Generation(1)) {
        let recovery = all.entry(formed.generation).or_insert_with(|| Recovery {
            generation: formed.generation,
            ..Recovery::default()
        });
        recovery.reason.get_or_insert_with(|| formed.reason.clone());
        let timed = seen.iter().rev().find(|s| s.to == Some(formed.generation));
        if let Some(timed) = timed {
            recovery.form_ms = recovery.form_ms.or(timed.formed_ms);
            recovery.state_ms = recovery.state_ms.or(timed.opened_ms);
        }
    }
    all.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_service_saw_fills_what_no_member_measured() {
        let recorded = vec![Recovery {
            generation: Generation(2),
            reason: Some("lost a peer".into()),
            detect_ms: Some(1.0),
            form_ms: Some(2.0),
            state_ms: Some(3.0),
            first_step_ms: Some(4.0),
        }];
        let formed = |g, reason: &str| GenerationSnapshot {
            generation: Generation(g),
            reason: reason.into(),
            world_size: 2,
            base: gradsync_rendezvous::wire::Base {
                position: Position::INITIAL,
                source: gradsync_rendezvous::wire::BaseSource::Initial,
                state_digest: None,
                chain: None,
            },
        };
        let seen = [RecoverySnapshot {
            from: Generation(2),
            to: Some(Generation(3)),
            formed_ms: Some(7.0),
            ..RecoverySnapshot::default()
        }];
        let generations = [formed(1, "start"), formed(2, "x"), formed(3, "killed")];
        let all = with_service(recorded, &generations, &seen);
        assert_eq!(all.len(), 2);
        assert_eq!(
            (all[0].reason.as_deref(), all[0].total_ms()),
            (Some("lost a peer"), Some(10.0))
        );
        assert_eq!(all[1].generation, Generation(3));
        assert_eq!(all[1].reason.as_deref(), Some("killed"));
        assert_eq!((all[1].form_ms, all[1].total_ms()), (Some(7.0), None));
    }
}
