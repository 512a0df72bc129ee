//! From a TrainingJob's specification to a RunConfig: defaults filled in, the grid worked out.

use super::fields::Fields;
use super::{
    AllReduceSpec, CheckpointSpec, FailurePolicy, Length, OptimizerName, OptimizerSpec, PrecisionMode,
    PrecisionSpec, RUN_CONFIG_VERSION, ResumePolicy, ResumeSpec, RunConfig, ScheduleName, ScheduleSpec,
    StrategyName, SyncSpec, TaskSpec, TrainingSpec, WorkersSpec, defaults, quantity,
};
use crate::grid::resolve_micro_batch_size;
use serde_json::Value;

/// Name of the container that is ours in the pod template.
const TRAINER_CONTAINER: &str = "trainer";

/// What could not be resolved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {problem}")]
pub struct ResolveError {
    /// Path of the field, such as `spec.training.steps`.
    pub path: String,
    /// What is wrong with its value and what would be right.
    pub problem: String,
}

/// Resolves the specification (the object under `spec`, as JSON) of job `name`. Absent fields get the
/// schema's defaults, unknown ones are ignored. Pure: the same specification gives the same bytes.
///
/// # Errors
/// When a field that validation guarantees is missing or out of range, naming it.
pub fn resolve(name: &str, spec: &Value) -> Result<RunConfig, ResolveError> {
    if !spec.is_object() {
        return Err(ResolveError {
            path: "spec".into(),
            problem: "is missing or not an object".into(),
        });
    }
    let spec = Fields::root("spec", spec);
    let training = training(&spec)?;
    let (workers, grid_ranks) = workers(&spec)?;
    Ok(RunConfig {
        version: RUN_CONFIG_VERSION,
        name: name.to_owned(),
        task: task(&spec)?,
        micro_batch_size: micro_batch_size(&spec, training.global_batch_size, grid_ranks)?,
        training,
        sync: sync(&spec)?,
        precision: precision(&spec)?,
        workers,
        checkpoint: checkpoint(&spec)?,
        failure_policy: FailurePolicy {
            max_restarts: spec
                .object("failurePolicy")?
                .integer32("maxRestarts", 0)?
                .unwrap_or(defaults::MAX_RESTARTS),
        },
    })
}

fn task(spec: &Fields<'_>) -> Result<TaskSpec, ResolveError> {
    let task = spec.object("task")?;
    Ok(TaskSpec {
        name: task.required("name", task.text("name")?)?.to_owned(),
        parameters: task
            .get("parameters")
            .cloned()
            .unwrap_or_else(|| Value::Object(serde_json::Map::new())),
    })
}

fn training(spec: &Fields<'_>) -> Result<TrainingSpec, ResolveError> {
    let training = spec.object("training")?;
    let steps = training.integer("steps", 1)?;
    let epochs = training.integer("epochs", 1)?;
    let length = match (steps, epochs) {
        (Some(steps), None) => Length::Steps(steps),
        (None, Some(epochs)) => Length::Epochs(epochs),
        (Some(_), Some(_)) => {
            return Err(training.error("steps", "is given together with epochs: keep one of the two"));
        }
        (None, None) => {
            return Err(training.error("steps", "is missing and so is epochs: give one of the two"));
        }
    };
    let batch = training.integer("globalBatchSize", 1)?;
    Ok(TrainingSpec {
        global_batch_size: training.required("globalBatchSize", batch)?,
        length,
        seed: training.integer("seed", 0)?.unwrap_or(defaults::SEED),
        optimizer: optimizer(&training)?,
        evaluate_every_steps: training.object("evaluation")?.integer("everySteps", 1)?,
    })
}

fn optimizer(training: &Fields<'_>) -> Result<OptimizerSpec, ResolveError> {
    let o = training.object("optimizer")?;
    let name = o.one_of(
        "name",
        &[("SGD", OptimizerName::Sgd), ("AdamW", OptimizerName::AdamW)],
    )?;
    let name = o.required("name", name)?;
    let momentum = o.below_one("momentum")?.unwrap_or(defaults::MOMENTUM);
    let nesterov = o.boolean("nesterov")?.unwrap_or(defaults::NESTEROV);
    if nesterov && momentum == 0.0 {
        return Err(o.error("nesterov", "needs a momentum above 0: give one or drop nesterov"));
    }
    Ok(OptimizerSpec {
        name,
        learning_rate: o.required("learningRate", o.not_negative("learningRate")?)?,
        weight_decay: o.not_negative("weightDecay")?.unwrap_or(match name {
            OptimizerName::Sgd => defaults::WEIGHT_DECAY_SGD,
            OptimizerName::AdamW => defaults::WEIGHT_DECAY_ADAMW,
        }),
        no_decay: o.texts("noDecay")?.unwrap_or_default(),
        betas: betas(&o)?,
        eps: o
            .number("eps", |f| f > 0.0, "a number above 0")?
            .unwrap_or(defaults::EPS),
        momentum,
        nesterov,
        clip_norm: o.number("clipNorm", |f| f > 0.0, "a number above 0")?,
        schedule: schedule(&o)?,
    })
}

fn betas(optimizer: &Fields<'_>) -> Result<(f64, f64), ResolveError> {
    let Some(given) = optimizer.get("betas") else {
        return Ok(defaults::BETAS);
    };
    let fits = |v: &Value| v.as_f64().filter(|f| (0.0..1.0).contains(f));
    match given.as_array().map(Vec::as_slice) {
        Some([a, b]) => fits(a).zip(fits(b)),
        _ => None,
    }
    .ok_or_else(|| optimizer.error("betas", format!("{given} is not two numbers in [0, 1)")))
}

fn schedule(optimizer: &Fields<'_>) -> Result<ScheduleSpec, ResolveError> {
    let s = optimizer.object("schedule")?;
    let name = s.one_of(
        "name",
        &[
            ("Constant", ScheduleName::Constant),
            ("Linear", ScheduleName::Linear),
            ("Cosine", ScheduleName::Cosine),
            ("WarmupStableDecay", ScheduleName::WarmupStableDecay),
        ],
    )?;
    Ok(ScheduleSpec {
        name: name.unwrap_or(defaults::SCHEDULE),
        warmup_steps: s.integer("warmupSteps", 0)?.unwrap_or(defaults::WARMUP_STEPS),
        total_steps: s.integer("totalSteps", 1)?,
        min_learning_rate: s
            .not_negative("minLearningRate")?
            .unwrap_or(defaults::MIN_LEARNING_RATE),
        decay_steps: s.integer("decaySteps", 0)?.unwrap_or(defaults::DECAY_STEPS),
    })
}

fn sync(spec: &Fields<'_>) -> Result<SyncSpec, ResolveError> {
    let sync = spec.object("sync")?;
    let strategy = sync.one_of("strategy", &[("AllReduce", StrategyName::AllReduce)])?;
    let all_reduce = sync.object("allReduce")?;
    let bytes = |name, default: u64| {
        let mib = all_reduce.integer32(name, 1)?;
        Ok(mib.map_or(default, u64::from) << 20)
    };
    Ok(SyncSpec {
        strategy: strategy.unwrap_or(defaults::STRATEGY),
        all_reduce: AllReduceSpec {
            bucket_bytes: bytes("bucketMiB", defaults::BUCKET_MIB)?,
            first_bucket_bytes: bytes("firstBucketMiB", defaults::FIRST_BUCKET_MIB)?,
        },
    })
}

fn precision(spec: &Fields<'_>) -> Result<PrecisionSpec, ResolveError> {
    let mode = spec.object("precision")?.one_of(
        "mode",
        &[("fp64", PrecisionMode::Fp64), ("fp32", PrecisionMode::Fp32)],
    )?;
    Ok(PrecisionSpec {
        mode: mode.unwrap_or(defaults::PRECISION),
    })
}

/// The workers, and the ranks that the grid is made for: (maxReplicas, else replicas) * devices.
fn workers(spec: &Fields<'_>) -> Result<(WorkersSpec, u64), ResolveError> {
    let workers = spec.object("workers")?;
    let replicas = workers.integer32("replicas", 1)?.unwrap_or(defaults::REPLICAS);
    let max_replicas = workers.integer32("maxReplicas", 1)?.unwrap_or(replicas);
    let devices_per_worker = workers
        .integer32("devicesPerWorker", 1)?
        .unwrap_or(defaults::DEVICES_PER_WORKER);
    if max_replicas < replicas {
        return Err(workers.error(
            "maxReplicas",
            format!("{max_replicas} is less than replicas, {replicas}"),
        ));
    }
    Ok((
        WorkersSpec {
            replicas,
            devices_per_worker,
            intra_op_threads: intra_op_threads(&workers, devices_per_worker)?,
        },
        u64::from(max_replicas) * u64::from(devices_per_worker),
    ))
}

/// ceil(CPU limit of the container `trainer` / ranks in the pod), at least 1; 1 without a limit.
fn intra_op_threads(workers: &Fields<'_>, ranks: u32) -> Result<u32, ResolveError> {
    let limit = workers
        .get("template")
        .and_then(|t| t.pointer("/spec/containers"))
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .find(|c| c.get("name").and_then(Value::as_str) == Some(TRAINER_CONTAINER))
        .and_then(|c| c.pointer("/resources/limits/cpu"))
        .filter(|v| !v.is_null());
    let Some(limit) = limit else { return Ok(1) };
    let milli = quantity::milli_cpus(limit).ok_or_else(|| {
        workers.error(
            "template.spec.containers[trainer].resources.limits.cpu",
            format!("{limit} is not a quantity of CPUs such as 2 or \"500m\""),
        )
    })?;
    let threads = milli.div_ceil(1000 * u64::from(ranks));
    Ok(u32::try_from(threads).unwrap_or(u32::MAX).max(1))
}

fn micro_batch_size(spec: &Fields<'_>, batch: u64, ranks: u64) -> Result<u64, ResolveError> {
    if batch < ranks {
        return Err(spec.error(
            "training.globalBatchSize",
            format!("{batch} is less than the {ranks} ranks that may share it: each needs a sample"),
        ));
    }
    let accumulation = spec.object("accumulation")?;
    let steps = accumulation.integer("steps", 1)?;
    let micro = accumulation.integer("microBatchSize", 1)?;
    match (steps, micro) {
        (Some(steps), Some(_)) if steps > 1 => Err(accumulation.error(
            "steps",
            "is given together with microBatchSize: keep one of the two",
        )),
        (_, Some(micro)) if micro > batch => Err(accumulation.error(
            "microBatchSize",
            format!("{micro} is larger than training.globalBatchSize, {batch}"),
        )),
        _ => {
            let steps = steps.unwrap_or(defaults::ACCUMULATION_STEPS);
            if ranks.checked_mul(steps).is_none() {
                return Err(accumulation.error("steps", format!("{steps} is too large")));
            }
            Ok(resolve_micro_batch_size(batch, ranks, steps, micro))
        }
    }
}

fn checkpoint(spec: &Fields<'_>) -> Result<Option<CheckpointSpec>, ResolveError> {
    let c = spec.object("checkpoint")?;
    if !c.is_present() {
        return Ok(None);
    }
    let directory = c.required("directory", c.text("directory")?)?;
    let resume = c.object("resume")?;
    let policy = resume
        .one_of(
            "policy",
            &[
                ("Latest", ResumePolicy::Latest),
                ("Never", ResumePolicy::Never),
                ("Path", ResumePolicy::Path),
            ],
        )?
        .unwrap_or(defaults::RESUME_POLICY);
    let path = resume.text("path")?.map(str::to_owned);
    if policy == ResumePolicy::Path && path.is_none() {
        return Err(resume.error("path", "is missing: policy Path needs a checkpoint's folder"));
    }
    Ok(Some(CheckpointSpec {
        directory: directory.to_owned(),
        every_steps: c.integer("everySteps", 1)?,
        keep: c.integer32("keep", 1)?.unwrap_or(defaults::CHECKPOINT_KEEP),
        shared: c.boolean("shared")?.unwrap_or(defaults::CHECKPOINT_SHARED),
        resume: ResumeSpec { policy, path },
    }))
}

#[cfg(test)]
#[path = "resolve_tests.rs"]
mod tests;
