//! The life of a run: launcher, agents, ranks and rendezvous together, with ranks that follow a script.

mod run_support;

use run_support::{Place, until};
use rustix::process::Signal;
use serde_json::json;
use std::fs;

#[test]
fn a_run_completes_and_leaves_all_that_it_promises() {
    let place = Place::scripted();
    let manifest = place.script(json!({}), 0);
    let (code, text) = place.run(&manifest, &[]);
    assert_eq!(code, 0, "{text}");
    let summary = place.summary();
    assert_eq!(summary["state"], "Complete");
    assert_eq!(summary["steps"], 12);
    assert_eq!(summary["worldSize"], 2);
    assert_eq!(summary["error"], json!(null));
    assert_eq!(summary["digestsAgree"], true, "{summary}");
    assert!(text.contains("test complete: 12 steps"), "{text}");
    for name in [
        "job.yaml",
        "loss.svg",
        "membership.json",
        "logs/worker-1-0.log",
        "logs/worker-0-agent.log",
    ] {
        assert!(place.out().join(name).exists(), "{name}");
    }
    let log = fs::read_to_string(place.out().join("logs/launcher.log")).unwrap();
    assert!(!log.contains("WARN"), "an end in order warns of nothing: {log}");
    let metrics = fs::read_to_string(place.out().join("metrics.jsonl")).unwrap();
    let steps: Vec<u64> = metrics
        .lines()
        .map(|line| {
            serde_json::from_str::<serde_json::Value>(line).unwrap()["step"]
                .as_u64()
                .unwrap()
        })
        .collect();
    assert_eq!(steps, (1..=12).collect::<Vec<u64>>());
    place.until_no_worker();
    let (code, text) = place.run(&manifest, &[]);
    assert_eq!(code, 2, "a finished directory is refused: {text}");
    assert!(
        text.contains("complete (12 steps)") && text.contains("--out"),
        "{text}"
    );
}

#[test]
fn the_number_of_workers_is_the_users_and_the_grid_the_manifests() {
    let place = Place::scripted();
    let manifest = place.script(json!({}), 0);
    let (code, text) = place.run(&manifest, &["--workers", "1"]);
    assert_eq!(code, 0, "{text}");
    assert_eq!(place.summary()["worldSize"], 1);
    let origin: serde_json::Value =
        serde_json::from_slice(&fs::read(place.out().join("run.json")).unwrap()).unwrap();
    assert_eq!(
        origin["runConfig"]["microBatchSize"], 4,
        "8 samples on the manifest's 2 ranks"
    );
}

#[test]
fn a_crashed_rank_is_started_again_in_place_and_charged_once() {
    let place = Place::scripted();
    let fault = json!({"slot": 1, "beforeStep": 5, "kind": "crash"});
    let manifest = place.script(json!({"hold": place.hold(5), "faults": [fault]}), 1);
    let run = place.start(&manifest, &[]);
    place.until_committed(2, 2, 4);
    place.release_hold();
    let (code, text) = run.end();
    assert_eq!(code, 0, "{text}");
    let summary = place.summary();
    assert_eq!(
        (&summary["restarts"], &summary["generation"]),
        (&json!(1), &json!(2)),
        "{summary}"
    );
    assert!(
        !text.contains("it is started again"),
        "the agent lived on: {text}"
    );
}

#[test]
fn a_killed_agent_is_replaced_and_its_rank_does_not_outlive_it() {
    let place = Place::scripted();
    let manifest = place.script(json!({"hold": place.hold(3)}), 1);
    let run = place.start(&manifest, &[]);
    place.until_committed(1, 2, 2);
    let before: Vec<i32> = place
        .workers()
        .into_iter()
        .filter(|(_, slot, _)| slot == "1")
        .map(|(pid, ..)| pid)
        .collect();
    assert_eq!(before.len(), 2, "an agent and its rank");
    place.kill_agent("1");
    place.until_committed(2, 2, 2);
    let after = place.workers();
    assert!(
        after.iter().all(|(pid, ..)| !before.contains(pid)),
        "{before:?} {after:?}"
    );
    place.release_hold();
    let (code, text) = run.end();
    assert_eq!(code, 0, "{text}");
    assert!(
        text.contains("worker 1 ended (ended by signal 9); it is started again"),
        "{text}"
    );
}

#[test]
fn an_exhausted_budget_fails_the_run_with_the_ranks_own_words() {
    let place = Place::scripted();
    let fault = json!({"slot": 1, "beforeStep": 5, "kind": "crash", "times": 100});
    let manifest = place.script(json!({"hold": place.hold(6), "faults": [fault]}), 1);
    let (code, text) = place.run(&manifest, &[]);
    assert_eq!(code, 1, "{text}");
    let error = place.summary()["error"].as_str().unwrap().to_owned();
    assert!(error.contains("maxRestarts allows 1"), "{error}");
    assert!(
        error.contains("the script crashes worker 1 before step 5"),
        "{error}"
    );
    assert!(text.contains("worker-1-0.log"), "the log is named: {text}");
    place.until_no_worker();
    let (code, text) = place.run(&manifest, &[]);
    assert_eq!(code, 2, "failed after steps is finished for ever: {text}");
    assert!(text.contains("has failed and is finished"), "{text}");
}

#[test]
fn a_users_mistake_ends_the_run_at_once_and_may_be_mended_in_the_same_directory() {
    let place = Place::scripted();
    let fault = json!({"slot": 0, "beforeStep": 1, "kind": "userError"});
    let manifest = place.script(json!({"hold": place.hold(1), "faults": [fault]}), 3);
    let (code, text) = place.run(&manifest, &[]);
    assert_eq!(code, 2, "bad input: {text}");
    let summary = place.summary();
    assert!(
        summary["error"]
            .as_str()
            .unwrap()
            .contains("task.parameters.faults: worker 0"),
        "{summary}"
    );
    assert_eq!(summary["restarts"], 0, "a mistake is not tried again");
    place.until_no_worker();
    let mended = place.script(json!({}), 3);
    let (code, text) = place.run(&mended, &[]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("failed before its first step"), "{text}");
}

#[test]
fn ctrl_c_stops_in_order_and_the_same_command_goes_on_as_the_same_job() {
    let place = Place::scripted();
    let manifest = place.script(json!({"hold": place.hold(3)}), 0);
    let run = place.start(&manifest, &[]);
    place.until_committed(1, 2, 2);
    let (code, text) = place.run_beside(&manifest);
    assert_eq!(code, 2, "a second run in the same directory: {text}");
    assert!(text.contains(&format!("process {}", run.child.id())), "{text}");
    run.signal(Signal::INT);
    let (code, text) = run.end();
    assert_eq!(code, 130, "{text}");
    let first = place.summary();
    assert_eq!(first["state"], "Stopped");
    assert_eq!(first["error"], json!(null), "all stopped in order");
    place.until_no_worker();

    let (code, text) = place.run(&manifest, &["--set", "training.seed=9"]);
    assert_eq!(code, 2, "another run is not this one: {text}");
    assert!(text.contains("spec.training.seed: was"), "{text}");

    place.release_hold();
    let (code, text) = place.run(&manifest, &["--resume", "--set", "training.steps=14"]);
    assert_eq!(code, 0, "{text}");
    let second = place.summary();
    assert_eq!(second["jobUid"], first["jobUid"]);
    assert_eq!(second["steps"], 14, "more steps are a change that is allowed");
    assert!(second["generation"].as_u64() > first["generation"].as_u64());
}

#[test]
fn a_second_ctrl_c_ends_workers_that_do_not_stop() {
    let place = Place::scripted();
    let manifest = place.script(json!({"hold": place.hold(3), "deaf": true}), 0);
    let run = place.start(&manifest, &[]);
    place.until_committed(1, 2, 2);
    run.signal(Signal::TERM);
    until("the first signal is taken in", || {
        run.text().contains("SIGTERM: stopping").then_some(())
    });
    run.signal(Signal::INT);
    let (code, text) = run.end();
    assert_eq!(code, 130, "{text}");
    assert!(
        place.summary()["error"]
            .as_str()
            .unwrap()
            .contains("second signal")
    );
    place.until_no_worker();
}

#[test]
fn a_killed_launcher_leaves_no_process_and_the_run_can_go_on() {
    let place = Place::scripted();
    let manifest = place.script(json!({"hold": place.hold(3)}), 0);
    let mut run = place.start(&manifest, &[]);
    place.until_committed(1, 2, 2);
    run.signal(Signal::KILL);
    run.status();
    place.release_hold();
    let (code, text) = place.run(&manifest, &[]);
    assert_eq!(code, 0, "{text}");
    assert_eq!(place.summary()["generation"], 2);
    place.until_no_worker();
}
