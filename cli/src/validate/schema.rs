//! The structural schema: types, formats, bounds, patterns, enums, required fields; messages in the API server's
//! words.

use super::problem::{Check, Problem, bound, child, printed};
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
        return;
    }
    match value {
        Value::Number(number) => {
            if let Some((check, what)) = number_problem(number.as_f64().unwrap_or(f64::NAN), schema) {
                problems.push(invalid(path, check, value, &what));
            }
        }
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
        Value::Null | Value::Bool(_) => {}
    }
    if let Some(values) = schema["enum"].as_array()
        && !values.contains(value)
    {
        let values: Vec<String> = values.iter().map(printed).collect();
        let detail = format!(
            "Unsupported value: {}: supported values: {}",
            printed(value),
            values.join(", ")
        );
        problems.push(Problem::new(path, Check::Enum, detail));
    }
}

fn invalid(path: &str, check: Check, value: &Value, what: &str) -> Problem {
    let detail = format!("Invalid value: {}: {path} in body should {what}", printed(value));
    Problem::new(path, check, detail)
}

fn type_problem(path: &str, value: &Value, schema: &Value) -> Option<Problem> {
    let is_integer = |v: &Value| v.as_f64().is_some_and(|f| f.fract() == 0.0);
    let wanted = if schema["x-kubernetes-int-or-string"] == true {
        if value.is_string() || (value.is_number() && is_integer(value)) {
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
            "integer" => value.is_number() && is_integer(value),
            "number" => value.is_number(),
            _ => true,
        };
        if fits {
            return None;
        }
        wanted
    };
    // A fraction where an integer of some width belongs is told in the words of the width.
    let (wanted, fraction) = match schema["format"].as_str() {
        Some(width) if value.is_number() => (width, "float64"),
        _ => (wanted, "number"),
    };
    let given = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) if is_integer(value) => "integer",
        Value::Number(_) => fraction,
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let subject = if path.is_empty() { "" } else { " in body" };
    let detail = format!("Invalid value: \"{given}\": {path}{subject} must be of type {wanted}: \"{given}\"");
    Some(Problem::new(path, Check::Type, detail))
}

fn number_problem(number: f64, schema: &Value) -> Option<(Check, String)> {
    if let Some(max) = schema["maximum"].as_f64() {
        let exclusive = schema["exclusiveMaximum"] == true;
        if number > max || (exclusive && number >= max) {
            let what = if exclusive {
                "be less than"
            } else {
                "be less than or equal to"
            };
            return Some((Check::Maximum, format!("{what} {}", bound(&schema["maximum"]))));
        }
    }
    if let Some(min) = schema["minimum"].as_f64() {
        let exclusive = schema["exclusiveMinimum"] == true;
        if number < min || (exclusive && number <= min) {
            let what = if exclusive {
                "be greater than"
            } else {
                "be greater than or equal to"
            };
            return Some((Check::Minimum, format!("{what} {}", bound(&schema["minimum"]))));
        }
    }
    None
}

/// Whether `text` matches `pattern`. A pattern that does not compile matches nothing; a test compiles all of them.
fn matches(pattern: &str, text: &str) -> bool {
    regex::Regex::new(pattern).is_ok_and(|r| r.is_match(text))
}
