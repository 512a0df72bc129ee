//! Which checkpoints count, and why others do not.

use super::*;
use crate::store::{MemoryStore, ReadFault, Store as _};
use std::io::ErrorKind;

fn reasons(listing: &Listing) -> Vec<(String, String)> {
    let passed = listing.passed_over.iter();
    passed.map(|p| (p.path.clone(), p.reason.to_string())).collect()
}

#[test]
fn whole_ones_on_the_lineage_come_newest_first_and_each_other_has_its_reason() {
    let store = MemoryStore::new();
    for position in [
        at(1, 2),
        at(1, 4),
        at(1, 6),
        at(2, 6),
        at(2, 7),
        at(2, 8),
        at(4, 9),
        at(4, 10),
    ] {
        save(&store, &job(), &snapshot(position)).unwrap();
    }
    store.damage("job-1/step-10-g4/manifest.json", |b| b.truncate(40));
    store.damage("job-1/step-9-g4/buffers.safetensors", |b| b[20] ^= 1);
    store.delete("job-1/step-8-g2/parameters.safetensors").unwrap();
    // Folders that are no checkpoints of this job.
    store.put("job-1/records/1-x.jsonl", b"").unwrap();
    store.put("job-1/step-x/manifest.json", b"").unwrap();
    save(&store, &JobUid("job-2".into()), &snapshot(at(4, 99))).unwrap();

    let listing = list_whole(&store, &job(), Some(&lineage()), None).unwrap();
    let whole: Vec<Position> = listing.whole.iter().map(|w| w.reference.position).collect();
    assert_eq!(whole, [at(2, 7), at(2, 6), at(1, 4), at(1, 2)]);
    let found = reasons(&listing);
    let expected = [
        ("job-1/step-10-g4", "manifest.json: "),
        ("job-1/step-9-g4", "buffers.safetensors has SHA-256"),
        ("job-1/step-8-g2", "parameters.safetensors is missing"),
        ("job-1/step-6-g1", "superseded"),
    ];
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for ((path, reason), (expected_path, text)) in found.iter().zip(expected) {
        assert_eq!(path, expected_path);
        assert!(reason.contains(text), "{reason}");
    }

    let first = newest_whole(&store, &job(), Some(&lineage())).unwrap();
    assert_eq!(first.whole.len(), 1);
    assert_eq!(first.whole[0].reference.position, at(2, 7));
    assert_eq!(first.passed_over.len(), 3, "those newer than it");
}

#[test]
fn without_a_lineage_that_of_the_newest_generation_judges() {
    let store = MemoryStore::new();
    let early = Lineage::default().extended(Generation(1), Position::INITIAL);
    let mut old = snapshot(at(1, 6));
    old.lineage = early;
    save(&store, &job(), &old).unwrap();
    let alone = list_whole(&store, &job(), None, None).unwrap();
    assert_eq!(alone.whole.len(), 1);
    save(&store, &job(), &snapshot(at(2, 6))).unwrap();
    let both = list_whole(&store, &job(), None, None).unwrap();
    assert_eq!(both.whole.len(), 1);
    assert_eq!(both.whole[0].reference.position, at(2, 6));
    assert_eq!(reasons(&both)[0].0, "job-1/step-6-g1");
}

#[test]
fn a_checkpoint_that_was_moved_here_or_is_another_models_is_passed_over() {
    let store = MemoryStore::new();
    let s = snapshot(at(1, 3));
    let path = save(&store, &JobUid("job-2".into()), &s).unwrap().path;
    for key in store.list(&path).unwrap() {
        let name = key.rsplit_once('/').unwrap().1;
        let bytes = store.get(&key).unwrap();
        store.put(&format!("job-1/step-3-g1/{name}"), &bytes).unwrap();
    }
    save(&store, &job(), &snapshot(at(1, 2))).unwrap();
    let listing = list_whole(&store, &job(), Some(&lineage()), None).unwrap();
    assert_eq!(listing.whole.len(), 1);
    assert!(reasons(&listing)[0].1.contains("job-2"), "{listing:?}");

    let mut fingerprints = s.fingerprints.clone();
    fingerprints.parameter_layout = "layout-b".into();
    let listing = list_whole(&store, &job(), Some(&lineage()), Some(&fingerprints)).unwrap();
    assert_eq!(listing.whole.len(), 0);
    assert!(reasons(&listing)[1].1.contains("another model"), "{listing:?}");
}

/// Four whole checkpoints on the lineage.
fn four() -> MemoryStore {
    let store = MemoryStore::new();
    for position in [at(1, 2), at(1, 4), at(2, 6), at(2, 8)] {
        save(&store, &job(), &snapshot(position)).unwrap();
    }
    store.take_reads();
    store
}

fn positions(listing: &Listing) -> Vec<Position> {
    listing.whole.iter().map(|w| w.reference.position).collect()
}

/// Folders of which a part was read.
fn parts_read(store: &MemoryStore) -> Vec<String> {
    let reads = store.take_reads().into_iter();
    let mut folders: Vec<String> = reads
        .filter(|key| !key.ends_with("manifest.json"))
        .map(|key| key.split('/').nth(1).unwrap().to_owned())
        .collect();
    folders.dedup();
    folders
}

#[test]
fn candidates_are_all_whole_ones_and_only_the_newest_of_them_is_hashed() {
    let store = four();
    let listing = list_candidates(&store, &job(), None, &[]).unwrap();
    assert_eq!(positions(&listing), [at(2, 8), at(2, 6), at(1, 4), at(1, 2)]);
    assert_eq!(parts_read(&store), ["step-8-g2"]);

    store.damage("job-1/step-8-g2/buffers.safetensors", |b| b[20] ^= 1);
    let listing = list_candidates(&store, &job(), None, &[]).unwrap();
    assert_eq!(positions(&listing), [at(2, 6), at(1, 4), at(1, 2)]);
    assert!(reasons(&listing)[0].1.contains("buffers.safetensors has SHA-256"));
    assert_eq!(parts_read(&store), ["step-8-g2", "step-6-g2"]);

    let listing = list_candidates(&store, &job(), None, &["step-8-g2".to_owned()]).unwrap();
    assert_eq!(positions(&listing).len(), 3);
    assert!(listing.passed_over.is_empty(), "{listing:?}");
    assert_eq!(parts_read(&store), ["step-6-g2"]);
}

#[test]
fn a_part_that_cannot_be_read_at_this_time_is_no_damage() {
    let store = four();
    for kind in [
        ErrorKind::StaleNetworkFileHandle,
        ErrorKind::TimedOut,
        ErrorKind::OutOfMemory,
        ErrorKind::Other,
    ] {
        let fault = |of: &str| {
            store.set_read_fault(Some(ReadFault {
                of: of.into(),
                after: 0,
                times: 1,
                kind,
            }));
        };
        fault("step-8-g2/parameters");
        let path = path_of(&job(), at(2, 8));
        let error = load(&store, &path, &Expected::default()).unwrap_err();
        assert!(matches!(error, CheckpointError::Store(_)), "{error}");
        fault("step-8-g2/parameters");
        let listing = list_candidates(&store, &job(), None, &[]).unwrap();
        let newest = &listing.passed_over[0];
        assert!(matches!(newest.reason, PassReason::Unreadable(_)), "{newest:?}");
        fault("step-8-g2/manifest");
        let error = list_candidates(&store, &job(), None, &[]).unwrap_err();
        assert!(matches!(error, CheckpointError::Store(_)), "{error}");
    }
}
