//! The `count` task: after E epochs every parameter is exactly E, if every sample was used exactly once.

use crate::support::{MeddledTask, Run, Watch, Wire, audit, builtin, config, die, job, watch};
use gradsync_formats::checkpoint::{Expected, Group, load, newest_whole};
use gradsync_formats::run_config::RunConfig;
use gradsync_formats::store::MemoryStore;
use gradsync_rendezvous::membership::Saved;
use gradsync_trainer::task::Task;
use gradsync_trainer::tasks::Count;
use gradsync_trainer::train::End;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// 1000 samples in batches of 24: 42 steps an epoch, the last of 16 samples.
const STEPS: u64 = 126;

fn spec() -> Value {
    json!({
        "task": {"name": "count", "parameters": {"size": 1000}},
        "training": {
            "globalBatchSize": 24, "epochs": 3, "seed": 7,
            "optimizer": {"name": "SGD", "learningRate": 1.0}
        },
        "sync": {"strategy": "AllReduce"},
        "precision": {"mode": "fp64"},
        "workers": {"replicas": 5},
        "checkpoint": {"directory": "/checkpoints", "everySteps": 10, "keep": 3},
    })
}

fn counting() -> RunConfig {
    config(spec())
}

/// The counts in the newest checkpoint, as another program would read them.
fn saved_counts(store: &MemoryStore) -> Vec<f64> {
    let newest = newest_whole(store, &job(), None).unwrap().whole.remove(0);
    assert_eq!(newest.reference.position.commit, STEPS);
    let snapshot = load(store, &newest.reference.path, &Expected::default()).unwrap();
    let counts = snapshot.find(Group::Parameters, "count").unwrap();
    let number = |bytes: &[u8]| f64::from_le_bytes(bytes.try_into().unwrap());
    counts.bytes.chunks_exact(8).map(number).collect()
}

fn all_three(counts: &[f64]) -> bool {
    counts.len() == 1000 && counts.iter().all(|count| *count == 3.0)
}

/// Memory, checkpoint and records all say that every sample was used exactly three times.
fn proven(watches: &[Watch<'_>], store: &MemoryStore, records: &Path, case: &str) {
    for watch in watches {
        assert!(all_three(&watch.last().parameters), "{case}: in memory");
    }
    assert!(all_three(&saved_counts(store)), "{case}: in the last checkpoint");
    let verdict = audit(records);
    assert!(verdict.clean, "{case}: {verdict}");
    assert_eq!((verdict.steps, verdict.whole_epochs), (STEPS, 3), "{case}");
}

#[test]
fn every_index_counts_exactly_the_epochs_with_any_number_of_workers() {
    for world in [1, 2, 3, 5] {
        for wire in [Wire::Memory, Wire::Tcp] {
            let records = tempfile::tempdir().unwrap();
            let mut run = Run::new(counting(), world, &builtin);
            run.wire = wire;
            run.records = Some(records.path().into());
            let store = Arc::clone(&run.store);
            let (results, watches, service) = run.go(|_, _| Watch::default());
            for result in &results {
                let summary = result.as_ref().unwrap();
                assert_eq!(
                    (summary.end, summary.steps, summary.epochs),
                    (End::Complete, STEPS, 3)
                );
                assert_eq!(summary.state_digest, results[0].as_ref().unwrap().state_digest);
            }
            proven(
                &watches,
                &store,
                records.path(),
                &format!("{world} workers, {wire:?}"),
            );
            assert!(service.ending().is_some());
        }
    }
}

#[test]
fn every_index_counts_exactly_the_epochs_when_the_run_is_stopped_and_resumed_by_others() {
    let records = tempfile::tempdir().unwrap();
    let store = Arc::new(MemoryStore::new());
    let mut saved = Saved::default();
    // Stopped in the first epoch, two steps before the second ends, and right at its end.
    for (world, until) in [(2, Some(31)), (5, Some(82)), (1, Some(84)), (3, None)] {
        let mut run = Run::new(counting(), world, &builtin);
        run.store = Arc::clone(&store);
        run.records = Some(records.path().into());
        run.saved = saved.clone();
        let (results, watches, service) = run.go(|slot, service| {
            let service = Arc::clone(service);
            watch(move |_, committed| {
                if slot == 0 && Some(committed.position.commit + 1) == until {
                    service.stop();
                }
            })
        });
        for result in results {
            let summary = result.unwrap();
            match until {
                Some(commit) => {
                    assert_eq!((summary.end, summary.position.commit), (End::Stopped, commit));
                }
                None => assert_eq!(summary.end, End::Complete),
            }
        }
        if until.is_none() {
            proven(&watches, &store, records.path(), "resumed");
        }
        saved = service.saved();
    }
}

/// Where a worker dies.
#[derive(Clone, Copy, Debug)]
enum Death {
    /// While it reads data for a step that the others compute too.
    InAStep,
    /// After a commit, before anything is written.
    AtABoundary,
}

#[test]
fn every_index_counts_exactly_the_epochs_when_a_worker_is_killed() {
    // Rank 0 has no special power: it dies like the others.
    for (rank, death, wire, checkpoint) in [
        (1, Death::InAStep, Wire::Memory, 20),
        (0, Death::InAStep, Wire::Tcp, 50),
        (2, Death::AtABoundary, Wire::Tcp, 50),
        (0, Death::AtABoundary, Wire::Memory, 50),
    ] {
        let case = format!("rank {rank} dies {death:?} over {wire:?}");
        let records = tempfile::tempdir().unwrap();
        let asked = Arc::new(AtomicU64::new(0));
        let tasks = {
            let asked = Arc::clone(&asked);
            move |slot: u32| -> Vec<Box<dyn Task>> {
                let asked = Arc::clone(&asked);
                vec![MeddledTask::boxed(Count, move |data, indices, key| {
                    let in_a_step = matches!(death, Death::InAStep) && slot == rank;
                    // Rank 1 reads two parts in a step and rank 0 one: in the 29th step, and the 57th.
                    if in_a_step && asked.fetch_add(1, Ordering::Relaxed) == 57 {
                        die();
                    }
                    data.get(indices, key)
                })]
            }
        };
        let mut run = Run::new(counting(), 3, &tasks);
        run.wire = wire;
        run.records = Some(records.path().into());
        let store = Arc::clone(&run.store);
        let lives = AtomicU64::new(0);
        let (results, watches, service) = run.go(|slot, _| {
            let life = if slot == rank {
                lives.fetch_add(1, Ordering::Relaxed)
            } else {
                1
            };
            watch(move |_, committed| {
                let at_a_boundary = matches!(death, Death::AtABoundary) && life == 0;
                if at_a_boundary && committed.position.commit == 59 {
                    die();
                }
            })
        });
        for result in results {
            assert_eq!(result.unwrap().end, End::Complete, "{case}");
        }
        assert_eq!(lives.load(Ordering::Relaxed), 2, "{case}: died once");
        let formed = service.saved().formed.unwrap();
        let base = formed.base.position.commit;
        assert_eq!(base, checkpoint, "{case}: all went back to the newest checkpoint");
        proven(&watches, &store, records.path(), &case);
    }
}
