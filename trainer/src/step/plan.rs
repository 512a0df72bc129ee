//! The bucket plan, made once before the very first step: rank 0 computes part (0, 0) in a dry run and
//! notes the order in which gradients become ready.

use super::{Fatal, StepError, WorkContext};
use crate::state::TrainingState;
use crate::task::{AugmentationKey, Mode};
use gradsync_collective::bucket_plan::{BucketPlan, Caps};
use gradsync_formats::manifest::DataProgress;
use gradsync_formats::run_config::AllReduceSpec;

/// Measures the ready order and makes the plan. The state is as it was afterwards; its gradients are
/// scratch.
///
/// # Errors
/// When the part cannot be computed.
pub fn plan_buckets(
    context: &WorkContext<'_>,
    state: &mut TrainingState,
    caps: &AllReduceSpec,
) -> Result<BucketPlan, StepError> {
    let work = context.course.work(&DataProgress::default(), 0, 1);
    let key = AugmentationKey::Epoch {
        seed: context.course.seed,
        epoch: 0,
    };
    let batch = context.train.get(&work.indices(0), key).map_err(Fatal::of)?;
    let batch = batch.to(state.device(), state.kind()).map_err(Fatal::process)?;
    let mode = Mode::train(context.course.seed, 0, 0);
    state.parameters.zero_gradients().map_err(Fatal::process)?;
    state.hooks.record_ready_order();
    let outcome = context
        .task
        .loss(state.model.as_ref(), &batch, &mode)
        .map_err(Fatal::of)
        .and_then(|loss| loss.sum.f_backward().map_err(Fatal::process));
    let order = state.hooks.take_ready_order();
    state.buffers.restore().map_err(Fatal::process)?;
    outcome?;
    let caps = Caps {
        first: bytes(caps.first_bucket_bytes),
        rest: bytes(caps.bucket_bytes),
    };
    Ok(BucketPlan::new(state.parameters.specs(), &order, caps).map_err(Fatal::process)?)
}

fn bytes(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}
