//! What may differ between the manifest that an output directory was made with and the one that now
//! continues it. Pure: two specs in, a verdict out.

use serde_json::Value;
use std::fmt;

/// A field that differs and may not.
#[derive(Clone, Debug, PartialEq)]
pub struct Forbidden {
    /// Path of the field.
    pub field: String,
    /// Its value at the first start.
    pub was: Value,
    /// Its value now.
    pub is: Value,
    /// Why it may not change.
    pub reason: &'static str,
}

impl fmt::Display for Forbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: was {}, is {} ({})",
            self.field,
            short(&self.was),
            short(&self.is),
            self.reason
        )
    }
}

/// Fields that may change between two starts, with everything below them: the same ones as for a
/// suspended job on a cluster, as far as a checkpoint allows.
const CHANGEABLE: [&str; 12] = [
    "spec.suspend",
    "spec.image",
    "spec.sync",
    "spec.accumulation",
    "spec.workers.replicas",
    "spec.workers.minReplicas",
    "spec.workers.maxReplicas",
    "spec.workers.template",
    "spec.failurePolicy",
    "spec.runPolicy",
    "spec.checkpoint.everySteps",
    "spec.checkpoint.keep",
];

/// Compares the spec of the first start with that of this one, both with defaults filled in.
///
/// # Errors
/// Every field that differs and may not.
pub fn compare(was: &Value, is: &Value) -> Result<(), Vec<Forbidden>> {
    let mut found = vec![];
    walk("spec", was, is, &mut found);
    if found.is_empty() { Ok(()) } else { Err(found) }
}

/// Whether the field at `path` below `spec` (such as `accumulation`) differs.
#[must_use]
pub fn differs(path: &str, was: &Value, is: &Value) -> bool {
    was.get(path) != is.get(path)
}

fn walk(path: &str, was: &Value, is: &Value, found: &mut Vec<Forbidden>) {
    if was == is || same_number(was, is) || CHANGEABLE.contains(&path) {
        return;
    }
    if let (Value::Object(a), Value::Object(b)) = (was, is) {
        for key in a.keys().chain(b.keys().filter(|k| !a.contains_key(*k))) {
            let absent = Value::Null;
            let (left, right) = (a.get(key).unwrap_or(&absent), b.get(key).unwrap_or(&absent));
            walk(&format!("{path}.{key}"), left, right, found);
        }
        return;
    }
    let reason = match path {
        "spec.training.steps" | "spec.training.epochs" => match (was.as_u64(), is.as_u64()) {
            (Some(was), Some(is)) if is > was => return,
            (Some(_), Some(_)) => "it may only grow",
            _ => "steps cannot become epochs, nor epochs steps",
        },
        _ => "it is fixed at the first start",
    };
    found.push(Forbidden {
        field: path.to_owned(),
        was: was.clone(),
        is: is.clone(),
        reason,
    });
}

/// 1 and 1.0 are the same value to the trainer.
fn same_number(a: &Value, b: &Value) -> bool {
    a.is_number() && b.is_number() && a.as_f64() == b.as_f64()
}

fn short(value: &Value) -> String {
    if value.is_null() {
        return "absent".to_owned();
    }
    let text = value.to_string();
    if text.chars().count() > 60 {
        format!("{}...", text.chars().take(60).collect::<String>())
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec() -> Value {
        json!({
            "task": {"name": "count", "parameters": {"samples": 100}},
            "training": {"globalBatchSize": 8, "epochs": 3, "optimizer": {"learningRate": 1}},
            "workers": {"replicas": 2},
            "checkpoint": {"directory": "/c", "everySteps": 5, "keep": 3}
        })
    }

    fn changed(pointer: &str, value: Value) -> Value {
        let mut changed = spec();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        changed.pointer_mut(parent).unwrap()[key] = value;
        changed
    }

    #[test]
    fn what_a_checkpoint_allows_may_change() {
        for (pointer, value) in [
            ("/training/epochs", json!(4)),
            ("/training/optimizer/learningRate", json!(1.0)),
            ("/workers/replicas", json!(5)),
            ("/workers/template", json!({"spec": {}})),
            ("/checkpoint/everySteps", json!(7)),
            ("/failurePolicy", json!({"maxRestarts": 0})),
            ("/accumulation", json!({"steps": 2})),
        ] {
            assert_eq!(compare(&spec(), &changed(pointer, value)), Ok(()), "{pointer}");
        }
    }

    #[test]
    fn what_would_be_another_run_is_named_with_both_values() {
        for (pointer, value, text) in [
            (
                "/training/epochs",
                json!(2),
                "spec.training.epochs: was 3, is 2 (it may only grow)",
            ),
            (
                "/task/parameters/samples",
                json!(99),
                "spec.task.parameters.samples: was 100, is 99 (it is fixed at the first start)",
            ),
            ("/training/seed", json!(4), "spec.training.seed: was absent, is 4"),
            (
                "/checkpoint/directory",
                json!("/d"),
                "spec.checkpoint.directory: was \"/c\", is \"/d\"",
            ),
        ] {
            let found = compare(&spec(), &changed(pointer, value)).unwrap_err();
            assert_eq!(found.len(), 1, "{pointer}");
            assert!(found[0].to_string().starts_with(text), "{}", found[0]);
        }
    }

    #[test]
    fn steps_do_not_become_epochs() {
        let mut other = spec();
        other["training"] = json!({"globalBatchSize": 8, "steps": 3, "optimizer": {"learningRate": 1}});
        let found = compare(&spec(), &other).unwrap_err();
        assert!(
            found.iter().all(|f| f.reason.contains("cannot become")),
            "{found:?}"
        );
        assert_eq!(found.len(), 2);
    }
}
