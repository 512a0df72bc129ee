//! `gradsync validate JOB.yaml...`: says what the API server would say to these manifests.

use crate::terminal;
use crate::validate::{self, Problem};
use anyhow::Context as _;
use serde_json::{Value, json};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `gradsync validate`.
#[derive(Debug, clap::Args)]
pub struct ValidateArgs {
    /// Manifests to check; a file may hold several documents. `-` reads standard input.
    #[arg(required = true, value_name = "JOB.yaml")]
    pub files: Vec<PathBuf>,
    /// Form of the answer.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

/// Forms of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// One line for each problem, or `ok`.
    Text,
    /// One JSON list with an entry for each TrainingJob.
    Json,
}

/// What was found in one document, or in a file that could not be read as YAML.
struct Verdict {
    file: String,
    name: Option<String>,
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
    /// Why the file holds nothing that can be judged.
    unreadable: Option<String>,
}

impl ValidateArgs {
    /// Checks every file and prints the answer; the exit code is 1 if anything is wrong.
    ///
    /// # Errors
    /// When a file cannot be read or the answer not be written.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let mut verdicts = vec![];
        for file in &self.files {
            verdicts.extend(judge_file(&file.display().to_string(), &read(file)?));
        }
        let text = match self.output {
            Output::Text => verdicts
                .iter()
                .flat_map(Verdict::lines)
                .map(|line| line + "\n")
                .collect(),
            Output::Json => {
                let all: Vec<Value> = verdicts.iter().map(Verdict::to_json).collect();
                serde_json::to_string_pretty(&all).context("write the answer as JSON")? + "\n"
            }
        };
        terminal::answer(&text)?;
        Ok(if verdicts.iter().all(Verdict::is_ok) {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

fn read(file: &Path) -> anyhow::Result<String> {
    if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .context("read standard input")?;
        return Ok(text);
    }
    std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))
}

/// One verdict for each TrainingJob in the file. Documents of other kinds (a claim, a config map) are not ours to
/// judge.
fn judge_file(file: &str, text: &str) -> Vec<Verdict> {
    let unreadable = |why: String| Verdict {
        file: file.to_owned(),
        name: None,
        problems: vec![],
        warnings: vec![],
        unreadable: Some(why),
    };
    let documents = match validate::parse_documents(text) {
        Ok(documents) => documents,
        Err(error) => return vec![unreadable(error.to_string())],
    };
    let has_kind = |d: &&Value| d["kind"].is_string() && !validate::is_training_job(d);
    let jobs: Vec<&Value> = documents.iter().filter(|d| !has_kind(d)).collect();
    if jobs.is_empty() {
        return vec![unreadable("there is no TrainingJob in it".to_owned())];
    }
    jobs.into_iter()
        .map(|job| {
            let metadata = &job["metadata"];
            let name = metadata["name"]
                .as_str()
                .or(metadata["generateName"].as_str())
                .map(str::to_owned);
            let (problems, warnings) = match validate::check(job) {
                Ok(manifest) => (vec![], manifest.warnings),
                Err(problems) => (problems, vec![]),
            };
            Verdict {
                file: file.to_owned(),
                name,
                problems,
                warnings,
                unreadable: None,
            }
        })
        .collect()
}

impl Verdict {
    fn is_ok(&self) -> bool {
        self.problems.is_empty() && self.unreadable.is_none()
    }

    fn lines(&self) -> Vec<String> {
        let place = match &self.name {
            Some(name) => format!("{} ({name})", self.file),
            None => self.file.clone(),
        };
        let mut lines: Vec<String> = self
            .warnings
            .iter()
            .map(|w| format!("{place}: warning: {w}"))
            .collect();
        lines.extend(self.unreadable.iter().map(|why| format!("{place}: {why}")));
        lines.extend(self.problems.iter().map(|problem| format!("{place}: {problem}")));
        if self.is_ok() {
            lines.push(format!("{place}: ok"));
        }
        lines
    }

    fn to_json(&self) -> Value {
        let listed = |problems: &[Problem]| -> Vec<Value> {
            problems
                .iter()
                .map(|p| json!({"field": p.field, "detail": p.detail, "message": p.to_string()}))
                .collect()
        };
        json!({
            "file": self.file,
            "name": self.name,
            "ok": self.is_ok(),
            "error": self.unreadable,
            "problems": listed(&self.problems),
            "warnings": listed(&self.warnings),
        })
    }
}
