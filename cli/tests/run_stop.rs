//! Stops, by whom and when they may come, with ranks that follow a script.

mod run_support;

use run_support::{Place, until};
use rustix::process::Signal;
use serde_json::json;
use std::process::{Command, Stdio};

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
        run.text().contains("worker 0 was told to stop").then_some(())
    });
    place.release_hold();
    let (code, text) = run.end();
    assert_eq!(code, 130, "{text}");
    let summary = place.summary();
    assert_eq!(summary["state"], "Stopped");
    let error = summary["error"].as_str().unwrap();
    assert!(error.contains("worker 0 was told to stop"), "{error}");
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
    assert!(error.contains("told to stop"), "{error}");
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

    let plain = place.command(&manifest, &[]);
    let mut command = Command::new("nohup");
    command
        .arg(plain.get_program())
        .args(plain.get_args())
        .stdin(Stdio::null());
    let run = place.start_command(command);
    place.until_committed(2, 2, 2);
    run.signal(Signal::HUP);
    place.release_hold();
    let (code, text) = run.end();
    assert_eq!(code, 0, "{text}");
}

#[test]
fn a_stop_without_a_checkpoint_says_how_many_steps_are_lost() {
    let place = Place::scripted();
    let manifest = place.manifest(json!({
        "task": {"name": "scripted", "parameters": {"hold": place.hold(3)}},
        "training": {"globalBatchSize": 8, "steps": 12, "optimizer": {"name": "SGD", "learningRate": 1}},
        "workers": {"replicas": 2, "template": {"spec": {
            "containers": [{"name": "trainer", "volumeMounts": [{"name": "c", "mountPath": "/checkpoints"}]}],
            "volumes": [{"name": "c", "persistentVolumeClaim": {"claimName": "c"}}]}}},
        "checkpoint": {"directory": "/checkpoints", "everySteps": 20},
    }));
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
