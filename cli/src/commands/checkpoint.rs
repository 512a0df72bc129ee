//! `gradsync checkpoint list|inspect|export`: looks into checkpoints without training.

use super::format::Format;
use crate::checkpoint::{Row, describe, find_jobs, open, rows};
use crate::terminal;
use anyhow::{Context as _, bail};
use gradsync_formats::checkpoint::{Expected, export, load};
use gradsync_formats::store::{DirectoryStore, Store as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `gradsync checkpoint`.
#[derive(Debug, clap::Args)]
pub struct CheckpointArgs {
    /// What to do with checkpoints.
    #[command(subcommand)]
    pub action: Action,
}

/// What to do with checkpoints.
#[derive(Debug, clap::Subcommand)]
pub enum Action {
    /// List checkpoints, newest first, each verified, and say why some are not usable.
    List {
        /// Output directory of `gradsync run`, checkpoint directory, or a job's folder in it.
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        /// How to write the list.
        #[arg(short, long, value_name = "FORMAT", default_value = "text")]
        output: Format,
    },
    /// Verify one checkpoint and show what it holds.
    Inspect {
        /// A checkpoint's folder; of any other directory the newest whole one below it.
        #[arg(value_name = "PATH")]
        path: PathBuf,
        /// How to write it.
        #[arg(short, long, value_name = "FORMAT", default_value = "text")]
        output: Format,
    },
    /// Write the model (parameters and buffers, by name) of one checkpoint as a plain safetensors file.
    Export {
        /// A checkpoint's folder; of any other directory the newest whole one below it.
        #[arg(value_name = "PATH")]
        path: PathBuf,
        /// The file to write; one that is there is replaced once the new one is whole.
        #[arg(long, value_name = "FILE.safetensors")]
        to: PathBuf,
    },
}

impl CheckpointArgs {
    /// Does it.
    ///
    /// # Errors
    /// When there is no checkpoint, it is not whole, or the file cannot be written.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.action {
            Action::List { directory, output } => list(&directory, output)?,
            Action::Inspect { path, output } => {
                let (store, reference) = open(&path)?;
                let snapshot = load(&store, &reference.path, &Expected::default())?;
                let description = describe(&reference.path, &snapshot);
                match output {
                    Format::Text => terminal::answer(&description.to_string())?,
                    Format::Json => terminal::answer(&(serde_json::to_string_pretty(&description)? + "\n"))?,
                }
            }
            Action::Export { path, to } => export_to(&path, &to)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn list(directory: &Path, output: Format) -> anyhow::Result<()> {
    let jobs = find_jobs(directory)?;
    if jobs.is_empty() {
        bail!("list checkpoints in {}: there are none", directory.display());
    }
    let mut all: Vec<Row> = vec![];
    for job in &jobs {
        all.extend(rows(&job.uid, &job.list()?));
    }
    terminal::answer(&match output {
        Format::Json => serde_json::to_string_pretty(&all)? + "\n",
        Format::Text => all.iter().map(|row| format!("{row}\n")).collect(),
    })
}

fn export_to(path: &Path, to: &Path) -> anyhow::Result<()> {
    let Some(name) = to.file_name().and_then(|name| name.to_str()) else {
        bail!("write {}: it is not the name of a file", to.display());
    };
    let (store, reference) = open(path)?;
    let (snapshot, bytes) = export(&store, &reference.path)?;
    let folder = to
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    DirectoryStore::new(folder)
        .put(name, &bytes)
        .with_context(|| format!("write {}", to.display()))?;
    terminal::answer(&format!(
        "{}: parameters and buffers of {} ({})\n",
        to.display(),
        reference.path,
        snapshot.position
    ))
}
