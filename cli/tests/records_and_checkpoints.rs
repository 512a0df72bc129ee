//! `gradsync audit` and `gradsync checkpoint` on made-up output directories: what they print and how they
//! exit.

use assert_cmd::Command;
use gradsync_formats::checkpoint::{Group, NamedTensor, Snapshot, TensorType, save};
use gradsync_formats::identity::{Generation, Incarnation, JobUid, MemberId, PodUid, Position};
use gradsync_formats::lineage::Lineage;
use gradsync_formats::manifest::{DataProgress, Evaluated, Fingerprints};
use gradsync_formats::order::Order;
use gradsync_formats::record::{CommitKind, ComputedPart, RECORD_VERSION, RecordLine, record_file_name};
use gradsync_formats::run_config::Length;
use gradsync_formats::store::DirectoryStore;
use predicates::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const SAMPLES: u64 = 10;
const BATCH: u64 = 4;

fn gradsync(arguments: &[&str]) -> assert_cmd::assert::Assert {
    Command::cargo_bin("gradsync").unwrap().args(arguments).assert()
}

fn at(commit: u64) -> Position {
    Position {
        commit,
        generation: Generation(1),
    }
}

fn lineage() -> Lineage {
    Lineage::default().extended(Generation(1), Position::INITIAL)
}

/// One epoch of one member: three steps, the last one short.
fn records() -> (String, Vec<RecordLine>) {
    let member = MemberId {
        slot: 0,
        local_rank: 0,
        pod: PodUid("pod".into()),
        incarnation: Incarnation::fresh(),
    };
    let name = record_file_name(Generation(1), &member);
    let mut lines = vec![RecordLine::Opened {
        version: RECORD_VERSION,
        job_uid: JobUid("job-1".into()),
        generation: Generation(1),
        member,
        rank: 0,
        world_size: 1,
        lineage: lineage(),
        epoch_samples: SAMPLES,
        global_batch_size: BATCH,
        micro_batch_size: BATCH,
        seed: 1,
        origin: DataProgress::default(),
        length: Length::Epochs(1),
        at: "2026-01-01T00:00:00Z".into(),
    }];
    let order = Order::new(1, 0, SAMPLES);
    for commit in 1..=3 {
        let cursor = (commit - 1) * BATCH;
        let indices: Vec<u64> = order.batch(cursor, BATCH).collect();
        let end = cursor + indices.len() as u64;
        lines.push(RecordLine::Computed {
            position: at(commit),
            epoch: 0,
            cursor,
            samples: indices.len() as u64,
            parts: vec![ComputedPart { part: 0, indices }],
        });
        lines.push(RecordLine::Committed {
            position: at(commit),
            kind: CommitKind::Apply,
            progress: DataProgress {
                step: commit,
                epoch: u64::from(end == SAMPLES),
                cursor: end % SAMPLES,
            },
            loss: "1.5".into(),
            chain: "c".into(),
            seconds: 0.1,
            compute_seconds: 0.1,
            wait_seconds: 0.0,
        });
    }
    (name, lines)
}

fn write_records(out: &Path, (name, lines): &(String, Vec<RecordLine>)) {
    let text: String = lines
        .iter()
        .map(|l| serde_json::to_string(l).unwrap() + "\n")
        .collect();
    fs::create_dir_all(out.join("records")).unwrap();
    fs::write(out.join("records").join(name), text).unwrap();
}

fn write_checkpoint(directory: &Path, commit: u64) {
    let snapshot = Snapshot {
        position: at(commit),
        lineage: lineage(),
        progress: DataProgress {
            step: commit,
            epoch: 0,
            cursor: commit * BATCH,
        },
        seed: 1,
        micro_batch_size: BATCH,
        scalars: [("adam.step".to_owned(), commit.into())].into(),
        bucket_plan: serde_json::Value::Null,
        chain: "c".into(),
        state_digest: "d".into(),
        fingerprints: Fingerprints {
            task: "count".into(),
            parameter_layout: "p".into(),
            data: "d".into(),
        },
        world_size: 2,
        agreed_by: 2,
        // The lowest loss is that of the first.
        evaluation: Evaluated::new(commit as f64 / 10.0, &BTreeMap::new()),
        run_config: serde_json::Value::Null,
        written_at: "2026-01-01T00:00:00Z".into(),
        tensors: [
            (Group::Parameters, vec![tensor("counts", commit as f32)]),
            (Group::Optimizer, vec![tensor("counts.momentum", 9.0)]),
        ]
        .into(),
    };
    save(
        &DirectoryStore::new(directory),
        &JobUid("job-1".into()),
        &snapshot,
    )
    .unwrap();
}

fn tensor(name: &str, value: f32) -> NamedTensor {
    NamedTensor {
        name: name.into(),
        dtype: TensorType::F32,
        shape: vec![3],
        bytes: [value; 3].iter().flat_map(|v| v.to_le_bytes()).collect(),
    }
}

#[test]
fn the_audit_says_clean_broken_or_unreadable_by_its_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().to_str().unwrap();
    gradsync(&["audit", out])
        .code(2)
        .stderr(predicate::str::contains("there are none"));

    let mut record = records();
    write_records(dir.path(), &record);
    gradsync(&["audit", out]).code(0).stdout(predicate::str::contains(
        "whole epochs: 1, each used every one of 10 indices exactly once",
    ));
    let json = gradsync(&["audit", out, "-o", "json"]).code(0);
    let verdict: serde_json::Value = serde_json::from_slice(&json.get_output().stdout).unwrap();
    assert_eq!(verdict["clean"], true);
    assert_eq!(verdict["steps"], 3);

    let RecordLine::Computed { parts, .. } = &mut record.1[3] else {
        panic!("the second step");
    };
    let dropped = parts[0].indices.pop().unwrap();
    write_records(dir.path(), &record);
    gradsync(&["audit", out])
        .code(1)
        .stdout(predicate::str::contains(format!("records/{} line 4", record.0)))
        .stdout(predicate::str::contains(format!(
            "without 1 of its 10 indices: {dropped}"
        )));

    fs::write(dir.path().join("records/2-x.jsonl"), "no record\n").unwrap();
    gradsync(&["audit", out])
        .code(2)
        .stderr(predicate::str::contains("records/2-x.jsonl, line 1"));
}

#[test]
fn what_the_service_kept_is_held_against_the_record() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().to_str().unwrap();
    let mut record = records();
    record.1.truncate(5);
    write_records(dir.path(), &record);
    gradsync(&["audit", out]).code(0);
    let membership = |total_steps: u64| {
        serde_json::json!({
            "version": 1, "jobUid": "job-1", "restarts": {},
            "ending": {"kind": "complete", "done": {
                "generation": 1, "rank": 0, "worldSize": 1, "position": {"commit": total_steps, "generation": 1},
                "totalSteps": total_steps, "epochs": 1, "stateDigest": "d", "finalLoss": "1.5", "checkpoint": null,
            }},
        })
        .to_string()
    };
    fs::write(dir.path().join("membership.json"), membership(2)).unwrap();
    gradsync(&["audit", out]).code(1).stdout(predicate::str::contains(
        "says that it is complete after 1 epochs",
    ));
    write_records(dir.path(), &(record.0, records().1));
    fs::write(dir.path().join("membership.json"), membership(3)).unwrap();
    gradsync(&["audit", out]).code(0);
    fs::write(
        dir.path().join("membership.json"),
        membership(3).replace("job-1", "job-2"),
    )
    .unwrap();
    gradsync(&["audit", out])
        .code(2)
        .stderr(predicate::str::contains("of job job-2"));
}

#[test]
fn checkpoints_are_listed_inspected_and_exported_from_any_directory_above_them() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoints = dir.path().join("volumes/ckpt");
    write_checkpoint(&checkpoints, 1);
    write_checkpoint(&checkpoints, 2);
    let damaged = checkpoints.join("job-1/step-2-g1/parameters.safetensors");
    let mut bytes = fs::read(&damaged).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&damaged, &bytes).unwrap();

    for above in [
        dir.path().to_owned(),
        checkpoints.clone(),
        checkpoints.join("job-1"),
    ] {
        gradsync(&["checkpoint", "list", above.to_str().unwrap()])
            .code(0)
            .stdout(predicate::str::contains(
                "job-1/step-1-g1  step 1, epoch 0 + 4 samples",
            ))
            .stdout(predicate::str::contains("job-1/step-2-g1  not usable:"))
            .stdout(predicate::str::contains("parameters.safetensors has SHA-256"));
    }
    let list = gradsync(&["checkpoint", "list", dir.path().to_str().unwrap(), "-o", "json"]).code(0);
    let rows: serde_json::Value = serde_json::from_slice(&list.get_output().stdout).unwrap();
    assert_eq!(rows[0]["usable"], false);
    assert_eq!(rows[1]["progress"]["cursor"], 4);
    assert_eq!(rows[1]["evaluation"]["loss"], 0.1);

    gradsync(&["checkpoint", "inspect", dir.path().to_str().unwrap()])
        .code(0)
        .stdout(predicate::str::contains("step-1-g1: whole"))
        .stdout(predicate::str::contains("counts.momentum float32 [3]"));
    let broken = checkpoints.join("job-1/step-2-g1");
    gradsync(&["checkpoint", "inspect", broken.to_str().unwrap()])
        .code(2)
        .stderr(predicate::str::contains("it is corrupted"));

    let to = dir.path().join("model.safetensors");
    let to = to.to_str().unwrap();
    gradsync(&["checkpoint", "export", broken.to_str().unwrap(), "--to", to])
        .code(2)
        .stderr(predicate::str::contains("it is corrupted"));
    assert!(!Path::new(to).exists());
    gradsync(&["checkpoint", "export", dir.path().to_str().unwrap(), "--to", to])
        .code(0)
        .stdout(predicate::str::contains("step-1-g1"));
    let bytes = fs::read(to).unwrap();
    let model = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(model.names(), ["counts"]);
    assert_eq!(
        model.tensor("counts").unwrap().data(),
        tensor("counts", 1.0).bytes
    );
}

#[test]
fn the_best_evaluated_checkpoint_is_marked_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    for commit in [1, 2, 3] {
        write_checkpoint(dir.path(), commit);
    }
    let path = dir.path().to_str().unwrap();
    let list = gradsync(&["checkpoint", "list", path, "-o", "json"]).code(0);
    let rows: serde_json::Value = serde_json::from_slice(&list.get_output().stdout).unwrap();
    let best: Vec<&serde_json::Value> = rows.as_array().unwrap().iter().map(|row| &row["best"]).collect();
    assert_eq!(best, [false, false, true], "newest first");
    gradsync(&["checkpoint", "list", path]).code(0).stdout(
        predicate::str::contains("evaluated loss 0.1 (best)").and(predicate::str::contains("loss 0.3\n")),
    );
    gradsync(&["checkpoint", "inspect", path])
        .code(0)
        .stdout(predicate::str::contains("evaluation   loss 0.3"))
        .stdout(predicate::str::contains("agreement    2 ranks"));
}

#[test]
fn a_directory_without_checkpoints_or_with_none_that_is_whole_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    gradsync(&["checkpoint", "list", path])
        .code(2)
        .stderr(predicate::str::contains("there are none"));
    gradsync(&["checkpoint", "inspect", path])
        .code(2)
        .stderr(predicate::str::contains("there is none"));
    write_checkpoint(dir.path(), 1);
    fs::remove_file(dir.path().join("job-1/step-1-g1/manifest.json")).unwrap();
    gradsync(&["checkpoint", "export", path, "--to", "x.safetensors"])
        .code(2)
        .stderr(predicate::str::contains("none is whole").and(predicate::str::contains("has no manifest")));
    gradsync(&["checkpoint", "list", path])
        .code(0)
        .stdout(predicate::str::contains("has no manifest"));
}
