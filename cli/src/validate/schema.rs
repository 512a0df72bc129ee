//! The structural schema: types, formats, bounds, patterns, enums, required fields; messages in the API server's
//! words.

use super::problem::{Check, Problem, child, go_float, printed};
use serde_json::Value;

/// Everything in `object` that the schema does not allow.
pub(super) fn check(object: &Value, schema: &Value) -> Vec<Problem> {
    let mut problems = vec![];
    node("", object, schema, &mut problems);
    problems
}

fn node(path: &str, value: &Value, schema: &Value, problems: &mut Vec<Problem>) {
    if let Some(problem) = type_problem(path, value, schema) {
        problems.push(problem);
        problems.extend(bound_problem(path, value, schema));
        problems.extend(enum_problem(path, value, schema));
        return;
    }
    problems.extend(bound_problem(path, value, schema));
    problems.extend(format_problem(path, value, schema));
    match value {
        Value::String(text) => {
            let length = text.chars().count() as u64;
            // The first of these that applies is the one that is told.
            if let Some(max) = schema["maxLength"].as_u64().filter(|&max| length > max) {
                let bytes = if max == 1 { "byte" } else { "bytes" };
                let detail = format!("Too long: may not be more than {max} {bytes}");
                problems.push(Problem::new(path, Check::MaxLength, detail));
            } else if schema["minLength"].as_u64().is_some_and(|min| length < min) {
                let what = format!("be at least {} chars long", schema["minLength"]);
                problems.push(invalid(path, Check::MinLength, value, &what));
            } else if let Some(pattern) = schema["pattern"].as_str()
                && !matches(pattern, text)
            {
                problems.push(invalid(
                    path,
                    Check::Pattern,
                    value,
                    &format!("match '{pattern}'"),
                ));
            }
        }
        Value::Array(items) => {
            let count = items.len() as u64;
            if schema["minItems"].as_u64().is_some_and(|min| count < min) {
                let what = format!("have at least {} items", schema["minItems"]);
                problems.push(invalid(path, Check::MinItems, &Value::from(count), &what));
            }
            if let Some(max) = schema["maxItems"].as_u64().filter(|&max| count > max) {
                let items = if max == 1 { "item" } else { "items" };
                let detail = format!("Too many: {count}: must have at most {max} {items}");
                problems.push(Problem::new(path, Check::MaxItems, detail));
            }
            for (i, item) in items.iter().enumerate() {
                node(&format!("{path}[{i}]"), item, &schema["items"], problems);
            }
        }
        Value::Object(map) => {
            for name in schema["required"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
            {
                if !map.contains_key(name) {
                    problems.push(Problem::new(child(path, name), Check::Required, "Required value"));
                }
            }
            for (name, value) in map {
                // Metadata has a check of its own.
                if path.is_empty() && name == "metadata" {
                    continue;
                }
                let known = schema["properties"]
                    .get(name)
                    .or(schema.get("additionalProperties"));
                if let Some(known) = known.filter(|k| k.is_object()) {
                    node(&child(path, name), value, known, problems);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
    problems.extend(enum_problem(path, value, schema));
}

fn enum_problem(path: &str, value: &Value, schema: &Value) -> Option<Problem> {
    let values = schema["enum"]
        .as_array()
        .filter(|values| !values.contains(value))?;
    let values: Vec<String> = values.iter().map(printed).collect();
    let given = printed(value);
    let detail = format!(
        "Unsupported value: {given}: supported values: {}",
        values.join(", ")
    );
    Some(Problem::new(path, Check::Enum, detail))
}

fn invalid(path: &str, check: Check, value: &Value, what: &str) -> Problem {
    let detail = format!("Invalid value: {}: {path} in body should {what}", printed(value));
    Problem::new(path, check, detail)
}

/// Whether it is a whole number that an integer field can hold.
fn is_integer(value: &Value) -> bool {
    value.is_i64()
        || value
            .as_f64()
            .is_some_and(|f| f.fract() == 0.0 && f.abs() < 9.2e18)
}

fn type_problem(path: &str, value: &Value, schema: &Value) -> Option<Problem> {
    let wanted = if schema["x-kubernetes-int-or-string"] == true {
        if value.is_string() || is_integer(value) {
            return None;
        }
        "integer,string"
    } else {
        let wanted = schema["type"].as_str()?;
        let fits = match wanted {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "integer" => is_integer(value),
            "number" => value.is_number(),
            _ => true,
        };
        if fits {
            return None;
        }
        wanted
    };
    let (wanted, given) = match (schema["format"].as_str(), value) {
        // The API server's words for what cannot have the format of an integer.
        (Some(format), Value::Number(_)) if is_integer(value) => (format, "int64"),
        (Some(format), Value::Number(_)) => (format, "float64"),
        (Some(format), Value::Bool(_) | Value::Object(_)) => (format, ""),
        (_, Value::Null) => (wanted, "null"),
        (_, Value::Bool(_)) => (wanted, "boolean"),
        (_, Value::Number(_)) if is_integer(value) => (wanted, "integer"),
        (_, Value::Number(_)) => (wanted, "number"),
        (_, Value::String(_)) => (wanted, "string"),
        (_, Value::Array(_)) => (wanted, "array"),
        (_, Value::Object(_)) => (wanted, "object"),
    };
    let detail = format!("Invalid value: \"{given}\": {path} in body must be of type {wanted}: \"{given}\"");
    Some(Problem::new(path, Check::Type, detail))
}

/// A value of the right type that its format cannot hold.
fn format_problem(path: &str, value: &Value, schema: &Value) -> Option<Problem> {
    match (schema["format"].as_str()?, value) {
        ("date-time", Value::String(text)) if text.parse::<jiff::Timestamp>().is_err() => {
            let detail = format!("Invalid value: {value}: {path} in body must be of type date-time: {value}");
            Some(Problem::new(path, Check::Type, detail))
        }
        ("int32", Value::Number(_)) if value.as_f64().is_some_and(|f| f.abs() > f64::from(i32::MAX)) => {
            let detail = format!(
                "Invalid value: \"\": Checked value must be of type integer with format int32 in {path}"
            );
            Some(Problem::new(path, Check::Format, detail))
        }
        _ => None,
    }
}

/// A number beyond its bounds.
fn bound_problem(path: &str, value: &Value, schema: &Value) -> Option<Problem> {
    let number = value.as_f64()?;
    // Bounds are printed in the form of the number that is held against them.
    let bound = |bound: &Value| match bound.as_f64() {
        Some(whole) if is_integer(value) && whole.fract() == 0.0 => format!("{whole:.0}"),
        Some(bound) => go_float(bound),
        None => bound.to_string(),
    };
    if let Some(max) = schema["maximum"].as_f64() {
        let exclusive = schema["exclusiveMaximum"] == true;
        if number > max || (exclusive && number >= max) {
            let what = if exclusive {
                "be less than"
            } else {
                "be less than or equal to"
            };
            let what = format!("{what} {}", bound(&schema["maximum"]));
            return Some(invalid(path, Check::Maximum, value, &what));
        }
    }
    let min = schema["minimum"].as_f64()?;
    let exclusive = schema["exclusiveMinimum"] == true;
    if number < min || (exclusive && number <= min) {
        let what = if exclusive {
            "be greater than"
        } else {
            "be greater than or equal to"
        };
        let what = format!("{what} {}", bound(&schema["minimum"]));
        return Some(invalid(path, Check::Minimum, value, &what));
    }
    None
}

/// Whether `text` matches `pattern`. A pattern that does not compile matches nothing; a test compiles all of them.
fn matches(pattern: &str, text: &str) -> bool {
    regex::Regex::new(pattern).is_ok_and(|r| r.is_match(text))
}

#[cfg(test)]
mod tests {
    use super::super::SCHEMA;
    use super::*;

    fn patterns(schema: &Value, found: &mut Vec<String>) {
        found.extend(schema["pattern"].as_str().map(str::to_owned));
        schema["properties"]
            .as_object()
            .into_iter()
            .flatten()
            .for_each(|(_, child)| patterns(child, found));
        if schema["items"].is_object() {
            patterns(&schema["items"], found);
        }
    }

    #[test]
    fn every_pattern_compiles() {
        let mut found = vec![];
        patterns(&SCHEMA, &mut found);
        assert!(found.len() >= 3, "the walk finds patterns");
        for pattern in found {
            assert!(regex::Regex::new(&pattern).is_ok(), "{pattern}");
        }
    }
}
