//! `gradsync run` with the real trainer: what is trained is exact through kills, stops and other numbers of
//! workers, and what cannot be trained ends with one clear error.

mod run_support;

use run_support::{Place, signal};
use rustix::process::Signal;
use serde_json::{Value, json};
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

/// Every parameter in the newest checkpoint, read from the exported file.
fn exported(place: &Place) -> Vec<f64> {
    let file = place.path("export.safetensors");
    let (out, to) = (place.out().display().to_string(), file.display().to_string());
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
    let counts = exported(&place);
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
        assert_eq!(code, 1, "{set}: {text}");
        let summary = place.summary();
        let error = summary["error"].as_str().unwrap();
        assert!(error.contains(part), "{set}: {error}");
        assert_eq!(summary["restarts"], 0, "{set}: a mistake is not tried again");
        assert!(!text.contains("panicked"), "{text}");
        place.until_no_worker();
    }
}
