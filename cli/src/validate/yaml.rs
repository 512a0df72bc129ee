//! From text to JSON values, read as kubectl reads it.

use serde_json::Value;

/// A text that is not YAML.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct SyntaxError {
    /// Line in the file, from 1.
    pub line: usize,
    /// What the parser says.
    pub message: String,
}

/// Splits a file into its YAML documents (empty ones left out), as JSON. JSON is YAML too. As with kubectl, `yes`
/// and `off` are booleans and `0644` is octal; a key that is given twice is an error.
///
/// # Errors
/// When the text is not YAML; the error names the line.
pub fn parse_documents(text: &str) -> Result<Vec<Value>, SyntaxError> {
    let options = serde_saphyr::options! {
        legacy_octal_numbers: true,
        with_snippet: false,
    };
    serde_saphyr::from_multiple_with_options(text, options).map_err(|error| {
        let line = error.location().map_or(1, |at| at.line() as usize);
        let message = error.to_string();
        // The position is told once, by us.
        let message = message
            .split(" at line ")
            .next()
            .unwrap_or(&message)
            .trim()
            .to_owned();
        SyntaxError { line, message }
    })
}
