//! What must hold after every event, judged by the simulated truth and not by what a service believes.

use super::super::{Formed, NewGeneration};
use super::process::Process;
use gradsync_formats::identity::{Generation, Position};
use std::collections::BTreeMap;

/// Looks on and keeps what is needed to judge.
#[derive(Default)]
pub(super) struct Checker {
    /// Digest of every generation that was ever in the store.
    persisted: BTreeMap<Generation, String>,
}

impl Checker {
    /// The store has just replaced `before` by `new`.
    pub(super) fn on_persist(
        &mut self,
        before: Option<&Formed>,
        new: &NewGeneration,
        processes: &[Process],
    ) -> Result<(), String> {
        let generation = new.formed.generation;
        if let Some(digest) = self.persisted.get(&generation)
            && *digest != new.formed.plan_digest
        {
            return Err(format!(
                "generation {generation} was persisted with another plan before"
            ));
        }
        if before.is_some_and(|b| b.generation >= generation) {
            return Err(format!("generation {generation} does not follow the one before"));
        }
        self.persisted.insert(generation, new.formed.plan_digest.clone());
        match before {
            None => Ok(()),
            Some(before) => {
                fenced(before, new, processes)?;
                base_is_right(before, new, processes)
            }
        }
    }

    /// A service shows the plan `digest` of `generation`.
    pub(super) fn on_publish(&self, generation: Generation, digest: &str) -> Result<(), String> {
        match self.persisted.get(&generation) {
            Some(known) if known == digest => Ok(()),
            Some(_) => Err(format!("generation {generation} was published with another plan")),
            None => Err(format!(
                "generation {generation} was published before it was persisted"
            )),
        }
    }

    /// A member of `generation` commits.
    pub(super) fn on_commit(&self, generation: Generation) -> Result<(), String> {
        match self.persisted.last_key_value() {
            Some((newest, _)) if *newest > generation => Err(format!(
                "two live groups: generation {generation} commits although {newest} was formed"
            )),
            _ => Ok(()),
        }
    }
}

/// One member of the group before is in the new one and has really left, or all of them are really dead.
fn fenced(before: &Formed, new: &NewGeneration, processes: &[Process]) -> Result<(), String> {
    let find = |id| processes.iter().find(|p| &p.id == id);
    let holder = new
        .formed
        .members
        .iter()
        .any(|id| before.members.contains(id) && find(id).is_some_and(|p| p.left >= before.generation));
    let all_dead = || before.members.iter().all(|id| find(id).is_none_or(|p| !p.alive));
    if holder || all_dead() {
        return Ok(());
    }
    Err(format!(
        "generation {} was formed without a holder of the state of generation {}",
        new.formed.generation, before.generation
    ))
}

/// The base is on the lineage, and no state that all new members hold is thrown away.
fn base_is_right(before: &Formed, new: &NewGeneration, processes: &[Process]) -> Result<(), String> {
    let base = new.formed.base.position;
    let on_lineage = |p: Position| before.lineage.contains(p) || p == before.root.position;
    if !on_lineage(base) {
        return Err(format!("base {base} is not on the lineage {:?}", before.lineage));
    }
    if new.formed.lineage.newest() != new.formed.generation {
        return Err(format!("the lineage does not end with {}", new.formed.generation));
    }
    let held: Vec<Option<Position>> = new
        .formed
        .members
        .iter()
        .map(|id| processes.iter().find(|p| &p.id == id).and_then(|p| p.held))
        .collect();
    if let Some(Some(common)) = held.first()
        && held.iter().all(|h| h == &Some(*common))
        && on_lineage(*common)
        && base.commit < common.commit
    {
        return Err(format!("all new members hold {common}, but the base is {base}"));
    }
    Ok(())
}
