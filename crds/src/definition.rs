//! The CustomResourceDefinition as it is applied: what kube derives from the types, made to suit the API server,
//! with the rules attached.

use crate::job::TrainingJob;
use crate::rules::rules;
use crate::template::pod_template_schema;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;
use serde_json::{Map, Value, json};

/// Name of the generated file in `crds/`.
pub const FILE_NAME: &str = "trainingjobs.gradsync.dev.yaml";

/// The definition as a typed object.
///
/// # Panics
/// Never for a definition that passed this crate's tests: it depends on nothing but the code.
#[must_use]
pub fn crd() -> CustomResourceDefinition {
    serde_json::from_value(crd_json()).expect("the definition has the form of a CustomResourceDefinition")
}

/// The definition as JSON: what is written to `crds/` and what `gradsync validate` checks against.
///
/// # Panics
/// Never for a definition that passed this crate's tests: it depends on nothing but the code.
#[must_use]
pub fn crd_json() -> Value {
    let mut crd = serde_json::to_value(TrainingJob::crd()).expect("a definition is JSON");
    let schema = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    suit(schema);
    let template = node_mut(schema, "spec.workers.template").expect("the workers have a template");
    if let Value::Object(known) = pod_template_schema() {
        template.extend(known);
    }
    // Named here so that a rule can point at it; of metadata, rules see name and generateName only.
    schema["properties"]["metadata"] = json!({
        "type": "object",
        "properties": {"name": {"type": "string"}, "generateName": {"type": "string"}},
    });
    for rule in rules() {
        let node = node_mut(schema, rule.at).expect("a rule names a node of the schema");
        let list = node
            .entry("x-kubernetes-validations")
            .or_insert_with(|| json!([]));
        if let Value::Array(list) = list {
            list.push(rule.to_json());
        }
    }
    crd
}

/// The node of a schema at `path`: names joined by `.`, `[]` for the items of a list, nothing for the root.
pub(crate) fn node_mut<'a>(schema: &'a mut Value, path: &str) -> Option<&'a mut Map<String, Value>> {
    let mut node = schema;
    for part in path.split('.').filter(|part| !part.is_empty()) {
        let (name, lists) = part.split_at(part.find('[').unwrap_or(part.len()));
        node = node.get_mut("properties")?.get_mut(name)?;
        for _ in lists.matches("[]") {
            node = node.get_mut("items")?;
        }
    }
    node.as_object_mut()
}

/// Formats that the API server knows and that mean something to it. Others draw a warning.
const FORMATS: &[&str] = &["int32", "int64", "date-time", "byte"];

/// Rewrites what schemars says into what the API server understands: no null beside a value (an explicit null
/// then counts as absent), no unknown formats, whole numbers without a fraction.
fn suit(node: &mut Value) {
    let Value::Object(map) = node else { return };
    map.remove("nullable");
    map.remove("title");
    if map
        .get("format")
        .and_then(Value::as_str)
        .is_some_and(|f| !FORMATS.contains(&f))
    {
        map.remove("format");
    }
    if let Some(Value::Array(values)) = map.get_mut("enum") {
        values.retain(|v| !v.is_null());
    }
    if let Some(Value::String(text)) = map.get_mut("description") {
        *text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    }
    for key in ["minimum", "maximum", "default"] {
        if let Some(bound) = map.get_mut(key)
            && let Some(number) = bound.as_f64()
            && number.fract() == 0.0
            && number.abs() < 9.1e15
        {
            // The test above makes this exact.
            #[allow(clippy::cast_possible_truncation)]
            let whole = number as i64;
            *bound = json!(whole);
        }
    }
    if let Some(Value::Object(properties)) = map.get_mut("properties") {
        properties.values_mut().for_each(suit);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(child) = map.get_mut(key) {
            suit(child);
        }
    }
}
