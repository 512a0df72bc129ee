//! What every task promises the engine.

use super::*;
use crate::data::images::fixtures::write_images;
use crate::parameters::{ModelBuilder, ModelTensors};
use crate::task::{AugmentationKey, Batch, DataSource, GivenParameters, Model, Parameters, PathMap, Split};
use serde_json::{Value, json};
use tch::{Device, no_grad};

const EPOCH: AugmentationKey = AugmentationKey::Epoch { seed: 5, epoch: 0 };

/// A task with its data and a model, as the engine holds them.
struct Bench {
    task: Box<dyn Task>,
    parameters: Parameters,
    data: Box<dyn DataSource>,
    model: Box<dyn Model>,
    tensors: ModelTensors,
    kind: Kind,
    _folder: tempfile::TempDir,
}

fn given(parameters: &Value, folder: &std::path::Path) -> GivenParameters {
    let mut paths = PathMap::default();
    paths.set("/data", folder);
    GivenParameters::new(parameters, paths).unwrap()
}

impl Bench {
    fn new(task: &str, parameters: Value, kind: Kind) -> Self {
        let folder = tempfile::tempdir().unwrap();
        write_images(folder.path(), 40, 20);
        let text: String = (0..60)
            .map(|i| format!("{} times {} is {}. ", i, i + 1, i * (i + 1)))
            .collect();
        std::fs::write(folder.path().join("text.txt"), text).unwrap();
        let mut tasks = builtin();
        let at = tasks.iter().position(|known| known.name() == task).unwrap();
        let task = tasks.swap_remove(at);
        let parameters = task.parameters(&given(&parameters, folder.path())).unwrap();
        let builder = ModelBuilder::new(11, kind, Device::Cpu);
        let model = task.model(&builder, &parameters).unwrap();
        Bench {
            data: task.data(Split::Train, &parameters).unwrap(),
            tensors: builder.finish(),
            task,
            parameters,
            model,
            kind,
            _folder: folder,
        }
    }

    fn images(model: &str, kind: Kind) -> Self {
        let parameters = json!({
            "model": model, "data": "/data", "imageSize": 12, "classes": 4, "augment": true, "dropout": 0.0,
        });
        Bench::new("image-classification", parameters, kind)
    }

    fn language(kind: Kind) -> Self {
        let parameters = json!({
            "data": "/data/text.txt", "layers": 2, "width": 32, "heads": 4, "context": 16, "vocab": 128,
        });
        Bench::new("language-model", parameters, kind)
    }

    fn batch(&self, indices: &[u64]) -> Batch {
        self.data
            .get(indices, EPOCH)
            .unwrap()
            .to(Device::Cpu, self.kind)
            .unwrap()
    }

    fn zero_gradients(&self) {
        for parameter in &self.tensors.parameters {
            let mut gradient = parameter.tensor.grad();
            if gradient.defined() {
                let _ = gradient.zero_();
            }
        }
    }

    /// The gradient that a step over `parts` accumulates with a constant denominator, all parameters
    /// flattened, and the step's number of units.
    fn gradient(&self, parts: &[&[u64]], nominal: f64) -> (Tensor, u64) {
        self.zero_gradients();
        let mut units = 0;
        for (part, indices) in (0..).zip(parts) {
            let batch = self.batch(indices);
            let loss = self
                .task
                .loss(self.model.as_ref(), &batch, &Mode::train(5, 3, part))
                .unwrap();
            assert_eq!(loss.count, batch.units);
            units += loss.count;
            (loss.sum / nominal).backward();
        }
        let flat: Vec<Tensor> = self
            .tensors
            .parameters
            .iter()
            .map(|p| p.tensor.grad().flatten(0, -1))
            .collect();
        (Tensor::cat(&flat, 0), units)
    }

    /// Plain gradient descent on the mean loss; the mean loss before each step.
    fn train(&self, indices: &[u64], rate: f64, steps: u64) -> Vec<f64> {
        let batch = self.batch(indices);
        (0..steps)
            .map(|step| {
                self.zero_gradients();
                let loss = self
                    .task
                    .loss(self.model.as_ref(), &batch, &Mode::train(5, step, 0))
                    .unwrap();
                let mean = loss.sum / loss.count as f64;
                mean.backward();
                no_grad(|| {
                    for parameter in &self.tensors.parameters {
                        let mut tensor = parameter.tensor.shallow_clone();
                        tensor -= parameter.tensor.grad() * rate;
                    }
                });
                mean.double_value(&[])
            })
            .collect()
    }
}

/// ‖a - b‖ / ‖b‖.
fn distance(a: &Tensor, b: &Tensor) -> f64 {
    ((a - b).norm() / b.norm()).double_value(&[])
}

#[test]
fn g1_g5_parts_of_any_sizes_add_up_to_the_gradient_of_the_whole() {
    for bench in [
        Bench::images("mlp", Kind::Double),
        Bench::images("cnn", Kind::Double),
        Bench::language(Kind::Double),
    ] {
        let last = bench.data.len() - 1;
        let whole = [3, 9, 1, last, 7, 4, 12];
        let nominal = (7 * bench.task.units_per_sample(&bench.parameters).unwrap()) as f64;
        let (expected, units) = bench.gradient(&[&whole], nominal);
        for parts in [
            &[&whole[..1], &whole[1..5], &whole[5..]][..],
            &[&whole[..6], &whole[6..]],
            &[&whole[4..], &whole[..4]],
        ] {
            let (sum, sum_units) = bench.gradient(parts, nominal);
            assert_eq!(sum_units, units);
            let distance = distance(&sum, &expected);
            assert!(distance < 1e-12, "{}: {distance}", bench.task.name());
        }
        // The same with a sample missing must be seen, or the test shows nothing.
        let (missing, _) = bench.gradient(&[&whole[..6]], nominal);
        assert!(distance(&missing, &expected) > 1e-3);
    }
}

#[test]
fn b2_tokens_count_not_samples_so_a_short_sample_weighs_less() {
    let bench = Bench::language(Kind::Double);
    let last = bench.data.len() - 1;
    let (_, short) = bench.gradient(&[&[last]], 1.0);
    assert!(
        short < 16 && short > 0,
        "the text should end within a sample: {short}"
    );
    let (parts, units) = bench.gradient(&[&[0, 1], &[last]], 1.0);
    assert_eq!(units, 32 + short);
    // The mean over tokens differs from the mean of the two means.
    let mean = parts / units as f64;
    let of_means =
        (bench.gradient(&[&[0, 1]], 32.0).0.copy() + bench.gradient(&[&[last]], short as f64).0) / 2.0;
    assert!(distance(&of_means, &mean) > 1e-2);
    let whole = bench.gradient(&[&[0, last, 1]], units as f64).0;
    assert!(distance(&mean, &whole) < 1e-12);
}

#[test]
fn padding_has_no_influence() {
    let bench = Bench::language(Kind::Double);
    let batch = bench.batch(&[bench.data.len() - 1]);
    let scores = bench.model.forward(&batch.inputs, &Mode::evaluate()).unwrap();
    let changed = bench.model.forward(
        &(&batch.inputs + batch.targets.lt(0).to_kind(Kind::Int64) * 77),
        &Mode::evaluate(),
    );
    let tokens = batch.units as i64;
    assert_eq!(scores.narrow(1, 0, tokens), changed.unwrap().narrow(1, 0, tokens));
}

#[test]
fn attention_is_causal() {
    let bench = Bench::language(Kind::Double);
    let batch = bench.batch(&[0]);
    let scores = bench.model.forward(&batch.inputs, &Mode::evaluate()).unwrap();
    let changed = batch.inputs.copy();
    let _ = changed.narrow(1, 10, 1).fill_(1);
    let other = bench.model.forward(&changed, &Mode::evaluate()).unwrap();
    assert_eq!(scores.narrow(1, 0, 10), other.narrow(1, 0, 10));
    assert_ne!(scores.narrow(1, 10, 1), other.narrow(1, 10, 1));
}

#[test]
fn a_part_with_dropout_has_the_same_bits_whoever_computes_it_and_in_any_order() {
    for (task, parameters) in [
        (
            "image-classification",
            json!({"model": "cnn", "data": "/data", "imageSize": 12, "classes": 4, "augment": true, "dropout": 0.4}),
        ),
        (
            "language-model",
            json!({"data": "/data/text.txt", "layers": 1, "width": 16, "heads": 2, "context": 16, "dropout": 0.4}),
        ),
    ] {
        let loss = |bench: &Bench, part| {
            let batch = bench.batch(&[2 * part, 2 * part + 1]);
            let mode = Mode::train(5, 3, part);
            bench
                .task
                .loss(bench.model.as_ref(), &batch, &mode)
                .unwrap()
                .sum
                .double_value(&[])
        };
        let here = Bench::new(task, parameters.clone(), Kind::Float);
        let there = Bench::new(task, parameters, Kind::Float);
        let in_order: Vec<f64> = (0..4).map(|part| loss(&here, part)).collect();
        let backwards: Vec<f64> = (0..4).rev().map(|part| loss(&there, part)).collect();
        assert!(
            in_order.iter().eq(backwards.iter().rev()),
            "{in_order:?} {backwards:?}"
        );
    }
}

#[test]
fn models_learn_a_few_samples() {
    for (bench, rate) in [
        (Bench::images("mlp", Kind::Float), 0.1),
        (Bench::images("cnn", Kind::Float), 0.1),
        (Bench::images("cnn-bn", Kind::Float), 0.1),
        (Bench::language(Kind::Float), 0.1),
    ] {
        let indices: Vec<u64> = (0..8).collect();
        let losses = bench.train(&indices, rate, 40);
        assert!(losses[39] < losses[0] / 1.5, "{}: {losses:?}", bench.task.name());
    }
}

#[test]
fn evaluation_sums_of_shards_are_the_sum_of_the_whole() {
    for (bench, metric) in [
        (Bench::images("cnn-bn", Kind::Double), "accuracy"),
        (Bench::language(Kind::Double), "bitsPerByte"),
    ] {
        let test = bench.task.data(Split::Test, &bench.parameters).unwrap();
        let all: Vec<u64> = (0..test.len()).collect();
        let sums = |shards: &[&[u64]]| {
            let mut sums = (0.0, 0u64, 0.0);
            for shard in shards {
                let batch = test
                    .get(shard, AugmentationKey::Plain)
                    .unwrap()
                    .to(Device::Cpu, Kind::Double)
                    .unwrap();
                let loss = bench
                    .task
                    .loss(bench.model.as_ref(), &batch, &Mode::evaluate())
                    .unwrap();
                assert_eq!(loss.metrics[0].0, metric);
                sums.0 += loss.sum.double_value(&[]);
                sums.1 += loss.count;
                sums.2 += loss.metrics[0].1;
            }
            sums
        };
        let (loss, count, measure) = sums(&[&all]);
        let (parts_loss, parts_count, parts_measure) = sums(&[&all[..2], &all[2..]]);
        assert_eq!(count, parts_count);
        assert!(
            (loss - parts_loss).abs() < 1e-9 * loss
                && (measure - parts_measure).abs() < 1e-9 * measure.max(1.0)
        );
    }
}

#[test]
fn count_adds_exactly_one_for_each_use() {
    let bench = Bench::new("count", json!({"size": 103}), Kind::Float);
    assert_eq!(bench.task.normalisation(), crate::task::Normalisation::Sum);
    for epoch in 0..3 {
        let order = gradsync_formats::order::Order::new(1, epoch, 103);
        for cursor in (0..103).step_by(10) {
            let step: Vec<u64> = order.batch(cursor, 10).collect();
            let (first, second) = step.split_at(step.len() / 3);
            let (gradient, _) = bench.gradient(&[first, second], 1.0);
            no_grad(|| {
                let mut tensor = bench.tensors.parameters[0].tensor.shallow_clone();
                tensor -= gradient;
            });
        }
    }
    assert_eq!(
        Vec::<f32>::try_from(bench.tensors.parameters[0].tensor.copy()).unwrap(),
        [3.0; 103]
    );
    let loss = bench
        .task
        .loss(bench.model.as_ref(), &bench.batch(&[1, 2]), &Mode::evaluate())
        .unwrap();
    assert_eq!((loss.metrics, loss.count), (vec![("uses", 6.0)], 2));
}

#[test]
fn the_benchmark_models_have_their_sizes_and_compute() {
    for (model, parameters, units) in [
        ("mlp", 24_914_944, 2),
        ("gpt", 5_289_472, 256),
        ("resnet-18", 11_173_962, 2),
    ] {
        let bench = Bench::new(
            "synthetic",
            json!({"model": model, "samples": 4, "testSamples": 2}),
            Kind::Float,
        );
        let elements: usize = bench.tensors.parameters.iter().map(|p| p.tensor.numel()).sum();
        assert_eq!(elements, parameters, "{model}");
        let batch = bench.batch(&[3, 1]);
        assert_eq!(
            (
                batch.units,
                bench.task.units_per_sample(&bench.parameters).unwrap() * 2
            ),
            (units, units)
        );
        let loss = no_grad(|| {
            bench
                .task
                .loss(bench.model.as_ref(), &batch, &Mode::train(1, 0, 0))
                .unwrap()
        });
        assert!(loss.sum.double_value(&[]).is_finite());
    }
}

#[test]
fn every_task_refuses_what_it_does_not_know() {
    let folder = tempfile::tempdir().unwrap();
    let text = |task: &str, parameters: Value| {
        let tasks = builtin();
        let task = find(&tasks, task).unwrap();
        task.parameters(&given(&parameters, folder.path()))
            .unwrap_err()
            .to_string()
    };
    for (task, parameters, expected) in [
        (
            "image-classification",
            json!({"data": "/data", "modle": "cnn"}),
            "spec.task.parameters.modle: not a parameter of this task; did you mean model?",
        ),
        (
            "image-classification",
            json!({"model": "cnn_bn", "data": "/data"}),
            "spec.task.parameters.model: \"cnn_bn\" is not one of cnn, cnn-bn, mlp; did you mean cnn-bn?",
        ),
        (
            "image-classification",
            json!({}),
            "spec.task.parameters.data: missing; give for example /data/fashion-mnist",
        ),
        (
            "image-classification",
            json!({"data": "/data", "dropout": 1}),
            "spec.task.parameters.dropout: 1 does not fit; give a number from 0 to 0.95",
        ),
        (
            "language-model",
            json!({"data": "/data/x", "width": 100, "heads": 3}),
            "spec.task.parameters.heads: 3 does not divide width 100; give a divisor of it",
        ),
        (
            "language-model",
            json!({"data": "/data/x", "contxt": 3}),
            "spec.task.parameters.contxt: not a parameter of this task; did you mean context?",
        ),
        (
            "count",
            json!({}),
            "spec.task.parameters.size: missing; give a whole number from 1 to 1073741824",
        ),
        (
            "count",
            json!({"size": 1, "augment": true}),
            "spec.task.parameters.augment: not a parameter of this task; it has size",
        ),
        (
            "synthetic",
            json!({"model": "resnet18"}),
            "spec.task.parameters.model: \"resnet18\" is not one of mlp, gpt, resnet-18; did you mean resnet-18?",
        ),
    ] {
        assert_eq!(text(task, parameters), expected);
    }
    let tasks = builtin();
    let unknown = |name| find(&tasks, name).err().unwrap().to_string();
    assert_eq!(
        unknown("languagemodel"),
        "spec.task.name: \"languagemodel\" is not a task of this image (did you mean language-model?); it knows image-classification, language-model, count, synthetic"
    );
    assert_eq!(
        unknown("speech"),
        "spec.task.name: \"speech\" is not a task of this image; it knows image-classification, language-model, count, synthetic"
    );
}
