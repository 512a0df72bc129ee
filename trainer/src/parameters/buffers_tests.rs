//! Running statistics do not depend on how a step was cut into micro-batches.

use super::*;
use crate::parameters::ModelBuilder;
use crate::torch::read_elements;

const MOMENTUM: f64 = 0.1;

struct Norm {
    mean: Tensor,
    count: Tensor,
    buffers: ReplicatedBuffers,
}

fn norm(kind: Kind, extra: usize) -> Norm {
    let root = ModelBuilder::new(1, kind, Device::Cpu);
    let mean = root.buffer("mean", &[2], 1.0).unwrap();
    let count = root.counter("count").unwrap();
    let buffers = ReplicatedBuffers::new(root.finish().buffers, extra).unwrap();
    Norm { mean, count, buffers }
}

impl Norm {
    /// What BatchNorm does in a forward pass.
    fn forward(&mut self, batch_mean: f64) {
        let kind = self.mean.kind();
        let target = Tensor::from_slice(&[batch_mean, -batch_mean]).to_kind(kind);
        let moved = &self.mean * (1.0 - MOMENTUM) + target * MOMENTUM;
        self.mean.copy_(&moved);
        let _ = self.count.g_add_scalar_(1);
    }

    fn means(&self) -> Vec<f64> {
        Vec::<f64>::try_from(self.mean.to_kind(Kind::Double)).unwrap()
    }
}

#[test]
fn every_micro_batch_starts_from_the_committed_values() {
    for kind in [Kind::Double, Kind::Float] {
        let mut norm = norm(kind, 0);
        norm.buffers.begin_step().unwrap();
        for batch in [5.0, -3.0] {
            norm.forward(batch);
            assert_ne!(norm.means(), [1.0, 1.0]);
            norm.buffers.end_micro_batch(3).unwrap();
            assert_eq!(norm.means(), [1.0, 1.0]);
            assert_eq!(norm.count.int64_value(&[]), 0);
        }
    }
}

#[test]
fn a_commit_applies_the_sample_weighted_mean_and_counts_the_step_once() {
    for (kind, tolerance) in [(Kind::Double, 1e-15), (Kind::Float, 1e-6)] {
        let mut norm = norm(kind, 0);
        norm.buffers.begin_step().unwrap();
        for (batch, samples) in [(5.0, 3), (-3.0, 1)] {
            norm.forward(batch);
            norm.buffers.end_micro_batch(samples).unwrap();
        }
        norm.buffers.commit(4).unwrap();
        let expected = |target: f64| 1.0 + MOMENTUM * (target - 1.0);
        let weighted = (5.0 * 3.0 - 3.0) / 4.0;
        for (have, want) in norm.means().iter().zip([expected(weighted), expected(-weighted)]) {
            assert!((have - want).abs() < tolerance, "{have} {want}");
        }
        assert_eq!(norm.count.int64_value(&[]), 1);
        let committed: Vec<_> = norm.buffers.committed().map(|(name, _)| name).collect();
        assert_eq!(committed, ["mean", "count"]);
    }
}

#[test]
fn members_sum_their_changes_and_one_without_parts_counts_too() {
    let batches = [(5.0, 3), (-3.0, 1), (2.0, 4)];
    let mut alone = norm(Kind::Double, 0);
    alone.buffers.begin_step().unwrap();
    for (batch, samples) in batches {
        alone.forward(batch);
        alone.buffers.end_micro_batch(samples).unwrap();
    }
    alone.buffers.commit(8).unwrap();

    let mut members = [
        norm(Kind::Double, 0),
        norm(Kind::Double, 0),
        norm(Kind::Double, 0),
    ];
    for (member, part) in members.iter_mut().zip([&batches[..1], &batches[1..], &[]]) {
        member.buffers.begin_step().unwrap();
        for (batch, samples) in part {
            member.forward(*batch);
            member.buffers.end_micro_batch(*samples).unwrap();
        }
    }
    let changes: Vec<Vec<f64>> = members
        .iter()
        .map(|m| m.buffers.change().unwrap().to_vec().unwrap())
        .collect();
    assert!(changes[2].iter().all(|x| *x == 0.0));
    let sum: Vec<f64> = (0..2).map(|i| changes.iter().map(|c| c[i]).sum()).collect();
    for member in &mut members {
        member.buffers.change().unwrap().copy_from_slice(&sum).unwrap();
        member.buffers.commit(8).unwrap();
        for (have, want) in member.means().iter().zip(alone.means()) {
            assert!((have - want).abs() < 1e-15);
        }
        assert_eq!(member.count.int64_value(&[]), 1);
    }
}

#[test]
fn a_step_that_is_given_up_leaves_nothing_behind() {
    let mut norm = norm(Kind::Double, 0);
    norm.buffers.begin_step().unwrap();
    norm.forward(5.0);
    norm.buffers.end_micro_batch(3).unwrap();
    norm.forward(9.0);
    norm.buffers.restore().unwrap();
    assert_eq!(norm.means(), [1.0, 1.0]);
    norm.buffers.begin_step().unwrap();
    assert_eq!(
        norm.buffers.change().unwrap().to_vec::<f64>().unwrap(),
        [0.0, 0.0]
    );
    assert!(matches!(norm.buffers.commit(0), Err(BufferError::NoSamples)));
}

#[test]
fn real_batch_norm_backward_works_with_the_restore_after_it() {
    let mut norm = norm(Kind::Double, 0);
    let variance = Tensor::ones([2], (Kind::Double, Device::Cpu));
    norm.buffers.begin_step().unwrap();
    let x = Tensor::from_slice(&[1.0, 2.0, 3.0, 5.0])
        .view([2, 2])
        .set_requires_grad(true);
    for _ in 0..2 {
        let y = x.batch_norm(
            None::<&Tensor>,
            None::<&Tensor>,
            Some(&norm.mean),
            Some(&variance),
            true,
            MOMENTUM,
            1e-5,
            false,
        );
        (y * Tensor::from_slice(&[1.0, 3.0]))
            .square()
            .sum(Kind::Double)
            .backward();
        norm.buffers.end_micro_batch(2).unwrap();
        assert_eq!(norm.means(), [1.0, 1.0]);
    }
    norm.buffers.commit(4).unwrap();
    for (have, want) in norm.means().iter().zip([0.9 + 0.2, 0.9 + 0.35]) {
        assert!((have - want).abs() < 1e-12, "{have}");
    }
}

#[test]
fn extra_elements_travel_behind_the_changes() {
    let mut norm = norm(Kind::Float, 3);
    norm.buffers.begin_step().unwrap();
    let mut extra = norm.buffers.extra().unwrap();
    extra.copy_(&Tensor::from_slice(&[1.0, 0.0, 1.0]));
    let sent = norm.buffers.change().unwrap();
    assert_eq!(sent.to_vec::<f64>().unwrap(), [0.0, 0.0, 1.0, 0.0, 1.0]);
    sent.copy_from_slice(&[0.0, 0.0, 2.0, 0.0, 3.0]).unwrap();
    let received = read_elements::<f64, _>(&norm.buffers.extra().unwrap(), <[f64]>::to_vec).unwrap();
    assert_eq!(received, [2.0, 0.0, 3.0]);
}

#[test]
fn loading_sets_live_and_committed_values_and_refuses_what_does_not_fit() {
    let mut norm = norm(Kind::Double, 0);
    norm.buffers
        .load("mean", &Tensor::from_slice(&[2.0, 3.0]))
        .unwrap();
    norm.buffers.load("count", &Tensor::from(9i64)).unwrap();
    norm.buffers.restore().unwrap();
    assert_eq!((norm.means(), norm.count.int64_value(&[])), (vec![2.0, 3.0], 9));
    for (name, value) in [
        ("mean", Tensor::from_slice(&[1.0])),
        ("mean", Tensor::from_slice(&[1.0f32, 2.0])),
        ("variance", Tensor::from_slice(&[1.0, 2.0])),
    ] {
        let error = norm.buffers.load(name, &value).unwrap_err();
        assert!(
            error.to_string().starts_with(&format!("load buffer {name}: ")),
            "{error}"
        );
    }
}
