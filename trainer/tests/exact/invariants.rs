//! The invariants of synchronous data parallelism, I1 to I8 of the strategy notes.

use crate::sometimes::{Sometimes, spec, uses};
use crate::support::{
    Act, MeddledTask, Run, Watch, Wire, builtin, cnn, config, distance, meddle, recoveries, watch,
};
use gradsync_collective::{Channel, OperationKind};
use gradsync_formats::run_config::{AllReduceSpec, PrecisionMode, RunConfig};
use gradsync_trainer::step::Committed;
use gradsync_trainer::strategy::Event;
use gradsync_trainer::task::Task;
use gradsync_trainer::tasks::ImageClassification;
use gradsync_trainer::train::End;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Runs to the end; what each rank saw.
fn go(run: Run<'_>) -> Vec<Watch<'static>> {
    let (results, watches, _) = run.go(|_, _| Watch::default());
    for result in results {
        assert_eq!(result.unwrap().end, End::Complete);
    }
    watches
}

fn images(model: &str, steps: u64) -> RunConfig {
    config(cnn(model, steps))
}

/// Buckets of these sizes in bytes.
fn with_caps(mut config: RunConfig, first: u64, rest: u64) -> RunConfig {
    config.sync.all_reduce = AllReduceSpec {
        first_bucket_bytes: first,
        bucket_bytes: rest,
    };
    config
}

#[test]
fn i1_one_step_of_many_workers_is_that_of_one_in_single_and_double_precision() {
    for (mode, tolerance) in [(PrecisionMode::Fp32, 1e-6), (PrecisionMode::Fp64, 1e-14)] {
        for model in ["cnn", "cnn-bn"] {
            let mut config = images(model, 1);
            config.precision.mode = mode;
            let one = go(Run::new(config.clone(), 1, &builtin)).remove(0);
            for world in [2, 3, 4] {
                let many = go(Run::new(config.clone(), world, &builtin)).remove(0);
                let apart = many.last().distance(one.last());
                assert!(
                    apart <= tolerance,
                    "{model}, {mode:?}, {world} workers: {apart:e}"
                );
            }
        }
    }
}

#[test]
fn i2_after_every_step_all_ranks_hold_the_same_bits() {
    for wire in [Wire::Memory, Wire::Tcp] {
        let mut run = Run::new(images("cnn-bn", 11), 3, &builtin);
        run.wire = wire;
        let (results, watches, _) = run.go(|_, _| Watch::default());
        for other in &watches[1..] {
            for (state, first) in other.states.iter().zip(&watches[0].states) {
                // Parameters, buffers, digest over optimiser state too, chain, learning rate.
                assert_eq!(state, first, "{wire:?}: step {} differs", first.commit);
            }
            assert_eq!(other.states.len(), watches[0].states.len(), "{wire:?}");
        }
        results.iter().for_each(|result| assert!(result.is_ok()));
        let rates: BTreeSet<u64> = watches[0]
            .states
            .iter()
            .map(|s| s.learning_rate.to_bits())
            .collect();
        assert!(rates.len() > 8, "the schedule moves");
    }
}

#[test]
fn i3_another_operation_on_one_rank_is_a_typed_error_on_all_of_them() {
    for wire in [Wire::Memory, Wire::Tcp] {
        for (lie, expected) in [
            (0, "disagree at operation"),
            (1, "sequence of collective operations"),
        ] {
            let records = tempfile::tempdir().unwrap();
            let mut run = Run::new(images("cnn", 4), 3, &builtin);
            run.wire = wire;
            run.records = Some(records.path().into());
            run.wrap = Some(Arc::new(move |inner| {
                let identity = inner.identity();
                if (identity.generation, identity.rank) != (1, 1) {
                    return inner;
                }
                let first = AtomicBool::new(lie == 0);
                meddle(
                    inner,
                    lie,
                    Arc::new(move |_, kind, channel, _| {
                        let gradients = (kind, channel) == (OperationKind::AllReduce, Channel::Gradients);
                        if gradients && first.swap(false, Ordering::Relaxed) {
                            Act::AfterAnother
                        } else {
                            Act::Pass
                        }
                    }),
                )
            }));
            let watches = go(run);
            // All three left the generation for this reason and went on without the fault.
            let reasons = recoveries(records.path());
            assert_eq!(reasons.len(), 3, "{wire:?}: {reasons:?}");
            let named = reasons.iter().filter(|reason| reason.contains(expected)).count();
            assert_eq!(named, 3, "{wire:?}: {reasons:?}");
            assert_eq!(watches[0].last().commit, 4);
        }
    }
}

#[test]
fn i4_other_ranks_for_the_same_shares_change_the_order_of_summation_only() {
    let with = |tasks: &(dyn Fn(u32) -> Vec<Box<dyn Task>> + Sync), shares: [u32; 3]| {
        let mut run = Run::new(images("cnn-bn", 12), 3, tasks);
        run.shares = Some(shares.into());
        go(run).remove(0)
    };
    let permuted = |shares| with(&builtin, shares);
    let straight = permuted([0, 1, 2]);
    for shares in [[1, 2, 0], [2, 1, 0]] {
        let other = permuted(shares);
        assert_ne!(
            other.last().digest,
            straight.last().digest,
            "the order of summation does differ"
        );
        let apart = other.last().distance(straight.last());
        assert!(apart <= 1e-10, "{shares:?}: {apart:e}");
        assert_eq!(
            permuted(shares).states,
            other.states,
            "{shares:?}: the same bits twice"
        );
    }
    // Whatever depended on the rank would show.
    let by_rank = |slot: u32| -> Vec<Box<dyn Task>> {
        vec![MeddledTask::boxed(
            ImageClassification,
            move |data, indices, key| {
                let mut batch = data.get(indices, key)?;
                batch.inputs = batch.inputs.f_mul_scalar(1.0 + f64::from(slot) / 1000.0)?;
                Ok(batch)
            },
        )]
    };
    let apart = with(&by_rank, [1, 2, 0])
        .last()
        .distance(with(&by_rank, [0, 1, 2]).last());
    assert!(apart > 1e-7, "only {apart:e}");
}

#[test]
fn i5_the_first_reduction_is_launched_before_backward_ends() {
    let config = with_caps(images("cnn-bn", 6), 1 << 10, 32 << 10);
    for watch in go(Run::new(config, 2, &builtin)) {
        let mut overlapped = 0;
        for trace in &watch.traces {
            let place = |wanted: Event| trace.iter().position(|event| *event == wanted);
            let launched: Vec<usize> = trace
                .iter()
                .filter_map(|event| match event {
                    Event::Launched(bucket) => Some(*bucket),
                    _ => None,
                })
                .collect();
            assert!(launched.len() > 3, "small caps make several buckets");
            assert!(
                launched.iter().copied().eq(0..launched.len()),
                "in the plan's order: {trace:?}"
            );
            // A member without parts of a short step has no backward to overlap with.
            if let Some(ended) = place(Event::BackwardEnded) {
                assert!(place(Event::Launched(0)).unwrap() < ended, "{trace:?}");
                assert!(place(Event::Launched(1)).unwrap() < ended, "{trace:?}");
                overlapped += 1;
            }
        }
        assert!(overlapped >= 5);
    }
}

#[test]
fn i6_the_bucket_plan_changes_no_bit_and_loses_no_gradient() {
    let caps = [
        (1 << 30, 1 << 30),
        (1, 1),
        (1 << 10, 8 << 10),
        (1 << 20, 25 << 20),
    ];
    for world in [1, 2] {
        let runs: Vec<Vec<_>> = caps
            .iter()
            .map(|(first, rest)| {
                let config = with_caps(images("cnn-bn", 2), *first, *rest);
                let (results, mut watches, _) =
                    Run::new(config, world, &builtin).go(|_, _| Seen::default().watch());
                results.iter().for_each(|result| assert!(result.is_ok()));
                watches.remove(0).states
            })
            .collect();
        for (run, caps) in runs.iter().zip(caps) {
            // Chains hash the buckets, so they differ by plan; the states do not.
            for (state, first) in run.iter().zip(&runs[0]) {
                assert_eq!(state.digest, first.digest, "{world} workers, caps {caps:?}");
            }
        }
    }
    for (first, rest) in caps {
        let seen = Seen::default();
        let config = with_caps(images("cnn-bn", 2), first, rest);
        let _ = Run::new(config, 1, &builtin).go(|_, _| seen.watch());
        let steps = seen.steps();
        let parameters = steps[0].iter().filter(|(name, _)| name.starts_with("parameter/"));
        for (name, digest) in parameters {
            assert_ne!(
                *digest, steps[1][name],
                "{name} had a gradient, caps {first}, {rest}"
            );
        }
    }
}

/// The digests by tensor after each step.
#[derive(Clone, Default)]
struct Seen(Arc<std::sync::Mutex<Vec<BTreeMap<String, u128>>>>);

impl Seen {
    fn watch(&self) -> Watch<'static> {
        let seen = self.clone();
        watch(move |state, _| {
            let digests = state.digests().unwrap();
            let by_name = digests
                .tensors()
                .map(|(name, digest)| (name.to_owned(), digest))
                .collect();
            seen.0.lock().unwrap().push(by_name);
        })
    }

    fn steps(&self) -> Vec<BTreeMap<String, u128>> {
        self.0.lock().unwrap().clone()
    }
}

#[test]
fn i7_an_unused_parameter_is_left_alone_and_one_used_by_few_counts_once() {
    let tasks = |_: u32| -> Vec<Box<dyn Task>> { vec![Box::new(Sometimes)] };
    let optimizers = [
        json!({"name": "SGD", "learningRate": 0.05, "momentum": 0.9, "weightDecay": 0.1}),
        json!({"name": "AdamW", "learningRate": 0.01, "weightDecay": 0.1}),
    ];
    assert!((1..=32).any(|commit| uses(commit) == 1) && (1..=32).any(|commit| uses(commit) == 0));
    for optimizer in &optimizers {
        let one = go(Run::new(config(spec(optimizer)), 1, &tasks)).remove(0);
        // With four members each has one sample of a step: most often only one of them uses `sometimes`.
        for world in [1, 2, 4] {
            let seen = Seen::default();
            let (results, watches, _) =
                Run::new(config(spec(optimizer)), world, &tasks).go(|slot, _| match slot {
                    0 => seen.watch(),
                    _ => Watch::default(),
                });
            results.iter().for_each(|result| assert!(result.is_ok()));
            let steps = seen.steps();
            for (at, state) in watches[0].states.iter().enumerate() {
                let apart = distance(&state.parameters, &one.states[at].parameters);
                assert!(
                    apart <= 1e-12,
                    "{world} workers, step {}: {apart:e}",
                    state.commit
                );
                assert_eq!(
                    state.parameters[5..],
                    [0.75; 4],
                    "never used, so neither decayed nor moved"
                );
                if at == 0 {
                    continue;
                }
                let touched = uses(state.commit) > 0;
                for (name, digest) in &steps[at] {
                    let changed = steps[at - 1][name] != *digest;
                    if name.contains("sometimes") {
                        assert_eq!(changed, touched, "{name}, step {}", state.commit);
                    } else if name.contains("never") {
                        assert!(!changed, "{name}, step {}", state.commit);
                    } else if name.contains("always") {
                        assert!(changed, "{name}, step {}", state.commit);
                    }
                }
            }
        }
    }
}

#[test]
fn i8_each_rank_sends_the_gradients_once_and_nothing_else() {
    /// Bytes of a frame's header.
    const HEADER: u64 = 64;
    for world in [2u64, 3, 4] {
        let mut run = Run::new(
            with_caps(images("cnn", 3), 128 << 10, 256 << 10),
            world as u32,
            &builtin,
        );
        run.wire = Wire::Tcp;
        let plans = Arc::new(std::sync::Mutex::new(Vec::new()));
        let (results, watches, _) = run.go(|_, _| {
            let plans = Arc::clone(&plans);
            watch(move |state, _: &Committed| {
                let bytes: Vec<u64> = state
                    .bucket_plan()
                    .unwrap()
                    .buckets
                    .iter()
                    .map(|b| b.byte_len() as u64)
                    .collect();
                plans.lock().unwrap().push(bytes);
            })
        });
        results.iter().for_each(|result| assert!(result.is_ok()));
        let buckets = plans.lock().unwrap()[0].clone();
        let size: u64 = buckets.iter().sum();
        // Up to 64 KiB all ranks send all to all at once, which takes fewer steps and more bytes.
        assert!(
            buckets.len() > 1 && buckets.iter().all(|bytes| *bytes > 64 << 10),
            "{buckets:?}"
        );
        let frames = 2 * (world - 1) * buckets.len() as u64;
        for watch in &watches {
            for committed in &watch.commits {
                let sent = committed.moved.bytes_sent;
                // 2 (N - 1) / N of S, but that elements are not divisible; and one header for each piece.
                let exact = 2 * (world - 1) * size / world;
                let slack = frames * 8 + frames * HEADER;
                assert!(
                    sent.abs_diff(exact) <= slack,
                    "{world} workers: sent {sent} of {exact}"
                );
            }
        }
        let all: u64 = watches
            .iter()
            .map(|watch| watch.commits[0].moved.bytes_sent)
            .sum();
        assert_eq!(
            all,
            2 * (world - 1) * size + world * frames * HEADER,
            "to the byte over all"
        );
    }
}
