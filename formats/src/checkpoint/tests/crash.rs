//! A crash or a full disk at any moment of a save leaves what was there before.

use super::*;
use crate::store::{Fault, MemoryStore, Store as _};

/// Changes of one save: three parts and the manifest put.
const CHANGES: u64 = 4;

fn newest(store: &MemoryStore) -> Option<Position> {
    let found = newest_whole(store, &job(), Some(&lineage())).unwrap();
    found.whole.first().map(|w| w.reference.position)
}

/// A store with a whole checkpoint of commit 6, and what saving commit 7 under `fault` left of it.
fn after(fault: Fault) -> (MemoryStore, Result<CheckpointRef, CheckpointError>) {
    let store = MemoryStore::new();
    save(&store, &job(), &snapshot(at(2, 6))).unwrap();
    store.set_fault(Some(fault));
    let saved = save(&store, &job(), &snapshot(at(2, 7)));
    store.set_fault(None);
    (store, saved)
}

#[test]
fn a_crash_between_any_two_operations_leaves_the_previous_checkpoint_and_the_next_save_works() {
    for change in 0..=CHANGES {
        for fault in [Fault::Die(change), Fault::DieTorn(change), Fault::Refuse(change)] {
            let (store, saved) = after(fault);
            assert_eq!(saved.is_ok(), change == CHANGES, "{fault:?}");
            let expected = if change == CHANGES { at(2, 7) } else { at(2, 6) };
            assert_eq!(newest(&store), Some(expected), "{fault:?}");
            assert_loads(&store, &snapshot(expected));
            // The same position again, as after a restart from the previous one within the generation.
            save(&store, &job(), &snapshot(at(2, 7))).unwrap();
            assert_eq!(newest(&store), Some(at(2, 7)), "{fault:?}");
            assert_loads(&store, &snapshot(at(2, 7)));
        }
    }
}

#[test]
fn the_manifest_is_the_last_thing_to_appear() {
    for change in 0..CHANGES {
        let (store, _) = after(Fault::Die(change));
        let files = store.list("job-1/step-7-g2/").unwrap();
        assert_eq!(files.len() as u64, change);
        assert!(files.iter().all(|f| f.ends_with(".safetensors")), "{files:?}");
    }
}

#[test]
fn a_crash_while_a_torn_checkpoint_is_written_again_never_shows_a_mixture() {
    for first in 0..CHANGES {
        for second in 0..CHANGES {
            let (store, _) = after(Fault::DieTorn(first));
            let mut other = snapshot(at(2, 7));
            other.scalars.insert("loss-scale".into(), serde_json::json!(2.0));
            other.chain = "other".into();
            store.set_fault(Some(Fault::DieTorn(second)));
            let again = save(&store, &job(), &other);
            store.set_fault(None);
            match newest(&store) {
                Some(p) if p == at(2, 6) => assert!(again.is_err()),
                Some(p) => {
                    assert_eq!(p, at(2, 7));
                    assert_loads(&store, &other);
                }
                None => panic!("the previous checkpoint is gone"),
            }
        }
    }
}

#[test]
fn a_full_disk_names_the_file_and_leaves_the_previous_checkpoint() {
    let size = |store: &MemoryStore| -> usize {
        let keys = store.list("").unwrap();
        keys.iter().map(|k| store.get(k).unwrap().len()).sum()
    };
    let store = MemoryStore::new();
    save(&store, &job(), &snapshot(at(2, 6))).unwrap();
    let one = size(&store) as u64;
    for capacity in (one..2 * one).step_by(13) {
        let (store, saved) = after(Fault::Capacity(capacity));
        let error = saved.unwrap_err().to_string();
        assert!(
            error.contains("job-1/step-7-g2/") && error.contains("free space"),
            "{error}"
        );
        assert_eq!(newest(&store), Some(at(2, 6)));
        assert_loads(&store, &snapshot(at(2, 6)));
    }
}

#[test]
fn saving_what_is_there_writes_nothing_and_another_state_at_its_position_is_refused() {
    let store = MemoryStore::new();
    let s = snapshot(at(2, 7));
    let first = save(&store, &job(), &s).unwrap();
    store.set_fault(None);
    assert_eq!(save(&store, &job(), &s).unwrap(), first);
    assert_eq!(store.changes(), 0);

    let mut other = snapshot(at(2, 7));
    other.tensors.get_mut(&Group::Parameters).unwrap()[1].bytes[0] ^= 1;
    let error = save(&store, &job(), &other).unwrap_err();
    assert!(matches!(error, CheckpointError::Conflict { .. }), "{error}");
    assert_eq!(store.changes(), 0);
    assert_loads(&store, &s);
}

/// A store that lets another writer go first, each time its manifest is asked for and is not there.
struct Overtaken<'a> {
    inner: MemoryStore,
    meanwhile: &'a (dyn Fn(&MemoryStore) + Sync),
}

impl crate::store::Store for Overtaken<'_> {
    fn put(&self, key: &str, bytes: &[u8]) -> Result<(), crate::store::StoreError> {
        self.inner.put(key, bytes)
    }
    fn get(&self, key: &str) -> Result<Vec<u8>, crate::store::StoreError> {
        let got = self.inner.get(key);
        if got.is_err() {
            (self.meanwhile)(&self.inner);
        }
        got
    }
    fn list(&self, prefix: &str) -> Result<Vec<String>, crate::store::StoreError> {
        self.inner.list(prefix)
    }
    fn delete(&self, key: &str) -> Result<(), crate::store::StoreError> {
        self.inner.delete(key)
    }
    fn describe(&self) -> String {
        self.inner.describe()
    }
}

#[test]
fn members_that_save_the_same_state_at_once_never_take_it_away_from_each_other() {
    let s = snapshot(at(2, 7));
    let mut other = s.clone();
    other.written_at = "2026-01-01T00:00:01Z".into();
    for change in 0..=CHANGES {
        // The other one is through when the first has only looked, and then the first one fails.
        let meanwhile = |store: &MemoryStore| {
            save_beside_others(store, &job(), &other).unwrap();
            store.set_fault(Some(Fault::Refuse(change)));
        };
        let store = Overtaken {
            inner: MemoryStore::new(),
            meanwhile: &meanwhile,
        };
        save_beside_others(&store, &job(), &s).unwrap();
        store.inner.set_fault(None);
        verify(&store.inner, "job-1/step-7-g2").unwrap();
    }
}

#[test]
fn a_save_beside_others_that_fails_leaves_what_another_is_halfway_through() {
    let s = snapshot(at(2, 7));
    let whole = MemoryStore::new();
    save(&whole, &job(), &s).unwrap();
    let parts = whole.list("").unwrap();
    let manifest = "job-1/step-7-g2/manifest.json";
    let copy = |key: &str, store: &MemoryStore| store.put(key, &whole.get(key).unwrap()).unwrap();
    for refused in 0..CHANGES {
        let asked = std::sync::atomic::AtomicU32::new(0);
        // The other one has put its parts when the first one looks, and puts its manifest when the first one has
        // failed and looked again.
        let meanwhile = |store: &MemoryStore| {
            store.set_fault(None);
            match asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
                0 => parts
                    .iter()
                    .filter(|key| *key != manifest)
                    .for_each(|key| copy(key, store)),
                _ => copy(manifest, store),
            }
            store.set_fault(Some(Fault::Refuse(refused)));
        };
        let store = Overtaken {
            inner: MemoryStore::new(),
            meanwhile: &meanwhile,
        };
        save_beside_others(&store, &job(), &s).unwrap_err();
        store.inner.set_fault(None);
        assert_loads(&store.inner, &s);
    }
}

#[test]
fn a_save_of_what_is_there_adds_what_is_known_now_and_takes_nothing_away() {
    let store = MemoryStore::new();
    let mut alone = snapshot(at(2, 7));
    alone.agreed_by = 0;
    save_beside_others(&store, &job(), &alone).unwrap();
    let mut evaluated = snapshot(at(2, 7));
    evaluated.evaluation = crate::manifest::Evaluated::new(0.5, &std::collections::BTreeMap::new());
    for (saved, changes) in [(&evaluated, 1), (&alone, 0), (&evaluated, 0)] {
        store.set_fault(None);
        save(&store, &job(), saved).unwrap();
        assert_eq!(store.changes(), changes, "the manifest alone, or nothing");
        assert_loads(&store, &evaluated);
    }
}
