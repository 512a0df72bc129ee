//! `gradsync run` on bad input: one clear error, exit code 2, nothing started and nothing half made.

mod run_support;

use run_support::Place;
use serde_json::json;
use std::path::Path;

fn refused(place: &Place, manifest: &Path, more: &[&str], parts: &[&str]) {
    let (code, text) = place.run(manifest, more);
    assert_eq!(code, 2, "{text}");
    assert!(text.starts_with("error: "), "{text}");
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
    assert!(!text.contains("panicked"), "{text}");
}

#[test]
fn a_missing_or_broken_manifest_is_named() {
    let place = Place::without_trainer();
    refused(
        &place,
        Path::new("/nowhere/job.yaml"),
        &[],
        &["/nowhere/job.yaml", "No such file"],
    );
    let broken = place.path("broken.yaml");
    std::fs::write(&broken, "kind: TrainingJob\nspec: {a: [1\n").unwrap();
    refused(&place, &broken, &[], &["broken.yaml", "line "]);
    std::fs::write(&broken, "kind: ConfigMap\n").unwrap();
    refused(&place, &broken, &[], &["no object of kind TrainingJob"]);
    assert!(!place.out().exists(), "no output directory for a bad manifest");
}

#[test]
fn a_manifest_that_the_api_server_would_refuse_is_refused_with_its_field() {
    let place = Place::without_trainer();
    let manifest = place.script(json!({}), 0);
    refused(
        &place,
        &manifest,
        &["--set", "training.stepz=4"],
        &["spec.training.stepz"],
    );
    refused(
        &place,
        &manifest,
        &["--set", "training.epochs=4"],
        &["steps", "epochs"],
    );
    refused(&place, &manifest, &["--set", "training"], &["FIELD=VALUE"]);
    assert!(!place.out().exists());
}

#[test]
fn a_map_that_leads_nowhere_and_a_missing_trainer_are_named() {
    let place = Place::without_trainer();
    let manifest = place.script(json!({}), 0);
    refused(
        &place,
        &manifest,
        &["--map", "/data=/does/not/exist"],
        &["/does/not/exist"],
    );
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_gradsync"));
    let output = command
        .args([
            "run",
            manifest.to_str().unwrap(),
            "--trainer",
            "/no/trainer",
            "--out",
        ])
        .arg(place.out())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--trainer /no/trainer"));
}

#[test]
fn a_host_path_that_this_machine_lacks_is_found_before_anything_starts() {
    let place = Place::without_trainer();
    let manifest = place.manifest(json!({
        "task": {"name": "count"},
        "training": {"globalBatchSize": 8, "steps": 12, "optimizer": {"name": "SGD", "learningRate": 1}},
        "workers": {"replicas": 1, "template": {"spec": {
            "containers": [{"name": "trainer", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
            "volumes": [{"name": "data", "hostPath": {"path": "/does/not/exist"}}]}}},
    }));
    refused(&place, &manifest, &[], &["/does/not/exist", "--map /data="]);
}

#[test]
fn a_strangers_directory_is_not_used() {
    let place = Place::without_trainer();
    let manifest = place.script(json!({}), 0);
    std::fs::create_dir(place.out()).unwrap();
    std::fs::write(place.out().join("thesis.tex"), "mine").unwrap();
    refused(&place, &manifest, &[], &["no run of gradsync", "--out"]);
    refused(&place, &manifest, &["--fresh"], &["--fresh never deletes"]);
}

#[test]
fn there_is_nothing_to_resume_in_a_new_directory() {
    let place = Place::without_trainer();
    let manifest = place.script(json!({}), 0);
    refused(&place, &manifest, &["--resume"], &["there is no run"]);
}

#[test]
fn a_taken_port_is_named() {
    let place = Place::without_trainer();
    let manifest = place.script(json!({}), 0);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, text) = place.run(&manifest, &["--listen", &address]);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains(&format!("listen on {address}")), "{text}");
}
