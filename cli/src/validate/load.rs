//! From a file's text to the one TrainingJob in it.

use super::{DefaultedManifest, Problem, SyntaxError, check, is_training_job, parse_documents};

/// Why a file gives no TrainingJob to run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The text is not YAML.
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
    /// No document is a TrainingJob.
    #[error(
        "there is no TrainingJob in it: add a document with apiVersion: gradsync.dev/v1alpha1 and kind: TrainingJob"
    )]
    NoJob,
    /// Several documents are TrainingJobs.
    #[error("there are {0} TrainingJobs in it: keep each that you want to run in a file of its own")]
    SeveralJobs(usize),
    /// The TrainingJob is not valid.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Invalid(Vec<Problem>),
}

/// The one TrainingJob among the documents of a file, checked and with defaults filled in. Other kinds (a claim, a
/// config map) are passed over.
///
/// # Errors
/// When the text is not YAML, holds none or several TrainingJobs, or one that is not valid.
pub fn only_job(text: &str) -> Result<DefaultedManifest, LoadError> {
    let documents = parse_documents(text)?;
    let jobs: Vec<_> = documents.iter().filter(|d| is_training_job(d)).collect();
    match jobs.as_slice() {
        [] => Err(LoadError::NoJob),
        [job] => check(job).map_err(LoadError::Invalid),
        several => Err(LoadError::SeveralJobs(several.len())),
    }
}
