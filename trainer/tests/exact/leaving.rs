//! A stop that comes while the group is not there.

use crate::failures::{saving, train};
use crate::support::{MeddledTask, Rendezvous, Run, Watch, builtin, die, job, watch};
use gradsync_formats::checkpoint::list_whole;
use gradsync_formats::store::Store as _;
use gradsync_trainer::tasks::ImageClassification;
use gradsync_trainer::train::End;
use std::sync::{Arc, OnceLock};

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
