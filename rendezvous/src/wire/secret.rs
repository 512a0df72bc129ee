//! Text that must not reach a log.

use serde::{Deserialize, Serialize};
use std::fmt;
use subtle::ConstantTimeEq as _;

/// A secret in text form. Its debug output is a placeholder, and comparing takes the same time wherever
/// two secrets of equal length differ.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps `text`.
    #[must_use]
    pub fn new(text: String) -> Secret {
        Secret(text)
    }

    /// The text itself, for the one place that sends or uses it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Secret) -> bool {
        self.0.as_bytes().ct_eq(other.0.as_bytes()).into()
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(not shown)")
    }
}
