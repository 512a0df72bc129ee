//! What a run leaves, and says, where its files or its program are in trouble.

mod run_support;

use run_support::{Place, Running, signal, until};
use rustix::process::Signal;
use serde_json::json;
use std::fs;
use std::path::Path;

#[test]
fn records_that_cannot_be_read_for_a_while_do_not_end_the_workers() {
    let place = Place::scripted();
    let manifest = place.script(json!({"hold": place.hold(3)}), 0);
    let run = place.start(&manifest, &[]);
    place.until_committed(1, 2, 2);
    let (records, aside) = (place.out().join("records"), place.out().join("aside"));
    fs::rename(&records, &aside).unwrap();
    until("the launcher says so", || {
        run.text().contains("progress cannot be followed").then_some(())
    });
    fs::rename(&aside, &records).unwrap();
    place.release_hold();
    let (code, text) = run.end();
    assert_eq!(code, 0, "{text}");
    assert_eq!(text.matches("progress cannot be followed").count(), 1, "{text}");
    assert_eq!(place.summary()["steps"], 12);
}

#[test]
fn an_end_that_cannot_be_written_is_told_on_the_terminal_and_is_no_success() {
    let place = Place::scripted();
    let manifest = place.script(json!({"hold": place.hold(3)}), 0);
    let run = place.start(&manifest, &[]);
    place.until_committed(1, 2, 2);
    fs::create_dir_all(place.out().join("summary.json/in the way")).unwrap();
    place.release_hold();
    let (code, text) = run.end();
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("test complete: 12 steps"), "{text}");
    assert!(
        text.contains("summary.json: Is a directory") && text.contains("move it away"),
        "{text}"
    );
    assert!(!place.out().join(".summary.json.tmp").exists());
}

#[test]
fn a_curve_that_cannot_be_written_takes_nothing_from_the_summary() {
    let place = Place::scripted();
    let manifest = place.script(json!({"hold": place.hold(3)}), 0);
    let run = place.start(&manifest, &[]);
    place.until_committed(1, 2, 2);
    fs::create_dir_all(place.out().join("loss.svg/in the way")).unwrap();
    place.release_hold();
    let (code, text) = run.end();
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("loss.svg: Is a directory"), "{text}");
    assert_eq!(place.summary()["state"], "Complete");
}

#[test]
fn a_full_disk_is_named_with_the_way_out_and_leaves_no_half_written_file() {
    let place = Place::without_trainer();
    let manifest = place.script(json!({}), 0);
    fs::create_dir(place.out()).unwrap();
    fs::write(place.out().join("lock"), "").unwrap();
    let temporary = place.out().join("membership.json.tmp");
    std::os::unix::fs::symlink("/dev/full", &temporary).unwrap();
    let (code, text) = place.run(&manifest, &[]);
    assert_eq!(code, 2, "{text}");
    assert!(
        text.contains("membership.json: No space left on device") && text.contains("free space there"),
        "{text}"
    );
    assert_eq!(text.matches("No space left").count(), 1, "said once: {text}");
    assert!(fs::symlink_metadata(&temporary).is_err(), "the temporary is gone");
}

#[test]
fn a_program_that_is_no_trainer_is_named_with_how_it_was_called() {
    let place = Place::with_trainer(Path::new("/bin/true"));
    let manifest = place.script(json!({}), 3);
    let (code, text) = place.run(&manifest, &[]);
    assert_eq!(code, 2, "{text}");
    let error = place.summary()["error"].as_str().unwrap().to_owned();
    for part in [
        "/bin/true exited with code 0 without joining",
        "`/bin/true agent`",
        "--trainer takes gradsync-trainer",
    ] {
        assert!(error.contains(part) && text.contains(part), "{part}: {error}");
    }
}

#[test]
fn a_port_that_is_taken_leaves_no_trace_of_the_run() {
    let place = Place::without_trainer();
    let manifest = place.script(json!({}), 0);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, text) = place.run(&manifest, &["--listen", &address]);
    assert_eq!(code, 2, "{text}");
    assert_eq!(text.matches("Address already in use").count(), 1, "{text}");
    assert!(!place.out().exists(), "{text}");
}

#[test]
fn a_map_of_a_path_that_is_not_mounted_is_refused_with_the_mounts() {
    let place = Place::without_trainer();
    let manifest = place.script(json!({}), 0);
    let (code, text) = place.run(&manifest, &["--map", "/dataa=/tmp"]);
    assert_eq!(code, 2, "{text}");
    assert!(
        text.contains("--map /dataa=") && text.contains("it mounts none"),
        "{text}"
    );
    assert!(!place.out().exists());
}

/// A run whose membership cannot be saved any more from step 3 on, and whose rank 1 has just been killed.
fn unsaved(place: &Place, max_restarts: u32) -> Running {
    let manifest = place.script(json!({"hold": place.hold(3)}), max_restarts);
    let run = place.start(&manifest, &[]);
    place.until_committed(1, 2, 2);
    fs::create_dir(place.out().join("membership.json.tmp")).unwrap();
    let workers = place.workers();
    let (rank, ..) = workers
        .iter()
        .find(|(_, slot, rank)| slot == "1" && *rank)
        .unwrap();
    signal(*rank, Signal::KILL);
    until("the launcher says so", || {
        run.text()
            .contains("membership of the run cannot be saved")
            .then_some(())
    });
    run
}

#[test]
fn a_membership_that_cannot_be_saved_is_named_once_and_a_stop_is_in_order() {
    let place = Place::scripted();
    let run = unsaved(&place, 3);
    run.signal(Signal::INT);
    let (code, text) = run.end();
    assert_eq!(code, 130, "{text}");
    let why = "membership.json: Is a directory";
    assert!(text.contains(why), "{text}");
    assert_eq!(text.matches("cannot be saved").count(), 1, "{text}");
    assert_eq!(place.summary()["error"], json!(null), "{text}");
    let log = fs::read_to_string(place.out().join("logs/launcher.log")).unwrap();
    assert_eq!(log.matches("cannot be saved").count(), 1, "{log}");
    assert!(log.contains(why), "{log}");
    place.until_no_worker();
}

#[test]
fn a_signal_after_a_failure_that_cannot_be_saved_ends_the_workers_at_once() {
    let place = Place::scripted();
    let run = unsaved(&place, 0);
    run.signal(Signal::INT);
    let (code, text) = run.end();
    assert_eq!(code, 1, "{text}");
    assert!(
        text.contains("the run has ended, ending the workers at once"),
        "{text}"
    );
    let error = place.summary()["error"].as_str().unwrap().to_owned();
    assert!(error.contains("maxRestarts allows 0"), "{error}");
    place.until_no_worker();
}
