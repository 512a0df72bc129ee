//! One thing that is wrong with a manifest, in the words and form of the API server.

use serde_json::Value;
use std::fmt;

/// Which check found a problem.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Check {
    /// `apiVersion` and `kind`.
    Identity,
    /// Object metadata.
    Metadata,
    /// A field that the schema does not have.
    UnknownField,
    /// `type`, or `format` where a value of another type would be needed.
    Type,
    /// A number that is too large for its `format`.
    Format,
    /// `required`.
    Required,
    /// `enum`.
    Enum,
    /// `minimum`.
    Minimum,
    /// `maximum`.
    Maximum,
    /// `minLength`.
    MinLength,
    /// `maxLength`.
    MaxLength,
    /// `pattern`.
    Pattern,
    /// `minItems`.
    MinItems,
    /// `maxItems`.
    MaxItems,
    /// Two entries of a list with the same key.
    ListKeys,
    /// A CEL rule, with its expression.
    Rule(String),
    /// Rules were not looked at.
    RulesSkipped,
}

impl Check {
    /// Whether the API server does not evaluate rules after it.
    pub(super) fn blocks_rules(&self) -> bool {
        matches!(
            self,
            Check::Type | Check::Required | Check::Enum | Check::MaxLength | Check::MaxItems
        )
    }
}

/// One thing that is wrong, in the words and form of the API server.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// Path of the field, such as `spec.training.steps`; empty for the whole object.
    pub field: String,
    /// What the API server prints after the path, such as `Invalid value: 0: ...`.
    pub detail: String,
    /// Which check found it.
    pub check: Check,
}

impl Problem {
    pub(super) fn new(field: impl Into<String>, check: Check, detail: impl Into<String>) -> Problem {
        Problem {
            field: field.into(),
            detail: detail.into(),
            check,
        }
    }

    pub(super) fn rules_skipped() -> Problem {
        Problem::new(
            "",
            Check::RulesSkipped,
            "Invalid value: null: some validation rules were not checked because the object was invalid; correct the \
             existing errors to complete validation",
        )
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.check, self.field.as_str()) {
            (Check::UnknownField, _) if self.detail.starts_with("strict") => f.write_str(&self.detail),
            (Check::Type, "") => f.write_str(&self.detail),
            (_, "") => write!(f, "<nil>: {}", self.detail),
            (_, field) => write!(f, "{field}: {}", self.detail),
        }
    }
}

/// The path of property `name` below `path`.
pub(super) fn child(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

/// A value as the API server prints it: texts quoted, numbers bare, the rest as JSON.
pub(super) fn printed(value: &Value) -> String {
    match value.as_f64() {
        Some(number) if value.is_f64() => go_float(number),
        _ => value.to_string(),
    }
}

/// A float as Go prints it: with an exponent below 1e-4 and from 1e6 on.
pub(super) fn go_float(number: f64) -> String {
    let scientific = format!("{number:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    match exponent.parse::<i32>() {
        Ok(exponent) if (-4..6).contains(&exponent) => format!("{number}"),
        Ok(exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        Err(_) => format!("{number}"),
    }
}
