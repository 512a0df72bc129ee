//! The tasks that the trainer knows by name.

mod count;
mod gpt;
mod image_classification;
mod language_model;
mod resnet;
mod synthetic;

pub use count::Count;
pub use gpt::{Gpt, GptOptions};
pub use image_classification::ImageClassification;
pub use language_model::LanguageModel;
pub use resnet::ResNet18;
pub use synthetic::Synthetic;

use crate::task::{LossSum, Mode, Task, TaskError};
use tch::{Kind, Reduction, Tensor};

/// The tasks that come with gradsync.
#[must_use]
pub fn builtin() -> Vec<Box<dyn Task>> {
    vec![
        Box::new(ImageClassification),
        Box::new(LanguageModel),
        Box::new(Count),
        Box::new(Synthetic),
    ]
}

/// A task that nobody registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("spec.task.name: {name:?} is not a task of this image{}; it knows {known}", .nearest.as_ref().map_or(String::new(), |name| format!(" (did you mean {name}?)")))]
pub struct UnknownTask {
    /// The name asked for.
    pub name: String,
    /// The names there are.
    pub known: String,
    /// The one that may have been meant.
    pub nearest: Option<String>,
}

/// The task of this name.
///
/// # Errors
/// Lists the names that are known.
pub fn find<'a>(tasks: &'a [Box<dyn Task>], name: &str) -> Result<&'a dyn Task, UnknownTask> {
    let names = || tasks.iter().map(|task| task.name());
    tasks
        .iter()
        .find(|task| task.name() == name)
        .map(AsRef::as_ref)
        .ok_or_else(|| UnknownTask {
            name: name.to_owned(),
            known: names().collect::<Vec<_>>().join(", "),
            nearest: crate::task::suggest(name, names()).map(str::to_owned),
        })
}

/// Cross entropy of `scores` `[units, classes]` against `targets` `[units]`, summed; targets of -100 do
/// not count.
fn cross_entropy(scores: &Tensor, targets: &Tensor, units: u64) -> Result<LossSum, TaskError> {
    let none = None::<&Tensor>;
    let sum =
        scores.f_cross_entropy_loss(targets, none, Reduction::Sum, crate::data::text::NO_TARGET, 0.0)?;
    Ok(LossSum::new(sum, units))
}

/// Cross entropy, and in evaluation the share of right answers too: to count them waits for the device.
fn classification(scores: &Tensor, targets: &Tensor, units: u64, mode: &Mode) -> Result<LossSum, TaskError> {
    let loss = cross_entropy(scores, targets, units)?;
    if mode.is_training() {
        return Ok(loss);
    }
    let right = scores
        .f_argmax(-1, false)?
        .f_eq_tensor(targets)?
        .f_sum(Kind::Int64)?;
    Ok(loss.with_metric("accuracy", right.f_int64_value(&[])? as f64))
}

#[cfg(test)]
mod tests;
