//! The CEL rules, evaluated without an API server.

use super::problem::{Check, Problem, printed};
use kube_cel::{CompiledSchema, ErrorKind, ValidationError, Validator, compile_schema};
use serde_json::Value;

thread_local! {
    static ENGINE: std::cell::OnceCell<(Validator, CompiledSchema)> = const { std::cell::OnceCell::new() };
}

/// Every rule that `object` breaks; rules about changes compare it with `old`.
pub(super) fn check(object: &Value, old: Option<&Value>, schema: &Value) -> Vec<Problem> {
    let object = numbers_as_declared(object, schema);
    let old = old.map(|old| numbers_as_declared(old, schema));
    ENGINE.with(|engine| {
        let (validator, compiled) = engine.get_or_init(|| (Validator::new(), compile_schema(schema)));
        match validator.validate_compiled(compiled, &object, old.as_ref()) {
            Ok(()) => vec![],
            Err(errors) => errors.iter().map(|error| problem(error, &object)).collect(),
        }
    })
}

fn problem(error: &ValidationError, object: &Value) -> Problem {
    let field = error.field_path.trim_start_matches('.').to_owned();
    let detail = match (&error.kind, error.reason.as_deref()) {
        (ErrorKind::ValidationFailure, Some("FieldValueForbidden")) => {
            format!("Forbidden: {}", error.message)
        }
        (ErrorKind::ValidationFailure, Some("FieldValueRequired")) => {
            format!("Required value: {}", error.message)
        }
        (ErrorKind::ValidationFailure, _) => match value_at(object, &field) {
            // The API server leaves out the value of the node where it is an object or a list. Our rules with a
            // field path stand at objects; those without one, at scalars, at the field itself.
            Some(value) if stands_at_scalar(error, value) => {
                format!("Invalid value: {}: {}", printed(value), error.message)
            }
            _ => format!("Invalid value: {}", error.message),
        },
        _ => format!(
            "Invalid value: rule {:?} cannot be evaluated: {}",
            error.rule, error.message
        ),
    };
    Problem::new(field, Check::Rule(error.rule.clone()), detail)
}

/// Whether the rule is attached to a scalar: such rules look at `self` as a whole.
fn stands_at_scalar(error: &ValidationError, value: &Value) -> bool {
    !value.is_object() && !value.is_array() && !error.rule.contains("self.")
}

fn value_at<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(object, |node, name| node.get(name))
}

/// Whole numbers as floats where the schema says `number`: CEL tells the two apart, JSON does not.
fn numbers_as_declared(value: &Value, schema: &Value) -> Value {
    match value {
        Value::Number(number) if schema["type"] == "number" => {
            number.as_f64().map_or(Value::Null, Value::from)
        }
        Value::Object(map) => map
            .iter()
            .map(|(name, value)| {
                let known = schema["properties"]
                    .get(name)
                    .or(schema.get("additionalProperties"));
                (
                    name.clone(),
                    known.map_or_else(|| value.clone(), |known| numbers_as_declared(value, known)),
                )
            })
            .collect(),
        Value::Array(items) => items
            .iter()
            .map(|item| numbers_as_declared(item, &schema["items"]))
            .collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::SCHEMA;
    use super::*;

    fn compilation_errors(schema: &CompiledSchema, found: &mut Vec<String>) {
        found.extend(schema.compilation_errors().iter().map(|e| format!("{e:?}")));
        schema
            .properties
            .values()
            .for_each(|child| compilation_errors(child, found));
        if let Some(items) = &schema.items {
            compilation_errors(items, found);
        }
    }

    #[test]
    fn every_rule_compiles() {
        let mut found = vec![];
        compilation_errors(&compile_schema(&SCHEMA), &mut found);
        assert!(found.is_empty(), "{found:?}");
    }
}
