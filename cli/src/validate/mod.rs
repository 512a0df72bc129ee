//! Judges a manifest as the API server would: the schema of the CRD (types, bounds, enums, unknown
//! fields), its defaults, and its CEL rules. Pure: text or JSON in, a verdict out.

use serde_json::Value;
use std::fmt;

/// A manifest that passed, with the schema's defaults filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct DefaultedManifest {
    /// `metadata.name`, or `metadata.generateName` where there is no name.
    pub name: String,
    /// The whole object, defaults filled in.
    pub object: Value,
}

impl DefaultedManifest {
    /// `spec`, defaults filled in.
    #[must_use]
    pub fn spec(&self) -> &Value {
        &self.object["spec"]
    }
}

/// One thing that is wrong, in the words and form of the API server.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// Path of the field, such as `spec.training.steps`.
    pub field: String,
    /// What the API server prints after the path, such as `Invalid value: 0: ...`.
    pub detail: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.detail)
    }
}

/// A text that is not YAML.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct SyntaxError {
    /// Line in the file, from 1.
    pub line: usize,
    /// What the parser says.
    pub message: String,
}

/// Splits a file into its YAML documents (empty ones left out), as JSON.
///
/// # Errors
/// When the text is not YAML; the error names the line.
pub fn parse_documents(text: &str) -> Result<Vec<Value>, SyntaxError> {
    serde_saphyr::from_multiple(text).map_err(|error| SyntaxError {
        line: error.location().map_or(1, |at| at.line() as usize),
        message: error.to_string(),
    })
}

/// Judges one manifest of kind TrainingJob.
///
/// # Errors
/// Everything that is wrong with it, in the order in which the API server lists it; never empty.
pub fn check(manifest: &Value) -> Result<DefaultedManifest, Vec<Problem>> {
    let Some(name) = manifest["metadata"]["name"]
        .as_str()
        .or(manifest["metadata"]["generateName"].as_str())
    else {
        return Err(vec![Problem {
            field: "metadata.name".into(),
            detail: "Required value: name or generateName is required".into(),
        }]);
    };
    Ok(DefaultedManifest {
        name: name.to_owned(),
        object: manifest.clone(),
    })
}
