//! Defaults of the specification, equal to the constants in the CRD's schema: a manifest that leaves a
//! field out means the same thing on a laptop (no schema applied) and on a cluster (applied on write).

use super::{PrecisionMode, ResumePolicy, ScheduleName, StrategyName};

/// `training.seed`.
pub const SEED: u64 = 0;
/// `training.optimizer.weightDecay` with SGD.
pub const WEIGHT_DECAY_SGD: f64 = 0.0;
/// `training.optimizer.weightDecay` with AdamW.
pub const WEIGHT_DECAY_ADAMW: f64 = 0.01;
/// `training.optimizer.betas`.
pub const BETAS: (f64, f64) = (0.9, 0.999);
/// `training.optimizer.eps`.
pub const EPS: f64 = 1e-8;
/// `training.optimizer.momentum`.
pub const MOMENTUM: f64 = 0.0;
/// `training.optimizer.nesterov`.
pub const NESTEROV: bool = false;
/// `training.optimizer.schedule.name`.
pub const SCHEDULE: ScheduleName = ScheduleName::Constant;
/// `training.optimizer.schedule.warmupSteps`.
pub const WARMUP_STEPS: u64 = 0;
/// `training.optimizer.schedule.minLearningRate`.
pub const MIN_LEARNING_RATE: f64 = 0.0;
/// `training.optimizer.schedule.decaySteps`.
pub const DECAY_STEPS: u64 = 0;
/// `sync.strategy`.
pub const STRATEGY: StrategyName = StrategyName::AllReduce;
/// `sync.allReduce.bucketMiB`.
pub const BUCKET_MIB: u64 = 25;
/// `sync.allReduce.firstBucketMiB`.
pub const FIRST_BUCKET_MIB: u64 = 1;
/// `precision.mode`.
pub const PRECISION: PrecisionMode = PrecisionMode::Fp32;
/// `accumulation.steps`.
pub const ACCUMULATION_STEPS: u64 = 1;
/// `workers.replicas`.
pub const REPLICAS: u32 = 1;
/// `workers.devicesPerWorker`.
pub const DEVICES_PER_WORKER: u32 = 1;
/// `checkpoint.keep`.
pub const CHECKPOINT_KEEP: u32 = 3;
/// `checkpoint.shared`.
pub const CHECKPOINT_SHARED: bool = true;
/// `checkpoint.resume.policy`.
pub const RESUME_POLICY: ResumePolicy = ResumePolicy::Latest;
/// `failurePolicy.maxRestarts`.
pub const MAX_RESTARTS: u32 = 3;
