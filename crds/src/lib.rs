//! The API of `TrainingJob` (group `gradsync.dev`, version `v1alpha1`): types, bounds, defaults, rules, and
//! the CustomResourceDefinition made from them. Types only: no client, no I/O.
//!
//! [`crd`] is the one source of the definition; `cargo xtask crds` writes it to
//! `crds/trainingjobs.gradsync.dev.yaml`. (`TrainingJob::crd()`, which kube derives, lacks the rules and the
//! Kubernetes-specific repairs that [`crd`] adds.)
//!
//! Names: enum values are PascalCase except for established acronyms. An optional object has no default as a
//! whole; its fields have constant defaults, so that applying the same manifest again changes nothing. A field
//! whose machinery does not exist yet is not here: it is an unknown field.

mod definition;
mod job;
mod rules;
mod running;
mod status;
mod template;
mod training;

pub use definition::{FILE_NAME, crd, crd_json};
pub use job::{TrainingJob, TrainingJobSpec};
pub use rules::{Rule, rules};
pub use running::{
    AccumulationSpec, AllReduceSpec, CheckpointSpec, FailurePolicySpec, PrecisionMode, PrecisionSpec,
    ResumePolicy, ResumeSpec, Strategy, SyncSpec, WorkersSpec,
};
pub use status::{
    CheckpointStatus, LineageEntryStatus, MembershipStatus, ProgressStatus, RecoveryStatus, RestartsStatus,
    SyncStatus, TrainingJobStatus, WorkersStatus, condition,
};
pub use training::{
    EvaluationSpec, OptimizerName, OptimizerSpec, ScheduleName, ScheduleSpec, TaskSpec, TrainingSpec,
};

/// API group.
pub const GROUP: &str = "gradsync.dev";
/// API version.
pub const VERSION: &str = "v1alpha1";
/// `apiVersion` of a manifest.
pub const API_VERSION: &str = "gradsync.dev/v1alpha1";
/// `kind` of a manifest.
pub const KIND: &str = "TrainingJob";
/// The container of the pod template that runs the trainer.
pub const TRAINER_CONTAINER: &str = "trainer";
/// Prefix of environment variables that are ours.
pub const RESERVED_ENV_PREFIX: &str = "GRADSYNC_";
/// Prefix of volumes that are ours.
pub const RESERVED_VOLUME_PREFIX: &str = "gradsync-";
/// Longest name of a job, so that the names made from it fit into 63 characters.
pub const NAME_MAX_LENGTH: usize = 40;
