//! The CEL rules: what no bound of a single field can say. Each message names the field, its value and the way
//! out.
//!
//! They live in a table, not on the types, so that each can be listed, tested and matched to the manifest in the
//! test corpus that breaks it. The API server refuses a rule whose estimated cost is too high: whatever a rule
//! reads has a bound in the schema.

mod changes;
mod pods;
mod training;

use serde_json::{Value, json};
use std::borrow::Cow;

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Node of the schema that the rule is attached to: `spec.training`; empty for the root.
    pub at: &'static str,
    /// The CEL expression; `self` is the node's value, `oldSelf` its value before an update.
    pub rule: Cow<'static, str>,
    /// What it says when broken.
    pub message: &'static str,
    /// CEL expression of a message with values in it, used in place of `message` where it evaluates.
    pub message_expression: Option<&'static str>,
    /// The field at fault, relative to the node, with a leading dot.
    pub field_path: Option<&'static str>,
    /// FieldValueInvalid if absent.
    pub reason: Option<&'static str>,
}

impl Rule {
    fn new(at: &'static str, rule: impl Into<Cow<'static, str>>, message: &'static str) -> Rule {
        Rule {
            at,
            rule: rule.into(),
            message,
            message_expression: None,
            field_path: None,
            reason: None,
        }
    }

    fn field(mut self, path: &'static str) -> Rule {
        self.field_path = Some(path);
        self
    }

    fn saying(mut self, expression: &'static str) -> Rule {
        self.message_expression = Some(expression);
        self
    }

    fn forbidden(mut self) -> Rule {
        self.reason = Some("FieldValueForbidden");
        self
    }

    /// Whether it compares with the state before an update, and so is silent on creation.
    #[must_use]
    pub fn is_transition(&self) -> bool {
        self.rule.contains("oldSelf")
    }

    /// As in `x-kubernetes-validations`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut rule = json!({"rule": self.rule, "message": self.message});
        for (key, value) in [
            ("messageExpression", self.message_expression),
            ("fieldPath", self.field_path),
            ("reason", self.reason),
        ] {
            if let Some(value) = value {
                rule[key] = json!(value);
            }
        }
        rule
    }
}

/// All rules in the order in which they are attached.
#[must_use]
pub fn rules() -> Vec<Rule> {
    let mut all = name_rules();
    all.extend(training::training_rules());
    all.extend(training::batch_rules());
    all.extend(pods::checkpoint_rules());
    all.extend(pods::template_rules());
    all.extend(changes::transition_rules());
    all.extend(changes::status_rules());
    all
}

fn name_rules() -> Vec<Rule> {
    vec![
        Rule::new("", "size(self.metadata.name) <= 40", "the name is longer than 40 characters: shorten it")
            .saying(
            "'name %s has %d characters: use at most 40 (with generateName: at most 35), so that the names of its pods \
                 fit'.format([self.metadata.name, size(self.metadata.name)])",
        )
            .field(".metadata.name"),
        Rule::new(
            "",
            "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            "the name is not a DNS label: use lower-case letters, digits and -, beginning with a letter",
        )
        .saying(
            "'name %s is not a DNS label: use lower-case letters, digits and -, beginning with a letter and ending with a \
             letter or digit'.format([self.metadata.name])",
        )
        .field(".metadata.name"),
    ]
}
