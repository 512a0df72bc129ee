//! `gradsync validate` as a user meets it.

use assert_cmd::Command;
use predicates::prelude::*;
use serde_json::Value;

const GOOD: &str = "
apiVersion: gradsync.dev/v1alpha1
kind: TrainingJob
metadata: {name: good}
spec:
  task: {name: count}
  training: {globalBatchSize: 24, epochs: 3, optimizer: {name: SGD, learningRate: 1}}
  workers: {replicas: 2}
";

fn validate(text: &str, arguments: &[&str]) -> assert_cmd::assert::Assert {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("job.yaml");
    std::fs::write(&file, text).expect("write");
    Command::cargo_bin("gradsync")
        .expect("the program")
        .current_dir(folder.path())
        .arg("validate")
        .arg("job.yaml")
        .args(arguments)
        .assert()
}

#[test]
fn a_good_manifest_is_ok_and_the_exit_code_says_so() {
    validate(GOOD, &[]).success().stdout("job.yaml (good): ok\n");
}

#[test]
fn a_bad_manifest_gives_a_line_for_each_problem_and_exit_code_1() {
    let text = GOOD
        .replace("epochs: 3", "epochs: 0, steps: 5")
        .replace("replicas: 2", "replica: 2");
    validate(&text, &[]).code(1).stdout(
        "job.yaml (good): strict decoding error: unknown field \"spec.workers.replica\" (did you mean \
         \"replicas\"?)\n\
         job.yaml (good): spec.training.epochs: Invalid value: 0: spec.training.epochs in body should be greater than \
         or equal to 1\n\
         job.yaml (good): spec.training: Invalid value: steps: 5 and epochs: 0 are both given: keep exactly one of the \
         two\n",
    );
}

#[test]
fn each_document_of_a_file_is_judged_and_other_kinds_are_passed_over() {
    let claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: c}\n";
    let second = GOOD
        .replace("name: good", "name: other")
        .replace("epochs: 3", "epochs: -3");
    validate(&format!("{GOOD}---\n{claim}---\n{second}"), &[])
        .code(1)
        .stdout(predicate::str::contains(
            "job.yaml (good): ok\njob.yaml (other): spec.training.epochs: Invalid value: -3",
        ));
    validate(claim, &[])
        .code(1)
        .stdout("job.yaml: there is no TrainingJob in it\n");
}

#[test]
fn a_syntax_error_names_its_line() {
    validate(
        "apiVersion: gradsync.dev/v1alpha1\nkind: [TrainingJob\nspec: {}\n",
        &[],
    )
    .code(1)
    .stdout(predicate::str::is_match("^job.yaml: line [23]: ").expect("a pattern"));
    validate(
        &GOOD.replace("  workers:", "  task: {name: other}\n  workers:"),
        &[],
    )
    .code(1)
    .stdout(predicate::str::is_match("^job.yaml: line 8: .*task").expect("a pattern"));
}

#[test]
fn the_wrong_kind_or_version_is_told_with_the_right_one() {
    validate(&GOOD.replace("v1alpha1", "v1"), &[]).code(1).stdout(
        "job.yaml (good): apiVersion: Unsupported value: \"gradsync.dev/v1\": supported values: \
         \"gradsync.dev/v1alpha1\"\n",
    );
    validate(&GOOD.replace("kind: TrainingJob", "kind: TrainJob"), &[])
        .code(1)
        .stdout(predicate::str::contains("kind: Unsupported value: \"TrainJob\""));
    validate("42", &[])
        .code(1)
        .stdout(predicate::str::contains("a manifest is a mapping"));
}

#[test]
fn the_answer_can_be_had_as_json() {
    let output = validate(&GOOD.replace("epochs: 3", "epochs: 0"), &["-o", "json"])
        .code(1)
        .get_output()
        .stdout
        .clone();
    let answer: Value = serde_json::from_slice(&output).expect("JSON");
    assert_eq!(answer[0]["file"], "job.yaml");
    assert_eq!(answer[0]["ok"], false);
    assert_eq!(answer[0]["problems"][0]["field"], "spec.training.epochs");
}

#[test]
fn a_missing_file_is_an_error_that_names_it() {
    Command::cargo_bin("gradsync")
        .expect("the program")
        .args(["validate", "no-such-file.yaml"])
        .assert()
        .code(2)
        .stderr(predicate::str::contains("read no-such-file.yaml"));
}

#[test]
fn yaml_is_read_as_kubectl_reads_it() {
    // Octal file modes, and words that YAML 1.1 takes for booleans.
    let text = GOOD.replace(
        "workers: {replicas: 2}",
        "workers: {template: {spec: {volumes: [{name: c, configMap: {name: c, defaultMode: 0644}}]}}}",
    );
    let spec = |text: &str| {
        let documents = gradsync::validate::parse_documents(text).expect("YAML");
        gradsync::validate::check(&documents[0])
            .expect("a good manifest")
            .spec()
            .clone()
    };
    let volume = &spec(&text)["workers"]["template"]["spec"]["volumes"][0];
    assert_eq!(volume["configMap"]["defaultMode"], 0o644);
    let yes = GOOD.replace("learningRate: 1", "learningRate: 1, momentum: 0.9, nesterov: yes");
    assert_eq!(spec(&yes)["training"]["optimizer"]["nesterov"], true);
}

#[test]
fn a_number_that_json_cannot_hold_is_refused() {
    for number in [".nan", ".inf", "1e999"] {
        validate(
            &GOOD.replace("learningRate: 1", &format!("learningRate: {number}")),
            &[],
        )
        .code(1);
    }
}

#[test]
fn aliases_cannot_blow_up() {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for i in 1..12 {
        let items = vec![format!("*a{}", i - 1); 10].join(", ");
        text.push_str(&format!("a{i}: &a{i} [{items}]\n"));
    }
    validate(&text, &[])
        .code(1)
        .stdout(predicate::str::contains("job.yaml: line"));
}
