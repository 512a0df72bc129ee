//! `status`: what the operator and the rendezvous service report. Measured numbers are strings, since JSON has
//! no NaN and one NaN must not lose a whole write. No list grows with the number of workers.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Types of the conditions; all are present from the first write on.
pub mod condition {
    /// Healthy: it trains, waits in a queue, is suspended or complete.
    pub const READY: &str = "Ready";
    /// The group trains.
    pub const RUNNING: &str = "Running";
    /// On the way to another state.
    pub const RECONCILING: &str = "Reconciling";
    /// Cannot go on without a human.
    pub const STALLED: &str = "Stalled";
    /// Stopped by the user or by a queue.
    pub const SUSPENDED: &str = "Suspended";
    /// Finished with success. Latched.
    pub const COMPLETE: &str = "Complete";
    /// Finished without success. Latched.
    pub const FAILED: &str = "Failed";
}

/// What is known of the job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrainingJobStatus {
    /// Generation of the specification that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready, Running, Reconciling, Stalled, Suspended, Complete, Failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"])
    )]
    pub conditions: Vec<Condition>,
    /// One word for people; programs read the conditions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// When the job started, or last resumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When it finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// The trainer image in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Hash of the pod template in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_hash: Option<String>,
    /// Hash of the part of the specification that never changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub immutable_hash: Option<String>,
    /// Samples of one micro-batch: the grid, resolved once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_batch_size: Option<i64>,
    /// The group in force. One writer: the rendezvous service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub membership: Option<MembershipStatus>,
    /// The worker pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<WorkersStatus>,
    /// How far training is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<ProgressStatus>,
    /// What was restarted, and on whose account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarts: Option<RestartsStatus>,
    /// The newest whole checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointStatus>,
    /// The last recovery and how long its phases took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_recovery: Option<RecoveryStatus>,
    /// The synchronisation in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync: Option<SyncStatus>,
}

/// The group in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MembershipStatus {
    /// Number of the group; it only grows, and is written here before any member learns of it.
    pub generation: i64,
    /// Ranks in the group.
    pub size: i32,
    /// When the group was formed.
    pub formed_at: Time,
    /// Slots and serials of the members, in interval notation.
    pub members: String,
    /// Digest of the plan that the members got.
    pub plan_digest: String,
    /// Which generations' commits count, and from where.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub lineage: Vec<LineageEntryStatus>,
}

/// One generation on the lineage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LineageEntryStatus {
    /// The generation.
    pub generation: i64,
    /// Generation of the commit that it started from; 0 with commit 0 is the initial state.
    pub base_generation: i64,
    /// Commit that it started from.
    pub base_commit: i64,
}

/// The worker pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkersStatus {
    /// Worker pods that have not ended.
    #[serde(default)]
    pub replicas: i32,
    /// Worker pods that are wanted now.
    #[serde(default)]
    pub desired: i32,
    /// Worker pods that run.
    #[serde(default)]
    pub running: i32,
    /// Worker pods that are ready.
    #[serde(default)]
    pub ready: i32,
    /// Worker pods that ended with success.
    #[serde(default)]
    pub succeeded: i32,
    /// Worker pods that ended without success.
    #[serde(default)]
    pub failed: i32,
    /// Label selector of the worker pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
}

/// How far training is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProgressStatus {
    /// Optimiser steps done.
    #[serde(default)]
    pub step: i64,
    /// Optimiser steps of the whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_steps: Option<i64>,
    /// Passes over the data done.
    #[serde(default)]
    pub epoch: i64,
    /// Loss of the last step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<String>,
    /// Throughput of the group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples_per_second: Option<String>,
    /// Seconds to the end at this pace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eta_seconds: Option<i64>,
    /// When these numbers were taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<Time>,
}

/// What was restarted, and on whose account.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RestartsStatus {
    /// Restarts that count against failurePolicy.maxRestarts.
    #[serde(default)]
    pub charged: i32,
    /// Restarts that do not.
    #[serde(default)]
    pub uncharged: i32,
    /// Restarts by reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub reasons: BTreeMap<String, i32>,
    /// Times of the last charged restarts, at most maxRestarts + 1 of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub recent: Vec<Time>,
    /// The last serial number given to a pod.
    #[serde(default)]
    pub pod_serial: i64,
}

/// A checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointStatus {
    /// Optimiser step whose state it holds.
    pub step: i64,
    /// Its folder as container trainer sees it.
    pub path: String,
    /// When it was written.
    pub time: Time,
}

/// A recovery and how long its phases took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecoveryStatus {
    /// What was lost.
    pub reason: String,
    /// From the loss to its detection, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detect_ms: Option<i64>,
    /// From the detection to the new group, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form_ms: Option<i64>,
    /// Until all members held the state, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_ms: Option<i64>,
    /// Until the first step was committed, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_step_ms: Option<i64>,
}

/// The synchronisation in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SyncStatus {
    /// The strategy.
    pub strategy: String,
}
