//! Stops, by whom and when they may come, with ranks that follow a script.

mod run_support;

use run_support::{Place, until};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::process::Signal;
use serde_json::json;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};

#[test]
fn an_agent_that_is_told_to_stop_before_there_is_a_group_stops_the_whole_run() {
    let place = Place::scripted();
    let script = json!({"holdJoin": {"slot": 1, "file": place.path("go")}});
    let manifest = place.script(script, 0);
    let run = place.start(&manifest, &[]);
    until("worker 0 is ready", || {
        run.text().contains("1 of 2 ready").then_some(())
    });
    place.signal_agent("0", Signal::TERM);
    until("the launcher says who was told", || {
        run.text()
            .contains("the agent of worker 0 received SIGTERM")
            .then_some(())
    });
    place.release_hold();
    let (code, text) = run.end();
    assert_eq!(code, 130, "{text}");
    let summary = place.summary();
    assert_eq!(summary["state"], "Stopped");
    let error = summary["error"].as_str().unwrap();
    assert!(
        error.contains("the agent of worker 0 received SIGTERM"),
        "{error}"
    );
    place.until_no_worker();
}

#[test]
fn an_agent_of_a_group_that_is_told_to_stop_stops_the_whole_run() {
    let place = Place::scripted();
    let manifest = place.script(json!({"hold": place.hold(3)}), 0);
    let run = place.start(&manifest, &[]);
    place.until_committed(1, 2, 2);
    place.signal_agent("1", Signal::TERM);
    let (code, text) = run.end();
    assert_eq!(code, 130, "{text}");
    let error = place.summary()["error"].as_str().unwrap().to_owned();
    assert!(
        error.contains("the agent of worker 1 received SIGTERM, so all workers stop"),
        "whichever of the two was the first to end: {error}"
    );
    place.until_no_worker();
}

#[test]
fn a_terminal_that_hangs_up_stops_the_run_unless_that_is_ignored() {
    let place = Place::scripted();
    let manifest = place.script(json!({"hold": place.hold(3)}), 0);
    let run = place.start(&manifest, &[]);
    place.until_committed(1, 2, 2);
    run.signal(Signal::HUP);
    let (code, text) = run.end();
    assert_eq!(code, 130, "{text}");
    assert_eq!(place.summary()["error"], json!(null), "all stopped in order");
    place.until_no_worker();

    let run = place.start_through(&["nohup"], &manifest, &[]);
    place.until_committed(2, 2, 2);
    run.signal(Signal::HUP);
    place.release_hold();
    let (code, text) = run.end();
    assert_eq!(code, 0, "{text}");
}

/// Two scripted workers that hold before step 3, with a checkpoint directory.
fn with_checkpoints(place: &Place) -> PathBuf {
    place.manifest(json!({
        "task": {"name": "scripted", "parameters": {"hold": place.hold(3)}},
        "training": {"globalBatchSize": 8, "steps": 12, "optimizer": {"name": "SGD", "learningRate": 1}},
        "workers": {"replicas": 2, "template": {"spec": {
            "containers": [{"name": "trainer", "volumeMounts": [{"name": "c", "mountPath": "/checkpoints"}]}],
            "volumes": [{"name": "c", "persistentVolumeClaim": {"claimName": "c"}}]}}},
        "checkpoint": {"directory": "/checkpoints", "everySteps": 20},
    }))
}

#[test]
fn a_stop_without_a_checkpoint_says_how_many_steps_are_lost() {
    let place = Place::scripted();
    let manifest = with_checkpoints(&place);
    let run = place.start(&manifest, &[]);
    place.until_committed(1, 2, 2);
    run.signal(Signal::TERM);
    let (code, text) = run.end();
    assert_eq!(code, 130, "{text}");
    let loss = "there is no checkpoint: 2 committed steps are lost on resume";
    assert!(text.contains(loss), "{text}");
    let summary = place.summary();
    assert_eq!(summary["error"], loss, "{summary}");
    assert_eq!(summary["lostSteps"], 2);
}

#[test]
fn no_earlier_summary_is_there_while_a_run_goes_on() {
    let place = Place::scripted();
    let manifest = place.script(json!({"hold": place.hold(3)}), 0);
    let run = place.start(&manifest, &[]);
    place.until_committed(1, 2, 2);
    run.signal(Signal::TERM);
    run.end();
    assert_eq!(place.summary()["state"], "Stopped");
    place.until_no_worker();

    let run = place.start(&manifest, &[]);
    place.until_committed(2, 2, 2);
    assert!(!place.out().join("summary.json").exists());
    place.release_hold();
    let (code, text) = run.end();
    assert_eq!(code, 0, "{text}");
    let summary = place.summary();
    assert_eq!(summary["state"], "Complete");
    assert_eq!(summary["recoveries"][0]["generation"], 2, "{summary}");
    assert_eq!(
        summary["recoveries"][0]["firstStepMs"],
        json!(null),
        "nobody measured it: {summary}"
    );
}

/// A file that everybody who reads it waits for.
fn make_pipe(path: &Path) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
}

#[test]
fn a_start_that_hangs_at_an_unreadable_checkpoint_can_be_interrupted() {
    let place = Place::scripted();
    let manifest = with_checkpoints(&place);
    let run = place.start(&manifest, &[]);
    place.until_committed(1, 2, 2);
    run.signal(Signal::TERM);
    run.end();
    place.until_no_worker();
    let uid = place.summary()["jobUid"].as_str().unwrap().to_owned();
    let folder = place.out().join("volumes/c").join(uid).join("step-2-g1");
    make_pipe(&folder.join("manifest.json"));
    let written = json!({"type": "checkpointed", "position": {"commit": 2, "generation": 1}, "path": "step-2-g1", "seconds": 0.1});
    for entry in std::fs::read_dir(place.out().join("records")).unwrap() {
        let mut file = OpenOptions::new()
            .append(true)
            .open(entry.unwrap().path())
            .unwrap();
        writeln!(file, "{written}").unwrap();
    }

    let mut run = place.start(&manifest, &[]);
    // Without a reader a pipe cannot be opened for writing.
    let _held = until("the launcher reads the checkpoint", || {
        let flags = OFlags::WRONLY | OFlags::NONBLOCK;
        rustix::fs::open(folder.join("manifest.json"), flags, Mode::empty()).ok()
    });
    run.signal(Signal::INT);
    let status = run.status();
    assert_eq!(status.signal(), Some(2), "{status}: {}", run.text());
}
