//! Order of events within backward, by record and not by time.

use super::*;
use crate::parameters::{FlatParameters, Init, ModelBuilder, parameter_specs};
use gradsync_collective::bucket_plan::{BucketPlan, Caps};
use tch::{Device, Kind, Tensor};

const WIDTH: i64 = 4;

/// A chain of linear layers `w0 .. w3`, and `idle`, which forward uses only when asked.
struct Chain {
    weights: Vec<Tensor>,
    idle: Tensor,
    flat: FlatParameters,
    hooks: BackwardHooks,
}

impl Chain {
    fn new(kind: Kind, order: &[usize]) -> Self {
        let root = ModelBuilder::new(1, kind, Device::Cpu);
        let init = Init::KaimingUniform { fan_in: WIDTH };
        let weights = (0..4)
            .map(|i| root.parameter(&format!("w{i}"), &[WIDTH, WIDTH], init).unwrap())
            .collect();
        let idle = root.parameter("idle", &[1], Init::Ones).unwrap();
        let parameters = root.finish().parameters;
        let hooks = BackwardHooks::install(&parameters).unwrap();
        let specs = parameter_specs(&parameters).unwrap();
        let plan = BucketPlan::new(&specs, order, Caps { first: 1, rest: 1 }).unwrap();
        let mut flat = FlatParameters::adopt(parameters, plan).unwrap();
        flat.zero_gradients().unwrap();
        Self {
            weights,
            idle,
            flat,
            hooks,
        }
    }

    fn loss(&self, with_idle: bool) -> Tensor {
        let kind = self.weights[0].kind();
        let mut x = Tensor::ones([2, WIDTH], (kind, Device::Cpu));
        for weight in &self.weights {
            x = x.matmul(weight).tanh();
        }
        if with_idle {
            (x * &self.idle).sum(kind)
        } else {
            x.sum(kind)
        }
    }
}

type Events = Arc<Mutex<Vec<String>>>;

fn log(events: &Events) -> impl FnMut(usize) -> Result<(), String> + Send + use<> {
    let events = Arc::clone(events);
    move |bucket| {
        events.lock().unwrap().push(format!("bucket {bucket}"));
        Ok(())
    }
}

#[test]
fn a_bucket_is_announced_while_backward_still_runs() {
    for kind in [Kind::Double, Kind::Float] {
        let chain = Chain::new(kind, &[3, 2, 1, 0, 4]);
        let events: Events = Arc::default();
        let armed = chain.hooks.arm(chain.flat.plan(), log(&events));
        let loss = chain.loss(false);
        loss.backward();
        events.lock().unwrap().push("backward ended".into());
        let report = armed.finish();
        assert_eq!(
            *events.lock().unwrap(),
            ["bucket 0", "bucket 1", "bucket 2", "bucket 3", "backward ended"]
        );
        assert_eq!(report.ready_order, [3, 2, 1, 0]);
        assert_eq!(
            report.announced, 4,
            "the bucket of the unused parameter is the caller's"
        );
    }
}

#[test]
fn at_the_first_announcement_later_gradients_are_not_computed_yet() {
    let chain = Chain::new(Kind::Double, &[3, 2, 1, 0, 4]);
    let first_layer = Mutex::new(chain.flat.gradient(0).shallow_clone());
    let seen: Arc<Mutex<Vec<f64>>> = Arc::default();
    let sums = Arc::clone(&seen);
    let armed = chain.hooks.arm(chain.flat.plan(), move |_bucket: usize| {
        let sum = first_layer
            .lock()
            .unwrap()
            .abs()
            .sum(Kind::Double)
            .double_value(&[]);
        sums.lock().unwrap().push(sum);
        Ok(())
    });
    chain.loss(false).backward();
    let _ = armed.finish();
    let seen = seen.lock().unwrap();
    assert_eq!(
        seen[..3],
        [0.0, 0.0, 0.0],
        "the first layer's gradient comes last"
    );
    assert!(seen[3] > 0.0);
}

#[test]
fn buckets_are_announced_in_plan_order_whatever_becomes_ready_first() {
    let chain = Chain::new(Kind::Double, &[0, 1, 2, 3, 4]);
    let events: Events = Arc::default();
    let armed = chain.hooks.arm(chain.flat.plan(), log(&events));
    chain.loss(true).backward();
    let report = armed.finish();
    assert_eq!(report.ready_order, [4, 3, 2, 1, 0]);
    assert_eq!(
        *events.lock().unwrap(),
        ["bucket 0", "bucket 1", "bucket 2", "bucket 3", "bucket 4"]
    );
    assert_eq!(report.announced, 5);
}

#[test]
fn a_bucket_behind_an_unused_parameter_is_left_to_the_caller() {
    let chain = Chain::new(Kind::Double, &[3, 4, 2, 1, 0]);
    let events: Events = Arc::default();
    let armed = chain.hooks.arm(chain.flat.plan(), log(&events));
    chain.loss(false).backward();
    assert_eq!(armed.finish().announced, 1);
    assert_eq!(*events.lock().unwrap(), ["bucket 0"]);
}

#[test]
fn only_an_armed_backward_announces_but_every_one_marks_what_it_used() {
    let chain = Chain::new(Kind::Double, &[3, 2, 1, 0, 4]);
    let events: Events = Arc::default();
    chain.hooks.begin_step();
    chain.loss(true).backward();
    assert!(events.lock().unwrap().is_empty());
    let armed = chain.hooks.arm(chain.flat.plan(), log(&events));
    chain.loss(false).backward();
    drop(armed);
    chain.loss(false).backward();
    assert_eq!(events.lock().unwrap().len(), 4, "the last backward was not armed");
    assert_eq!(
        chain.hooks.used().unused().count(),
        0,
        "an earlier part used `idle`"
    );
    chain.hooks.begin_step();
    chain.loss(false).backward();
    assert_eq!(chain.hooks.used().unused().collect::<Vec<_>>(), [4]);
}

#[test]
fn the_recorded_order_is_a_permutation_with_unused_parameters_last() {
    let chain = Chain::new(Kind::Double, &[0, 1, 2, 3, 4]);
    chain.hooks.record_ready_order();
    chain.loss(false).backward();
    chain.loss(false).backward();
    assert_eq!(chain.hooks.take_ready_order(), [3, 2, 1, 0, 4]);
    assert_eq!(
        chain.hooks.take_ready_order(),
        [4, 3, 2, 1, 0],
        "nothing recorded"
    );
}

#[test]
fn a_sink_that_fails_ends_backward_with_its_reason_and_the_next_step_works() {
    let chain = Chain::new(Kind::Double, &[3, 2, 1, 0, 4]);
    let armed = chain.hooks.arm(chain.flat.plan(), |bucket: usize| {
        if bucket == 1 {
            Err("the group is lost".into())
        } else {
            Ok(())
        }
    });
    let error = TorchError::from(chain.loss(false).f_backward().unwrap_err());
    assert_eq!(error.to_string(), "gradient of w2: the group is lost");
    assert_eq!(armed.finish().announced, 1);

    let armed = chain
        .hooks
        .arm(chain.flat.plan(), |_bucket: usize| panic!("out of luck"));
    let error = TorchError::from(chain.loss(false).f_backward().unwrap_err());
    assert_eq!(error.to_string(), "panic in a gradient hook: out of luck");
    drop(armed);

    let armed = chain.hooks.arm(chain.flat.plan(), |_bucket: usize| Ok(()));
    chain.loss(false).backward();
    assert_eq!(armed.finish().announced, 4);
}

#[test]
fn a_second_backward_within_one_armed_pass_is_refused() {
    let chain = Chain::new(Kind::Double, &[3, 2, 1, 0, 4]);
    let armed = chain.hooks.arm(chain.flat.plan(), |_bucket: usize| Ok(()));
    chain.loss(false).backward();
    let error = TorchError::from(chain.loss(false).f_backward().unwrap_err());
    assert_eq!(
        error.to_string(),
        "gradient of w3: became ready twice in one armed backward pass"
    );
    drop(armed);
}

#[test]
fn hooks_survive_another_layout() {
    let mut chain = Chain::new(Kind::Float, &[3, 2, 1, 0, 4]);
    let specs = chain.flat.specs().to_vec();
    let caps = Caps {
        first: 1 << 20,
        rest: 1 << 20,
    };
    chain
        .flat
        .readopt(BucketPlan::new(&specs, &[4, 3, 2, 1, 0], caps).unwrap())
        .unwrap();
    chain.flat.zero_gradients().unwrap();
    let events: Events = Arc::default();
    let armed = chain.hooks.arm(chain.flat.plan(), log(&events));
    chain.loss(true).backward();
    assert_eq!(armed.finish().announced, 1);
    chain.flat.check_gradients().unwrap();
}
