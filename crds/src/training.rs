//! `spec.task` and `spec.training`: what is learned, for how long, by which optimiser.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What is trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskSpec {
    /// Name of a task that the trainer image knows, such as image-classification or language-model. Required.
    /// Never changes.
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    )]
    pub name: String,
    /// Parameters of the task, free form; the task itself checks them when it starts. Default: none. Never
    /// change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "free_form_object")]
    pub parameters: Option<Map<String, Value>>,
}

fn free_form_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// Batch, length, seed and optimiser of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrainingSpec {
    /// Samples of one optimiser step over all workers together, whatever their number. Required. Never changes.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub global_batch_size: i64,
    /// Length of the run in optimiser steps; exactly one of steps and epochs is given. No default. May grow
    /// while the job runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000_000_i64))]
    pub steps: Option<i64>,
    /// Length of the run in passes over the data; exactly one of steps and epochs is given. No default. May grow
    /// while the job runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub epochs: Option<i64>,
    /// Seed of everything random: initial parameters, order of the data, augmentation, dropout. Default: 0.
    /// Never changes.
    #[serde(default)]
    #[schemars(range(min = 0, max = 9_007_199_254_740_991_i64))]
    pub seed: i64,
    /// The optimiser. Required. Never changes.
    pub optimizer: OptimizerSpec,
    /// Evaluation in the middle of the run. Default: only at the end. Never changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluation: Option<EvaluationSpec>,
}

/// Evaluation in the middle of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EvaluationSpec {
    /// Evaluate on the held-out data every so many optimiser steps. Required. Never changes.
    #[schemars(range(min = 1, max = 1_000_000_000_000_i64))]
    pub every_steps: i64,
}

/// Optimisers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OptimizerName {
    /// Stochastic gradient descent, with optional (Nesterov) momentum.
    #[serde(rename = "SGD")]
    Sgd,
    /// Adam with decoupled weight decay.
    AdamW,
}

/// The optimiser.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OptimizerSpec {
    /// SGD (stochastic gradient descent, with momentum if asked for) or AdamW (Adam with decoupled weight
    /// decay). Required. Never changes.
    pub name: OptimizerName,
    /// Learning rate at its highest; the schedule scales it. Required. Never changes.
    #[schemars(range(min = 0, max = 1000), extend("exclusiveMinimum" = true))]
    pub learning_rate: f64,
    /// Weight decay: AdamW shrinks the parameters by learning rate times this, SGD adds this times the parameter
    /// to the gradient. Default: 0.01 with AdamW, 0 with SGD. Never changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1))]
    pub weight_decay: Option<f64>,
    /// Parameters without weight decay: an exact name such as head.bias, or * and a suffix such as *.bias.
    /// Default: none. Never changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), inner(length(max = 256), regex(pattern = r"^\*?[^*]+$")))]
    pub no_decay: Option<Vec<String>>,
    /// AdamW: decay rates of the running means of the gradient and of its square. Default: [0.9, 0.999]. Never
    /// changes.
    #[serde(default = "default_betas")]
    #[schemars(
        length(min = 2, max = 2),
        extend("items" = serde_json::json!({"type": "number", "minimum": 0, "maximum": 1, "exclusiveMaximum": true}))
    )]
    pub betas: Vec<f64>,
    /// AdamW: added to the denominator. Default: 1e-8. Never changes.
    #[serde(default = "default_eps")]
    #[schemars(range(min = 0, max = 1), extend("exclusiveMinimum" = true))]
    pub eps: f64,
    /// SGD: share of the last update that is kept. Default: 0. Never changes.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1), extend("exclusiveMaximum" = true))]
    pub momentum: f64,
    /// SGD: Nesterov's form of momentum. Default: false. Never changes.
    #[serde(default)]
    pub nesterov: bool,
    /// Largest norm of the whole gradient; a longer one is scaled down to it. Default: no clipping. Never
    /// changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000_000), extend("exclusiveMinimum" = true))]
    pub clip_norm: Option<f64>,
    /// Course of the learning rate. Default: constant. Never changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<ScheduleSpec>,
}

fn default_betas() -> Vec<f64> {
    vec![0.9, 0.999]
}

fn default_eps() -> f64 {
    1e-8
}

/// Schedules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ScheduleName {
    /// The learning rate stays as it is.
    #[default]
    Constant,
    /// A straight line down to the minimum at the horizon.
    Linear,
    /// Half a cosine down to the minimum at the horizon.
    Cosine,
    /// Constant, then a straight line down to the minimum over the last decay steps.
    WarmupStableDecay,
}

/// Course of the learning rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleSpec {
    /// Curve after the warm-up: Constant, Linear, Cosine or WarmupStableDecay. Default: Constant. Never changes.
    #[serde(default)]
    pub name: ScheduleName,
    /// Steps over which the learning rate climbs from 0. Default: 0. Never changes.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1_000_000_000_000_i64))]
    pub warmup_steps: i64,
    /// Horizon of the curve in steps; beyond it the learning rate holds its last value. Default: the length of
    /// the run at its start. Never changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000_000_i64))]
    pub total_steps: Option<i64>,
    /// Learning rate at the horizon and beyond. Default: 0. Never changes.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1000))]
    pub min_learning_rate: f64,
    /// WarmupStableDecay: steps of decay before the horizon. Default: 0. Never changes.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1_000_000_000_000_i64))]
    pub decay_steps: i64,
}
