//! The resolved run configuration: what reaches the trainer. It is the TrainingJob's specification with
//! everything that depends on other fields worked out once, so that operator, launcher and trainer never
//! resolve the same thing in two ways. Its digest is compared as opaque bytes.

pub mod defaults;
mod fields;
mod quantity;
mod resolve;

pub use resolve::{ResolveError, resolve};

use serde::{Deserialize, Serialize};

/// Version of the format.
pub const RUN_CONFIG_VERSION: u32 = 1;

/// Everything a rank needs to know about the run; equal for all members.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunConfig {
    /// Format version.
    pub version: u32,
    /// The job's name, for people.
    pub name: String,
    /// What is trained.
    pub task: TaskSpec,
    /// How long, with which batch and optimiser.
    pub training: TrainingSpec,
    /// How gradients are synchronised.
    pub sync: SyncSpec,
    /// Arithmetic.
    pub precision: PrecisionSpec,
    /// The fixed micro-batch size m of the grid.
    pub micro_batch_size: u64,
    /// The workers.
    pub workers: WorkersSpec,
    /// Checkpoints; absent: none are written.
    pub checkpoint: Option<CheckpointSpec>,
    /// When to give up.
    pub failure_policy: FailurePolicy,
}

impl RunConfig {
    /// Digest of the whole configuration, hex. Members of one group have the same one.
    #[must_use]
    #[allow(
        clippy::expect_used,
        reason = "all map keys are text, so the encoding has no way to fail"
    )]
    pub fn digest(&self) -> String {
        crate::digest::document_digest(self).expect("a RunConfig is JSON by construction")
    }
}

/// `spec.task`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskSpec {
    /// Name of a task that the trainer image knows.
    pub name: String,
    /// Free form, checked by the task.
    #[serde(default)]
    pub parameters: serde_json::Value,
}

/// `spec.training`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrainingSpec {
    /// Samples per optimiser step over all workers.
    pub global_batch_size: u64,
    /// Exactly one of steps and epochs.
    pub length: Length,
    /// Seed of everything random.
    pub seed: u64,
    /// The optimiser.
    pub optimizer: OptimizerSpec,
    /// Evaluate every so many steps; absent: only at the end.
    pub evaluate_every_steps: Option<u64>,
}

/// How long to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Length {
    /// Optimiser steps.
    Steps(u64),
    /// Passes over the data.
    Epochs(u64),
}

/// `spec.training.optimizer`, with every default filled in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OptimizerSpec {
    /// Which.
    pub name: OptimizerName,
    /// Base learning rate.
    pub learning_rate: f64,
    /// AdamW: decoupled; SGD: L2 added to the gradient.
    pub weight_decay: f64,
    /// Names of parameters without weight decay: exact, or a suffix after `*`.
    pub no_decay: Vec<String>,
    /// AdamW's (beta1, beta2).
    pub betas: (f64, f64),
    /// AdamW's epsilon.
    pub eps: f64,
    /// SGD's momentum.
    pub momentum: f64,
    /// SGD: Nesterov's form.
    pub nesterov: bool,
    /// Largest global gradient norm; absent: no clipping.
    pub clip_norm: Option<f64>,
    /// The learning rate's course.
    pub schedule: ScheduleSpec,
}

/// Optimisers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OptimizerName {
    /// Stochastic gradient descent, with optional (Nesterov) momentum.
    #[serde(rename = "SGD")]
    Sgd,
    /// Adam with decoupled weight decay.
    AdamW,
}

/// `spec.training.optimizer.schedule`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleSpec {
    /// Which curve after the warm-up.
    pub name: ScheduleName,
    /// Steps of linear warm-up from 0.
    pub warmup_steps: u64,
    /// Horizon; absent: the run's length at its start.
    pub total_steps: Option<u64>,
    /// Learning rate at the horizon and after it.
    pub min_learning_rate: f64,
    /// WarmupStableDecay: steps of decay before the horizon.
    pub decay_steps: u64,
}

/// Schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScheduleName {
    /// The base rate throughout.
    Constant,
    /// A line to the minimum at the horizon.
    Linear,
    /// Half a cosine to the minimum at the horizon.
    Cosine,
    /// Constant, then a line to the minimum over the last decay steps.
    WarmupStableDecay,
}

/// `spec.sync`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SyncSpec {
    /// Which strategy.
    pub strategy: StrategyName,
    /// The block of AllReduce.
    pub all_reduce: AllReduceSpec,
}

/// Strategies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StrategyName {
    /// Synchronous data parallelism.
    AllReduce,
}

/// `spec.sync.allReduce`: sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AllReduceSpec {
    /// Capacity of every bucket but the first.
    pub bucket_bytes: u64,
    /// Capacity of the first bucket: small, so that reduction starts early.
    pub first_bucket_bytes: u64,
}

/// `spec.precision`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PrecisionSpec {
    /// Which arithmetic.
    pub mode: PrecisionMode,
}

/// Precisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PrecisionMode {
    /// 64-bit floats throughout.
    #[serde(rename = "fp64")]
    Fp64,
    /// 32-bit floats throughout.
    #[serde(rename = "fp32")]
    Fp32,
}

/// `spec.workers`, resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkersSpec {
    /// Worker pods that the manifest asks for; `--workers` may run another number on the same grid.
    pub replicas: u32,
    /// Ranks in each pod.
    pub devices_per_worker: u32,
    /// Threads of one operator in one rank: ceil(CPU limit / ranks in the pod), else 1.
    pub intra_op_threads: u32,
}

/// `spec.checkpoint`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointSpec {
    /// Directory as the container sees it.
    pub directory: String,
    /// Write one every so many commits; absent: only at the end and when stopped.
    pub every_steps: Option<u64>,
    /// How many to keep.
    pub keep: u32,
    /// Whether every member sees the same directory.
    pub shared: bool,
    /// What to start from.
    pub resume: ResumeSpec,
}

/// `spec.checkpoint.resume`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResumeSpec {
    /// Latest: the newest whole one of this job. Never: from the beginning. Path: that of `path`.
    pub policy: ResumePolicy,
    /// A checkpoint's folder, with policy Path.
    pub path: Option<String>,
}

/// Resume policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ResumePolicy {
    /// The newest whole checkpoint of this job, or the initial state.
    Latest,
    /// The initial state at the first start.
    Never,
    /// Another job's checkpoint.
    Path,
}

/// `spec.failurePolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FailurePolicy {
    /// Restarts charged to the user before the job fails.
    pub max_restarts: u32,
}
