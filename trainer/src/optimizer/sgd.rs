//! Stochastic gradient descent with PyTorch's semantics: `g += decay * w; v = momentum * v + g;
//! w -= rate * (nesterov ? g + momentum * v : v)`, dampening none. Velocities start at zero, which makes
//! the first step's velocity its gradient, as in PyTorch.

use super::state::{StateList, load};
use super::{
    Optimizer, OptimizerError, Scalars, Segment, SegmentSpec, StateTensor, check_step, decay_groups,
};
use crate::torch::{SgdLists, SgdScalars, fused_sgd};
use gradsync_formats::run_config::OptimizerSpec;
use tch::{Device, Kind, Tensor};

#[derive(Debug)]
pub(super) struct Sgd {
    segments: Vec<SegmentSpec>,
    weight_decay: f64,
    momentum: f64,
    nesterov: bool,
    /// Absent without momentum.
    velocities: Option<StateList>,
}

impl Sgd {
    pub(super) fn new(
        spec: &OptimizerSpec,
        segments: &[SegmentSpec],
        kind: Kind,
        device: Device,
    ) -> Result<Self, OptimizerError> {
        let velocities = if spec.momentum == 0.0 {
            None
        } else {
            Some(StateList::zeros("momentum_buffer", segments, kind, device)?)
        };
        Ok(Self {
            segments: segments.to_vec(),
            weight_decay: spec.weight_decay,
            momentum: spec.momentum,
            nesterov: spec.nesterov,
            velocities,
        })
    }
}

impl Optimizer for Sgd {
    fn step(&mut self, shard: &[Segment<'_>], learning_rate: f64) -> Result<(), OptimizerError> {
        check_step(&self.segments, shard, learning_rate)?;
        for (group, weight_decay) in decay_groups(shard, self.weight_decay) {
            let velocities: Option<Vec<&Tensor>> = self
                .velocities
                .as_ref()
                .map(|list| group.iter().map(|i| &list.tensors[*i]).collect());
            fused_sgd(
                SgdLists {
                    values: &group.iter().map(|i| shard[*i].values).collect::<Vec<_>>(),
                    gradients: &group.iter().map(|i| shard[*i].gradient).collect::<Vec<_>>(),
                    momenta: velocities.as_deref(),
                },
                SgdScalars {
                    learning_rate,
                    weight_decay,
                    momentum: self.momentum,
                    nesterov: self.nesterov,
                },
            )?;
        }
        Ok(())
    }

    fn state(&self) -> Vec<StateTensor<'_>> {
        let of = |list| (0..self.segments.len()).map(move |i| StateList::entry(list, &self.segments, i));
        self.velocities
            .as_ref()
            .map_or_else(Vec::new, |list| of(list).collect())
    }

    fn load_state(&mut self, parameter: usize, name: &str, value: &Tensor) -> Result<(), OptimizerError> {
        let mut lists: Vec<_> = self.velocities.iter_mut().collect();
        load(&mut lists, &self.segments, parameter, name, value)
    }

    fn scalars(&self) -> Scalars {
        Scalars::new()
    }

    fn load_scalars(&mut self, _scalars: &Scalars) -> Result<(), OptimizerError> {
        Ok(())
    }
}
