//! The object and its specification.
#![allow(clippy::duplicated_attributes)] // two print columns have one type each

use crate::running::{
    AccumulationSpec, CheckpointSpec, FailurePolicySpec, PrecisionSpec, SyncSpec, WorkersSpec,
};
use crate::status::TrainingJobStatus;
use crate::training::{TaskSpec, TrainingSpec};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What to train, for how long, how gradients are synchronised, in which precision, on how many workers.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "gradsync.dev",
    version = "v1alpha1",
    kind = "TrainingJob",
    namespaced,
    doc = "A training run on a group of workers: one model, one global batch, every sample exactly once, whatever happens to the workers.",
    status = "TrainingJobStatus",
    derive = "PartialEq",
    shortname = "tj",
    category = "all",
    scale(
        spec_replicas_path = ".spec.workers.replicas",
        status_replicas_path = ".status.workers.replicas",
        label_selector_path = ".status.workers.selector"
    ),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Step", type_ = "integer", json_path = ".status.progress.step"),
    printcolumn(name = "Of", type_ = "integer", json_path = ".status.progress.totalSteps"),
    printcolumn(name = "Loss", type_ = "string", json_path = ".status.progress.loss"),
    printcolumn(name = "Workers", type_ = "integer", json_path = ".status.workers.ready"),
    printcolumn(
        name = "Strategy",
        type_ = "string",
        json_path = ".spec.sync.strategy",
        priority = 1
    ),
    printcolumn(
        name = "Generation",
        type_ = "integer",
        json_path = ".status.membership.generation",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct TrainingJobSpec {
    /// What is trained; the trainer image knows its tasks by name. Required. Never changes.
    pub task: TaskSpec,
    /// Batch, length and optimiser. Required.
    pub training: TrainingSpec,
    /// How gradients are synchronised. Default: AllReduce. May change while the job runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync: Option<SyncSpec>,
    /// Arithmetic. Default: fp32. May change only while the job is suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<PrecisionSpec>,
    /// How a worker splits its share of a step into micro-batches. Default: not at all. May change only while
    /// the job is suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accumulation: Option<AccumulationSpec>,
    /// The workers: how many, and their pods. Required.
    pub workers: WorkersSpec,
    /// Where and how often the state is saved. Default: nothing is saved, and a lost group starts over.
    /// Cannot be added or removed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointSpec>,
    /// When to give up. May change while the job runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_policy: Option<FailurePolicySpec>,
}
