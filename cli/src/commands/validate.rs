//! `gradsync validate JOB.yaml...`: says what the API server would say to these manifests.

use crate::validate;
use anyhow::Context as _;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `gradsync validate`.
#[derive(Debug, clap::Args)]
pub struct ValidateArgs {
    /// Manifests to check; a file may hold several documents. `-` reads standard input.
    #[arg(required = true, value_name = "JOB.yaml")]
    pub files: Vec<PathBuf>,
}

impl ValidateArgs {
    /// Checks every file and prints one line for each problem.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let mut problems = 0;
        for file in &self.files {
            let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
            match validate::parse_documents(&text) {
                Err(error) => {
                    problems += 1;
                    println!("{}: {error}", file.display());
                }
                Ok(documents) => {
                    for document in &documents {
                        match validate::check(document) {
                            Ok(_) => println!("{}: ok", file.display()),
                            Err(found) => {
                                problems += found.len();
                                for problem in found {
                                    println!("{}: {problem}", file.display());
                                }
                            }
                        }
                    }
                }
            }
        }
        Ok(if problems == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}
