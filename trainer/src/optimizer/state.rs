//! State tensors of one name, one for each segment of a shard.

use super::{OptimizerError, SegmentSpec, StateTensor};
use tch::{Device, Kind, Tensor};

#[derive(Debug)]
pub(super) struct StateList {
    name: &'static str,
    pub(super) tensors: Vec<Tensor>,
}

impl StateList {
    pub(super) fn zeros(
        name: &'static str,
        segments: &[SegmentSpec],
        kind: Kind,
        device: Device,
    ) -> Result<Self, OptimizerError> {
        let tensors = segments
            .iter()
            .map(|segment| Tensor::f_zeros([segment.elements as i64], (kind, device)))
            .collect::<Result<_, _>>()?;
        Ok(Self { name, tensors })
    }

    pub(super) fn entry(&self, segments: &[SegmentSpec], index: usize) -> StateTensor<'_> {
        StateTensor {
            parameter: segments[index].parameter,
            name: self.name,
            tensor: &self.tensors[index],
        }
    }
}

/// Writes `value` into the list called `name`.
pub(super) fn load(
    lists: &mut [&mut StateList],
    segments: &[SegmentSpec],
    parameter: usize,
    name: &str,
    value: &Tensor,
) -> Result<(), OptimizerError> {
    let refuse = |problem: String| OptimizerError::Load {
        name: format!("{name} of parameter {parameter}"),
        problem,
    };
    let list = lists
        .iter_mut()
        .find(|list| list.name == name)
        .ok_or_else(|| refuse("this optimiser has no such state".into()))?;
    let index = segments
        .iter()
        .position(|segment| segment.parameter == parameter)
        .ok_or_else(|| refuse("the shard has no such parameter".into()))?;
    let target = &mut list.tensors[index];
    let (given, have) = (value.f_kind()?, target.f_kind()?);
    if value.numel() != target.numel() || given != have {
        return Err(refuse(format!(
            "{} elements of {given:?} do not fit {} of {have:?}",
            value.numel(),
            target.numel()
        )));
    }
    target.f_copy_(&value.f_detach()?.f_reshape([-1])?)?;
    Ok(())
}
