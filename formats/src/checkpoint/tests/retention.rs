//! Retention over random histories.

use super::*;
use crate::store::{Fault, MemoryStore, Store as _};
use proptest::prelude::*;

/// What happens to a job, in order.
#[derive(Clone, Debug)]
enum Happening {
    /// So many commits, then a checkpoint and retention.
    Save { commits: u64 },
    /// The same, but the save dies at this change.
    TornSave { commits: u64, change: u64 },
    /// The group forms anew from the whole checkpoint that is so many back from the newest.
    Reform { back: usize },
    /// A part of the checkpoint so many back is damaged.
    Damage { back: usize },
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        4 => (1..4u64).prop_map(|commits| Happening::Save { commits }),
        1 => (1..4u64, 0..4u64).prop_map(|(commits, change)| Happening::TornSave { commits, change }),
        2 => (0..4usize).prop_map(|back| Happening::Reform { back }),
        1 => (0..4usize).prop_map(|back| Happening::Damage { back }),
    ]
}

struct History {
    store: MemoryStore,
    lineage: Lineage,
    position: Position,
    keep: u32,
}

const FOREIGN: [&str; 2] = ["job-1/step-3-g99/manifest.json", "job-2/step-1-g1/manifest.json"];

impl History {
    fn new(keep: u32) -> History {
        let store = MemoryStore::new();
        for key in FOREIGN {
            store.put(key, b"not ours").unwrap();
        }
        History {
            store,
            lineage: Lineage::default().extended(Generation(1), Position::INITIAL),
            position: Position::INITIAL,
            keep,
        }
    }

    fn whole(&self) -> Vec<Position> {
        let listing = list_whole(&self.store, &job(), Some(&self.lineage), None).unwrap();
        listing.whole.iter().map(|w| w.reference.position).collect()
    }

    fn advance(&mut self, commits: u64) -> Snapshot {
        self.position = at(self.lineage.newest().0, self.position.commit + commits);
        let mut s = snapshot(self.position);
        s.lineage = self.lineage.clone();
        s
    }

    fn happen(&mut self, what: &Happening) {
        match *what {
            Happening::Save { commits } => {
                let s = self.advance(commits);
                let before = self.whole();
                let newest = save(&self.store, &job(), &s).unwrap();
                prune(&self.store, &job(), self.keep, &self.lineage, &newest, &[]).unwrap();
                self.check_after_retention(&before);
            }
            Happening::TornSave { commits, change } => {
                let s = self.advance(commits);
                self.store.set_fault(Some(Fault::DieTorn(change)));
                save(&self.store, &job(), &s).unwrap_err();
                self.store.set_fault(None);
                self.reform(0);
            }
            Happening::Reform { back } => self.reform(back),
            Happening::Damage { back } => {
                if let Some(position) = self.whole().get(back) {
                    let key = format!("{}/parameters.safetensors", path_of(&job(), *position));
                    assert!(self.store.damage(&key, |b| b[12] ^= 1));
                    self.reform(0);
                }
            }
        }
    }

    fn reform(&mut self, back: usize) {
        let whole = self.whole();
        let base = whole.get(back.min(whole.len().saturating_sub(1)));
        self.position = base.copied().unwrap_or(Position::INITIAL);
        // As the rendezvous service does: generations that contribute nothing any more are left out.
        let generation = self.lineage.newest().next();
        self.lineage.0.retain(|e| e.base.commit < self.position.commit);
        self.lineage = self.lineage.extended(generation, self.position);
    }

    fn check_after_retention(&self, whole_before: &[Position]) {
        let whole = self.whole();
        assert_eq!(whole.first(), Some(&self.position), "the newest is whole");
        assert!(whole.len() <= self.keep as usize);
        let folders = super::super::list::folders(&self.store, &job()).unwrap();
        let ours = folders.iter().filter(|p| p.generation != Generation(99));
        assert!(ours.clone().count() <= self.keep as usize, "{folders:?}");
        for position in ours.clone() {
            assert!(self.lineage.contains(*position), "{position} is superseded");
        }
        // Whole ones that went are older than all that stayed.
        let oldest = ours.min().unwrap();
        for gone in whole_before.iter().filter(|p| !whole.contains(p)) {
            assert!(gone < oldest, "{gone} went and {oldest} stayed");
        }
        for key in FOREIGN {
            assert_eq!(self.store.get(key).unwrap(), b"not ours");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn retention_keeps_the_newest_whole_one_and_touches_only_its_own_lineage(
        keep in 1..4u32, happenings in prop::collection::vec(happening(), 1..24),
    ) {
        let mut history = History::new(keep);
        for what in &happenings {
            history.happen(what);
        }
    }
}

/// Six checkpoints on the lineage, one superseded, one of a generation that contributed nothing, one torn,
/// one of a newer generation.
fn several() -> (MemoryStore, CheckpointRef) {
    let store = MemoryStore::new();
    for position in [
        at(1, 2),
        at(1, 4),
        at(1, 6),
        at(2, 6),
        at(2, 7),
        at(2, 8),
        at(3, 9),
        at(5, 3),
    ] {
        save(&store, &job(), &snapshot(position)).unwrap();
    }
    store
        .put("job-1/step-3-g1/parameters.safetensors", b"torn")
        .unwrap();
    let newest = save(&store, &job(), &snapshot(at(4, 9))).unwrap();
    (store, newest)
}

#[test]
fn retention_keeps_what_it_should() {
    let (store, newest) = several();
    let gone = prune(&store, &job(), 3, &lineage(), &newest, &[at(1, 2)]).unwrap();
    assert_eq!(
        gone,
        [
            "job-1/step-9-g3",
            "job-1/step-6-g2",
            "job-1/step-6-g1",
            "job-1/step-4-g1",
            "job-1/step-3-g1"
        ]
    );
    let listing = list_whole(&store, &job(), Some(&lineage()), None).unwrap();
    let left: Vec<_> = listing.whole.iter().map(|w| w.reference.position).collect();
    assert_eq!(left, [at(4, 9), at(2, 8), at(2, 7), at(1, 2)]);
    let passed: Vec<_> = listing.passed_over.iter().map(|p| p.path.as_str()).collect();
    assert_eq!(
        passed,
        ["job-1/step-3-g5"],
        "a newer generation's is not ours to delete"
    );
}

#[test]
fn a_crash_in_the_middle_of_retention_loses_nothing_that_was_to_stay() {
    let (store, newest) = several();
    store.set_fault(None);
    prune(&store, &job(), 2, &lineage(), &newest, &[]).unwrap();
    let changes = store.changes();
    for change in 0..changes {
        let (store, newest) = several();
        store.set_fault(Some(Fault::Die(change)));
        prune(&store, &job(), 2, &lineage(), &newest, &[]).unwrap_err();
        store.set_fault(None);
        let listing = list_whole(&store, &job(), Some(&lineage()), None).unwrap();
        let left: Vec<_> = listing.whole.iter().map(|w| w.reference.position).collect();
        assert_eq!(left[..2], [at(4, 9), at(2, 8)], "after {change} changes");
        for passed in listing.passed_over {
            assert!(
                matches!(
                    passed.reason,
                    PassReason::Superseded | PassReason::Damaged(Damage::Unfinished { .. })
                ),
                "{passed:?}"
            );
        }
        // The next retention finishes.
        prune(&store, &job(), 2, &lineage(), &newest, &[]).unwrap();
        assert_eq!(super::super::list::folders(&store, &job()).unwrap().len(), 3);
    }
}
