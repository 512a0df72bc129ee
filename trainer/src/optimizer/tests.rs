//! Fused kernels against the textbook, written out in plain double precision.

use super::*;
use crate::random::{Key, fill_normal};
use gradsync_formats::run_config::{ScheduleName, ScheduleSpec};

const SIZES: [usize; 5] = [1, 7, 16, 33, 500];
const STEPS: u64 = 50;

fn spec(name: OptimizerName) -> OptimizerSpec {
    OptimizerSpec {
        name,
        learning_rate: 0.01,
        weight_decay: 0.0,
        no_decay: vec![],
        betas: (0.9, 0.999),
        eps: 1e-8,
        momentum: 0.0,
        nesterov: false,
        clip_norm: None,
        schedule: ScheduleSpec {
            name: ScheduleName::Constant,
            warmup_steps: 0,
            total_steps: None,
            min_learning_rate: 0.0,
            decay_steps: 0,
        },
    }
}

/// The cases of both optimisers: plain, with momentum, with Nesterov, with decay.
fn cases() -> Vec<OptimizerSpec> {
    let sgd = spec(OptimizerName::Sgd);
    let momentum = OptimizerSpec {
        momentum: 0.9,
        ..sgd.clone()
    };
    let nesterov = OptimizerSpec {
        nesterov: true,
        ..momentum.clone()
    };
    let adamw = spec(OptimizerName::AdamW);
    vec![
        OptimizerSpec {
            weight_decay: 0.1,
            ..sgd.clone()
        },
        OptimizerSpec {
            weight_decay: 0.1,
            ..momentum.clone()
        },
        OptimizerSpec {
            weight_decay: 0.1,
            ..nesterov.clone()
        },
        sgd,
        momentum,
        nesterov,
        OptimizerSpec {
            weight_decay: 0.1,
            betas: (0.8, 0.95),
            eps: 1e-6,
            ..adamw.clone()
        },
        adamw,
    ]
}

fn drawn(domain: &str, step: u64, parameter: usize) -> Vec<f64> {
    let mut values = vec![0.0; SIZES[parameter]];
    fill_normal(Key::derive(7, domain, step, parameter as u64), 0, &mut values);
    values
}

fn rate(step: u64) -> f64 {
    0.01 * (1.0 + (step % 5) as f64)
}

/// Parameter 3 is without decay; parameter 2 is used in every third step only, parameter 4 never.
fn decays(parameter: usize) -> bool {
    parameter != 3
}

fn used(parameter: usize, step: u64) -> bool {
    match parameter {
        2 => step % 3 == 1,
        4 => false,
        _ => true,
    }
}

/// One parameter in plain loops.
struct Textbook {
    w: Vec<f64>,
    m: Vec<f64>,
    v: Vec<f64>,
    t: i32,
}

impl Textbook {
    fn step(&mut self, spec: &OptimizerSpec, g: &[f64], rate: f64, decay: f64) {
        self.t += 1;
        let (b1, b2) = spec.betas;
        for (i, g) in g.iter().enumerate() {
            let (w, m, v) = (&mut self.w[i], &mut self.m[i], &mut self.v[i]);
            match spec.name {
                OptimizerName::Sgd => {
                    let g = g + decay * *w;
                    *m = spec.momentum * *m + g;
                    *w -= rate * if spec.nesterov { g + spec.momentum * *m } else { *m };
                }
                OptimizerName::AdamW => {
                    *w -= rate * decay * *w;
                    *m = b1 * *m + (1.0 - b1) * g;
                    *v = b2 * *v + (1.0 - b2) * g * g;
                    let mean = *m / (1.0 - b1.powi(self.t));
                    let square = *v / (1.0 - b2.powi(self.t));
                    *w -= rate * mean / (square.sqrt() + spec.eps);
                }
            }
        }
    }
}

struct Fused {
    values: Vec<Tensor>,
    gradients: Vec<Tensor>,
    optimizer: Box<dyn Optimizer>,
}

impl Fused {
    fn new(spec: &OptimizerSpec, kind: Kind) -> Self {
        let tensor = |p| Tensor::from_slice(&drawn("value", 0, p)).to_kind(kind);
        let segments: Vec<_> = (0..SIZES.len())
            .map(|parameter| SegmentSpec {
                parameter,
                elements: SIZES[parameter],
            })
            .collect();
        Self {
            values: (0..SIZES.len()).map(tensor).collect(),
            gradients: SIZES
                .iter()
                .map(|n| Tensor::zeros([*n as i64], (kind, Device::Cpu)))
                .collect(),
            optimizer: build(spec, &segments, kind, Device::Cpu).unwrap(),
        }
    }

    fn step(&mut self, step: u64) {
        for (parameter, gradient) in self.gradients.iter_mut().enumerate() {
            gradient.copy_(&Tensor::from_slice(&drawn("gradient", step, parameter)));
        }
        let shard: Vec<_> = (0..SIZES.len())
            .map(|parameter| Segment {
                parameter,
                values: &self.values[parameter],
                gradient: &self.gradients[parameter],
                decay: decays(parameter),
                used: used(parameter, step),
            })
            .collect();
        self.optimizer.step(&shard, rate(step)).unwrap();
    }

    fn bits(&self) -> Vec<Vec<u64>> {
        let state = self.optimizer.state();
        self.values
            .iter()
            .chain(state.iter().map(|s| s.tensor))
            .map(|t| doubles(t).iter().map(|x| x.to_bits()).collect())
            .collect()
    }
}

fn doubles(tensor: &Tensor) -> Vec<f64> {
    Vec::<f64>::try_from(tensor.to_kind(Kind::Double)).unwrap()
}

#[test]
fn fused_steps_are_the_textbook_s_in_both_precisions() {
    for spec in cases() {
        for (kind, tolerance) in [(Kind::Double, 1e-12), (Kind::Float, 2e-5)] {
            let mut fused = Fused::new(&spec, kind);
            let mut textbook: Vec<_> = (0..SIZES.len())
                .map(|p| Textbook {
                    w: drawn("value", 0, p),
                    m: vec![0.0; SIZES[p]],
                    v: vec![0.0; SIZES[p]],
                    t: 0,
                })
                .collect();
            for step in 0..STEPS {
                fused.step(step);
                for (p, book) in textbook.iter_mut().enumerate() {
                    if used(p, step) {
                        let decay = if decays(p) { spec.weight_decay } else { 0.0 };
                        book.step(&spec, &drawn("gradient", step, p), rate(step), decay);
                    }
                }
            }
            for (p, book) in textbook.iter().enumerate() {
                let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
                let have = doubles(&fused.values[p]);
                let apart = norm(&mut have.iter().zip(&book.w).map(|(a, b)| a - b));
                let size = norm(&mut book.w.iter().copied());
                assert!(
                    apart <= tolerance * size,
                    "{spec:?} {kind:?} parameter {p}: {}",
                    apart / size
                );
            }
        }
    }
}

#[test]
fn an_unused_parameter_and_its_state_keep_every_bit() {
    for spec in cases() {
        for kind in [Kind::Double, Kind::Float] {
            let mut fused = Fused::new(&spec, kind);
            let never = doubles(&fused.values[4]);
            for step in 0..STEPS {
                let rare = doubles(&fused.values[2]);
                fused.step(step);
                assert_eq!(
                    doubles(&fused.values[2]) == rare,
                    !used(2, step),
                    "{spec:?} step {step}"
                );
            }
            assert_eq!(doubles(&fused.values[4]), never);
            for state in fused.optimizer.state().iter().filter(|s| s.parameter == 4) {
                assert!(doubles(state.tensor).iter().all(|x| *x == 0.0), "{}", state.name);
            }
            if let Some(steps) = fused.optimizer.scalars().get("adamw.steps") {
                assert_eq!(steps, &serde_json::json!([50, 50, 17, 50, 0]));
            }
        }
    }
}

#[test]
fn the_same_steps_give_the_same_bits_twice() {
    for spec in cases() {
        for kind in [Kind::Double, Kind::Float] {
            let run = || {
                let mut fused = Fused::new(&spec, kind);
                (0..STEPS).for_each(|step| fused.step(step));
                fused.bits()
            };
            assert_eq!(run(), run());
        }
    }
}

#[test]
fn saved_state_continues_with_the_same_bits() {
    for spec in cases() {
        let mut through = Fused::new(&spec, Kind::Float);
        (0..20).for_each(|step| through.step(step));
        let mut resumed = Fused::new(&spec, Kind::Float);
        for (to, from) in resumed.values.iter_mut().zip(&through.values) {
            to.copy_(from);
        }
        for state in through.optimizer.state() {
            let shaped = state.tensor.view([1, -1]);
            resumed
                .optimizer
                .load_state(state.parameter, state.name, &shaped)
                .unwrap();
        }
        let text = serde_json::to_string(&through.optimizer.scalars()).unwrap();
        resumed
            .optimizer
            .load_scalars(&serde_json::from_str(&text).unwrap())
            .unwrap();
        for step in 20..STEPS {
            through.step(step);
            resumed.step(step);
        }
        assert_eq!(through.bits(), resumed.bits(), "{spec:?}");
    }
}

#[test]
fn state_that_does_not_fit_is_refused_by_name() {
    let mut adamw = Fused::new(&spec(OptimizerName::AdamW), Kind::Float).optimizer;
    let of = |n: i64, kind| Tensor::zeros([n], (kind, Device::Cpu));
    let mut refused =
        |parameter, name, value: Tensor| adamw.load_state(parameter, name, &value).unwrap_err().to_string();
    assert_eq!(
        refused(1, "exp_avg", of(6, Kind::Float)),
        "load optimiser state exp_avg of parameter 1: 6 elements of Float do not fit 7 of Float"
    );
    assert!(refused(1, "exp_avg", of(7, Kind::Double)).contains("Double"));
    assert!(refused(1, "momentum_buffer", of(7, Kind::Float)).contains("no such state"));
    assert!(refused(9, "exp_avg", of(7, Kind::Float)).contains("no such parameter"));
    for scalars in [
        serde_json::json!({}),
        serde_json::json!({"adamw.steps": [1, 2]}),
        serde_json::json!({"adamw.steps": [1, 2, 3, 4, -5]}),
        serde_json::json!({"adamw.steps": 7}),
    ] {
        let scalars: Scalars = serde_json::from_value(scalars).unwrap();
        let error = adamw.load_scalars(&scalars).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("load optimiser state adamw.steps: "),
            "{error}"
        );
    }
}

#[test]
fn a_wrong_shard_or_rate_changes_nothing() {
    for spec in cases() {
        let mut fused = Fused::new(&spec, Kind::Double);
        let before = fused.bits();
        let shard: Vec<_> = (0..SIZES.len())
            .map(|parameter| Segment {
                parameter,
                values: &fused.values[parameter],
                gradient: &fused.gradients[parameter],
                decay: true,
                used: true,
            })
            .collect();
        for rate in [f64::NAN, f64::INFINITY, -0.1] {
            assert!(matches!(
                fused.optimizer.step(&shard, rate),
                Err(OptimizerError::LearningRate { .. })
            ));
        }
        let mut swapped = shard.clone();
        swapped.swap(0, 1);
        for wrong in [&shard[..4], &swapped] {
            assert!(matches!(
                fused.optimizer.step(wrong, 0.1),
                Err(OptimizerError::Shard { .. })
            ));
        }
        drop(swapped);
        drop(shard);
        assert_eq!(fused.bits(), before);
        assert_eq!(
            fused.optimizer.scalars(),
            Fused::new(&spec, Kind::Double).optimizer.scalars()
        );
    }
}
