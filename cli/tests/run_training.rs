//! `gradsync run` with the real trainer: what is trained is exact through kills, stops and other numbers of
//! workers, and what cannot be trained ends with one clear error.

mod run_support;

use run_support::{Place, signal, until};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The count task: after E epochs every parameter is exactly E if every sample was used exactly once in
/// each epoch.
fn count(place: &Place, samples: u64) -> std::path::PathBuf {
    place.manifest(json!({
        "task": {"name": "count", "parameters": {"size": samples}},
        "training": {"globalBatchSize": 24, "epochs": 3, "optimizer": {"name": "SGD", "learningRate": 1}},
        "precision": {"mode": "fp64"},
        "workers": {"replicas": 2, "template": {"spec": {
            "containers": [{"name": "trainer", "volumeMounts": [{"name": "c", "mountPath": "/checkpoints"}]}],
            "volumes": [{"name": "c", "persistentVolumeClaim": {"claimName": "c"}}]}}},
        "checkpoint": {"directory": "/checkpoints", "everySteps": 20},
    }))
}

fn gradsync(arguments: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_gradsync"))
        .args(arguments)
        .output()
        .unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text)
}

/// Every parameter in the newest checkpoint of a run, read from the exported file.
fn exported(place: &Place, out: &Path) -> Vec<f64> {
    let file = place.path("export.safetensors");
    let (out, to) = (out.display().to_string(), file.display().to_string());
    let (done, text) = gradsync(&["checkpoint", "export", &out, "--to", &to]);
    assert!(done, "{text}");
    let bytes = std::fs::read(file).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    tensors
        .tensors()
        .iter()
        .flat_map(|(_, tensor)| tensor.data().chunks_exact(8))
        .map(|eight| f64::from_le_bytes(eight.try_into().unwrap()))
        .collect()
}

#[test]
fn every_sample_counts_exactly_once_per_epoch_through_a_kill_a_stop_and_other_workers() {
    const SAMPLES: u64 = 5003;
    let place = Place::training();
    let manifest = count(&place, SAMPLES);
    let run = place.start(&manifest, &[]);
    place.until_committed(1, 2, 30);
    let rank = place
        .workers()
        .into_iter()
        .find(|(_, slot, rank)| *rank && slot == "1")
        .unwrap();
    signal(rank.0, Signal::KILL);
    place.until_committed(2, 2, 30);
    run.signal(Signal::TERM);
    let (code, text) = run.end();
    assert_eq!(code, 130, "{text}");
    let stopped = place.summary();
    assert_eq!(stopped["state"], "Stopped", "{text}");
    assert_eq!(stopped["restarts"], 1);
    assert_eq!(stopped["recoveries"].as_array().unwrap().len(), 1, "{stopped}");
    place.until_no_worker();

    let (code, text) = place.run(&manifest, &["--workers", "3"]);
    assert_eq!(code, 0, "{text}");
    let complete = place.summary();
    assert_eq!(
        (&complete["state"], &complete["epochs"]),
        (&json!("Complete"), &json!(3.0))
    );
    assert_eq!(
        (&complete["worldSize"], &complete["digestsAgree"]),
        (&json!(3), &Value::Bool(true))
    );
    assert_eq!(complete["metrics"]["uses"], 3.0);
    let (clean, text) = gradsync(&["audit", &place.out().display().to_string()]);
    assert!(clean, "{text}");
    let counts = exported(&place, &place.out());
    assert_eq!(counts.len() as u64, SAMPLES);
    assert!(counts.iter().all(|uses| *uses == 3.0), "{counts:?}");
}

#[test]
fn what_the_task_cannot_take_fails_at_once_with_its_reason() {
    let place = Place::training();
    let manifest = count(&place, 100);
    for (set, part) in [
        ("task.name=countt", "countt"),
        ("task.parameters={size: 100, sizzle: 3}", "sizzle"),
        (
            "task={name: image-classification, parameters: {model: mlp, data: /no/such/data}}",
            "/no/such/data",
        ),
    ] {
        let (code, text) = place.run(&manifest, &["--set", set]);
        assert_eq!(code, 2, "{set}: bad input: {text}");
        let summary = place.summary();
        let error = summary["error"].as_str().unwrap();
        assert!(error.contains(part), "{set}: {error}");
        assert_eq!(summary["restarts"], 0, "{set}: a mistake is not tried again");
        assert!(!text.contains("panicked"), "{text}");
        place.until_no_worker();
    }
}

/// The folders of whole checkpoints, newest first.
fn checkpoints(place: &Place) -> Vec<PathBuf> {
    let out = place.out().display().to_string();
    let (done, text) = gradsync(&["checkpoint", "list", &out, "--output", "json"]);
    assert!(done, "{text}");
    let rows: Vec<Value> = serde_json::from_str(&text).unwrap();
    rows.iter()
        .filter(|row| row["usable"] == true)
        .map(|row| place.out().join("volumes/c").join(row["path"].as_str().unwrap()))
        .collect()
}

/// Runs until `commits` steps, then stops in order.
fn stopped_after(place: &Place, manifest: &Path, commits: usize) {
    let run = place.start(manifest, &[]);
    place.until_committed(1, 2, commits);
    run.signal(Signal::TERM);
    let (code, text) = run.end();
    assert_eq!(code, 130, "{text}");
    let summary = place.summary();
    assert_eq!(
        summary["checkpointStep"], summary["steps"],
        "nothing is lost: {summary}"
    );
    assert_eq!(summary["lostSteps"], 0);
    place.until_no_worker();
}

#[test]
fn a_damaged_checkpoint_is_passed_over_aloud() {
    let place = Place::training();
    let manifest = count(&place, 5003);
    stopped_after(&place, &manifest, 45);
    let newest = checkpoints(&place).remove(0);
    let file = newest.join("parameters.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let name = newest.file_name().unwrap().to_str().unwrap().to_owned();
    let (code, text) = place.run(&manifest, &[]);
    assert_eq!(code, 0, "{text}");
    assert!(
        text.contains(&format!("checkpoint {name} could not be used")),
        "{text}"
    );
    let summary = place.summary();
    let fallback = &summary["fallbacks"][0];
    assert_eq!(
        (&fallback["passedOver"], &fallback["generation"]),
        (&json!(name), &json!(2))
    );
    assert!(
        fallback["reason"]
            .as_str()
            .unwrap()
            .contains("parameters.safetensors"),
        "{summary}"
    );
}

#[test]
fn a_run_that_failed_at_a_checkpoint_goes_on_by_the_command_that_it_names() {
    const SAMPLES: u64 = 5003;
    let place = Place::training();
    let manifest = count(&place, SAMPLES);
    stopped_after(&place, &manifest, 30);
    let newest = checkpoints(&place).remove(0);
    let step: u64 = place.summary()["steps"].as_u64().unwrap();
    for next in step + 1..=step + 40 {
        let file = newest.with_file_name(format!("step-{next}-g2"));
        std::fs::write(file, "in the way").unwrap();
    }
    // A file where a folder belongs stays there: the first such error is the last.
    let (code, text) = place.run(&manifest, &[]);
    assert_eq!(code, 1, "{text}");
    let summary = place.summary();
    assert_eq!(summary["state"], "Failed", "{text}");
    assert_eq!(summary["checkpointStep"], step);
    let command = summary["goOn"].as_str().unwrap().to_owned();
    assert!(text.contains(&command), "{text}");
    until("no worker", || place.workers().is_empty().then_some(()));

    let (code, text) = place.run(&manifest, &[]);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains(&command), "a finished run names it again: {text}");
    let gradsync = env!("CARGO_BIN_EXE_gradsync");
    let output = Command::new("sh")
        .arg("-c")
        .arg(command.replacen("gradsync", gradsync, 1))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{command}: {text}");
    let counts = exported(&place, &place.path("out-2"));
    assert_eq!(counts.len() as u64, SAMPLES);
    assert!(counts.iter().all(|uses| *uses == 3.0), "{counts:?}");
}
