//! What a run leaves, and says, where its files or its program are in trouble.

mod run_support;

use run_support::{Place, until};
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
