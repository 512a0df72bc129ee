//! What can go wrong in a task: a parameter, the data, or libtorch.

use crate::parameters::BuildError;
use crate::torch::TorchError;
use std::path::PathBuf;

/// A field of `spec.task.parameters` that a task cannot use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("spec.task.parameters{}{field}: {problem}", dot(.field))]
pub struct ParameterError {
    /// Field name below `spec.task.parameters`; empty: the whole.
    pub field: String,
    /// What is wrong with which value, and the way out.
    pub problem: String,
}

impl ParameterError {
    /// An error at `field`; `problem` names the value and the way out.
    pub fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        ParameterError {
            field: field.into(),
            problem: problem.into(),
        }
    }
}

/// Data that cannot be read or is not what it should be.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A file could not be read at all.
    #[error("read {}: {source}{}", .path.display(), clause(.hint))]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
        /// How to get the data, if that is known.
        hint: String,
    },
    /// A file was read and its content is wrong.
    #[error("read {}: {problem}", .path.display())]
    Content {
        /// Which file.
        path: PathBuf,
        /// What is wrong and at which offset or sample.
        problem: String,
    },
    /// A sample was asked for that the data does not have.
    #[error("get sample {index}: the data has {len} samples, numbered from 0")]
    NoSuchSample {
        /// The sample asked for.
        index: u64,
        /// Samples there are.
        len: u64,
    },
    /// A tensor could not be made of the samples.
    #[error("make a batch: {0}")]
    Torch(#[from] TorchError),
}

impl From<tch::TchError> for DataError {
    fn from(error: tch::TchError) -> Self {
        DataError::Torch(error.into())
    }
}

/// A task could not build its model, open its data or compute its loss.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// libtorch refused.
    #[error(transparent)]
    Torch(#[from] TorchError),
    /// The model could not be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The data is at fault.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A parameter is at fault, found only with the data or the model at hand.
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    /// Anything else, in words.
    #[error("{0}")]
    Other(String),
}

impl TaskError {
    /// An error in words: lower case, verb and object, the value and the way out.
    pub fn other(message: impl Into<String>) -> Self {
        TaskError::Other(message.into())
    }
}

impl From<tch::TchError> for TaskError {
    fn from(error: tch::TchError) -> Self {
        TaskError::Torch(error.into())
    }
}

fn dot(field: &str) -> &'static str {
    if field.is_empty() { "" } else { "." }
}

fn clause(hint: &str) -> String {
    if hint.is_empty() {
        String::new()
    } else {
        format!("; {hint}")
    }
}
