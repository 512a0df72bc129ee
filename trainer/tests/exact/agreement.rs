//! N workers train what one worker trains: the same model but for the order of summation, whatever their
//! number, the transport, and where the run was stopped on the way.

use crate::support::{
    Act, Captured, MeddledTask, Run, Watch, Wire, builtin, cnn, config, copy_store, die, job, meddle, watch,
};
use gradsync_collective::{Channel, OperationKind};
use gradsync_formats::grid::parts_of_share;
use gradsync_formats::run_config::{CheckpointSpec, Length, ResumePolicy, ResumeSpec, RunConfig};
use gradsync_formats::store::MemoryStore;
use gradsync_trainer::task::{AugmentationKey, Batch, DataError, DataSource, Task};
use gradsync_trainer::tasks::ImageClassification;
use gradsync_trainer::train::End;
use serde_json::json;
use std::sync::Arc;

/// Whole runs of 50 steps.
const RUNS: f64 = 1e-10;
/// One step from the same state.
const STEP: f64 = 1e-14;
/// A mutation must show by so much more.
const CLEARLY: f64 = 1000.0;

fn run(config: &RunConfig, world: u32) -> Run<'static> {
    Run::new(config.clone(), world, &builtin)
}

/// Trains to the end; the last state, which all ranks hold alike.
fn train(run: Run<'_>) -> Captured {
    let (results, watches, _) = run.go(|_, _| Watch::default());
    for result in results {
        assert_eq!(result.unwrap().end, End::Complete);
    }
    for other in &watches {
        assert_eq!(other.last(), watches[0].last(), "ranks differ");
    }
    watches[0].last().clone()
}

fn checkpoints(every_steps: Option<u64>) -> Option<CheckpointSpec> {
    Some(CheckpointSpec {
        directory: "/checkpoints".into(),
        every_steps,
        keep: 1000,
        shared: true,
        resume: ResumeSpec {
            policy: ResumePolicy::Latest,
            path: None,
        },
    })
}

fn whole_runs_agree(model: &str) {
    let config = config(cnn(model, 50));
    // The last step of an epoch has one part: all members but one have none.
    let without = (0..4).filter(|index| parts_of_share(1, *index, 4).is_empty());
    assert_eq!(without.count(), 3);
    let one = train(run(&config, 1));
    assert_eq!(one.buffers.is_empty(), model == "cnn");
    for world in [2, 3, 4] {
        let apart = train(run(&config, world)).distance(&one);
        assert!(apart <= RUNS, "{model}: {world} workers are {apart:e} from one");
    }
}

#[test]
fn fifty_steps_of_cnn_agree_for_one_to_four_workers() {
    whole_runs_agree("cnn");
}

#[test]
fn fifty_steps_of_cnn_bn_agree_for_one_to_four_workers_buffers_included() {
    whole_runs_agree("cnn-bn");
}

/// Takes one step from each of 50 states of a run of one worker, with 2, 3 and 4 workers.
fn single_steps_agree(model: &str) {
    let mut config = config(cnn(model, 50));
    config.checkpoint = checkpoints(Some(1));
    let store = Arc::new(MemoryStore::new());
    let mut one = run(&config, 1);
    one.store = Arc::clone(&store);
    let (results, watches, _) = one.go(|_, _| Watch::default());
    results[0].as_ref().unwrap();
    for after in &watches[0].states {
        let before = after.commit - 1;
        let folder = format!("{}/step-{before}-", job());
        for world in [2, 3, 4] {
            let mut step = run(&config, world);
            step.config.training.length = Length::Steps(before + 1);
            step.config.checkpoint = checkpoints(None);
            step.store = copy_store(&store, |key| key.starts_with(&folder));
            let reached = train(step);
            assert_eq!(reached.commit, after.commit, "took one step");
            let apart = reached.distance(after);
            assert!(
                apart <= STEP,
                "{model}, step {}: {world} workers are {apart:e} from one",
                after.commit
            );
        }
    }
}

#[test]
fn one_step_of_cnn_from_each_of_fifty_states_agrees() {
    single_steps_agree("cnn");
}

#[test]
fn one_step_of_cnn_bn_from_each_of_fifty_states_agrees() {
    single_steps_agree("cnn-bn");
}

/// What one sample among five is taken for, once in the run.
type Wrong = fn(&dyn DataSource, &[u64], AugmentationKey) -> Result<Batch, DataError>;

fn dropped(data: &dyn DataSource, indices: &[u64], key: AugmentationKey) -> Result<Batch, DataError> {
    let batch = data.get(&indices[1..], key)?;
    Ok(batch.with_units(indices.len() as u64))
}

fn counted_twice(data: &dyn DataSource, indices: &[u64], key: AugmentationKey) -> Result<Batch, DataError> {
    let twice: Vec<u64> = indices.iter().chain(&indices[..1]).copied().collect();
    Ok(data.get(&twice, key)?.with_units(indices.len() as u64))
}

/// The built-in tasks, with a wrong answer where sample 42 is asked for in `epoch`.
fn mutated(wrong: Wrong, epoch: u64) -> impl Fn(u32) -> Vec<Box<dyn Task>> + Sync {
    move |_| {
        vec![MeddledTask::boxed(
            ImageClassification,
            move |data, indices, key| match key {
                AugmentationKey::Epoch { epoch: now, .. } if now == epoch && indices.contains(&42) => {
                    wrong(data, indices, key)
                }
                _ => data.get(indices, key),
            },
        )]
    }
}

#[test]
fn a_sample_dropped_or_weighted_wrongly_once_shows_a_thousandfold() {
    for (name, wrong) in [("dropped", dropped as Wrong), ("twice", counted_twice)] {
        let config = config(cnn("cnn", 50));
        let apart = train(Run::new(config.clone(), 2, &mutated(wrong, 4))).distance(&train(run(&config, 1)));
        assert!(apart > CLEARLY * RUNS, "{name}, whole run: only {apart:e}");

        // The step in which the sample has its turn.
        let mut short = config.clone();
        let order = gradsync_formats::order::Order::new(11, 0, 97);
        let place = (0..97).find(|at| order.index(*at) == Some(42)).unwrap();
        short.training.length = Length::Steps(place / 23 + 1);
        let apart = train(Run::new(short.clone(), 2, &mutated(wrong, 0))).distance(&train(run(&short, 1)));
        assert!(apart > CLEARLY * STEP, "{name}, one step: only {apart:e}");
    }
}

#[test]
fn without_synchronisation_the_first_step_shows_a_thousandfold_of_every_tolerance() {
    let config = config(cnn("cnn", 1));
    let one = train(run(&config, 1));
    let mut off = run(&config, 2);
    off.restart = false;
    off.wrap = Some(Arc::new(|inner| {
        meddle(
            inner,
            0,
            Arc::new(|_, kind, channel, _| match (kind, channel) {
                (OperationKind::AllReduce, Channel::Gradients) => Act::Alone,
                _ => Act::Pass,
            }),
        )
    }));
    // The next control record would find the ranks' histories different: nothing comes after this step.
    let (_, watches, _) = off.go(|_, _| watch(|_, _| die()));
    for watch in &watches {
        let apart = watch.last().distance(&one);
        assert!(apart > CLEARLY * RUNS, "only {apart:e}");
    }
    assert_ne!(watches[0].last().digest, watches[1].last().digest);
}

#[test]
fn the_same_seed_and_number_of_workers_give_the_same_bits_twice_and_over_either_transport() {
    for world in [2, 3] {
        let config = config(cnn("cnn-bn", 12));
        let first = train(run(&config, world));
        assert_eq!(
            train(run(&config, world)),
            first,
            "again with {world} workers in process"
        );
        for _ in 0..2 {
            let mut tcp = run(&config, world);
            tcp.wire = Wire::Tcp;
            assert_eq!(train(tcp), first, "{world} workers over TCP");
        }
    }
}

/// Stops as a signal does, so that the last commit is `at`, and goes on with each of `worlds` workers.
fn stopped_and_resumed(config: &RunConfig, at: u64, worlds: &[u32], check: impl Fn(u32, &Captured)) {
    let mut first = run(config, 2);
    let store = Arc::clone(&first.store);
    first.config.checkpoint = checkpoints(None);
    let (results, _, _) = first.go(|slot, service| {
        let service = Arc::clone(service);
        watch(move |_, committed| {
            if slot == 0 && committed.position.commit == at - 1 {
                service.stop();
            }
        })
    });
    for result in results {
        let summary = result.unwrap();
        assert_eq!((summary.end, summary.position.commit), (End::Stopped, at));
    }
    for world in worlds {
        let mut second = run(config, *world);
        second.config.checkpoint = checkpoints(None);
        second.store = copy_store(&store, |_| true);
        let (results, watches, _) = second.go(|_, _| Watch::default());
        for (result, watch) in results.iter().zip(&watches) {
            assert_eq!(result.as_ref().unwrap().end, End::Complete);
            assert_eq!(watch.states[0].commit, at + 1, "went on where it stopped");
        }
        check(*world, watches[0].last());
    }
}

#[test]
fn a_run_stopped_at_any_step_around_an_epochs_end_goes_on_as_if_undisturbed() {
    let config = config(cnn("cnn-bn", 12));
    let undisturbed = train(run(&config, 2));
    // Five steps are an epoch; the fifth is the short one.
    for at in 2..=8 {
        stopped_and_resumed(&config, at, &[2, 3, 1], |world, last| {
            if world == 2 {
                assert_eq!(*last, undisturbed, "stopped after step {at}");
            }
            let apart = last.distance(&undisturbed);
            assert!(
                apart <= RUNS,
                "stopped after step {at}, then {world} workers: {apart:e}"
            );
        });
    }
}

#[test]
fn the_first_differing_step_is_found_by_the_chain() {
    // The chain is a hash of what was committed, so that it must tell a mutation from the truth.
    let mut spec = cnn("cnn", 6);
    spec["task"]["parameters"]["dropout"] = json!(0.0);
    let config = config(spec);
    let right = train(run(&config, 2));
    let wrong = train(Run::new(config, 2, &mutated(dropped, 0)));
    assert_ne!(right.chain, wrong.chain);
}
