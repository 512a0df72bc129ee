//! Judges a manifest as the API server would: the schema of the CRD (types, bounds, enums, unknown fields), its
//! defaults, and its CEL rules. Pure: text or JSON in, a verdict out.
//!
//! It goes through the API server's steps in their order: unknown fields (strict decoding), nulls, defaults, object
//! metadata, schema, list keys, rules. Like the API server it skips the rules while the schema finds something that
//! would make them misleading.

mod defaults;
mod lists;
mod metadata;
mod problem;
mod rules;
mod schema;
mod unknown;
mod yaml;

pub use problem::{Check, Problem};
pub use yaml::{SyntaxError, parse_documents};

use serde_json::{Value, json};
use std::sync::LazyLock;

/// A manifest that passed, with the schema's defaults filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct DefaultedManifest {
    /// `metadata.name`, or `metadata.generateName` where there is no name.
    pub name: String,
    /// The whole object, defaults filled in.
    pub object: Value,
    /// What is suspicious but allowed, such as a field of the pod template that this Kubernetes does not know.
    pub warnings: Vec<Problem>,
}

impl DefaultedManifest {
    /// `spec`, defaults filled in. A default is filled in where the object around it is given, as on a cluster:
    /// an absent `precision` stays absent.
    #[must_use]
    pub fn spec(&self) -> &Value {
        &self.object["spec"]
    }
}

/// The schema of a TrainingJob, from the types and not from the file.
static SCHEMA: LazyLock<Value> =
    LazyLock::new(|| gradsync_crds::crd_json()["spec"]["versions"][0]["schema"]["openAPIV3Schema"].take());

/// Whether a document means to be a TrainingJob: by its kind, or by our API group.
#[must_use]
pub fn is_training_job(document: &Value) -> bool {
    let group = document["apiVersion"]
        .as_str()
        .unwrap_or_default()
        .split('/')
        .next();
    document["kind"] == gradsync_crds::KIND || group == Some(gradsync_crds::GROUP)
}

/// Judges one manifest of kind TrainingJob, as for its creation.
///
/// # Errors
/// Everything that is wrong with it; never empty.
pub fn check(manifest: &Value) -> Result<DefaultedManifest, Vec<Problem>> {
    judge(manifest, None)
}

/// Judges a manifest that is to replace `old`, whose `status` is kept.
///
/// # Errors
/// Everything that is wrong with it; never empty.
pub fn check_update(manifest: &Value, old: &Value) -> Result<DefaultedManifest, Vec<Problem>> {
    let mut old = old.clone();
    defaults::fill(&mut old, &SCHEMA);
    judge(manifest, Some(&old))
}

/// Judges a change of `status` from `old`, as the rendezvous service and the operator make it.
///
/// # Errors
/// Everything that is wrong with it; never empty.
pub fn check_status_update(new: &Value, old: &Value) -> Result<(), Vec<Problem>> {
    let (mut new, mut old) = (new.clone(), old.clone());
    defaults::fill(&mut new, &SCHEMA);
    defaults::fill(&mut old, &SCHEMA);
    let problems = judge_object(&new, Some(&old));
    if problems.is_empty() {
        Ok(())
    } else {
        Err(problems)
    }
}

fn judge(manifest: &Value, old: Option<&Value>) -> Result<DefaultedManifest, Vec<Problem>> {
    if let Some(problem) = type_problem(manifest) {
        return Err(vec![problem]);
    }
    let mut object = manifest.clone();
    let (mut problems, warnings) = unknown::prune(&mut object, &SCHEMA);
    // The main resource never carries a new status: what is there stays.
    if let Some(map) = object.as_object_mut() {
        map.remove("status");
        if let Some(status) = old.and_then(|old| old.get("status")) {
            map.insert("status".to_owned(), status.clone());
        }
    }
    defaults::fill(&mut object, &SCHEMA);
    let generated = metadata::generate_name(&mut object);
    problems.extend(judge_object(&object, old));
    if !problems.is_empty() {
        return Err(problems);
    }
    let name = if generated {
        &object["metadata"]["generateName"]
    } else {
        &object["metadata"]["name"]
    };
    let name = name.as_str().unwrap_or_default().to_owned();
    if generated && let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("name");
    }
    Ok(DefaultedManifest {
        name,
        object,
        warnings,
    })
}

/// Everything that is wrong with an object whose defaults are filled in and whose unknown fields are gone.
fn judge_object(object: &Value, old: Option<&Value>) -> Vec<Problem> {
    let mut problems = metadata::check(object);
    problems.extend(schema::check(object, &SCHEMA));
    problems.extend(lists::check(object, &SCHEMA));
    if problems.iter().any(|p| p.check.blocks_rules()) {
        problems.push(Problem::rules_skipped());
    } else {
        problems.extend(rules::check(object, old, &SCHEMA));
    }
    problems
}

/// What is wrong with `apiVersion` and `kind`; then nothing else can be judged.
fn type_problem(manifest: &Value) -> Option<Problem> {
    if !manifest.is_object() {
        return Some(Problem::new(
            "",
            Check::Type,
            "Invalid value: a manifest is a mapping with apiVersion, kind, metadata and spec",
        ));
    }
    [
        ("apiVersion", gradsync_crds::API_VERSION),
        ("kind", gradsync_crds::KIND),
    ]
    .into_iter()
    .find_map(|(field, wanted)| {
        let detail = match manifest.get(field) {
            None | Some(Value::Null) => format!("Required value: write {field}: {wanted}"),
            Some(value) if *value == json!(wanted) => return None,
            Some(value) => format!("Unsupported value: {value}: supported values: \"{wanted}\""),
        };
        Some(Problem::new(field, Check::Identity, detail))
    })
}
