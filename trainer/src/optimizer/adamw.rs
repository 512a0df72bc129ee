//! Adam with decoupled weight decay (Loshchilov and Hutter 2019), PyTorch's form: `w *= 1 - rate * decay;
//! m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; w -= rate / (1 - b1^t) * m / (sqrt(v / (1 - b2^t)) +
//! eps)`. The step number `t` is each parameter's own, since unused parameters do not advance.

use super::state::{StateList, load};
use super::{
    Optimizer, OptimizerError, Scalars, Segment, SegmentSpec, StateTensor, check_step, decay_groups,
};
use crate::torch::{AdamWLists, AdamWScalars, fused_adamw};
use gradsync_formats::run_config::OptimizerSpec;
use tch::{Device, Kind, Tensor};

/// Name of the step counts, a list in the order of the shard's segments.
const STEPS: &str = "adamw.steps";

#[derive(Debug)]
pub(super) struct AdamW {
    segments: Vec<SegmentSpec>,
    weight_decay: f64,
    betas: (f64, f64),
    eps: f64,
    first: StateList,
    second: StateList,
    /// By segment: steps in which its parameter was used.
    steps: Vec<u64>,
}

impl AdamW {
    pub(super) fn new(
        spec: &OptimizerSpec,
        segments: &[SegmentSpec],
        kind: Kind,
        device: Device,
    ) -> Result<Self, OptimizerError> {
        Ok(Self {
            segments: segments.to_vec(),
            weight_decay: spec.weight_decay,
            betas: spec.betas,
            eps: spec.eps,
            first: StateList::zeros("exp_avg", segments, kind, device)?,
            second: StateList::zeros("exp_avg_sq", segments, kind, device)?,
            steps: vec![0; segments.len()],
        })
    }
}

impl Optimizer for AdamW {
    fn step(&mut self, shard: &[Segment<'_>], learning_rate: f64) -> Result<(), OptimizerError> {
        check_step(&self.segments, shard, learning_rate)?;
        for (steps, segment) in self.steps.iter_mut().zip(shard) {
            *steps += u64::from(segment.used);
        }
        for (group, weight_decay) in decay_groups(shard, self.weight_decay) {
            fused_adamw(
                AdamWLists {
                    values: &group.iter().map(|i| shard[*i].values).collect::<Vec<_>>(),
                    gradients: &group.iter().map(|i| shard[*i].gradient).collect::<Vec<_>>(),
                    first: &group.iter().map(|i| &self.first.tensors[*i]).collect::<Vec<_>>(),
                    second: &group.iter().map(|i| &self.second.tensors[*i]).collect::<Vec<_>>(),
                    steps: &group.iter().map(|i| self.steps[*i]).collect::<Vec<_>>(),
                },
                AdamWScalars {
                    learning_rate,
                    betas: self.betas,
                    weight_decay,
                    eps: self.eps,
                },
            )?;
        }
        Ok(())
    }

    fn state(&self) -> Vec<StateTensor<'_>> {
        (0..self.segments.len())
            .flat_map(|index| [&self.first, &self.second].map(|list| list.entry(&self.segments, index)))
            .collect()
    }

    fn load_state(&mut self, parameter: usize, name: &str, value: &Tensor) -> Result<(), OptimizerError> {
        let mut lists = [&mut self.first, &mut self.second];
        load(&mut lists, &self.segments, parameter, name, value)
    }

    fn scalars(&self) -> Scalars {
        Scalars::from([(STEPS.to_owned(), self.steps.clone().into())])
    }

    fn load_scalars(&mut self, scalars: &Scalars) -> Result<(), OptimizerError> {
        let refuse = |problem: String| OptimizerError::Load {
            name: STEPS.to_owned(),
            problem,
        };
        let value = scalars.get(STEPS).ok_or_else(|| refuse("it is missing".into()))?;
        let steps: Option<Vec<u64>> = value
            .as_array()
            .and_then(|list| list.iter().map(serde_json::Value::as_u64).collect());
        let steps = steps.ok_or_else(|| refuse(format!("{value} is not a list of counts")))?;
        if steps.len() != self.steps.len() {
            return Err(refuse(format!(
                "it has {} counts, and the shard {} segments",
                steps.len(),
                self.steps.len()
            )));
        }
        self.steps = steps;
        Ok(())
    }
}
