//! The invariants of accumulation and the constant global batch, G1, G2, G4 and G5 of the strategy notes.

use crate::support::{Act, Run, Watch, builtin, cnn, config, distance, meddle};
use crate::tokens::{MeanCount, Tokens};
use gradsync_collective::{Channel, OperationKind};
use gradsync_formats::order::Order;
use gradsync_formats::run_config::RunConfig;
use gradsync_trainer::task::Task;
use gradsync_trainer::train::End;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn own(_: u32) -> Vec<Box<dyn Task>> {
    vec![Box::new(Tokens), Box::new(MeanCount)]
}

fn go(
    config: &RunConfig,
    micro: u64,
    world: u32,
    tasks: &(dyn Fn(u32) -> Vec<Box<dyn Task>> + Sync),
) -> Watch<'static> {
    let mut config = config.clone();
    config.micro_batch_size = micro;
    let (results, mut watches, _) = Run::new(config, world, tasks).go(|_, _| Watch::default());
    for result in results {
        assert_eq!(result.unwrap().end, End::Complete);
    }
    watches.remove(0)
}

#[test]
fn g1_parts_of_any_size_add_up_to_the_same_step() {
    // Dropout draws by part, so it is off; without BatchNorm nothing else looks at a part as a whole.
    let mut spec = cnn("cnn", 10);
    spec["task"]["parameters"]["dropout"] = json!(0.0);
    let images = config(spec);
    let whole = go(&images, 23, 1, &builtin);
    for (micro, world) in [(1, 1), (5, 1), (12, 1), (1, 3), (4, 3)] {
        let parts = go(&images, micro, world, &builtin);
        let apart = parts.last().distance(whole.last());
        assert!(
            apart <= 1e-12,
            "parts of {micro}, {world} workers, 10 steps: {apart:e}"
        );
    }
}

#[test]
fn g1_parts_of_any_size_add_up_when_samples_have_different_numbers_of_tokens() {
    let tokens = config(json!({
        "task": {"name": "tokens"},
        "training": {
            "globalBatchSize": 11, "epochs": 3, "seed": 5,
            "optimizer": {"name": "SGD", "learningRate": 0.05, "momentum": 0.9},
        },
        "precision": {"mode": "fp64"},
        "workers": {"replicas": 1},
    }));
    let whole = go(&tokens, 11, 1, &own);
    for (micro, world) in [(1, 1), (3, 1), (1, 3), (2, 4)] {
        let parts = go(&tokens, micro, world, &own);
        for (state, expected) in parts.states.iter().zip(&whole.states) {
            let apart = distance(&state.parameters, &expected.parameters);
            assert!(
                apart <= 1e-12,
                "parts of {micro}, {world} workers, step {}: {apart:e}",
                state.commit
            );
            assert!(
                (state.loss - expected.loss).abs() <= 1e-12 * expected.loss,
                "the mean over tokens"
            );
        }
    }
}

#[test]
fn g2_the_number_of_collectives_does_not_depend_on_the_number_of_parts() {
    let count = |micro: u64| {
        let issued = Arc::new(AtomicU64::new(0));
        let mut config = config(cnn("cnn-bn", 6));
        config.micro_batch_size = micro;
        let mut run = Run::new(config, 2, &builtin);
        let counted = Arc::clone(&issued);
        run.wrap = Some(Arc::new(move |inner| {
            let counted = Arc::clone(&counted);
            meddle(
                inner,
                0,
                Arc::new(move |_, kind, channel, _| {
                    // Comparisons of digests gather on the state channel, as often as time allows.
                    if kind == OperationKind::AllReduce || channel == Channel::Control {
                        counted.fetch_add(1, Ordering::Relaxed);
                    }
                    Act::Pass
                }),
            )
        }));
        let (results, _, _) = run.go(|_, _| Watch::default());
        results.iter().for_each(|result| assert!(result.is_ok()));
        issued.load(Ordering::Relaxed)
    };
    let few = count(12);
    assert!(few >= 2 * 6 * 3, "operations were counted: {few}");
    for micro in [2, 5] {
        assert_eq!(count(micro), few, "parts of {micro} samples");
    }
}

/// A step's samples are counted 1/S each, where S is the number of samples of that step.
fn mean_counts(epochs: u64) -> RunConfig {
    config(json!({
        "task": {"name": "mean-count", "parameters": {"size": 97}},
        "training": {
            "globalBatchSize": 23, "epochs": epochs, "seed": 9,
            "optimizer": {"name": "SGD", "learningRate": 1.0},
        },
        "precision": {"mode": "fp64"},
        "workers": {"replicas": 1},
    }))
}

#[test]
fn g4_the_short_last_step_of_an_epoch_is_applied_with_its_own_size() {
    let order = Order::new(9, 0, 97);
    for (micro, world) in [(23, 1), (2, 1), (2, 3), (5, 4)] {
        let watch = go(&mean_counts(1), micro, world, &own);
        let sizes: Vec<u64> = watch.commits.iter().map(|committed| committed.samples).collect();
        assert_eq!(sizes, [23, 23, 23, 23, 5]);
        for place in 0..97 {
            let index = order.index(place).unwrap() as usize;
            let expected = if place < 92 { 1.0 / 23.0 } else { 1.0 / 5.0 };
            let counted = watch.last().parameters[index];
            assert!(
                (counted - expected).abs() <= 1e-16,
                "place {place}: {counted} for {expected}"
            );
        }
    }
}

#[test]
fn g5_neither_workers_nor_parts_are_in_the_scale_of_the_loss() {
    let reference = go(&mean_counts(2), 23, 1, &own);
    for (micro, world) in [(1, 1), (2, 1), (1, 2), (4, 3), (1, 4), (23, 2)] {
        let watch = go(&mean_counts(2), micro, world, &own);
        // Each count has one contribution in a step, so that no rounding can hide behind a tolerance.
        let parameters = |watch: &Watch<'_>| -> Vec<Vec<f64>> {
            watch.states.iter().map(|s| s.parameters.clone()).collect()
        };
        assert_eq!(
            parameters(&watch),
            parameters(&reference),
            "parts of {micro}, {world} workers"
        );
    }
}
