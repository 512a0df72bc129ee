//! The committed state of training on one member: model, optimiser, buffers, cursor, chain. Between two
//! commits nothing in it changes but scratch (gradients, the model's live buffers).

mod snapshot;

pub(crate) use snapshot::Circumstances;

use crate::optimizer::{self, DecayMask, Optimizer, Segment, SegmentSpec};
use crate::parameters::{
    BackwardHooks, FlatParameters, ModelBuilder, ParameterLayout, ReplicatedBuffers, StateDigest,
    UsedParameters, parameter_specs,
};
use crate::step::{Course, Fatal, StepError};
use crate::task::{Model, Parameters, Task};
use gradsync_collective::bucket_plan::{BucketPlan, Caps, default_ready_order};
use gradsync_formats::identity::Position;
use gradsync_formats::manifest::DataProgress;
use gradsync_formats::run_config::{PrecisionMode, RunConfig};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use tch::{Device, Kind, Tensor};

/// Everything that a commit changes.
pub struct TrainingState {
    pub(crate) model: Box<dyn Model>,
    pub(crate) parameters: FlatParameters,
    pub(crate) hooks: BackwardHooks,
    pub(crate) buffers: ReplicatedBuffers,
    optimizer: Box<dyn Optimizer>,
    decays: Vec<bool>,
    pub(crate) horizon: u64,
    layout: ParameterLayout,
    kind: Kind,
    device: Device,
    position: Position,
    progress: DataProgress,
    chain: u128,
    /// Whether the bucket plan in force is one that was agreed, rather than the first guess.
    agreed_buckets: bool,
}

/// The state that is not tensors, for a copy to another member.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Scalars {
    position: Position,
    progress: DataProgress,
    chain: String,
    horizon: u64,
    optimizer: BTreeMap<String, Value>,
    buckets: Option<BucketPlan>,
}

impl TrainingState {
    /// The initial state: a function of task, parameters, seed and precision.
    ///
    /// # Errors
    /// When the model cannot be built.
    pub fn initial(
        task: &dyn Task,
        parameters: &Parameters,
        config: &RunConfig,
        course: &Course,
    ) -> Result<TrainingState, Fatal> {
        let kind = match config.precision.mode {
            PrecisionMode::Fp64 => Kind::Double,
            PrecisionMode::Fp32 => Kind::Float,
        };
        let device = Device::Cpu;
        let builder = ModelBuilder::new(config.training.seed, kind, device);
        let model = task.model(&builder, parameters).map_err(Fatal::of)?;
        let tensors = builder.finish();
        if tensors.parameters.is_empty() {
            return Err(Fatal::user(format!(
                "task {}: its model has no parameters to train",
                task.name()
            )));
        }
        let layout = tensors.layout();
        let specs = parameter_specs(&tensors.parameters).map_err(Fatal::user)?;
        let caps = &config.sync.all_reduce;
        let caps = Caps {
            first: usize::try_from(caps.first_bucket_bytes).unwrap_or(usize::MAX),
            rest: usize::try_from(caps.bucket_bytes).unwrap_or(usize::MAX),
        };
        let guess =
            BucketPlan::new(&specs, &default_ready_order(specs.len()), caps).map_err(Fatal::process)?;
        let hooks = BackwardHooks::install(&tensors.parameters).map_err(Fatal::process)?;
        // The flags of used parameters are summed beside the buffers' changes.
        let buffers = ReplicatedBuffers::new(tensors.buffers, specs.len()).map_err(Fatal::process)?;
        let parameters = FlatParameters::adopt(tensors.parameters, guess).map_err(Fatal::process)?;
        let segments: Vec<SegmentSpec> = specs
            .iter()
            .enumerate()
            .map(|(parameter, spec)| SegmentSpec {
                parameter,
                elements: spec.elements,
            })
            .collect();
        let spec = &config.training.optimizer;
        let optimizer = optimizer::build(spec, &segments, kind, device).map_err(Fatal::process)?;
        let names = specs.iter().map(|spec| spec.name.as_str());
        let DecayMask { decays, unmatched } = optimizer::decay_mask(names, &spec.no_decay);
        if !unmatched.is_empty() {
            tracing::warn!(patterns = ?unmatched, "spec.training.optimizer.noDecay fits no parameter");
        }
        Ok(TrainingState {
            model,
            parameters,
            hooks,
            buffers,
            optimizer,
            decays,
            horizon: config
                .training
                .optimizer
                .schedule
                .total_steps
                .unwrap_or_else(|| course.total_steps()),
            layout,
            kind,
            device,
            position: Position::INITIAL,
            progress: DataProgress::default(),
            chain: 0,
            agreed_buckets: false,
        })
    }

    /// The last commit in this state.
    #[must_use]
    pub fn position(&self) -> Position {
        self.position
    }

    /// Where in the data training stands.
    #[must_use]
    pub fn progress(&self) -> DataProgress {
        self.progress
    }

    /// The chain value: a hash over all commits so far.
    #[must_use]
    pub fn chain(&self) -> u128 {
        self.chain
    }

    /// The chain value in hex.
    #[must_use]
    pub fn chain_hex(&self) -> String {
        format!("{:032x}", self.chain)
    }

    /// The floating point kind of the model.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Where the model lies.
    #[must_use]
    pub fn device(&self) -> Device {
        self.device
    }

    /// Digest of names, shapes and types of the model's tensors.
    #[must_use]
    pub fn layout_digest(&self) -> String {
        self.layout.digest()
    }

    /// Committed parameters by name, in order of registration.
    pub fn parameters(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.parameters
            .parameters()
            .iter()
            .map(|p| (p.name.as_str(), &p.tensor))
    }

    /// Committed buffers by name.
    pub fn buffers(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.buffers.committed()
    }

    /// The bucket plan, if it was agreed.
    #[must_use]
    pub fn bucket_plan(&self) -> Option<&BucketPlan> {
        self.agreed_buckets.then(|| self.parameters.plan())
    }

    /// Takes over the agreed bucket plan. No bit of the state changes.
    ///
    /// # Errors
    /// When the plan does not fit the model.
    pub fn adopt_buckets(&mut self, plan: &BucketPlan) -> Result<(), StepError> {
        if self.parameters.plan() != plan {
            self.parameters.readopt(plan.clone()).map_err(Fatal::process)?;
        }
        self.agreed_buckets = true;
        Ok(())
    }

    /// The position after a base was obtained: the same state may stand for the origin of a lineage.
    pub(crate) fn set_position(&mut self, position: Position) {
        self.position = position;
    }

    /// Lets the optimiser change the parameters by their gradients, which must be final.
    pub(crate) fn optimize(&mut self, used: &UsedParameters, learning_rate: f64) -> Result<(), Fatal> {
        let shard: Vec<Segment<'_>> = (0..self.decays.len())
            .map(|parameter| Segment {
                parameter,
                values: self.parameters.values(parameter),
                gradient: self.parameters.gradient(parameter),
                decay: self.decays[parameter],
                used: used.contains(parameter),
            })
            .collect();
        self.optimizer.step(&shard, learning_rate).map_err(Fatal::process)
    }

    /// The optimiser's state tensors as `<parameter>.<state>`.
    pub(crate) fn optimizer_state(&self) -> Vec<(String, &Tensor)> {
        let name = |parameter: usize| &self.parameters.parameters()[parameter].name;
        self.optimizer
            .state()
            .into_iter()
            .map(|state| (format!("{}.{}", name(state.parameter), state.name), state.tensor))
            .collect()
    }

    /// Moves on by one commit. Only [`crate::step::commit`] calls it, last of all.
    pub(crate) fn advance(&mut self, position: Position, progress: DataProgress, chain: u128) {
        self.position = position;
        self.progress = progress;
        self.chain = chain;
    }

    /// All replicated tensors by section and name, in a fixed order: parameters, buffers, optimiser state.
    /// Each is contiguous.
    pub(crate) fn tensors(&self) -> Vec<(String, &Tensor)> {
        let parameters = self
            .parameters
            .parameters()
            .iter()
            .enumerate()
            .map(|(index, p)| (format!("parameter/{}", p.name), self.parameters.values(index)));
        let buffers = self
            .buffers
            .committed()
            .map(|(name, tensor)| (format!("buffer/{name}"), tensor));
        let optimizer = self
            .optimizer_state()
            .into_iter()
            .map(|(name, t)| (format!("optimizer/{name}"), t));
        parameters.chain(buffers).chain(optimizer).collect()
    }

    /// Digests of all replicated state.
    ///
    /// # Errors
    /// When libtorch refuses.
    pub fn digests(&self) -> Result<StateDigest, Fatal> {
        let mut digest = StateDigest::new();
        for (name, tensor) in self.tensors() {
            digest.add(name, tensor).map_err(Fatal::process)?;
        }
        let scalars =
            serde_json::to_vec(&(self.progress, self.optimizer.scalars())).map_err(Fatal::process)?;
        digest.add_bytes("scalars", &scalars);
        Ok(digest)
    }

    /// Digest of the whole replicated state, hex.
    ///
    /// # Errors
    /// When libtorch refuses.
    pub fn digest(&self) -> Result<String, Fatal> {
        Ok(self.digests()?.whole_hex())
    }

    /// What is not tensors.
    pub(crate) fn scalars(&self) -> Scalars {
        Scalars {
            position: self.position,
            progress: self.progress,
            chain: self.chain_hex(),
            horizon: self.horizon,
            optimizer: self.optimizer.scalars(),
            buckets: self.bucket_plan().cloned(),
        }
    }

    /// Takes over another member's scalars, before its tensors are copied.
    pub(crate) fn adopt_scalars(&mut self, scalars: &Scalars) -> Result<(), StepError> {
        self.optimizer
            .load_scalars(&scalars.optimizer)
            .map_err(Fatal::process)?;
        if let Some(plan) = &scalars.buckets {
            self.adopt_buckets(plan)?;
        }
        self.position = scalars.position;
        self.progress = scalars.progress;
        self.horizon = scalars.horizon;
        self.chain = snapshot::parse_chain(&scalars.chain)?;
        Ok(())
    }

    /// Makes derived values follow after the tensors of [`Self::tensors`] were overwritten in place.
    pub(crate) fn tensors_were_replaced(&mut self) -> Result<(), StepError> {
        self.buffers.restore().map_err(Fatal::process)?;
        Ok(())
    }
}
