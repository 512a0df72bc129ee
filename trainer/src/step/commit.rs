//! The commit: the only place where parameters, optimiser state, buffers, cursor and chain change.

use super::agreed::Agreed;
use super::course::Work;
use super::{Fatal, WorkContext};
use crate::optimizer;
use crate::parameters::UsedParameters;
use crate::state::TrainingState;
use crate::strategy::Proposal;
use crate::task::Normalisation;
use gradsync_collective::agreement;
use gradsync_formats::identity::Position;
use gradsync_formats::record::CommitKind;

/// What the commit of a step needs to know of it.
pub struct Step<'a> {
    pub(super) context: &'a WorkContext<'a>,
    pub(super) work: &'a Work,
    pub(super) position: Position,
    pub(super) agreed: &'a Agreed,
    pub(super) used: &'a UsedParameters,
    /// Content hashes that the reductions of the buckets took on the way.
    pub(super) hashes: &'a [Option<u64>],
}

/// What a commit did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Apply or Skip.
    pub kind: CommitKind,
    /// Learning rate that was used.
    pub learning_rate: f64,
    /// Global norm of the gradient before clipping.
    pub gradient_norm: Option<f64>,
}

/// Applies a proposal: all of it or nothing. All judgements are made on numbers that are equal on all
/// members, so all of them decide alike.
///
/// # Errors
/// When the step's numbers are not finite (nothing has changed then), or when changing the state fails in
/// the middle: a process with half-applied state must not go on.
pub fn commit(state: &mut TrainingState, step: &Step<'_>, proposal: Proposal) -> Result<Outcome, Fatal> {
    match proposal {
        Proposal::Apply => apply(state, step),
    }
}

fn apply(state: &mut TrainingState, step: &Step<'_>) -> Result<Outcome, Fatal> {
    let optimizer_spec = step.context.optimizer;
    let progress = state.progress();
    if step.agreed.denominator == 0 {
        return Err(Fatal::user(format!(
            "commit step {}: its {} samples count for no unit of the loss; check what the task counts",
            progress.step, step.work.samples
        )));
    }
    // Hashes of the sums as they were decoded: equal on all members, or the next control record tells.
    let mut hashes = Vec::with_capacity(state.parameters.plan().buckets.len());
    for bucket in 0..state.parameters.plan().buckets.len() {
        if let Some(hash) = step.hashes.get(bucket).copied().flatten() {
            hashes.push(hash);
            continue;
        }
        let buffer = state.parameters.bucket(bucket).map_err(Fatal::process)?;
        hashes.push(agreement::buffer_hash(&buffer).map_err(Fatal::process)?);
    }
    let correction = match step.context.normalisation {
        Normalisation::Mean => step.context.nominal / step.agreed.denominator as f64,
        Normalisation::Sum => 1.0,
    };
    let gradients = (0..state.parameters.specs().len()).map(|index| state.parameters.gradient(index));
    let norm = optimizer::global_norm(gradients).map_err(Fatal::process)? * correction;
    if step.agreed.non_finite || !norm.is_finite() {
        return Err(not_finite(step, norm));
    }
    let clip = optimizer::clip_factor(norm, optimizer_spec.clip_norm);
    let learning_rate = optimizer::learning_rate(
        optimizer_spec.learning_rate,
        &optimizer_spec.schedule,
        state.horizon,
        progress.step,
    );

    state
        .parameters
        .scale_gradients(correction * clip)
        .map_err(Fatal::process)?;
    state.optimize(step.used, learning_rate)?;
    state.buffers.commit(step.work.samples).map_err(Fatal::process)?;
    let next = step.context.course.advanced(&progress, step.work.samples);
    let cursor = progress
        .epoch
        .wrapping_mul(step.context.course.epoch_samples)
        .wrapping_add(next.cursor);
    let chain = agreement::chain(state.chain(), &hashes, agreement::CommitKind::Apply, cursor);
    state.advance(step.position, next, chain);
    Ok(Outcome {
        kind: CommitKind::Apply,
        learning_rate,
        gradient_norm: Some(norm),
    })
}

fn not_finite(step: &Step<'_>, norm: f64) -> Fatal {
    let Step { work, agreed, .. } = step;
    let what = match agreed.non_finite_rank {
        Some(rank) => format!("the loss on rank {rank} is not a finite number"),
        None => format!("the gradient is not finite (norm {norm})"),
    };
    Fatal::user(format!(
        "compute step {} (epoch {}, samples {} to {} of its order): {what}; lower \
         spec.training.optimizer.learningRate, set clipNorm, or check the data",
        step.position.commit,
        work.epoch,
        work.cursor,
        work.cursor + work.samples
    ))
}
