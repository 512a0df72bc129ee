//! The local half of a step: this member's parts, forward and backward, gradients accumulated in the flat
//! buckets. Touches nothing but scratch.

use super::course::Work;
use super::{Fatal, SharedStrategy, StepError, WorkContext};
use crate::state::TrainingState;
use crate::strategy::{Event, Round, Trace};
use crate::task::{AugmentationKey, Mode};
use gradsync_formats::record::ComputedPart;
use std::sync::{Arc, Mutex, PoisonError};

/// What this member computed.
#[derive(Debug, Default)]
pub(super) struct Local {
    /// Units (samples, tokens) in the gradients.
    pub(super) denominator: u64,
    /// Sum of the losses.
    pub(super) loss: f64,
    /// The indices that the data source really returned.
    pub(super) parts: Vec<ComputedPart>,
}

/// The strategy and the round that it works on: shared with the hooks of the last backward pass.
pub(super) struct Launching {
    pub(super) strategy: SharedStrategy,
    pub(super) round: Round,
    /// An error that ended backward, kept because libtorch passes on only its text.
    pub(super) failed: Option<StepError>,
}

/// Computes the parts of `work` that are this member's. Buckets are handed to the strategy while the last
/// of them runs backward.
pub(super) fn compute(
    context: &WorkContext<'_>,
    state: &mut TrainingState,
    work: &Work,
    launching: &Arc<Mutex<Launching>>,
    trace: &Trace,
) -> Result<Local, StepError> {
    let mut local = Local::default();
    state.parameters.zero_gradients().map_err(Fatal::process)?;
    state.buffers.begin_step().map_err(Fatal::process)?;
    state.hooks.begin_step();
    let step = state.progress().step;
    for part in work.mine.clone() {
        let last = part + 1 == work.mine.end;
        let indices = work.indices(part);
        let key = AugmentationKey::Epoch {
            seed: context.course.seed,
            epoch: work.epoch,
        };
        let batch = context.train.get(&indices, key).map_err(Fatal::of)?;
        let batch = batch.to(state.device(), state.kind()).map_err(Fatal::process)?;
        let mode = Mode::train(context.course.seed, step, part);
        let loss = context
            .task
            .loss(state.model.as_ref(), &batch, &mode)
            .map_err(Fatal::of)?;
        local.denominator += loss.count;
        local.loss += loss.sum.f_double_value(&[]).map_err(Fatal::process)?;
        let scaled = loss.sum.f_div_scalar(context.nominal).map_err(Fatal::process)?;
        let armed = last.then(|| {
            let launching = Arc::clone(launching);
            state
                .hooks
                .arm(state.parameters.plan(), move |bucket| launch(&launching, bucket))
        });
        trace.note(Event::BackwardBegan { last });
        let result = scaled.f_backward();
        if let Some(armed) = armed {
            let _ = armed.finish();
            trace.note(Event::BackwardEnded);
        }
        if let Err(error) = result {
            let failed = launching
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .failed
                .take();
            return Err(failed.unwrap_or_else(|| {
                Fatal::process(format!(
                    "compute part {part} of step {step}: {}",
                    first_line(&error)
                ))
                .into()
            }));
        }
        state
            .buffers
            .end_micro_batch(batch.samples())
            .map_err(Fatal::process)?;
        local.parts.push(ComputedPart {
            part,
            indices: batch.indices,
        });
    }
    state.parameters.check_gradients().map_err(Fatal::process)?;
    Ok(local)
}

fn launch(launching: &Mutex<Launching>, bucket: usize) -> Result<(), String> {
    let mut launching = launching.lock().unwrap_or_else(PoisonError::into_inner);
    let Launching {
        strategy,
        round,
        failed,
    } = &mut *launching;
    let mut strategy = strategy.lock().unwrap_or_else(PoisonError::into_inner);
    strategy.gradient_ready(bucket, round).map_err(|error| {
        let text = error.to_string();
        *failed = Some(error);
        text
    })
}

/// libtorch's errors carry a backtrace in the lines that follow.
fn first_line(error: &tch::TchError) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}
