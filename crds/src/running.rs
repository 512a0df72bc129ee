//! How the job runs: synchronisation, precision, accumulation, workers, checkpoints, failures.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Strategies of gradient synchronisation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Strategy {
    /// Synchronous data parallelism: every step reduces all gradients over all workers.
    #[default]
    AllReduce,
}

/// How gradients are synchronised.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SyncSpec {
    /// AllReduce: every step sums the gradients of all workers. Default: AllReduce. May change while the job
    /// runs.
    #[serde(default)]
    pub strategy: Strategy,
    /// Settings of AllReduce. May change while the job runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all_reduce: Option<AllReduceSpec>,
}

/// Settings of AllReduce.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AllReduceSpec {
    /// Size of the buckets in which gradients travel, in MiB. Default: 25. May change while the job runs.
    #[serde(default = "default_bucket_mib")]
    #[schemars(range(min = 1, max = 1024))]
    #[serde(rename = "bucketMiB")]
    pub bucket_mib: i32,
    /// Size of the first bucket in MiB: small, so that the reduction starts early. Default: 1. May change while
    /// the job runs.
    #[serde(default = "default_first_bucket_mib")]
    #[schemars(range(min = 1, max = 1024))]
    #[serde(rename = "firstBucketMiB")]
    pub first_bucket_mib: i32,
}

fn default_bucket_mib() -> i32 {
    25
}

fn default_first_bucket_mib() -> i32 {
    1
}

/// Precisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PrecisionMode {
    /// 64-bit floats throughout.
    #[serde(rename = "fp64")]
    Fp64,
    /// 32-bit floats throughout.
    #[default]
    #[serde(rename = "fp32")]
    Fp32,
}

/// Arithmetic.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PrecisionSpec {
    /// fp64 or fp32: width of parameters, gradients and optimiser state. Default: fp32. May change only while
    /// the job is suspended.
    #[serde(default)]
    pub mode: PrecisionMode,
}

/// Size of the micro-batches: a step's samples are cut into a grid of micro-batches that does not depend on the
/// number of workers at work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AccumulationSpec {
    /// Micro-batches per rank and step. Not together with microBatchSize. Default: 1 if neither is given. May
    /// change only while the job is suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub steps: Option<i32>,
    /// Samples of one micro-batch. Not together with steps. Default: what steps gives. May change only while the
    /// job is suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub micro_batch_size: Option<i64>,
}

/// The workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkersSpec {
    /// Number of worker pods. Default: 1. Fixed from the start of the job on; may change only while the job is
    /// suspended.
    #[serde(default = "default_one")]
    #[schemars(range(min = 1, max = 10_000))]
    pub replicas: i32,
    /// Ranks in each pod: one process per device. Default: 1. Never changes.
    #[serde(default = "default_one")]
    #[schemars(range(min = 1, max = 64))]
    pub devices_per_worker: i32,
    /// Pod template of the workers, as in a Deployment. Container trainer is merged with ours by name.
    /// Environment variables GRADSYNC_*, volumes gradsync-* and the restart policy are reserved. Default: one
    /// container trainer. May change only while the job is suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::template::placeholder")]
    pub template: Option<Value>,
}

fn default_one() -> i32 {
    1
}

/// Where and how often the state is saved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointSpec {
    /// Absolute directory as container trainer sees it. It lies on a volume that outlives the pod, unless
    /// ephemeral is true. Required. Never changes.
    #[schemars(length(max = 512), regex(pattern = "^(/[^/]+)+/?$"))]
    pub directory: String,
    /// Save every so many optimiser steps. Default: only at the end and when the job is stopped. May change
    /// while the job runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000_000_i64))]
    pub every_steps: Option<i64>,
    /// Checkpoints to keep; the newest whole one is never deleted. Default: 3. May change while the job runs.
    #[serde(default = "default_keep")]
    #[schemars(range(min = 1, max = 1000))]
    pub keep: i32,
    /// Whether all workers see the same directory; if not, one writes and sends the others what they need.
    /// Default: true. Never changes.
    #[serde(default = "default_true")]
    pub shared: bool,
    /// Accepts a directory that does not outlive the pods, and with it the loss of progress. Default: false.
    /// Never changes.
    #[serde(default)]
    pub ephemeral: bool,
    /// What the first start begins from. Default: the newest checkpoint of this job. Never changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<ResumeSpec>,
}

fn default_keep() -> i32 {
    3
}

fn default_true() -> bool {
    true
}

/// What the first start begins from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ResumePolicy {
    /// The newest whole checkpoint of this job, or the initial state.
    #[default]
    Latest,
    /// The initial state.
    Never,
    /// The checkpoint at `path`, possibly another job's.
    Path,
}

/// What the first start begins from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResumeSpec {
    /// Latest: the newest whole checkpoint of this job, if there is one. Never: the initial state. Path: the
    /// checkpoint at path, possibly another job's. Default: Latest. Never changes.
    #[serde(default)]
    pub policy: ResumePolicy,
    /// Absolute path of a checkpoint's folder; given with policy Path and only then. Never changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024), regex(pattern = "^(/[^/]+)+/?$"))]
    pub path: Option<String>,
}

/// When to give up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailurePolicySpec {
    /// Restarts that are the job's own fault (crash, out of memory) before it fails; what the platform does to
    /// it (eviction, preemption, a lost node) does not count. Default: 3. May change while the job runs.
    #[serde(default = "default_max_restarts")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub max_restarts: i32,
}

fn default_max_restarts() -> i32 {
    3
}
