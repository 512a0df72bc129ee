//! Optimisers act on flat shards: lists of one-dimensional segments, each of one parameter. A shard is
//! the whole model today; sharded optimiser state is the same trait on fewer segments.
//!
//! Unused parameters are skipped entirely: no decay, no momentum, no step count, as in PyTorch.

mod adamw;
mod clip;
mod decay;
mod schedule;
mod sgd;
mod state;

pub use clip::{all_finite, clip_factor, global_norm};
pub use decay::{DecayMask, decay_mask};
pub use schedule::learning_rate;

use crate::torch::TorchError;
use gradsync_formats::run_config::{OptimizerName, OptimizerSpec};
use std::collections::BTreeMap;
use tch::{Device, Kind, Tensor};

/// Scalars of an optimiser, by name, as the checkpoint manifest holds them.
pub type Scalars = BTreeMap<String, serde_json::Value>;

/// What one step does to one parameter's part of a shard.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// Index of the parameter in order of registration.
    pub parameter: usize,
    /// One-dimensional; changed.
    pub values: &'a Tensor,
    /// One-dimensional, decoded, unscaled and clipped; read.
    pub gradient: &'a Tensor,
    /// Whether weight decay applies.
    pub decay: bool,
    /// Whether any member used the parameter in this step.
    pub used: bool,
}

/// What an optimiser allocates state for; entry `i` belongs to segment `i` of every later shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSpec {
    /// Index of the parameter in order of registration.
    pub parameter: usize,
    /// Number of elements.
    pub elements: usize,
}

/// A state tensor, one-dimensional.
#[derive(Clone, Copy, Debug)]
pub struct StateTensor<'a> {
    /// Index of its parameter.
    pub parameter: usize,
    /// Which state, such as `exp_avg`.
    pub name: &'static str,
    /// The tensor.
    pub tensor: &'a Tensor,
}

/// Why a step or a load was refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum OptimizerError {
    /// The shard is not the one that the optimiser was made for. Nothing was changed.
    #[error("take an optimiser step: segment {segment} {problem}")]
    Shard {
        /// The first segment that differs.
        segment: usize,
        /// How.
        problem: String,
    },
    /// A learning rate that is no rate. Nothing was changed.
    #[error("take an optimiser step: learning rate {learning_rate} is not a finite number from 0 up")]
    LearningRate {
        /// The rate.
        learning_rate: f64,
    },
    /// Saved state does not fit.
    #[error("load optimiser state {name}: {problem}")]
    Load {
        /// Which.
        name: String,
        /// What does not fit.
        problem: String,
    },
    /// libtorch refused; if it was in a step, the state may be half changed and the process must end.
    #[error(transparent)]
    Torch(#[from] TorchError),
}

impl From<tch::TchError> for OptimizerError {
    fn from(error: tch::TchError) -> Self {
        Self::Torch(error.into())
    }
}

/// Changes values by gradients and its own state.
pub trait Optimizer: Send {
    /// One step. The shard has the segments that the optimiser was made for, in that order.
    ///
    /// # Errors
    /// Refused shards and rates change nothing; an error of libtorch may leave the state half changed.
    fn step(&mut self, shard: &[Segment<'_>], learning_rate: f64) -> Result<(), OptimizerError>;

    /// All state tensors, by segment, then name.
    fn state(&self) -> Vec<StateTensor<'_>>;

    /// Writes a saved state tensor; its shape may be the parameter's.
    ///
    /// # Errors
    /// When the optimiser has no such state, or size or type differ.
    fn load_state(&mut self, parameter: usize, name: &str, value: &Tensor) -> Result<(), OptimizerError>;

    /// Scalars that belong to the state, such as step counts.
    fn scalars(&self) -> Scalars;

    /// Reads what [`scalars`](Self::scalars) gave; other names are ignored.
    ///
    /// # Errors
    /// When one is missing or malformed.
    fn load_scalars(&mut self, scalars: &Scalars) -> Result<(), OptimizerError>;
}

/// The optimiser of the specification, its state zero, for a shard of these segments.
///
/// # Errors
/// When memory is short.
pub fn build(
    spec: &OptimizerSpec,
    segments: &[SegmentSpec],
    kind: Kind,
    device: Device,
) -> Result<Box<dyn Optimizer>, OptimizerError> {
    Ok(match spec.name {
        OptimizerName::Sgd => Box::new(sgd::Sgd::new(spec, segments, kind, device)?),
        OptimizerName::AdamW => Box::new(adamw::AdamW::new(spec, segments, kind, device)?),
    })
}

/// Refuses a shard or rate before anything is changed.
fn check_step(
    segments: &[SegmentSpec],
    shard: &[Segment<'_>],
    learning_rate: f64,
) -> Result<(), OptimizerError> {
    if !(learning_rate.is_finite() && learning_rate >= 0.0) {
        return Err(OptimizerError::LearningRate { learning_rate });
    }
    if segments.len() != shard.len() {
        return Err(OptimizerError::Shard {
            segment: segments.len().min(shard.len()),
            problem: format!("is missing: {} given, {} expected", shard.len(), segments.len()),
        });
    }
    for (index, (spec, given)) in segments.iter().zip(shard).enumerate() {
        let sizes = [given.values.numel(), given.gradient.numel()];
        if spec.parameter != given.parameter || sizes != [spec.elements; 2] {
            return Err(OptimizerError::Shard {
                segment: index,
                problem: format!(
                    "is parameter {} with {sizes:?} elements, and parameter {} with {} is expected",
                    given.parameter, spec.parameter, spec.elements
                ),
            });
        }
    }
    Ok(())
}

/// Indices of the used segments with and without weight decay. One group if there is no decay at all.
fn decay_groups(shard: &[Segment<'_>], weight_decay: f64) -> Vec<(Vec<usize>, f64)> {
    let used = |wanted: &dyn Fn(&Segment<'_>) -> bool| -> Vec<usize> {
        (0..shard.len())
            .filter(|i| shard[*i].used && wanted(&shard[*i]))
            .collect()
    };
    if weight_decay == 0.0 {
        return vec![(used(&|_| true), 0.0)];
    }
    vec![
        (used(&|segment| segment.decay), weight_decay),
        (used(&|segment| !segment.decay), 0.0),
    ]
}

#[cfg(test)]
mod tests;
