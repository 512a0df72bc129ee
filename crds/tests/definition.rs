//! What must hold of the CustomResourceDefinition as a whole.

use gradsync_crds::{FILE_NAME, Rule, crd, crd_json, rules};
use serde_json::{Value, json};
use std::sync::LazyLock;

fn schema() -> &'static Value {
    static SCHEMA: LazyLock<Value> =
        LazyLock::new(|| crd_json()["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone());
    &SCHEMA
}

/// Calls `visit` with the path and the schema of every node below `node`, itself included.
fn walk(path: &str, node: &Value, visit: &mut impl FnMut(&str, &Value)) {
    visit(path, node);
    if let Some(properties) = node["properties"].as_object() {
        for (name, child) in properties {
            let path = if path.is_empty() {
                name.clone()
            } else {
                format!("{path}.{name}")
            };
            walk(&path, child, visit);
        }
    }
    if node["items"].is_object() {
        walk(&format!("{path}[]"), &node["items"], visit);
    }
    if node["additionalProperties"].is_object() {
        walk(&format!("{path}.*"), &node["additionalProperties"], visit);
    }
}

/// Our own fields of the specification: all but those of the pod template.
fn walk_own(visit: &mut impl FnMut(&str, &Value)) {
    walk("spec", &schema()["properties"]["spec"], &mut |path, node| {
        if !path.starts_with("spec.workers.template.") && path != "spec" && !path.ends_with("[]") {
            visit(path, node);
        }
    });
}

#[test]
fn the_committed_definition_is_what_the_types_make() {
    let path = format!("{}/{FILE_NAME}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).expect("the file is in the repository");
    let committed: Value = serde_saphyr::from_str(&text).expect("it is YAML");
    let typed: k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition =
        serde_json::from_value(committed).expect("it is a definition");
    assert!(
        typed == crd(),
        "{path} is not what the types make: run `cargo xtask crds` and commit"
    );
}

#[test]
fn the_definition_fits_into_the_annotation_of_kubectl_apply() {
    let size = serde_json::to_vec(&crd()).expect("JSON").len();
    assert!(size < 256 * 1024, "{size} bytes of JSON");
}

#[test]
fn the_typed_definition_keeps_every_word_of_the_schema() {
    // A keyword that the typed form does not know would be lost without a word.
    let typed = serde_json::to_value(crd()).expect("JSON");
    let mut lost = vec![];
    let typed_schema = &typed["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    walk("", schema(), &mut |path, node| {
        let mut there = typed_schema;
        for part in path.split('.').filter(|p| !p.is_empty()) {
            for step in part.replace("[]", " []").split(' ') {
                there = match step {
                    "[]" => &there["items"],
                    "*" => &there["additionalProperties"],
                    name => &there["properties"][name],
                };
            }
        }
        for (keyword, value) in node.as_object().expect("a schema is an object") {
            let number = |v: &Value| v.as_f64();
            let same = there[keyword] == *value
                || (number(value).is_some() && number(&there[keyword]) == number(value));
            if !["properties", "items", "additionalProperties"].contains(&keyword.as_str()) && !same {
                lost.push(format!("{path}: {keyword}"));
            }
        }
    });
    assert!(lost.is_empty(), "{lost:?}");
}

#[test]
fn the_schema_is_structural() {
    let mut wrong = vec![];
    walk("", schema(), &mut |path, node| {
        for keyword in [
            "$ref",
            "oneOf",
            "anyOf",
            "allOf",
            "not",
            "nullable",
            "definitions",
            "$schema",
            "title",
        ] {
            if node.get(keyword).is_some() {
                wrong.push(format!("{path}: {keyword}"));
            }
        }
        let typed = node["type"].is_string() || node["x-kubernetes-int-or-string"] == json!(true);
        if !typed {
            wrong.push(format!("{path}: no type"));
        }
        if let Some(format) = node["format"].as_str()
            && !["int32", "int64", "date-time", "byte"].contains(&format)
        {
            wrong.push(format!("{path}: format {format}"));
        }
        if node["type"] == "object" && node["default"].is_object() {
            wrong.push(format!("{path}: an object with a default as a whole"));
        }
    });
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn every_number_of_the_specification_has_bounds() {
    let mut wrong = vec![];
    walk_own(&mut |path, node| {
        let number = node["type"] == "integer" || node["type"] == "number";
        if number && (node["minimum"].is_null() || node["maximum"].is_null()) {
            wrong.push(path.to_owned());
        }
        let text = node["type"] == "string" && node["enum"].is_null();
        if text && node["maxLength"].is_null() {
            wrong.push(path.to_owned());
        }
        if node["type"] == "array" && node["maxItems"].is_null() {
            wrong.push(path.to_owned());
        }
    });
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn every_field_says_whether_it_may_change_and_what_it_is_without_being_given() {
    let mut wrong = vec![];
    walk_own(&mut |path, node| {
        let text = node["description"].as_str().unwrap_or_default();
        let is_leaf = node["properties"].is_null();
        let says_change = [
            "Never change",
            "May change",
            "May grow",
            "may change only",
            "later.",
        ]
        .iter()
        .any(|words| text.contains(words));
        if is_leaf && !says_change {
            wrong.push(format!("{path}: may it change? {text:?}"));
        }
        if is_leaf
            && !["Required", "Default:", "No default", "only then"]
                .iter()
                .any(|words| text.contains(words))
        {
            wrong.push(format!("{path}: without it? {text:?}"));
        }
        if !is_leaf && text.is_empty() {
            wrong.push(format!("{path}: no description"));
        }
    });
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn described_defaults_are_those_of_the_schema() {
    walk_own(&mut |path, node| {
        let text = node["description"].as_str().unwrap_or_default();
        if let Some(default) = node.get("default").filter(|d| !d.is_array()) {
            let said = text
                .split("Default: ")
                .nth(1)
                .and_then(|t| t.split(". ").next())
                .unwrap_or_default();
            let said = said.trim_end_matches('.');
            let same = said == default.as_str().unwrap_or(&default.to_string())
                || said
                    .parse::<f64>()
                    .ok()
                    .is_some_and(|n| Some(n) == default.as_f64());
            assert!(same, "{path}: described as {said:?}, is {default}");
        }
    });
}

#[test]
fn every_rule_names_nodes_that_exist_and_has_a_message_of_its_own() {
    let all = rules();
    let mut messages: Vec<&str> = all.iter().map(|r| r.message).collect();
    messages.sort_unstable();
    messages.dedup();
    assert_eq!(messages.len(), all.len(), "a message tells which rule was broken");
    for Rule {
        at,
        field_path,
        message,
        ..
    } in &all
    {
        let path = format!("{at}{}", field_path.unwrap_or_default());
        let mut node = schema();
        for part in path.split('.').filter(|p| !p.is_empty()) {
            node = &node["properties"][part];
        }
        assert!(node.is_object(), "{path} of {message:?} is not in the schema");
    }
}

#[test]
fn the_pod_template_keeps_unknown_fields_and_needs_no_container() {
    let template = &schema()["properties"]["spec"]["properties"]["workers"]["properties"]["template"];
    walk("template", template, &mut |path, node| {
        if node["type"] == "object" && node["additionalProperties"].is_null() {
            assert_eq!(node["x-kubernetes-preserve-unknown-fields"], true, "{path}");
        }
        assert!(
            node["description"].is_null() || path == "template",
            "{path} has a description"
        );
    });
    let pod = &template["properties"]["spec"];
    assert!(pod["required"].is_null());
    let containers = &pod["properties"]["containers"];
    assert_eq!(containers["x-kubernetes-list-map-keys"], json!(["name"]));
    let ports = &containers["items"]["properties"]["ports"];
    assert_eq!(
        ports["x-kubernetes-list-map-keys"],
        json!(["containerPort", "protocol"])
    );
    assert_eq!(ports["items"]["properties"]["protocol"]["default"], "TCP");
    let mounts = &containers["items"]["properties"]["volumeMounts"];
    assert_eq!(mounts["x-kubernetes-list-map-keys"], json!(["mountPath"]));
}
