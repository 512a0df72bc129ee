//! A whole checkpoint of something else is refused with what differs.

use super::*;
use crate::store::MemoryStore;

fn specs(s: &Snapshot, group: Group) -> Vec<TensorSpec> {
    s.group(group).iter().map(NamedTensor::spec).collect()
}

struct Model {
    fingerprints: Fingerprints,
    parameters: Vec<TensorSpec>,
    buffers: Vec<TensorSpec>,
}

impl Model {
    /// The model that the checkpoint was written with.
    fn same() -> Model {
        let s = snapshot(at(1, 3));
        Model {
            parameters: specs(&s, Group::Parameters),
            buffers: specs(&s, Group::Buffers),
            fingerprints: s.fingerprints,
        }
    }

    fn load(&self) -> Result<Snapshot, CheckpointError> {
        let store = MemoryStore::new();
        let path = save(&store, &job(), &snapshot(at(1, 3))).unwrap().path;
        load(
            &store,
            &path,
            &Expected {
                job: Some(&job()),
                fingerprints: Some(&self.fingerprints),
                parameters: &self.parameters,
                buffers: &self.buffers,
            },
        )
    }

    fn refusal(&self) -> String {
        let error = self.load().unwrap_err();
        assert!(matches!(error, CheckpointError::Mismatch { .. }), "{error}");
        error.to_string()
    }

    /// Another layout, changed by `how`.
    fn with(how: impl FnOnce(&mut Model)) -> Model {
        let mut model = Model::same();
        model.fingerprints.parameter_layout = "layout-b".into();
        how(&mut model);
        model
    }
}

#[test]
fn the_same_model_loads_and_every_difference_is_named() {
    assert_eq!(Model::same().load().unwrap(), snapshot(at(1, 3)));

    let mut m = Model::same();
    m.fingerprints.task = "language-model".into();
    assert!(
        m.refusal()
            .contains(r#"task "image-classification", this job trains "language-model""#)
    );

    let mut m = Model::same();
    m.fingerprints.data = "data-b".into();
    assert!(m.refusal().contains("other data"), "{}", m.refusal());

    let m = Model::with(|m| m.parameters[1].shape = vec![4, 2]);
    assert!(
        m.refusal().contains(
            "parameter fc.weight is float32 [3, 2] in the checkpoint and float32 [4, 2] in the model"
        ),
        "{}",
        m.refusal()
    );
    let m = Model::with(|m| m.buffers[1].dtype = TensorType::F64);
    assert!(
        m.refusal().contains("buffer bn.mean is float32"),
        "{}",
        m.refusal()
    );
    let m = Model::with(|m| {
        m.parameters.push(TensorSpec {
            name: "head".into(),
            ..m.parameters[0].clone()
        })
    });
    assert!(
        m.refusal().contains("the checkpoint has no parameter head"),
        "{}",
        m.refusal()
    );
    let m = Model::with(|m| drop(m.parameters.pop()));
    assert!(
        m.refusal().contains("the model has no parameter fc.weight"),
        "{}",
        m.refusal()
    );
    let m = Model::with(|m| m.parameters.reverse());
    assert!(m.refusal().contains("in another order"), "{}", m.refusal());
}

#[test]
fn another_jobs_checkpoint_loads_only_when_no_job_is_expected() {
    let store = MemoryStore::new();
    let path = save(&store, &JobUid("job-2".into()), &snapshot(at(1, 3)))
        .unwrap()
        .path;
    let own = job();
    let expected = Expected {
        job: Some(&own),
        ..Expected::default()
    };
    let error = load(&store, &path, &expected).unwrap_err().to_string();
    assert!(error.contains("belongs to job job-2, not to job-1"), "{error}");
    assert_eq!(
        load(&store, &path, &Expected::default()).unwrap(),
        snapshot(at(1, 3))
    );
}

#[test]
fn a_path_that_is_no_checkpoint_is_refused_with_what_would_be_one() {
    let dir = tempfile::tempdir().unwrap();
    for path in [dir.path().to_owned(), dir.path().join("none"), "/".into()] {
        let error = open_path(&path).unwrap_err();
        assert!(matches!(error, CheckpointError::BadPath { .. }), "{error}");
    }
}
