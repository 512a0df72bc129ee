//! Evaluation: a collective phase at a boundary. The test split is cut into fixed parts, each member
//! computes its share, sums and counts are added up; nothing of the training state changes.

use crate::state::TrainingState;
use crate::step::{Fatal, Member, StepError, WorkContext};
use crate::task::{AugmentationKey, Mode};
use gradsync_collective::{Buffer, Channel, ReduceOp, WireType};
use gradsync_formats::grid;
use std::collections::BTreeMap;

/// The smallest part that evaluation uses: without a backward pass more samples fit than in training.
const SMALLEST_PART: u64 = 64;

/// What an evaluation found.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// Mean loss over all units of the test split; NaN if it has none.
    pub loss: f64,
    /// Each metric's sum over the number of units.
    pub metrics: BTreeMap<String, f64>,
}

/// Evaluates the committed state on the whole test split, together with all members.
///
/// # Errors
/// When a sample cannot be read, the model refuses, or a member is lost.
pub fn evaluate(
    context: &WorkContext<'_>,
    state: &TrainingState,
    member: &Member,
) -> Result<Evaluation, StepError> {
    let samples = context.test.len();
    let parts = grid::part_count(samples, context.course.micro_batch_size.max(SMALLEST_PART));
    let mut sums = Sums::default();
    tch::no_grad(|| -> Result<(), StepError> {
        for part in grid::parts_of_share(parts, member.share.index, member.share.of) {
            let indices: Vec<u64> = grid::part_samples(samples, parts, part).collect();
            let batch = context
                .test
                .get(&indices, AugmentationKey::Plain)
                .map_err(Fatal::of)?;
            let batch = batch.to(state.device(), state.kind()).map_err(Fatal::process)?;
            let loss = context
                .task
                .loss(state.model.as_ref(), &batch, &Mode::evaluate())
                .map_err(Fatal::of)?;
            sums.loss += loss.sum.f_double_value(&[]).map_err(Fatal::process)?;
            sums.units += loss.count as f64;
            for (name, sum) in loss.metrics {
                *sums.metrics.entry(name.to_owned()).or_default() += sum;
            }
        }
        Ok(())
    })?;
    let names = metric_names(&sums, member)?;
    let mut flat = vec![sums.loss, sums.units];
    flat.extend(
        names
            .iter()
            .map(|name| sums.metrics.get(name).copied().unwrap_or_default()),
    );
    let buffer = Buffer::from_slice(&flat).map_err(Fatal::process)?;
    member
        .communicator
        .all_reduce(Channel::State, buffer.clone(), ReduceOp::Sum, WireType::Same)
        .wait(context.clock.now() + member.patience)?;
    let flat = buffer.to_vec::<f64>().map_err(Fatal::process)?;
    let units = flat[1];
    Ok(Evaluation {
        loss: flat[0] / units,
        metrics: names
            .into_iter()
            .zip(flat[2..].iter().map(|sum| sum / units))
            .collect(),
    })
}

#[derive(Default)]
struct Sums {
    loss: f64,
    units: f64,
    metrics: BTreeMap<String, f64>,
}

/// The names of all metrics. A member without parts has seen none, so the first that has tells the others.
fn metric_names(sums: &Sums, member: &Member) -> Result<Vec<String>, StepError> {
    let mine: Vec<String> = sums.metrics.keys().cloned().collect();
    let longest = crate::agree::gather_lengths(mine.len() as u64, member)?;
    let root = (0..longest.len()).find(|rank| longest[*rank] > 0).unwrap_or(0);
    let is_root = root == member.rank as usize;
    crate::agree::share_document(
        is_root.then_some(&mine),
        member.communicator.as_ref(),
        root,
        member.patience,
    )
}
