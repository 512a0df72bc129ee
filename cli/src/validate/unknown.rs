//! Fields that the schema does not have: removed, and reported as the API server's strict decoding does. Where the
//! schema lets unknown fields through but knows some, an unknown one is worth a warning: it may be a typo.

use super::problem::{Check, Problem, child};
use serde_json::Value;

/// Fields of every object's metadata.
const METADATA: &[&str] = &[
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "managedFields",
    "name",
    "namespace",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// Removes what the schema does not know; returns problems (removed) and warnings (kept).
pub(super) fn prune(object: &mut Value, schema: &Value) -> (Vec<Problem>, Vec<Problem>) {
    let mut found = Found::default();
    if let Some(map) = object.as_object_mut() {
        // Metadata is every object's, not the schema's.
        let metadata = map.remove("metadata");
        let mut rest = Value::Object(std::mem::take(map));
        found.walk("", &mut rest, schema, true);
        if let Value::Object(rest) = rest {
            *map = rest;
        }
        if let Some(mut metadata) = metadata {
            if let Some(fields) = metadata.as_object_mut() {
                fields.retain(|name, _| {
                    let known = METADATA.contains(&name.as_str());
                    if !known {
                        found.unknown(&child("metadata", name), METADATA.iter().copied());
                    }
                    known
                });
            }
            map.insert("metadata".to_owned(), metadata);
        }
    }
    (found.problems, found.warnings)
}

#[derive(Default)]
struct Found {
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
}

impl Found {
    fn unknown<'a>(&mut self, path: &str, known: impl Iterator<Item = &'a str>) {
        let detail = format!(
            "strict decoding error: unknown field \"{path}\"{}",
            hint(path, known)
        );
        self.problems
            .push(Problem::new(path, Check::UnknownField, detail));
    }

    fn walk(&mut self, path: &str, value: &mut Value, schema: &Value, is_root: bool) {
        match value {
            Value::Object(map) => {
                let properties = schema["properties"].as_object();
                let preserves = schema["x-kubernetes-preserve-unknown-fields"] == true;
                let additional = schema.get("additionalProperties").filter(|a| a.is_object());
                map.retain(|name, value| {
                    let path = child(path, name);
                    if let Some(schema) = properties.and_then(|p| p.get(name)).or(additional) {
                        self.walk(&path, value, schema, false);
                        return true;
                    }
                    if is_root && (name == "apiVersion" || name == "kind") {
                        return true;
                    }
                    let known = || properties.into_iter().flat_map(|p| p.keys().map(String::as_str));
                    if preserves {
                        if properties.is_some() {
                            let detail = format!(
                                "field is unknown to Kubernetes 1.37 and passed on as it is{}",
                                hint(&path, known())
                            );
                            self.warnings
                                .push(Problem::new(path, Check::UnknownField, detail));
                        }
                        return true;
                    }
                    self.unknown(&path, known());
                    false
                });
            }
            Value::Array(items) => {
                for (i, item) in items.iter_mut().enumerate() {
                    self.walk(&format!("{path}[{i}]"), item, &schema["items"], false);
                }
            }
            _ => {}
        }
    }
}

/// The known name that was perhaps meant: equal but for case, or one or two letters away.
fn hint<'a>(path: &str, known: impl Iterator<Item = &'a str>) -> String {
    let name = path.rsplit('.').next().unwrap_or(path);
    let allowed = if name.len() < 4 { 1 } else { 2 };
    known
        .map(|k| (distance(&name.to_lowercase(), &k.to_lowercase()), k))
        .filter(|&(d, _)| d <= allowed)
        .min()
        .map_or(String::new(), |(_, k)| format!(" (did you mean \"{k}\"?)"))
}

/// Levenshtein's distance.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let changed = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_given_for_a_near_miss_and_for_nothing_else() {
        let known = || ["epochs", "steps", "seed"].into_iter();
        assert_eq!(
            hint("spec.training.epoch", known()),
            " (did you mean \"epochs\"?)"
        );
        assert_eq!(hint("spec.training.Steps", known()), " (did you mean \"steps\"?)");
        assert_eq!(hint("spec.training.batchSize", known()), "");
    }
}
