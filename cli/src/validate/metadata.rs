//! Object metadata: what every object needs, beyond our rules about the name.

use super::problem::{Check, Problem};
use serde_json::{Value, json};

/// Length of what the API server appends to `generateName`, and the longest prefix that it keeps.
const SUFFIX: &str = "xxxxx";
const LONGEST_PREFIX: usize = 63 - SUFFIX.len();

/// Gives an object without a name the name that the API server would make from `generateName`, with a stand-in for
/// the random part. Says whether it did.
pub(super) fn generate_name(object: &mut Value) -> bool {
    let metadata = &object["metadata"];
    let has_name = metadata["name"].as_str().is_some_and(|n| !n.is_empty());
    let Some(prefix) = metadata["generateName"]
        .as_str()
        .filter(|p| !p.is_empty() && !has_name)
    else {
        return false;
    };
    let kept: String = prefix.chars().take(LONGEST_PREFIX).collect();
    object["metadata"]["name"] = json!(format!("{kept}{SUFFIX}"));
    true
}

/// What is wrong with the metadata.
pub(super) fn check(object: &Value) -> Vec<Problem> {
    let mut problems = vec![];
    let metadata = &object["metadata"];
    if !metadata.is_null() && !metadata.is_object() {
        return vec![Problem::new(
            "metadata",
            Check::Type,
            "Invalid value: metadata must be a mapping",
        )];
    }
    for field in ["name", "generateName", "namespace"] {
        if metadata.get(field).is_some_and(|v| !v.is_string()) {
            let detail = format!("Invalid value: {}: must be a string", metadata[field]);
            problems.push(Problem::new(format!("metadata.{field}"), Check::Type, detail));
        }
    }
    if metadata["name"].as_str().is_none_or(str::is_empty) && problems.is_empty() {
        problems.push(Problem::new(
            "metadata.name",
            Check::Required,
            "Required value: name or generateName is required",
        ));
    }
    for field in ["labels", "annotations"] {
        let Some(map) = metadata.get(field).filter(|m| !m.is_null()) else {
            continue;
        };
        let path = format!("metadata.{field}");
        let Some(map) = map.as_object() else {
            problems.push(Problem::new(
                path,
                Check::Type,
                "Invalid value: must be a mapping from text to text",
            ));
            continue;
        };
        for (key, value) in map {
            let Some(text) = value.as_str() else {
                let detail = format!("Invalid value: {value}: must be a string: put it into quotes");
                problems.push(Problem::new(format!("{path}.{key}"), Check::Type, detail));
                continue;
            };
            if !is_qualified_name(key) {
                let detail = format!(
                    "Invalid value: {}: a key is a name of at most 63 letters, digits, '-', '_' or '.' that begins and \
                     ends with a letter or digit, with an optional DNS prefix and '/'",
                    json!(key)
                );
                problems.push(Problem::new(path.clone(), Check::Metadata, detail));
            }
            if field == "labels" && !text.is_empty() && !is_name(text) {
                let detail = format!(
                    "Invalid value: {value}: a label is empty or at most 63 letters, digits, '-', '_' or '.', and \
                     begins and ends with a letter or digit"
                );
                problems.push(Problem::new(path.clone(), Check::Metadata, detail));
            }
        }
    }
    problems
}

fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric();
    (1..=63).contains(&text.len())
        && text.starts_with(plain)
        && text.ends_with(plain)
        && text.chars().all(|c| plain(c) || matches!(c, '-' | '_' | '.'))
}

fn is_qualified_name(key: &str) -> bool {
    match key.split_once('/') {
        None => is_name(key),
        Some((prefix, name)) => {
            let label = |l: &str| {
                !l.is_empty()
                    && !l.starts_with('-')
                    && !l.ends_with('-')
                    && l.chars()
                        .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
            };
            is_name(name) && prefix.len() <= 253 && prefix.split('.').all(label)
        }
    }
}
