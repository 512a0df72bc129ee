//! The state as plain data for a checkpoint, and back.

use super::TrainingState;
use crate::checkpoint::{bytes_to_tensor, spec_of, tensor_to_bytes};
use crate::step::Fatal;
use gradsync_collective::bucket_plan::BucketPlan;
use gradsync_formats::checkpoint::{Group, NamedTensor, Snapshot, TensorSpec};
use gradsync_formats::lineage::Lineage;
use gradsync_formats::manifest::{Evaluated, Fingerprints};
use gradsync_formats::run_config::RunConfig;
use serde_json::Value;
use std::collections::BTreeMap;

/// Name of the schedule's horizon among the scalars; the others are the optimiser's.
const HORIZON: &str = "schedule.horizon";

/// What a checkpoint says besides the state itself.
pub(crate) struct Circumstances<'a> {
    pub(crate) lineage: &'a Lineage,
    pub(crate) fingerprints: &'a Fingerprints,
    pub(crate) config: &'a RunConfig,
    pub(crate) world_size: u32,
    pub(crate) agreed_by: u32,
    pub(crate) evaluation: Option<Evaluated>,
    pub(crate) written_at: String,
}

impl TrainingState {
    /// Copies the state out of the model.
    pub(crate) fn snapshot(&self, around: Circumstances<'_>) -> Result<Snapshot, Fatal> {
        let mut tensors = BTreeMap::new();
        let copy = |name: &str, tensor: &tch::Tensor| tensor_to_bytes(name, tensor).map_err(Fatal::process);
        let parameters: Result<Vec<_>, _> = self.parameters().map(|(name, t)| copy(name, t)).collect();
        let buffers: Result<Vec<_>, _> = self.buffers().map(|(name, t)| copy(name, t)).collect();
        let optimizer: Result<Vec<NamedTensor>, _> = self
            .optimizer_state()
            .into_iter()
            .map(|(name, t)| copy(&name, t))
            .collect();
        tensors.insert(Group::Parameters, parameters?);
        tensors.insert(Group::Buffers, buffers?);
        tensors.insert(Group::Optimizer, optimizer?);
        let mut scalars = self.optimizer.scalars();
        scalars.insert(HORIZON.to_owned(), Value::from(self.horizon));
        Ok(Snapshot {
            position: self.position,
            lineage: around.lineage.clone(),
            progress: self.progress,
            seed: around.config.training.seed,
            micro_batch_size: around.config.micro_batch_size,
            scalars,
            bucket_plan: serde_json::to_value(self.bucket_plan()).map_err(Fatal::process)?,
            chain: self.chain_hex(),
            state_digest: self.digest()?,
            fingerprints: around.fingerprints.clone(),
            world_size: around.world_size,
            agreed_by: around.agreed_by,
            evaluation: around.evaluation,
            run_config: serde_json::to_value(around.config).map_err(Fatal::process)?,
            written_at: around.written_at,
            tensors,
        })
    }

    /// Takes over the state of a checkpoint.
    pub(crate) fn restore(&mut self, snapshot: &Snapshot) -> Result<(), Fatal> {
        let names: Vec<String> = self.parameters().map(|(name, _)| name.to_owned()).collect();
        for (index, name) in names.iter().enumerate() {
            let value = found(snapshot, Group::Parameters, name)?;
            self.parameters.load(index, &value).map_err(Fatal::user)?;
        }
        let names: Vec<String> = self.buffers().map(|(name, _)| name.to_owned()).collect();
        for name in &names {
            let value = found(snapshot, Group::Buffers, name)?;
            self.buffers.load(name, &value).map_err(Fatal::user)?;
        }
        let mut scalars = snapshot.scalars.clone();
        if let Some(horizon) = scalars.remove(HORIZON).and_then(|value| value.as_u64()) {
            self.horizon = horizon;
        }
        self.optimizer.load_scalars(&scalars).map_err(Fatal::user)?;
        let places: Vec<(usize, &'static str)> = self
            .optimizer
            .state()
            .into_iter()
            .map(|state| (state.parameter, state.name))
            .collect();
        let names: Vec<String> = self.optimizer_state().into_iter().map(|(name, _)| name).collect();
        for ((parameter, state), name) in places.into_iter().zip(&names) {
            let value = found(snapshot, Group::Optimizer, name)?;
            self.optimizer
                .load_state(parameter, state, &value)
                .map_err(Fatal::user)?;
        }
        let plan: Option<BucketPlan> = serde_json::from_value(snapshot.bucket_plan.clone())
            .map_err(|error| Fatal::user(format!("read the checkpoint's bucket plan: {error}")))?;
        match plan {
            Some(plan) => {
                self.parameters.readopt(plan).map_err(Fatal::user)?;
                self.agreed_buckets = true;
            }
            None => self.agreed_buckets = false,
        }
        self.chain = parse_chain(&snapshot.chain)?;
        self.position = snapshot.position;
        self.progress = snapshot.progress;
        Ok(())
    }

    /// Names, types and shapes of parameters and of buffers, to name the first that differs from a
    /// checkpoint's.
    pub(crate) fn specs(&self) -> Result<(Vec<TensorSpec>, Vec<TensorSpec>), Fatal> {
        let spec = |(name, tensor)| spec_of(name, tensor).map_err(Fatal::process);
        let parameters: Result<_, _> = self.parameters().map(spec).collect();
        let buffers: Result<_, _> = self.buffers().map(spec).collect();
        Ok((parameters?, buffers?))
    }
}

fn found(snapshot: &Snapshot, group: Group, name: &str) -> Result<tch::Tensor, Fatal> {
    let named = snapshot.find(group, name).ok_or_else(|| {
        Fatal::user(format!(
            "load the checkpoint: it has no {name} in {}",
            group.file_name()
        ))
    })?;
    bytes_to_tensor(named).map_err(Fatal::process)
}

/// A chain value from its hex form.
pub(super) fn parse_chain(text: &str) -> Result<u128, Fatal> {
    u128::from_str_radix(text, 16).map_err(|error| {
        Fatal::user(format!(
            "read chain value {text:?}: {error}; it has 32 hex digits"
        ))
    })
}
