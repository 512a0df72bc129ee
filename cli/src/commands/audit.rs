//! `gradsync audit DIR`: proves from the run record which samples the committed steps used.

use super::format::Format;
use crate::audit::{find_records, known_about};
use crate::terminal;
use anyhow::bail;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `gradsync audit`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 every rule holds, 1 a rule is broken (which step, index, file and line \
    is printed), 2 the records cannot be read."
)]
pub struct AuditArgs {
    /// Output directory of `gradsync run`, or a job's folder of checkpoints, or its folder of records.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// How to write the verdict.
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub output: Format,
}

impl AuditArgs {
    /// Audits and prints the verdict.
    ///
    /// # Errors
    /// When the records cannot be judged.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let records = find_records(&self.directory)?;
        let known = known_about(&self.directory)?;
        let files = records.for_audit(&self.directory);
        let given = known.as_ref().map(|(_, given)| given.clone()).unwrap_or_default();
        let verdict = gradsync_formats::audit::audit(&files, &given)?;
        if let Some((job, _)) = known
            && job != verdict.job_uid
        {
            bail!(
                "audit {}: its membership file is of job {job}, its records are of job {}",
                self.directory.display(),
                verdict.job_uid
            );
        }
        match self.output {
            Format::Text => terminal::answer(&verdict.to_string())?,
            Format::Json => terminal::answer(&(serde_json::to_string_pretty(&verdict)? + "\n"))?,
        }
        Ok(if verdict.clean {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}
