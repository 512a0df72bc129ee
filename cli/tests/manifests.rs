//! The corpus of manifests: each in `bad/` breaks one thing and says which, each in `good/` breaks none; those in
//! `bad-updates/` and `good-updates/` are pairs, before and after. The same files go to a real API server in the
//! cluster tests, so that both judges are known to agree.

use gradsync::validate::{self, Check, Problem};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

fn files(folder: &str) -> Vec<(PathBuf, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .expect("the folder is in the repository")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|e| e == "yaml"))
        .map(|path| (path.clone(), std::fs::read_to_string(&path).expect("readable")))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    files
}

/// The path and the part of the message in a file's first line.
fn expectation(text: &str) -> (&str, &str) {
    let line = text
        .lines()
        .next()
        .and_then(|l| l.strip_prefix("# expect: "))
        .expect("first line says what is expected");
    line.split_once(": ").expect("path: part of the message")
}

fn one(text: &str) -> Value {
    match validate::parse_documents(text).expect("YAML").as_slice() {
        [document] => document.clone(),
        several => panic!("{} documents", several.len()),
    }
}

/// The problems of a pair: a second document with a status is a write of the status, otherwise one of the rest.
fn judge_pair(text: &str) -> Vec<Problem> {
    let documents = validate::parse_documents(text).expect("YAML");
    let [old, new] = documents.as_slice() else {
        panic!("{} documents, not before and after", documents.len())
    };
    let verdict = if new.get("status").is_some() {
        validate::check_status_update(new, old)
    } else {
        validate::check_update(new, old).map(|_| ())
    };
    verdict.err().unwrap_or_default()
}

/// All problems of the corpus of bad manifests.
fn bad() -> &'static [(PathBuf, String, Vec<Problem>)] {
    static BAD: LazyLock<Vec<(PathBuf, String, Vec<Problem>)>> = LazyLock::new(judge_corpus);
    &BAD
}

fn judge_corpus() -> Vec<(PathBuf, String, Vec<Problem>)> {
    let single = files("tests/manifests/bad").into_iter().map(|(path, text)| {
        let problems = validate::check(&one(&text)).err().unwrap_or_default();
        (path, text, problems)
    });
    let pairs = files("tests/manifests/bad-updates")
        .into_iter()
        .map(|(path, text)| {
            let problems = judge_pair(&text);
            (path, text, problems)
        });
    single.chain(pairs).collect()
}

#[test]
fn every_bad_manifest_is_refused_for_what_its_first_line_says_and_for_nothing_else() {
    for (path, text, problems) in bad() {
        let (field, part) = expectation(text);
        let shown: Vec<String> = problems.iter().map(ToString::to_string).collect();
        let found = problems
            .iter()
            .any(|p| p.field == field && p.detail.contains(part));
        assert!(
            found,
            "{}: expected {field}: ...{part}..., found {shown:#?}",
            path.display()
        );
        let others: Vec<_> = problems
            .iter()
            .filter(|p| p.check != Check::RulesSkipped && p.field != field)
            .collect();
        assert!(
            others.is_empty(),
            "{}: more than one problem: {shown:#?}",
            path.display()
        );
    }
}

#[test]
fn every_good_manifest_passes() {
    for (path, text) in files("tests/manifests/good") {
        if let Err(problems) = validate::check(&one(&text)) {
            panic!("{}: {problems:#?}", path.display());
        }
    }
    for (path, text) in files("tests/manifests/good-updates") {
        let problems = judge_pair(&text);
        assert!(problems.is_empty(), "{}: {problems:#?}", path.display());
    }
}

#[test]
fn every_example_is_a_valid_job() {
    for (path, text) in files("../examples") {
        let documents = validate::parse_documents(&text).expect("YAML");
        let jobs: Vec<_> = documents
            .iter()
            .filter(|d| validate::is_training_job(d))
            .collect();
        assert_eq!(jobs.len(), 1, "{}: an example holds one job", path.display());
        if let Err(problems) = validate::check(jobs[0]) {
            panic!("{}: {problems:#?}", path.display());
        }
    }
}

#[test]
fn filling_in_defaults_twice_changes_nothing_and_stays_valid() {
    for (path, text) in files("tests/manifests/good") {
        let once = validate::check(&one(&text)).expect("a good manifest");
        let twice = validate::check(&once.object).expect("still good");
        assert_eq!(once.object, twice.object, "{}", path.display());
    }
}

/// Calls `visit` with every node of a schema and its path, `[]` for the items of a list.
fn walk(path: &str, node: &Value, visit: &mut impl FnMut(&str, &Value)) {
    visit(path, node);
    for (name, child) in node["properties"].as_object().into_iter().flatten() {
        walk(
            &if path.is_empty() {
                name.clone()
            } else {
                format!("{path}.{name}")
            },
            child,
            visit,
        );
    }
    if node["items"].is_object() {
        walk(&format!("{path}[]"), &node["items"], visit);
    }
}

/// A path with its indices left out.
fn without_indices(path: &str) -> String {
    path.split('[')
        .enumerate()
        .fold(String::new(), |done, (i, part)| match i {
            0 => part.to_owned(),
            _ => format!("{done}[]{}", part.split_once(']').map_or("", |(_, rest)| rest)),
        })
}

#[test]
fn every_rule_enum_and_bound_is_broken_by_a_manifest_of_the_corpus() {
    const KEYWORDS: &[&str] = &[
        "enum",
        "minimum",
        "maximum",
        "minLength",
        "maxLength",
        "pattern",
        "minItems",
        "maxItems",
    ];
    let mut wanted = BTreeSet::new();
    let schema = &gradsync_crds::crd_json()["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    walk("", schema, &mut |path, node| {
        for rule in node["x-kubernetes-validations"].as_array().into_iter().flatten() {
            wanted.insert(format!(
                "{path}: rule {}",
                rule["rule"].as_str().unwrap_or_default()
            ));
        }
        // Nobody but us writes the status.
        if path.starts_with("spec") {
            wanted.extend(
                KEYWORDS
                    .iter()
                    .filter(|k| node.get(**k).is_some())
                    .map(|k| format!("{path}: {k}")),
            );
            let required = node["required"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str);
            if !path.contains("template") {
                wanted.extend(required.map(|name| format!("{path}.{name}: required")));
            }
        }
    });
    assert!(wanted.len() > 100, "the walk finds the schema");
    let covered: BTreeSet<String> = bad()
        .iter()
        .flat_map(|(_, _, problems)| problems)
        .flat_map(|problem| {
            let field = without_indices(&problem.field);
            match &problem.check {
                // The rule stands at its node, the problem at the field that it names: both are tried.
                Check::Rule(rule) => wanted
                    .iter()
                    .filter(|w| w.ends_with(&format!(": rule {rule}")))
                    .filter(|w| {
                        let at = w.split(": rule ").next().unwrap_or_default();
                        field.starts_with(at)
                    })
                    .cloned()
                    .collect::<Vec<_>>(),
                check => {
                    let keyword = serde_json::to_value(check).expect("a word");
                    vec![format!("{field}: {}", keyword.as_str().unwrap_or_default())]
                }
            }
        })
        .collect();
    let missing: Vec<_> = wanted.difference(&covered).collect();
    assert!(
        missing.is_empty(),
        "add a manifest to cli/tests/manifests for each of {missing:#?}"
    );
}

/// The jobs of `good/` and of the examples, as given and with the schema's defaults.
fn good_jobs() -> Vec<(PathBuf, Value, validate::DefaultedManifest)> {
    let examples = files("../examples").into_iter().map(|(path, text)| {
        let given = validate::parse_documents(&text)
            .expect("YAML")
            .into_iter()
            .find(validate::is_training_job);
        (path, given.expect("an example is a job"))
    });
    let good = files("tests/manifests/good")
        .into_iter()
        .map(|(path, text)| (path, one(&text)));
    examples
        .chain(good)
        .map(|(path, given)| {
            let defaulted = validate::check(&given).expect("a good manifest");
            (path, given, defaulted)
        })
        .collect()
}

#[test]
fn every_good_manifest_means_the_same_on_a_laptop_and_on_a_cluster() {
    // On a cluster the API server fills in the schema's defaults; where nobody did, the launcher's own apply.
    for (path, mut given, defaulted) in good_jobs() {
        // Nulls count as absent, and are removed by whoever applies the schema.
        prune_nulls(&mut given["spec"]);
        let resolve = |spec: &Value| gradsync_formats::run_config::resolve(&defaulted.name, spec);
        let without = resolve(&given["spec"]).expect("a good manifest can be resolved");
        let with = resolve(defaulted.spec()).expect("a good manifest can be resolved");
        assert_eq!(without, with, "{}", path.display());
    }
}

#[test]
fn an_empty_optional_object_means_the_same_as_none() {
    let (_, text) = files("tests/manifests/good")
        .into_iter()
        .find(|(p, _)| p.ends_with("smallest.yaml"))
        .expect("there");
    let bare = one(&text);
    let mut empty = bare.clone();
    for path in [
        "/sync",
        "/sync/allReduce",
        "/precision",
        "/accumulation",
        "/failurePolicy",
        "/training/optimizer/schedule",
    ] {
        let (parent, name) = path.rsplit_once('/').expect("a pointer");
        let parent = empty.pointer_mut(&format!("/spec{parent}")).expect("there");
        parent[name] = serde_json::json!({});
    }
    let resolve = |manifest: &Value| {
        let manifest = validate::check(manifest).expect("a good manifest");
        gradsync_formats::run_config::resolve(&manifest.name, manifest.spec()).expect("can be resolved")
    };
    assert_eq!(resolve(&bare), resolve(&empty));
}

fn prune_nulls(value: &mut Value) {
    if let Value::Object(map) = value {
        map.retain(|_, v| !v.is_null());
        map.values_mut().for_each(prune_nulls);
    }
}

#[test]
fn the_types_read_every_good_manifest_and_lose_nothing() {
    for (path, _, defaulted) in good_jobs() {
        let typed: gradsync_crds::TrainingJob =
            serde_json::from_value(defaulted.object.clone()).expect("a job");
        let written = serde_json::to_value(&typed).expect("JSON");
        // 1 and 1.0 are the same number.
        let plain =
            |v: &Value| serde_json::from_str::<Value>(&v.to_string().replace(".0,", ",").replace(".0}", "}"));
        assert_eq!(
            plain(&written["spec"]).expect("JSON"),
            plain(defaulted.spec()).expect("JSON"),
            "{}",
            path.display()
        );
    }
}

/// Pointers to all nodes below `value`.
fn pointers(at: &str, value: &Value, found: &mut Vec<String>) {
    found.push(at.to_owned());
    for (name, child) in value.as_object().into_iter().flatten() {
        pointers(&format!("{at}/{name}"), child, found);
    }
    for (i, child) in value.as_array().into_iter().flatten().enumerate() {
        pointers(&format!("{at}/{i}"), child, found);
    }
}

#[test]
fn whatever_stands_in_a_field_there_is_a_verdict_and_what_passes_can_be_resolved() {
    let (_, text) = files("tests/manifests/good")
        .into_iter()
        .find(|(p, _)| p.ends_with("every-field.yaml"))
        .expect("there");
    let good = one(&text);
    let mut places = vec![];
    pointers("/spec", &good["spec"], &mut places);
    assert!(places.len() > 50, "the manifest has every field");
    let strange = serde_json::json!([
        null,
        "x",
        "",
        0,
        -1,
        1.5,
        1e300,
        1_000_000_000_000_000_i64,
        true,
        [],
        [null],
        {}
    ]);
    let (mut refused, mut passed) = (0, 0);
    for place in &places {
        for value in strange.as_array().into_iter().flatten() {
            let mut manifest = good.clone();
            *manifest.pointer_mut(place).expect("a place") = value.clone();
            match validate::check(&manifest) {
                Err(problems) => {
                    refused += 1;
                    assert!(!problems.is_empty(), "{place} = {value}");
                    // A rule that cannot be evaluated would be a gap in the schema.
                    let gap = problems.iter().find(|p| p.detail.contains("cannot be evaluated"));
                    assert!(gap.is_none(), "{place} = {value}: {gap:?}");
                }
                Ok(manifest) => {
                    passed += 1;
                    let resolved = gradsync_formats::run_config::resolve(&manifest.name, manifest.spec());
                    assert!(resolved.is_ok(), "{place} = {value} passes, but {resolved:?}");
                }
            }
        }
    }
    assert!(refused > 300 && passed > 50, "{refused} refused, {passed} passed");
}
