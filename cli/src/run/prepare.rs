//! From arguments to a run that can be launched: everything that can be wrong with them is found here,
//! before anything is started.

use super::changes;
use super::output::{Origin, OutputDirectory};
use super::set::apply_set;
use super::summary::{EarlierSummary, State};
use super::trainer_program;
use super::volumes::{MapArgument, Volumes, map_volumes, parse_map};
use crate::validate;
use anyhow::{Context as _, anyhow, bail};
use gradsync_formats::run_config::{RunConfig, resolve};
use gradsync_rendezvous::membership::{Ending, Saved};
use gradsync_rendezvous::server::FilePersist;
use serde_json::Value;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// What the user asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// The manifest's file, `-` for standard input.
    pub manifest: PathBuf,
    /// Another number of workers.
    pub workers: Option<u32>,
    /// Another output directory.
    pub out: Option<PathBuf>,
    /// `--map` arguments.
    pub map: Vec<String>,
    /// `--set` arguments.
    pub set: Vec<String>,
    /// Another trainer.
    pub trainer: Option<PathBuf>,
    /// Only go on.
    pub resume: bool,
    /// Only start.
    pub fresh: bool,
}

/// A run that can be launched.
#[derive(Debug)]
pub struct Prepared {
    /// The manifest's name.
    pub name: String,
    /// The resolved configuration.
    pub run_config: RunConfig,
    /// Workers to start.
    pub workers: u32,
    /// The locked output directory.
    pub output: OutputDirectory,
    /// Where membership is kept, and the job's UID.
    pub persist: FilePersist,
    /// What was kept of an earlier start.
    pub saved: Saved,
    /// Where container paths lie.
    pub volumes: Volumes,
    /// The trainer program.
    pub trainer: PathBuf,
    /// Lines that the user should read before the run.
    pub notes: Vec<String>,
}

/// Checks and prepares everything.
///
/// # Errors
/// What cannot be used, with the way out.
pub fn prepare(request: &Request) -> anyhow::Result<Prepared> {
    let manifest = read_manifest(&request.manifest, &request.set)?;
    let name = manifest.name.clone();
    let mut run_config = resolve(&name, manifest.spec()).map_err(|e| anyhow!("{e}"))?;
    let own = std::env::current_exe().ok();
    let search = std::env::var_os("PATH");
    let trainer = trainer_program::find(request.trainer.as_deref(), own.as_deref(), search.as_deref())
        .map_err(|e| anyhow!(e))?;
    let here = std::env::current_dir().context("find the current directory")?;
    let overrides: Vec<MapArgument> = request
        .map
        .iter()
        .map(|text| parse_map(text, &here))
        .collect::<Result<_, _>>()
        .map_err(|e| anyhow!(e))?;
    let out = request
        .out
        .clone()
        .unwrap_or_else(|| Path::new("gradsync-out").join(&name));
    // The volumes need the directory's absolute path, but a wrong manifest must not make a directory.
    map_volumes(manifest.spec(), &out, &overrides)
        .and_then(|volumes| volumes.check())
        .map_err(|e| anyhow!(e))?;
    let output = OutputDirectory::open(&out, request.fresh)?;
    let mut notes = vec![];
    set_failed_start_aside(&output, &mut notes)?;
    let origin = output.origin()?;
    match &origin {
        Some(origin) => {
            refuse_finished(&output)?;
            check_unchanged(&output, origin, &name, manifest.spec())?;
            if !changes::differs("accumulation", &origin.spec, manifest.spec()) {
                // The grid was resolved once; other replicas do not change it.
                run_config.micro_batch_size = origin.run_config.micro_batch_size;
            }
        }
        None if request.resume => bail!(
            "resume in {}: there is no run; leave out --resume to start one",
            output.path().display()
        ),
        None => {}
    }
    let volumes = map_volumes(manifest.spec(), output.path(), &overrides).map_err(|e| anyhow!(e))?;
    for directory in &volumes.directories {
        super::output::make(directory)?;
    }
    for directory in ["logs", "records"] {
        output.make(directory)?;
    }
    let persist = FilePersist::open(output.path())?;
    let saved = persist.saved()?;
    let resumed = saved.formed.is_some();
    if resumed {
        notes.push(format!("going on with the run in {}", output.path().display()));
    }
    if run_config.checkpoint.is_none() {
        notes.push("spec.checkpoint is absent: nothing is kept if the run is stopped or fails".to_owned());
    }
    let job_uid = persist.job_uid().clone();
    let mut object = manifest.object.clone();
    object["metadata"]["uid"] = Value::String(job_uid.0.clone());
    let yaml = serde_saphyr::to_string(&object).map_err(|e| anyhow!("write job.yaml: {e}"))?;
    output.write("job.yaml", yaml.as_bytes())?;
    let origin = Origin::new(job_uid, &name, manifest.spec().clone(), run_config.clone());
    let json = serde_json::to_vec_pretty(&origin).context("write run.json")?;
    output.write("run.json", &json)?;
    Ok(Prepared {
        workers: request.workers.unwrap_or(run_config.workers.replicas),
        name,
        run_config,
        output,
        persist,
        saved,
        volumes,
        trainer,
        notes,
    })
}

fn read_manifest(file: &Path, set: &[String]) -> anyhow::Result<validate::DefaultedManifest> {
    let shown = file.display();
    let text = if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .context("read standard input")?;
        text
    } else {
        std::fs::read_to_string(file).with_context(|| format!("read {shown}"))?
    };
    let documents = validate::parse_documents(&text).map_err(|e| anyhow!("{shown}: {e}"))?;
    let mut jobs: Vec<Value> = documents
        .into_iter()
        .filter(|d| d["kind"] == "TrainingJob")
        .collect();
    if jobs.len() > 1 {
        bail!("{shown}: it holds {} TrainingJobs; run takes one", jobs.len());
    }
    let Some(mut job) = jobs.pop() else {
        bail!("{shown}: it holds no object of kind TrainingJob");
    };
    for argument in set {
        apply_set(&mut job["spec"], argument).map_err(|e| anyhow!(e))?;
    }
    let manifest = validate::check(&job).map_err(|problems| {
        let lines: Vec<String> = problems.iter().map(|p| format!("\n  {p}")).collect();
        anyhow!("{shown}: the manifest is not valid:{}", lines.concat())
    })?;
    if manifest.spec()["suspend"] == true {
        bail!("{shown}: spec.suspend is true, so there is nothing to run; use --set suspend=false");
    }
    Ok(manifest)
}

/// A start that failed before training began, by a typo for example, does not use the directory up: what is
/// left of it is moved to `earlier/<UID>`.
fn set_failed_start_aside(output: &OutputDirectory, notes: &mut Vec<String>) -> anyhow::Result<()> {
    let earlier: Option<EarlierSummary> = output.read_json("summary.json")?;
    let Some(origin) = output.origin()? else {
        return Ok(());
    };
    let without_steps = earlier.is_some_and(|summary| summary.state == State::Failed && summary.steps == 0);
    if !without_steps {
        return Ok(());
    }
    let aside = output.make(&format!("earlier/{}", origin.job_uid))?;
    for name in [
        "membership.json",
        "logs",
        "records",
        "metrics.jsonl",
        "loss.svg",
        "job.yaml",
        "run.json",
        "summary.json",
    ] {
        match std::fs::rename(output.join(name), aside.join(name)) {
            Ok(()) => {}
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(e).with_context(|| format!("move {} aside", output.join(name).display())),
        }
    }
    notes.push(format!(
        "the last start failed before its first step; what is left of it is in {}",
        aside.display()
    ));
    Ok(())
}

fn refuse_finished(output: &OutputDirectory) -> anyhow::Result<()> {
    let shown = output.path().display();
    match FilePersist::open(output.path())?.saved()?.ending {
        None => Ok(()),
        Some(Ending::Complete { done }) => bail!(
            "run in {shown}: that run is complete ({} steps) and finished for ever; choose another directory with --out",
            done.total_steps
        ),
        Some(Ending::Failed { error }) => bail!(
            "run in {shown}: that run has failed and is finished for ever ({error}); choose another directory with --out, and to start from one of its checkpoints set checkpoint.resume: {{policy: Path, path: ...}}"
        ),
    }
}

fn check_unchanged(
    output: &OutputDirectory,
    origin: &Origin,
    name: &str,
    spec: &Value,
) -> anyhow::Result<()> {
    let shown = output.path().display();
    if origin.name != name {
        bail!(
            "go on in {shown}: it holds the run of {:?}, not of {name:?}; choose another directory with --out",
            origin.name
        );
    }
    changes::compare(&origin.spec, spec).map_err(|found| {
        let lines: Vec<String> = found.iter().map(|f| format!("\n  {f}")).collect();
        anyhow!(
            "go on in {shown}: the manifest differs from the one that this run began with:{}\nrestore these fields, or start a new run with --out",
            lines.concat()
        )
    })
}
