//! Claims about checkpoints.

mod crash;
mod damage;
mod list;
mod mismatch;
mod retention;

use super::*;
use crate::identity::Generation;
use crate::lineage::Lineage;
use crate::manifest::{DataProgress, Fingerprints};

pub(super) fn job() -> JobUid {
    JobUid("job-1".into())
}

pub(super) fn at(generation: u64, commit: u64) -> Position {
    Position {
        generation: Generation(generation),
        commit,
    }
}

/// Generation 1 from the beginning, generation 2 from commit 5, generation 4 from commit 8 of 2.
pub(super) fn lineage() -> Lineage {
    Lineage::default()
        .extended(Generation(1), Position::INITIAL)
        .extended(Generation(2), at(1, 5))
        .extended(Generation(4), at(2, 8))
}

pub(super) fn tensor(name: &str, shape: &[usize], values: impl Fn(usize) -> f32) -> NamedTensor {
    let elements = shape.iter().product();
    NamedTensor {
        name: name.into(),
        dtype: TensorType::F32,
        shape: shape.to_vec(),
        bytes: (0..elements).flat_map(|i| values(i).to_le_bytes()).collect(),
    }
}

/// A small state whose content depends on the position. Tensors are sorted by name, as `load` gives them.
pub(super) fn snapshot(position: Position) -> Snapshot {
    let c = position.commit as f32;
    let counter = NamedTensor {
        name: "bn.batches".into(),
        dtype: TensorType::I64,
        shape: vec![],
        bytes: position.commit.to_le_bytes().to_vec(),
    };
    let f64s = NamedTensor {
        name: "fc.weight.second".into(),
        dtype: TensorType::F64,
        shape: vec![2],
        bytes: [c as f64, 0.1].iter().flat_map(|f| f.to_le_bytes()).collect(),
    };
    Snapshot {
        position,
        lineage: lineage(),
        progress: DataProgress {
            step: position.commit,
            epoch: 1,
            cursor: 7,
        },
        seed: 3,
        micro_batch_size: 4,
        scalars: [("adam.step".to_owned(), serde_json::json!(position.commit))].into(),
        bucket_plan: serde_json::json!([[0, 1], [2]]),
        chain: format!("chain of {position}"),
        state_digest: format!("digest of {position}"),
        fingerprints: Fingerprints {
            task: "image-classification".into(),
            parameter_layout: "layout-a".into(),
            data: "data-a".into(),
        },
        world_size: 3,
        agreed_by: 3,
        evaluation: None,
        run_config: serde_json::json!({"name": "x"}),
        written_at: "2026-01-01T00:00:00Z".into(),
        tensors: [
            (
                Group::Parameters,
                vec![
                    tensor("fc.bias", &[2], |_| f32::NAN),
                    tensor("fc.weight", &[3, 2], |i| i as f32 + c),
                ],
            ),
            (
                Group::Buffers,
                vec![counter, tensor("bn.mean", &[2], |i| i as f32 - c)],
            ),
            (Group::Optimizer, vec![f64s]),
        ]
        .into(),
    }
}

/// What `store` gives back equals `s` bit for bit.
pub(super) fn assert_loads(store: &dyn crate::store::Store, s: &Snapshot) {
    let loaded = load(store, &path_of(&job(), s.position), &Expected::default()).unwrap();
    assert_eq!(loaded, *s);
}

#[test]
fn a_snapshot_comes_back_bit_for_bit_and_says_nothing_of_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let store = crate::store::DirectoryStore::new(dir.path());
    let s = snapshot(at(2, 7));
    let reference = save(&store, &job(), &s).unwrap();
    assert_eq!(reference.path, "job-1/step-7-g2");
    assert_eq!(reference.position, s.position);
    assert_eq!(reference.digest, s.state_digest);
    assert_loads(&store, &s);

    // Another group, of another size, saves the same state: the same parts.
    let other = Snapshot {
        world_size: 5,
        ..s.clone()
    };
    let elsewhere = crate::store::MemoryStore::new();
    save(&elsewhere, &job(), &other).unwrap();
    let parts = |s: &dyn crate::store::Store| verify(s, &reference.path).unwrap().parts;
    assert_eq!(parts(&store), parts(&elsewhere));

    let (opened, by_path) = open_path(&dir.path().join(&reference.path)).unwrap();
    assert_eq!(by_path.position, s.position);
    let loaded = load(&opened, &by_path.path, &Expected::default()).unwrap();
    assert_eq!(loaded, s);
}

#[test]
fn groups_without_tensors_have_no_file_and_tensor_order_means_nothing() {
    let store = crate::store::MemoryStore::new();
    let mut s = snapshot(at(2, 7));
    s.tensors.remove(&Group::Buffers);
    s.tensors.get_mut(&Group::Parameters).unwrap().reverse();
    save(&store, &job(), &s).unwrap();
    s.tensors.get_mut(&Group::Parameters).unwrap().reverse();
    assert_loads(&store, &s);
    assert_eq!(verify(&store, "job-1/step-7-g2").unwrap().parts.len(), 2);
}

#[test]
fn a_state_that_cannot_be_written_is_refused_before_anything_is() {
    type Change = fn(&mut Snapshot);
    let break_it: [(&str, Change); 3] = [
        ("two tensors are named fc.weight", |s| {
            let t = s.find(Group::Parameters, "fc.weight").unwrap().clone();
            s.tensors.get_mut(&Group::Parameters).unwrap().push(t);
        }),
        ("fc.bias float32 [2] has 7 bytes", |s| {
            s.tensors.get_mut(&Group::Parameters).unwrap()[0].bytes.pop();
        }),
        ("scalar scale is not a finite number", |s| {
            s.scalars.insert("scale".into(), serde_json::json!(f64::NAN));
        }),
    ];
    for (text, how) in break_it {
        let store = crate::store::MemoryStore::new();
        let mut s = snapshot(at(1, 1));
        how(&mut s);
        let error = save(&store, &job(), &s).unwrap_err().to_string();
        assert!(
            error.contains(text) && error.contains("job-1/step-1-g1"),
            "{error}"
        );
        assert_eq!(store.changes(), 0);
    }
}

#[test]
fn an_export_is_the_model_alone_and_a_damaged_one_is_not_exported() {
    let store = crate::store::MemoryStore::new();
    let s = snapshot(at(1, 3));
    let path = save(&store, &job(), &s).unwrap().path;
    let (_, bytes) = export(&store, &path).unwrap();
    let plain = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut names = plain.names();
    names.sort_unstable();
    assert_eq!(names, ["bn.batches", "bn.mean", "fc.bias", "fc.weight"]);
    assert_eq!(
        plain.tensor("fc.weight").unwrap().data(),
        s.find(Group::Parameters, "fc.weight").unwrap().bytes
    );
    assert!(store.damage(&format!("{path}/optimizer.safetensors"), |b| b[9] ^= 1));
    let error = export(&store, &path).unwrap_err().to_string();
    assert!(error.contains("optimizer.safetensors"), "{error}");
}
