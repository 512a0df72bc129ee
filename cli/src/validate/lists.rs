//! Lists that are maps: no two entries with the same keys.

use super::problem::{Check, Problem, child, printed};
use serde_json::{Map, Value};

/// Every entry of a list whose keys an earlier one has.
pub(super) fn check(value: &Value, schema: &Value) -> Vec<Problem> {
    let mut problems = vec![];
    node("", value, schema, &mut problems);
    problems
}

fn node(path: &str, value: &Value, schema: &Value, problems: &mut Vec<Problem>) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                if let Some(known) = schema["properties"]
                    .get(name)
                    .or(schema.get("additionalProperties"))
                {
                    node(&child(path, name), value, known, problems);
                }
            }
        }
        Value::Array(items) => {
            if let Some(keys) = schema["x-kubernetes-list-map-keys"].as_array() {
                duplicates(path, items, keys, problems);
            }
            for (i, item) in items.iter().enumerate() {
                node(&format!("{path}[{i}]"), item, &schema["items"], problems);
            }
        }
        _ => {}
    }
}

fn duplicates(path: &str, items: &[Value], keys: &[Value], problems: &mut Vec<Problem>) {
    if let Some((i, item)) = items
        .iter()
        .enumerate()
        .find(|(_, item)| !item.is_object() && !item.is_null())
    {
        let detail = format!(
            "Invalid value: {}: must be an object for an array of list-type map",
            printed(item)
        );
        problems.push(Problem::new(format!("{path}[{i}]"), Check::Type, detail));
        return;
    }
    let mut seen: Vec<(Map<String, Value>, bool)> = vec![];
    for (i, item) in items.iter().enumerate() {
        let own: Map<String, Value> = keys
            .iter()
            .filter_map(Value::as_str)
            .filter_map(|key| Some((key.to_owned(), item.get(key)?.clone())))
            .collect();
        match seen.iter_mut().find(|(there, _)| *there == own) {
            // Like the API server: the second of several is reported, and no further one.
            Some((_, reported)) if *reported => {}
            Some((_, reported)) => {
                *reported = true;
                let detail = format!("Duplicate value: {}", printed(&Value::Object(own)));
                problems.push(Problem::new(format!("{path}[{i}]"), Check::ListKeys, detail));
            }
            None => seen.push((own, false)),
        }
    }
}
