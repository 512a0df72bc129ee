//! What a group lives through without going back: a directory that is away for long, a link that breaks; and a
//! checkpoint or an evaluation that was cut off.

use crate::failures::{failure, saving, train, whole_commits};
use crate::saved::evaluated;
use crate::storage::refuse;
use crate::support::{Call, Run, Watch, builtin, die, job, watch};
use gradsync_collective::{AbortCause, Communicator};
use gradsync_formats::checkpoint::list_whole;
use gradsync_formats::run_config::RunConfig;
use gradsync_formats::store::StoreError;
use gradsync_trainer::step::FatalKind;
use gradsync_trainer::train::End;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex};

#[test]
fn a_kill_during_the_first_checkpoint_begins_again_and_does_not_fail_the_job() {
    let undisturbed = train(Run::new(saving("cnn", 6), 2, &builtin));
    let mut run = Run::new(saving("cnn", 6), 2, &builtin);
    let store = Arc::clone(&run.store);
    let died = AtomicBool::new(false);
    run.told = Some(Arc::new(move |call| {
        let writing = matches!(call, Call::Put(key) if key.contains("step-2-g1/optimizer"));
        if writing && !died.swap(true, Ordering::Relaxed) {
            die();
        }
        Ok(())
    }));
    let (results, watches, _) = run.go(|_, _| Watch::default());
    for (result, watch) in results.iter().zip(&watches) {
        assert!(result.is_ok(), "{result:?}");
        assert_eq!(watch.last(), &undisturbed);
    }
    let commits = whole_generations(&store);
    assert_eq!(commits, [(2, 2), (4, 2), (6, 2)]);
}

/// Commit and generation of the whole checkpoints, oldest first.
fn whole_generations(store: &gradsync_formats::store::MemoryStore) -> Vec<(u64, u64)> {
    let listing = list_whole(store, &job(), None, None).unwrap();
    let whole = listing.whole.iter().rev().map(|whole| whole.reference.position);
    whole
        .map(|position| (position.commit, position.generation.0))
        .collect()
}

#[test]
fn a_directory_that_is_away_for_longer_than_a_few_tries_costs_no_member_its_process() {
    let undisturbed = train(Run::new(saving("cnn", 8), 2, &builtin));
    let run = Run::new(saving("cnn", 8), 2, &builtin);
    let store = Arc::clone(&run.store);
    let died = AtomicBool::new(false);
    let (results, watches, service) = run.go(|slot, _| {
        let (store, died) = (Arc::clone(&store), &died);
        watch(move |_, committed| {
            let now = slot == 1 && committed.position.commit == 5;
            if now && !died.swap(true, Ordering::Relaxed) {
                refuse(&store, "step-4-g1/manifest", 0, 16);
                die();
            }
        })
    });
    for (result, watch) in results.iter().zip(&watches) {
        assert!(result.is_ok(), "{result:?}");
        assert_eq!(watch.last(), &undisturbed);
    }
    assert_eq!(
        service.saved().restarts.charged.len(),
        1,
        "the crash, and nothing else"
    );
}

fn away(key: &str) -> StoreError {
    StoreError::Io {
        action: "write",
        path: key.to_owned(),
        source: ErrorKind::HostUnreachable.into(),
    }
}

#[test]
fn a_checkpoint_that_cannot_be_written_for_a_while_is_left_out_and_training_goes_on() {
    let undisturbed = train(Run::new(saving("cnn", 6), 2, &builtin));
    let mut run = Run::new(saving("cnn", 6), 2, &builtin);
    let (store, log) = (Arc::clone(&run.store), run.log.clone());
    run.told = Some(Arc::new(|call| match call {
        Call::Put(key) if key.contains("step-4-g1/") => Err(away(key)),
        _ => Ok(()),
    }));
    let (results, watches, _) = run.go(|_, _| Watch::default());
    for (result, watch) in results.iter().zip(&watches) {
        assert_eq!(result.as_ref().unwrap().end, End::Complete);
        assert_eq!(watch.states.len(), 6, "no step was repeated");
        assert_eq!(watch.last(), &undisturbed);
    }
    assert_eq!(whole_commits(&store), [2, 6]);
    let said = log.text();
    let line = said
        .lines()
        .find(|line| line.contains("going on without this checkpoint"));
    assert!(line.is_some_and(|line| line.contains("step-4-g1")), "{said}");
}

#[test]
fn without_its_last_checkpoint_a_job_is_not_complete() {
    let mut run = Run::new(saving("cnn", 4), 1, &builtin);
    run.told = Some(Arc::new(|call| match call {
        Call::Put(key) if key.contains("step-4-g1/") => Err(away(key)),
        _ => Ok(()),
    }));
    let (results, _, service) = run.go(|_, _| Watch::default());
    let fatal = results[0].as_ref().unwrap_err();
    assert_eq!(fatal.kind, FatalKind::Process, "{fatal}");
    assert!(
        service.ending().is_none(),
        "a fresh process does the last steps again"
    );
}

/// The links of a group, which a test can break: all members lose their group, and nobody its process.
#[derive(Clone, Default)]
struct Links(Arc<Mutex<Vec<Arc<dyn Communicator>>>>);

impl Links {
    fn are_held_by(&self, run: &mut Run<'_>) {
        let links = self.clone();
        run.wrap = Some(Arc::new(move |inner| {
            links.0.lock().unwrap().push(Arc::clone(&inner));
            inner
        }));
    }

    fn break_now(&self) {
        for link in self.0.lock().unwrap().drain(..) {
            link.abort(AbortCause::Failure("the link broke".into()));
        }
    }
}

/// Runs two members whose link breaks once, right after both have committed `commit`, and after `then`.
fn with_a_broken_link<'a>(
    mut run: Run<'_>,
    commit: u64,
    then: &'a (dyn Fn() + Sync),
) -> (Vec<Watch<'a>>, Vec<String>) {
    let links = Links::default();
    links.are_held_by(&mut run);
    let both = Arc::new(Barrier::new(2));
    let broken = Arc::new(AtomicBool::new(false));
    let (results, watches, service) = run.go(|slot, _| {
        let (links, both, broken) = (links.clone(), Arc::clone(&both), Arc::clone(&broken));
        watch(move |_, committed| {
            if committed.position.commit != commit || broken.load(Ordering::Relaxed) {
                return;
            }
            both.wait();
            if slot == 0 {
                then();
                broken.store(true, Ordering::Relaxed);
                links.break_now();
            }
            both.wait();
        })
    });
    let errors = results.iter().filter_map(|result| result.as_ref().err());
    let mut errors: Vec<String> = errors.map(ToString::to_string).collect();
    if service
        .ending()
        .is_none_or(|ending| matches!(ending, gradsync_rendezvous::membership::Ending::Failed { .. }))
    {
        errors.push(failure(&service));
    }
    (watches, errors)
}

#[test]
fn one_damaged_checkpoint_does_not_matter_to_members_that_all_hold_the_state() {
    let undisturbed = train(Run::new(saving("cnn", 8), 2, &builtin));
    let mut config = saving("cnn", 8);
    config.checkpoint.as_mut().unwrap().keep = 1;
    let run = Run::new(config, 2, &builtin);
    let store = Arc::clone(&run.store);
    let damage = || {
        let key = format!("{}/step-4-g1/parameters.safetensors", job());
        assert!(store.damage(&key, |bytes| bytes[9] ^= 1));
    };
    let (watches, errors) = with_a_broken_link(run, 5, &damage);
    assert!(errors.is_empty(), "{errors:?}");
    for watch in &watches {
        let commits: Vec<u64> = watch.states.iter().map(|state| state.commit).collect();
        assert_eq!(commits, [1, 2, 3, 4, 5, 6, 7, 8], "from memory");
        assert_eq!(watch.last(), &undisturbed);
    }
}

/// A checkpoint and an evaluation at every second step.
fn evaluating(steps: u64) -> RunConfig {
    let mut config = saving("cnn", steps);
    config.training.evaluate_every_steps = Some(2);
    config
}

#[test]
fn an_evaluation_and_a_checkpoint_that_a_broken_link_cut_off_are_made_when_the_group_is_back() {
    let records = tempfile::tempdir().unwrap();
    let mut run = Run::new(evaluating(6), 2, &builtin);
    run.records = Some(records.path().into());
    let store = Arc::clone(&run.store);
    let (watches, errors) = with_a_broken_link(run, 4, &|| ());
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(watches[0].states.len(), 6, "from memory");
    let found: Vec<u64> = evaluated(records.path()).into_keys().collect();
    assert_eq!(found, [2, 4, 6]);
    assert_eq!(whole_commits(&store), [2, 4, 6]);
}

#[test]
fn a_state_that_was_saved_alone_at_a_boundary_is_evaluated_and_agreed_on_by_those_that_go_on() {
    let records = tempfile::tempdir().unwrap();
    let mut first = Run::new(evaluating(6), 2, &builtin);
    first.records = Some(records.path().into());
    first.restart = false;
    let store = Arc::clone(&first.store);
    let (_, _, service) = first.go(|slot, service| {
        let service = Arc::clone(service);
        watch(move |_, committed| {
            if slot == 1 && committed.position.commit == 4 {
                service.stop();
                die();
            }
        })
    });
    assert_eq!(whole_commits(&store), [2, 4]);
    let fourth = || {
        let listing = list_whole(store.as_ref(), &job(), None, None).unwrap();
        let mut whole = listing.whole.into_iter();
        whole
            .find(|whole| whole.reference.position.commit == 4)
            .unwrap()
            .manifest
    };
    assert_eq!((fourth().agreed_by, fourth().evaluation), (0, None));

    let mut second = Run::new(evaluating(6), 2, &builtin);
    second.store = Arc::clone(&store);
    second.records = Some(records.path().into());
    second.saved = service.saved();
    train(second);
    let found = evaluated(records.path());
    assert_eq!(found.keys().copied().collect::<Vec<u64>>(), [2, 4, 6]);
    if found[&4] < found[&2] {
        assert_eq!(fourth().agreed_by, 2);
        assert_eq!(fourth().evaluation.map(|found| found.loss), Some(found[&4]));
    }
}
