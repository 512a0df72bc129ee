//! What a checkpoint promises: the state that members agreed on, never ahead of the records, and the best one
//! kept.

use crate::failures::{flip, saving, train};
use crate::support::{Captured, Run, Watch, builtin, cnn, config, job, watch};
use gradsync_formats::checkpoint::{Expected, best_evaluated, list_whole, load};
use gradsync_formats::record::RecordLine;
use gradsync_formats::run_config::RunConfig;
use gradsync_formats::store::MemoryStore;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

/// Six steps of `world` members, a checkpoint at every second; a bit of rank 0's memory flips right before the
/// fourth step's, once.
fn with_a_bit_flipped_before_a_checkpoint(world: u32) -> (Vec<Watch<'static>>, Arc<MemoryStore>, Captured) {
    let run = Run::new(saving("cnn", 6), world, &builtin);
    let store = Arc::clone(&run.store);
    let flipped = Arc::new(AtomicBool::new(false));
    let (results, watches, _) = run.go(|slot, _| {
        let flipped = Arc::clone(&flipped);
        watch(move |state, committed| {
            let now = slot == 0 && committed.position.commit == 4;
            if now && !flipped.swap(true, Ordering::Relaxed) {
                flip(state, "output.bias");
            }
        })
    });
    for result in results {
        result.unwrap();
    }
    (watches, store, train(Run::new(saving("cnn", 6), world, &builtin)))
}

/// Digests of the states in the whole checkpoints by commit.
fn digests(store: &MemoryStore) -> BTreeMap<u64, String> {
    let listing = list_whole(store, &job(), None, None).unwrap();
    let whole = listing.whole.into_iter();
    whole
        .map(|whole| (whole.reference.position.commit, whole.manifest.state_digest))
        .collect()
}

#[test]
fn a_state_that_differs_is_repaired_before_it_is_saved() {
    let (watches, store, undisturbed) = with_a_bit_flipped_before_a_checkpoint(3);
    for watch in &watches {
        assert_eq!(watch.last(), &undisturbed);
    }
    let right = &watches[1].states[3];
    assert_eq!(right.commit, 4);
    assert_eq!(digests(&store)[&4], right.digest, "not what rank 0 held");
}

#[test]
fn a_state_on_which_no_majority_agrees_is_not_saved_and_the_one_before_it_is_restored() {
    let (watches, store, undisturbed) = with_a_bit_flipped_before_a_checkpoint(2);
    for watch in &watches {
        let commits: Vec<u64> = watch.states.iter().map(|state| state.commit).collect();
        assert_eq!(
            commits,
            [1, 2, 3, 4, 3, 4, 5, 6],
            "from the second step's checkpoint"
        );
        assert_eq!(watch.last(), &undisturbed);
    }
    let listing = list_whole(store.as_ref(), &job(), None, None).unwrap();
    assert!(listing.whole.iter().all(|whole| whole.manifest.agreed_by == 2));
}

#[test]
fn every_members_record_is_on_the_disk_before_a_checkpoint_of_its_steps_begins() {
    let records = tempfile::tempdir().unwrap();
    let mut run = Run::new(saving("cnn", 6), 3, &builtin);
    run.records = Some(records.path().into());
    let store = Arc::clone(&run.store);
    // Who brought which record with how many commits to the disk, and how many objects were there then.
    type Synced = Vec<(ThreadId, (String, u64, usize))>;
    let synced: Arc<Mutex<Synced>> = Arc::default();
    let noted = Arc::clone(&synced);
    run.synced = Some(Arc::new(move |path: &Path| {
        if path.extension().is_none_or(|extension| extension != "jsonl") {
            return;
        }
        let keys = gradsync_formats::store::Store::list(store.as_ref(), "").unwrap();
        let checkpoints = keys.iter().filter(|key| key.contains("/step-")).count();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let entry = (name, commits(path), checkpoints);
        noted.lock().unwrap().push((std::thread::current().id(), entry));
    }));
    let threads: Mutex<BTreeMap<u32, ThreadId>> = Mutex::default();
    let (results, _, _) = run.go(|slot, _| {
        let threads = &threads;
        watch(move |_, _| {
            threads.lock().unwrap().insert(slot, std::thread::current().id());
        })
    });
    results.iter().for_each(|result| assert!(result.is_ok()));

    let (synced, threads) = (synced.lock().unwrap(), threads.lock().unwrap());
    let names: std::collections::BTreeSet<&String> = synced.iter().map(|(_, (name, ..))| name).collect();
    assert_eq!(names.len(), 3, "one for each member");
    let counts = synced.iter().map(|(_, (.., checkpoints))| *checkpoints);
    let per_checkpoint = counts.max().unwrap() / 2;
    for name in names {
        let own_thread = threads[&slot_of(&records.path().join(name))];
        for (number, commit) in [2, 4, 6].into_iter().enumerate() {
            // When its own member brought it there with so many commits, nothing of their checkpoint was
            // written yet.
            let in_time = synced.iter().any(|(by, (of, commits, checkpoints))| {
                *by == own_thread
                    && of == name
                    && *commits == commit
                    && *checkpoints == number * per_checkpoint
            });
            assert!(in_time, "{name} at commit {commit}: {synced:?}");
        }
    }
}

/// The slot of the member that writes a record.
fn slot_of(path: &Path) -> u32 {
    let text = std::fs::read_to_string(path).unwrap();
    match serde_json::from_str(text.lines().next().unwrap()).unwrap() {
        RecordLine::Opened { member, .. } => member.slot,
        other => panic!("a record begins with {other:?}"),
    }
}

/// Commits in a record.
fn commits(path: &Path) -> u64 {
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines
        .filter(|line| matches!(line, RecordLine::Committed { .. }))
        .count() as u64
}

/// An evaluation after every second step, a checkpoint after every fifth; only the newest is kept.
fn evaluating(steps: u64, learning_rate: f64) -> RunConfig {
    let mut spec = cnn("cnn", steps);
    spec["training"]["evaluation"] = json!({"everySteps": 2});
    spec["training"]["optimizer"]["learningRate"] = json!(learning_rate);
    spec["checkpoint"] = json!({"directory": "/checkpoints", "everySteps": 5, "keep": 1});
    config(spec)
}

/// The evaluated losses by commit.
pub fn evaluated(records: &Path) -> BTreeMap<u64, f64> {
    let files = std::fs::read_dir(records).unwrap();
    let texts = files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
    let lines: Vec<RecordLine> = texts
        .flat_map(|text| {
            let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
            lines.collect::<Vec<RecordLine>>()
        })
        .collect();
    lines
        .into_iter()
        .filter_map(|line| match line {
            RecordLine::Evaluated { position, loss, .. } => Some((position.commit, loss.parse().unwrap())),
            _ => None,
        })
        .collect()
}

#[test]
fn the_checkpoint_of_the_best_evaluation_is_kept_through_a_resume_by_others() {
    let records = tempfile::tempdir().unwrap();
    let mut first = Run::new(evaluating(23, 0.01), 2, &builtin);
    first.records = Some(records.path().into());
    let store = Arc::clone(&first.store);
    let (results, watches, service) = first.go(|slot, service| {
        let service = Arc::clone(service);
        watch(move |_, committed| {
            if slot == 0 && committed.position.commit == 12 {
                service.stop();
            }
        })
    });
    results.iter().for_each(|result| assert!(result.is_ok()));
    let found = evaluated(records.path());
    let by_loss = |a: &(&u64, &f64), b: &(&u64, &f64)| a.1.total_cmp(b.1);
    let (best, loss) = found.iter().min_by(by_loss).unwrap();
    let newest = service.saved().formed.map(|_| watches[0].last().commit).unwrap();
    let kept = |store: &MemoryStore| digests(store).into_keys().collect::<Vec<u64>>();
    let mut expected = vec![*best, newest];
    expected.dedup();
    assert_eq!(kept(&store), expected, "{found:?}");
    let state = watches[0]
        .states
        .iter()
        .find(|state| state.commit == *best)
        .unwrap();
    assert_eq!(
        digests(&store)[best],
        state.digest,
        "the state that was evaluated"
    );

    // Another number of workers goes on, and only gets worse.
    let mut second = Run::new(evaluating(23, 3.0), 3, &builtin);
    second.store = Arc::clone(&store);
    second.records = Some(records.path().into());
    second.saved = service.saved();
    let (results, _, service) = second.go(|_, _| Watch::default());
    results
        .iter()
        .for_each(|result| assert!(result.is_ok(), "{result:?}"));
    let found = evaluated(records.path());
    assert!(
        found
            .iter()
            .filter(|(commit, _)| **commit > newest)
            .all(|(_, later)| later > loss)
    );
    assert_eq!(kept(&store), [*best, 23], "{found:?}");
    let lineage = service.saved().formed.unwrap().lineage;
    let (position, evaluation) = best_evaluated(store.as_ref(), &job(), &lineage).unwrap().unwrap();
    assert_eq!((position.commit, evaluation.loss), (*best, *loss));
    let path = gradsync_formats::checkpoint::path_of(&job(), position);
    let snapshot = load(store.as_ref(), &path, &Expected::default()).unwrap();
    assert_eq!(snapshot.state_digest, state.digest);
}
