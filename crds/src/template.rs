//! The schema of the pod template: that of the newest Kubernetes that we know, made to fit into a CRD.
//!
//! The template itself is kept as JSON and never goes through typed structs, so that fields of a newer
//! Kubernetes survive. Its schema checks what it knows and lets the rest pass.

use crate::definition::node_mut;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

/// Lists that are maps: where, by which keys, and how many entries at most. The bounds keep the estimated cost
/// of our rules within what the API server allows.
const LIST_MAPS: &[(&str, &[&str], Option<u32>)] = &[
    ("spec.containers", &["name"], Some(16)),
    ("spec.containers[].env", &["name"], Some(1024)),
    ("spec.containers[].ports", &["containerPort", "protocol"], None),
    ("spec.containers[].volumeMounts", &["mountPath"], Some(64)),
    ("spec.initContainers", &["name"], Some(16)),
    ("spec.initContainers[].env", &["name"], Some(1024)),
    (
        "spec.initContainers[].ports",
        &["containerPort", "protocol"],
        None,
    ),
    ("spec.initContainers[].volumeMounts", &["mountPath"], Some(64)),
    ("spec.volumes", &["name"], Some(64)),
];

/// Longest texts where a rule reads them, for the same reason.
const MAX_LENGTHS: &[(&str, u32)] = &[
    ("spec.containers[].name", 63),
    ("spec.containers[].env[].name", 256),
    ("spec.containers[].volumeMounts[].mountPath", 512),
    ("spec.containers[].volumeMounts[].name", 63),
    ("spec.initContainers[].name", 63),
    ("spec.initContainers[].env[].name", 256),
    ("spec.initContainers[].volumeMounts[].mountPath", 512),
    ("spec.initContainers[].volumeMounts[].name", 63),
    ("spec.restartPolicy", 63),
    ("spec.volumes[].name", 63),
];

/// What stands in for the template while kube derives the definition: its passes over the whole schema would
/// take seconds in an unoptimised build. [`pod_template_schema`] takes its place afterwards.
pub(crate) fn placeholder(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// The schema of `spec.workers.template`.
pub(crate) fn pod_template_schema() -> Value {
    let mut settings = SchemaSettings::openapi3();
    settings.inline_subschemas = true;
    let root = settings
        .into_generator()
        .into_root_schema_for::<PodTemplateSpec>();
    let mut schema = root.to_value();
    fit(&mut schema);
    if let Some(pod) = node_mut(&mut schema, "spec") {
        // Container trainer is ours and merged by name: a template without it is fine.
        pod.remove("required");
    }
    for &(path, keys, max_items) in LIST_MAPS {
        if let Some(list) = node_mut(&mut schema, path) {
            list.insert("x-kubernetes-list-type".into(), json!("map"));
            list.insert("x-kubernetes-list-map-keys".into(), json!(keys));
            if let Some(max) = max_items {
                list.insert("maxItems".into(), json!(max));
            }
        }
        if keys.contains(&"protocol")
            && let Some(protocol) = node_mut(&mut schema, &format!("{path}[].protocol"))
        {
            protocol.insert("default".into(), json!("TCP"));
        }
    }
    for &(path, max) in MAX_LENGTHS {
        if let Some(text) = node_mut(&mut schema, path) {
            text.insert("maxLength".into(), json!(max));
        }
    }
    schema
}

/// Strips what makes the schema large and adds what lets unknown fields through.
fn fit(node: &mut Value) {
    let Value::Object(map) = node else { return };
    for key in [
        "$schema",
        "title",
        "description",
        "nullable",
        "examples",
        "definitions",
        "components",
    ] {
        map.remove(key);
    }
    if let Some(Value::Object(properties)) = map.get_mut("properties") {
        properties.values_mut().for_each(fit);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(child) = map.get_mut(key) {
            fit(child);
        }
    }
    let is_object = map.get("type") == Some(&json!("object"));
    if is_object && !map.contains_key("additionalProperties") {
        map.insert("x-kubernetes-preserve-unknown-fields".into(), json!(true));
    }
}
