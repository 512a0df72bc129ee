//! Every kind of damage is found and names its file.

use super::*;
use crate::store::{Fault, MemoryStore, Store as _};

#[test]
fn a_flipped_byte_anywhere_in_any_file_is_found() {
    let store = MemoryStore::new();
    let s = snapshot(at(1, 3));
    let path = save(&store, &job(), &s).unwrap().path;
    let files = store.list("").unwrap();
    assert_eq!(files.len(), 4);
    for file in files {
        let whole = store.get(&file).unwrap();
        for offset in 0..whole.len() {
            store.damage(&file, |b| b[offset] ^= 0x40);
            let error = load(&store, &path, &Expected::default()).unwrap_err();
            assert!(matches!(error, CheckpointError::Damaged(_)), "{error}");
            assert!(error.to_string().contains(&file), "byte {offset}: {error}");
            store.damage(&file, |b| b[offset] ^= 0x40);
        }
    }
    assert_loads(&store, &s);
}

#[test]
fn a_part_that_is_torn_longer_or_gone_is_found() {
    let store = MemoryStore::new();
    let s = snapshot(at(1, 3));
    let path = save(&store, &job(), &s).unwrap().path;
    for group in [Group::Parameters, Group::Buffers, Group::Optimizer] {
        let file = format!("{path}/{}", group.file_name());
        let whole = store.get(&file).unwrap();
        for damage in [&whole[..whole.len() - 1], &[], &[&whole[..], &[0]].concat()] {
            store.put(&file, damage).unwrap();
            let error = verify(&store, &path).unwrap_err();
            assert!(
                matches!(&error, CheckpointError::Damaged(Damage::TornPart { .. })),
                "{error}"
            );
            assert!(error.to_string().contains(&file), "{error}");
        }
        store.delete(&file).unwrap();
        let error = verify(&store, &path).unwrap_err();
        assert!(matches!(&error, CheckpointError::Damaged(Damage::MissingPart { file: f }) if *f == file));
        store.put(&file, &whole).unwrap();
    }
    assert_loads(&store, &s);
}

#[test]
fn a_manifest_that_is_torn_or_gone_is_found() {
    let store = MemoryStore::new();
    let path = save(&store, &job(), &snapshot(at(1, 3))).unwrap().path;
    let file = format!("{path}/manifest.json");
    store.damage(&file, |b| b.truncate(b.len() / 2));
    let error = verify(&store, &path).unwrap_err();
    assert!(matches!(error, CheckpointError::Damaged(Damage::Manifest(_))));
    assert!(error.to_string().contains(&file), "{error}");
    store.delete(&file).unwrap();
    let error = verify(&store, &path).unwrap_err();
    assert!(matches!(
        error,
        CheckpointError::Damaged(Damage::Unfinished { .. })
    ));
}

#[test]
fn what_a_lying_disk_tears_behind_our_back_is_found() {
    for put in 0..4 {
        let store = MemoryStore::new();
        store.set_fault(Some(Fault::Tear(put)));
        let path = save(&store, &job(), &snapshot(at(1, 3))).unwrap().path;
        let error = verify(&store, &path).unwrap_err();
        assert!(matches!(error, CheckpointError::Damaged(_)), "put {put}: {error}");
    }
}

#[test]
fn a_part_cannot_name_a_file_outside_its_folder() {
    let store = MemoryStore::new();
    let s = snapshot(at(1, 3));
    let path = save(&store, &job(), &s).unwrap().path;
    let key = format!("{path}/manifest.json");
    let mut manifest = verify(&store, &path).unwrap();
    manifest.parts[0].name = "../step-1-g1/parameters.safetensors".into();
    store.put(&key, &manifest.encode().unwrap()).unwrap();
    let error = load(&store, &path, &Expected::default()).unwrap_err();
    assert!(
        matches!(error, CheckpointError::Damaged(Damage::MalformedPart { .. })),
        "{error}"
    );
}
