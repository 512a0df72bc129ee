//! What becomes of a run when its checkpoint directory cannot be read, is another one, or is not there.

use crate::failures::{failure, saving, text, train};
use crate::support::{Run, Watch, builtin, die, watch};
use gradsync_formats::run_config::ResumePolicy;
use gradsync_formats::store::{MemoryStore, ReadFault, Store as _};
use gradsync_rendezvous::membership::Saved;
use gradsync_trainer::step::FatalKind;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What a run of six steps leaves: checkpoints of the second, fourth and sixth.
fn six_steps() -> Arc<MemoryStore> {
    let first = Run::new(saving("cnn", 6), 2, &builtin);
    let store = Arc::clone(&first.store);
    train(first);
    store
}

pub fn refuse(store: &MemoryStore, of: &str, after: u64, times: u64) {
    store.set_read_fault(Some(ReadFault {
        of: of.into(),
        after,
        times,
        kind: ErrorKind::StaleNetworkFileHandle,
    }));
}

#[test]
fn a_directory_that_is_away_for_a_moment_is_read_again_and_no_older_checkpoint_is_taken() {
    // While looking around, at the end of it, and while loading.
    for (of, after) in [
        ("step-6-g1/manifest", 0),
        ("step-6-g1/parameters", 0),
        ("step-6-g1/optimizer", 2),
    ] {
        let store = six_steps();
        let mut second = Run::new(saving("cnn", 8), 2, &builtin);
        second.store = Arc::clone(&store);
        refuse(&store, of, after, 3);
        let (results, watches, _) = second.go(|_, _| Watch::default());
        for (result, watch) in results.iter().zip(&watches) {
            assert!(result.is_ok(), "{of}: {result:?}");
            assert_eq!(watch.states[0].commit, 7, "{of}: went on from the sixth step");
        }
    }
}

#[test]
fn a_directory_that_stays_unreadable_ends_the_process_as_a_platform_fault_and_never_falls_back() {
    for (of, after, told) in [
        ("step-6-g1/manifest", 0, "it was tried for 0 s"),
        ("step-6-g1/parameters", 0, "it was tried for 0 s"),
        ("step-6-g1/optimizer", 2, "it was tried 14 times"),
    ] {
        let store = six_steps();
        let mut second = Run::new(saving("cnn", 8), 1, &builtin);
        second.store = Arc::clone(&store);
        second.directory = Duration::ZERO;
        refuse(&store, of, after, u64::MAX);
        let (results, watches, service) = second.go(|_, _| Watch::default());
        let fatal = results[0].as_ref().unwrap_err();
        assert_eq!(fatal.kind, FatalKind::Process, "{of}: {fatal}");
        assert!(fatal.message.contains(told), "{of}: {fatal}");
        assert!(watches[0].states.is_empty(), "{of}: no step was taken");
        assert!(
            service.ending().is_none(),
            "{of}: the job can go on when the directory is back"
        );
    }
}

/// Six steps with records, stopped at the fifth; what a service started later knows.
fn stopped_at_five(records: &Path) -> (Arc<MemoryStore>, Saved) {
    let mut first = Run::new(saving("cnn", 6), 2, &builtin);
    first.records = Some(records.into());
    let store = Arc::clone(&first.store);
    let (results, _, service) = first.go(|slot, service| {
        let service = Arc::clone(service);
        watch(move |_, committed| {
            if slot == 0 && committed.position.commit == 4 {
                service.stop();
            }
        })
    });
    results.iter().for_each(|result| assert!(result.is_ok()));
    (store, service.saved())
}

#[test]
fn a_resume_in_an_empty_directory_is_refused_and_names_it_the_newest_step_and_the_way_out() {
    let records = tempfile::tempdir().unwrap();
    let (_, saved) = stopped_at_five(records.path());
    let mut second = Run::new(saving("cnn", 6), 2, &builtin);
    second.records = Some(records.path().into());
    second.saved = saved;
    let (results, watches, service) = second.go(|_, _| Watch::default());
    for (result, watch) in results.iter().zip(&watches) {
        let error = text(result);
        for part in [
            "checkpoint.directory (/checkpoints)",
            "step-5-g1",
            "after step 5",
            "policy: Path",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }
        assert!(watch.states.is_empty(), "no step was taken");
    }
    assert!(failure(&service).contains("step-5-g1"));
}

#[test]
fn with_policy_never_a_resume_in_an_empty_directory_starts_over() {
    let records = tempfile::tempdir().unwrap();
    let (_, saved) = stopped_at_five(records.path());
    let mut config = saving("cnn", 6);
    config.checkpoint.as_mut().unwrap().resume.policy = ResumePolicy::Never;
    let mut second = Run::new(config, 2, &builtin);
    second.records = Some(records.path().into());
    second.saved = saved;
    let (results, watches, _) = second.go(|_, _| Watch::default());
    results
        .iter()
        .for_each(|result| assert!(result.is_ok(), "{result:?}"));
    assert_eq!(watches[0].states[0].commit, 1);
}

#[test]
fn a_directory_that_is_emptied_under_a_running_group_does_not_send_it_back_to_the_beginning() {
    let run = Run::new(saving("cnn", 6), 2, &builtin);
    let store = Arc::clone(&run.store);
    let died = AtomicBool::new(false);
    let (results, _, service) = run.go(|slot, _| {
        let (store, died) = (Arc::clone(&store), &died);
        watch(move |_, committed| {
            if slot == 1 && committed.position.commit == 5 && !died.swap(true, Ordering::Relaxed) {
                for key in store.list("").unwrap() {
                    store.delete(&key).unwrap();
                }
                die();
            }
        })
    });
    assert!(text(&results[0]).contains("step-4-g1"), "{}", text(&results[0]));
    assert!(results[1].is_err());
    assert!(failure(&service).contains("step-4-g1"));
}

#[test]
fn a_group_that_is_lost_before_its_first_checkpoint_begins_again() {
    let run = Run::new(saving("cnn", 6), 2, &builtin);
    let died = AtomicBool::new(false);
    let (results, watches, _) = run.go(|slot, _| {
        let died = &died;
        watch(move |_, committed| {
            if slot == 1 && committed.position.commit == 1 && !died.swap(true, Ordering::Relaxed) {
                die();
            }
        })
    });
    results
        .iter()
        .for_each(|result| assert!(result.is_ok(), "{result:?}"));
    assert_eq!(watches[1].states[0].commit, 1);
}
