//! Claims about `resolve`.

use super::*;
use serde_json::json;

fn minimal() -> Value {
    json!({
        "task": {"name": "count"},
        "training": {"globalBatchSize": 10, "epochs": 3,
                     "optimizer": {"name": "SGD", "learningRate": 1}},
    })
}

/// The minimal specification with `value` at `pointer` (parents are made).
fn with(pointer: &str, value: Value) -> Value {
    let mut spec = minimal();
    let mut at = &mut spec;
    for key in pointer.trim_start_matches('/').split('/') {
        at = at
            .as_object_mut()
            .unwrap()
            .entry(key)
            .or_insert_with(|| json!({}));
    }
    *at = value;
    spec
}

#[test]
fn a_minimal_specification_gets_every_default() {
    let c = resolve("j", &minimal()).unwrap();
    assert_eq!(c.name, "j");
    assert_eq!(c.task.parameters, json!({}));
    assert_eq!(c.training.length, Length::Epochs(3));
    assert_eq!(c.training.seed, 0);
    assert_eq!(c.training.optimizer.weight_decay, 0.0);
    assert_eq!(c.training.optimizer.betas, (0.9, 0.999));
    assert_eq!(c.training.optimizer.eps, 1e-8);
    assert_eq!(c.training.optimizer.schedule.name, ScheduleName::Constant);
    assert_eq!(c.sync.all_reduce.bucket_bytes, 25 << 20);
    assert_eq!(c.sync.all_reduce.first_bucket_bytes, 1 << 20);
    assert_eq!(c.precision.mode, PrecisionMode::Fp32);
    assert_eq!(c.micro_batch_size, 10);
    assert_eq!((c.workers.replicas, c.workers.intra_op_threads), (1, 1));
    assert_eq!(c.checkpoint, None);
    assert_eq!(c.failure_policy.max_restarts, 3);
}

#[test]
fn a_full_specification_is_taken_over() {
    let spec = json!({
        "image": "x", "suspend": false,
        "task": {"name": "image-classification", "parameters": {"model": "cnn", "data": "/d"}},
        "training": {
            "globalBatchSize": 256, "steps": 1000, "seed": 7,
            "optimizer": {"name": "AdamW", "learningRate": 0.001, "weightDecay": 0.1,
                "noDecay": ["*.bias"], "betas": [0.8, 0.95], "eps": 1e-6, "clipNorm": 1.0,
                "schedule": {"name": "Cosine", "warmupSteps": 100, "totalSteps": 2000,
                    "minLearningRate": 1e-5, "decaySteps": 3}},
            "evaluation": {"everySteps": 200},
        },
        "sync": {"strategy": "AllReduce", "allReduce": {"bucketMiB": 4, "firstBucketMiB": 2}},
        "precision": {"mode": "fp64"},
        "accumulation": {"steps": 2},
        "workers": {"replicas": 2, "maxReplicas": 4, "devicesPerWorker": 2, "template": {"spec": {
            "containers": [{"name": "side", "resources": {"limits": {"cpu": "9"}}},
                {"name": "trainer", "resources": {"limits": {"cpu": "2500m"}}}]}}},
        "checkpoint": {"directory": "/c", "everySteps": 50, "keep": 2, "shared": false,
            "resume": {"policy": "Path", "path": "/c/u/step-1-g1"}},
        "failurePolicy": {"maxRestarts": 0},
    });
    let c = resolve("j", &spec).unwrap();
    assert_eq!(c.training.length, Length::Steps(1000));
    assert_eq!(c.training.evaluate_every_steps, Some(200));
    let o = &c.training.optimizer;
    assert_eq!(o.no_decay, ["*.bias"]);
    assert_eq!((o.betas, o.eps, o.clip_norm), ((0.8, 0.95), 1e-6, Some(1.0)));
    assert_eq!(o.schedule.total_steps, Some(2000));
    assert_eq!(
        c.micro_batch_size,
        256 / (4 * 2 * 2),
        "maxReplicas * devices * steps"
    );
    assert_eq!(c.workers.intra_op_threads, 2, "ceil(2.5 / 2)");
    let checkpoint = c.checkpoint.unwrap();
    assert_eq!(checkpoint.resume.path.as_deref(), Some("/c/u/step-1-g1"));
    assert_eq!((checkpoint.keep, checkpoint.shared), (2, false));
    assert_eq!(c.failure_policy.max_restarts, 0);
}

#[test]
fn adamw_decays_by_default_and_a_given_micro_batch_is_kept() {
    let c = resolve("j", &with("/training/optimizer/name", json!("AdamW"))).unwrap();
    assert_eq!(c.training.optimizer.weight_decay, 0.01);
    let c = resolve(
        "j",
        &with("/accumulation", json!({"steps": 1, "microBatchSize": 3})),
    )
    .unwrap();
    assert_eq!(c.micro_batch_size, 3);
}

#[test]
fn each_refusal_names_its_field() {
    for (pointer, value, path) in [
        (
            "/training/globalBatchSize",
            json!(0),
            "spec.training.globalBatchSize",
        ),
        (
            "/training/globalBatchSize",
            json!(1.5),
            "spec.training.globalBatchSize",
        ),
        (
            "/training/globalBatchSize",
            json!("8"),
            "spec.training.globalBatchSize",
        ),
        (
            "/training/globalBatchSize",
            json!(null),
            "spec.training.globalBatchSize",
        ),
        ("/training/steps", json!(5), "spec.training.steps"),
        ("/training/epochs", json!(null), "spec.training.steps"),
        ("/training/epochs", json!(-1), "spec.training.epochs"),
        ("/training/seed", json!(-1), "spec.training.seed"),
        (
            "/training/optimizer/name",
            json!("Adam"),
            "spec.training.optimizer.name",
        ),
        (
            "/training/optimizer/learningRate",
            json!(-0.1),
            "spec.training.optimizer.learningRate",
        ),
        (
            "/training/optimizer/learningRate",
            json!(null),
            "spec.training.optimizer.learningRate",
        ),
        (
            "/training/optimizer/momentum",
            json!(1),
            "spec.training.optimizer.momentum",
        ),
        (
            "/training/optimizer/nesterov",
            json!(true),
            "spec.training.optimizer.nesterov",
        ),
        (
            "/training/optimizer/nesterov",
            json!("yes"),
            "spec.training.optimizer.nesterov",
        ),
        (
            "/training/optimizer/betas",
            json!([0.9]),
            "spec.training.optimizer.betas",
        ),
        (
            "/training/optimizer/betas",
            json!([0.9, 1]),
            "spec.training.optimizer.betas",
        ),
        ("/training/optimizer/eps", json!(0), "spec.training.optimizer.eps"),
        (
            "/training/optimizer/clipNorm",
            json!(0),
            "spec.training.optimizer.clipNorm",
        ),
        (
            "/training/optimizer/noDecay",
            json!([1]),
            "spec.training.optimizer.noDecay",
        ),
        (
            "/training/optimizer/schedule/name",
            json!("Step"),
            "spec.training.optimizer.schedule.name",
        ),
        (
            "/training/evaluation/everySteps",
            json!(0),
            "spec.training.evaluation.everySteps",
        ),
        ("/training", json!(3), "spec.training"),
        ("/sync/strategy", json!("Delayed"), "spec.sync.strategy"),
        (
            "/sync/allReduce/bucketMiB",
            json!(0),
            "spec.sync.allReduce.bucketMiB",
        ),
        (
            "/sync/allReduce/bucketMiB",
            json!(1u64 << 40),
            "spec.sync.allReduce.bucketMiB",
        ),
        ("/precision/mode", json!("bf16"), "spec.precision.mode"),
        (
            "/accumulation/microBatchSize",
            json!(11),
            "spec.accumulation.microBatchSize",
        ),
        (
            "/accumulation",
            json!({"steps": 2, "microBatchSize": 3}),
            "spec.accumulation.steps",
        ),
        ("/accumulation/steps", json!(0), "spec.accumulation.steps"),
        ("/workers/replicas", json!(0), "spec.workers.replicas"),
        ("/workers/replicas", json!(11), "spec.training.globalBatchSize"),
        (
            "/workers",
            json!({"replicas": 3, "maxReplicas": 2}),
            "spec.workers.maxReplicas",
        ),
        (
            "/workers/template",
            json!({"spec": {"containers": [{"name": "trainer", "resources": {"limits": {"cpu": "two"}}}]}}),
            "spec.workers.template.spec.containers[trainer].resources.limits.cpu",
        ),
        ("/task/name", json!(null), "spec.task.name"),
        ("/checkpoint", json!({}), "spec.checkpoint.directory"),
        (
            "/checkpoint",
            json!({"directory": "/c", "keep": 0}),
            "spec.checkpoint.keep",
        ),
        (
            "/checkpoint",
            json!({"directory": "/c", "resume": {"policy": "Path"}}),
            "spec.checkpoint.resume.path",
        ),
        (
            "/failurePolicy/maxRestarts",
            json!(-1),
            "spec.failurePolicy.maxRestarts",
        ),
    ] {
        let error = resolve("j", &with(pointer, value.clone())).expect_err(pointer);
        assert_eq!(error.path, path, "{pointer} = {value}: {error}");
    }
    assert_eq!(resolve("j", &json!(null)).unwrap_err().path, "spec");
}

#[test]
fn a_run_config_survives_json_and_its_digest_ignores_the_order_of_fields() {
    let c = resolve("j", &with("/task/parameters", json!({"b": 1, "a": 0.1}))).unwrap();
    let text = serde_json::to_string(&c).unwrap();
    let back: RunConfig = serde_json::from_str(&text).unwrap();
    assert_eq!(back, c);
    assert_eq!(back.digest(), c.digest());
    let other_order = resolve("j", &with("/task/parameters", json!({"a": 0.1, "b": 1}))).unwrap();
    assert_eq!(other_order.digest(), c.digest());
    let other = resolve("j", &with("/task/parameters", json!({"a": 0.2, "b": 1}))).unwrap();
    assert_ne!(other.digest(), c.digest());
}
