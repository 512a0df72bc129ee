//! A stop that comes while the group is not there.

use crate::failures::{saving, train, whole_commits};
use crate::support::{Call, MeddledTask, Rendezvous, Run, Watch, builtin, copy_store, die, job, watch};
use gradsync_formats::checkpoint::list_whole;
use gradsync_formats::store::{Store as _, StoreError};
use gradsync_trainer::step::Fatal;
use gradsync_trainer::tasks::ImageClassification;
use gradsync_trainer::train::{End, Summary};
use gradsync_trainer::transport::ConnectFailure;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

#[test]
fn a_survivor_that_is_told_to_stop_saves_what_it_holds_and_the_run_goes_on_from_there() {
    let undisturbed = train(Run::new(saving("cnn", 9), 2, &builtin));
    let records = tempfile::tempdir().unwrap();
    let mut first = Run::new(saving("cnn", 9), 2, &builtin);
    first.records = Some(records.path().into());
    first.restart = false;
    let store = Arc::clone(&first.store);
    // Both have committed the fifth step; the newest checkpoint is the fourth's.
    let (results, watches, service) = first.go(|slot, service| {
        let service = Arc::clone(service);
        watch(move |_, committed| {
            if slot == 1 && committed.position.commit == 5 {
                service.stop();
                die();
            }
        })
    });
    assert_eq!(results[0].as_ref().unwrap().end, End::Stopped);
    let held = watches[0].last().commit;
    assert_eq!(held, 5);
    let listing = list_whole(store.as_ref(), &job(), None, None).unwrap();
    let newest = &listing.whole[0].manifest;
    assert_eq!(newest.position.commit, held);
    assert_eq!(newest.state_digest, watches[0].last().digest);
    assert_eq!(newest.agreed_by, 0, "nobody was there to agree with");

    let told = gradsync_trainer::record::newest_checkpoint(records.path(), &job()).unwrap();
    assert_eq!(told.map(|(position, _)| position), Some(newest.position));

    let mut second = Run::new(saving("cnn", 9), 2, &builtin);
    second.store = store;
    second.records = Some(records.path().into());
    second.saved = service.saved();
    let (results, watches, _) = second.go(|_, _| Watch::default());
    for (result, watch) in results.iter().zip(&watches) {
        assert_eq!(result.as_ref().unwrap().end, End::Complete);
        assert_eq!(watch.states[0].commit, held + 1);
        assert_eq!(watch.last(), &undisturbed);
    }
    let verdict = crate::support::audit(records.path());
    assert!(verdict.clean, "{verdict}");
}

#[test]
fn a_survivor_that_holds_nothing_new_leaves_at_once_and_writes_nothing() {
    let first = Run::new(saving("cnn", 4), 2, &builtin);
    let store = Arc::clone(&first.store);
    train(first);
    let service: Arc<OnceLock<Arc<Rendezvous>>> = Arc::default();
    let known = Arc::clone(&service);
    let tasks = move |slot: u32| {
        let known = Arc::clone(&known);
        match slot {
            1 => vec![MeddledTask::boxed(ImageClassification, move |_, _, _| {
                known.get().unwrap().stop();
                die()
            })],
            _ => builtin(slot),
        }
    };
    // Both have loaded the fourth step's checkpoint when one of them dies in the fifth.
    let mut second = Run::new(saving("cnn", 9), 2, &tasks);
    second.store = Arc::clone(&store);
    second.restart = false;
    let checkpoints = || -> Vec<String> {
        let keys = store.list("").unwrap().into_iter();
        keys.filter(|key| key.contains("/step-")).collect()
    };
    let before = checkpoints();
    let (results, watches, _) = second.go(|_, started| {
        let _ = service.set(Arc::clone(started));
        Watch::default()
    });
    assert_eq!(results[0].as_ref().unwrap().end, End::Stopped);
    assert_eq!(results[0].as_ref().unwrap().position.commit, 4);
    assert!(watches[0].states.is_empty());
    assert_eq!(checkpoints(), before);
}

/// What becomes of the survivor of two when the other one dies in the fifth step, right after all were told to stop.
fn survivor_of(mut run: Run<'_>) -> (Result<Summary, Fatal>, Arc<Rendezvous>) {
    run.restart = false;
    let (mut results, _, service) = run.go(|slot, service| {
        let service = Arc::clone(service);
        watch(move |_, committed| {
            if slot == 1 && committed.position.commit == 5 {
                service.stop();
                die();
            }
        })
    });
    (results.remove(0), service)
}

#[test]
fn a_stop_reaches_a_survivor_that_cannot_read_the_directory_and_saves_what_it_holds() {
    let mut run = Run::new(saving("cnn", 9), 2, &builtin);
    let written = AtomicBool::new(false);
    run.told = Some(Arc::new(move |call| match call {
        Call::Put(key) if key.contains("step-4-g1/manifest") => {
            written.store(true, Ordering::Relaxed);
            Ok(())
        }
        Call::Get(key) if key.contains("step-4-g1/") && written.load(Ordering::Relaxed) => {
            Err(refused(key, ErrorKind::StaleNetworkFileHandle))
        }
        _ => Ok(()),
    }));
    let store = Arc::clone(&run.store);
    let (result, _) = survivor_of(run);
    assert_eq!(result.unwrap().end, End::Stopped);
    assert_eq!(whole_commits(&store), [2, 4, 5]);
}

fn refused(key: &str, kind: ErrorKind) -> StoreError {
    StoreError::Io {
        action: "use",
        path: key.to_owned(),
        source: kind.into(),
    }
}

#[test]
fn a_state_that_cannot_be_saved_at_a_stop_does_not_fail_the_job() {
    // Five steps from another seed: the checkpoint of the fifth holds another state.
    let mut other = saving("cnn", 5);
    other.training.seed += 1;
    let other = Run::new(other, 2, &builtin);
    let conflicting = Arc::clone(&other.store);
    train(other);
    let full = |_: &gradsync_formats::store::MemoryStore, call: Call<'_>| match call {
        Call::Put(key) if key.contains("step-5-g1/") => Err(refused(key, ErrorKind::StorageFull)),
        _ => Ok(()),
    };
    let taken = move |store: &gradsync_formats::store::MemoryStore, call: Call<'_>| {
        if let Call::Get(key) = call
            && key.contains("step-5-g1/manifest")
        {
            let fifth = copy_store(&conflicting, |key| key.contains("step-5-g1/"));
            for key in fifth.list("").unwrap() {
                store.put(&key, &fifth.get(&key).unwrap()).unwrap();
            }
        }
        Ok(())
    };
    type Meddle =
        Arc<dyn Fn(&gradsync_formats::store::MemoryStore, Call<'_>) -> Result<(), StoreError> + Send + Sync>;
    let causes: [(Meddle, &str); 2] = [
        (Arc::new(full), "free space"),
        (Arc::new(taken), "holds another state"),
    ];
    for (meddle, why) in causes {
        let mut run = Run::new(saving("cnn", 9), 2, &builtin);
        let (store, log) = (Arc::clone(&run.store), run.log.clone());
        run.told = Some(Arc::new(move |call| meddle(&store, call)));
        let (result, service) = survivor_of(run);
        assert_eq!(result.unwrap().end, End::Stopped, "{why}");
        assert!(service.ending().is_none(), "{why}: a later start goes on");
        let said = log.text();
        let line = said.lines().find(|line| line.contains("what is held is lost"));
        assert!(line.is_some_and(|line| line.contains(why)), "{why}: {said}");
    }
}

#[test]
fn a_state_beyond_the_base_of_an_accepted_plan_is_given_up_aloud_and_not_saved() {
    let mut run = Run::new(saving("cnn", 9), 2, &builtin);
    let (store, log) = (Arc::clone(&run.store), run.log.clone());
    let service: Arc<OnceLock<Arc<Rendezvous>>> = Arc::default();
    let known = Arc::clone(&service);
    // The second generation starts from the fourth step and does not come to be: the stop comes once the
    // survivor has accepted its plan.
    let (accepted, wait) = std::sync::mpsc::channel();
    let (accepted, wait) = (Mutex::new(accepted), Mutex::new(wait));
    run.connecting = Some(Arc::new(move |plan, head| match (plan.generation.0, head.rank) {
        (1, _) => Ok(()),
        (_, 0) => {
            let _ = accepted.lock().unwrap().send(());
            Err(ConnectFailure {
                unreachable: vec![1],
                different: false,
                message: "no link".into(),
            })
        }
        _ => {
            wait.lock()
                .unwrap()
                .recv_timeout(Duration::from_secs(60))
                .unwrap();
            known.get().unwrap().stop();
            die()
        }
    }));
    let died = AtomicBool::new(false);
    let (results, watches, _) = run.go(|slot, started| {
        let _ = service.set(Arc::clone(started));
        let died = &died;
        watch(move |_, committed| {
            let now = slot == 1 && committed.position.commit == 5;
            if now && !died.swap(true, Ordering::Relaxed) {
                die();
            }
        })
    });
    assert_eq!(results[0].as_ref().unwrap().end, End::Stopped);
    assert_eq!(watches[0].last().commit, 5, "that is what it held");
    assert_eq!(whole_commits(&store), [2, 4]);
    let said = log.text();
    assert!(
        said.contains("began from step 4: 1 steps beyond it, held here, are given up"),
        "{said}"
    );
}
