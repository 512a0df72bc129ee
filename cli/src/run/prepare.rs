//! From arguments to a run that can be launched: everything that can be wrong with them is found here,
//! before anything is started.

use super::changes;
use super::kept;
use super::output::{Origin, OutputDirectory, way_out};
use super::set::apply_set;
use super::summary::{EarlierSummary, State};
use super::trainer_program;
use super::volumes::{MapArgument, Volumes, map_volumes, parse_map};
use crate::validate;
use anyhow::{Context as _, anyhow, bail};
use gradsync_formats::run_config::{RunConfig, resolve};
use gradsync_rendezvous::membership::{Ending, Saved};
use gradsync_rendezvous::server::{FilePersist, PersistError};
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
    /// Arguments that a new run of the same job needs, too.
    pub again: Vec<String>,
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
    let run_config = resolve(&name, manifest.spec()).map_err(|e| anyhow!("{e}"))?;
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
    let found = Found {
        name,
        run_config,
        trainer,
        overrides,
    };
    match fill(&output, request, &manifest, found) {
        Ok(filled) => Ok(filled.into_prepared(output)),
        Err(error) => {
            output.abandon();
            Err(error)
        }
    }
}

/// What was found out without the output directory.
struct Found {
    name: String,
    run_config: RunConfig,
    trainer: PathBuf,
    overrides: Vec<MapArgument>,
}

/// All of a [`Prepared`] but its directory.
struct Filled {
    found: Found,
    workers: u32,
    persist: FilePersist,
    saved: Saved,
    volumes: Volumes,
    again: Vec<String>,
    notes: Vec<String>,
}

impl Filled {
    fn into_prepared(self, output: OutputDirectory) -> Prepared {
        Prepared {
            workers: self.workers,
            name: self.found.name,
            run_config: self.found.run_config,
            output,
            persist: self.persist,
            saved: self.saved,
            volumes: self.volumes,
            trainer: self.found.trainer,
            again: self.again,
            notes: self.notes,
        }
    }
}

/// Compares with what the directory holds, and writes down what it will hold.
fn fill(
    output: &OutputDirectory,
    request: &Request,
    manifest: &validate::DefaultedManifest,
    mut found: Found,
) -> anyhow::Result<Filled> {
    let mut notes = vec![];
    set_failed_start_aside(output, &mut notes)?;
    let volumes = map_volumes(manifest.spec(), output.path(), &found.overrides).map_err(|e| anyhow!(e))?;
    let checkpoint = found.run_config.checkpoint.as_ref();
    let directory = checkpoint.map(|c| volumes.map.apply(c.directory.as_ref()));
    let again = again(request, &found, &volumes, directory.as_deref());
    match &output.origin()? {
        Some(origin) => {
            refuse_finished(output, |saved| {
                let lineage = saved
                    .formed
                    .as_ref()
                    .map(|f| f.lineage.clone())
                    .unwrap_or_default();
                let kept = kept::newest(directory.as_ref()?, &origin.job_uid, &lineage)?;
                kept::command(&kept, output.path(), &volumes.map, &again)
            })?;
            check_unchanged(output, origin, &found.name, manifest.spec())?;
            if !changes::differs("accumulation", &origin.spec, manifest.spec()) {
                // The grid was resolved once; other replicas do not change it.
                found.run_config.micro_batch_size = origin.run_config.micro_batch_size;
            }
        }
        None if request.resume => bail!(
            "resume in {}: there is no run; leave out --resume to start one",
            output.path().display()
        ),
        None => {}
    }
    for directory in ["logs", "records"] {
        output.make(directory)?;
    }
    let persist = open_membership(output)?;
    let saved = persist.saved()?;
    if saved.formed.is_some() {
        notes.push(format!("going on with the run in {}", output.path().display()));
    }
    if found.run_config.checkpoint.is_none() {
        notes.push("spec.checkpoint is absent: nothing is kept if the run is stopped or fails".to_owned());
    }
    notes.extend(
        manifest
            .warnings
            .iter()
            .map(|problem| format!("warning: {problem}")),
    );
    let workers = request.workers.unwrap_or(found.run_config.workers.replicas);
    notes.extend(super::idle::idle_ranks(&found.run_config, workers));
    let job_uid = persist.job_uid().clone();
    let mut object = manifest.object.clone();
    object["metadata"]["uid"] = Value::String(job_uid.0.clone());
    let yaml = serde_saphyr::to_string(&object).map_err(|e| anyhow!("write job.yaml: {e}"))?;
    output.write("job.yaml", yaml.as_bytes())?;
    let spec = manifest.spec().clone();
    let origin = Origin::new(job_uid, &found.name, spec, found.run_config.clone());
    let json = serde_json::to_vec_pretty(&origin).context("write run.json")?;
    output.write("run.json", &json)?;
    Ok(Filled {
        workers,
        found,
        persist,
        saved,
        volumes,
        again,
        notes,
    })
}

/// The arguments that a new run of the same job needs, too, wherever its command is given. The volumes that lie in
/// this run's output directory would lie in the new one's; what was put into them stays here. Checkpoints go
/// where the new run keeps its own.
fn again(request: &Request, found: &Found, volumes: &Volumes, checkpoints: Option<&Path>) -> Vec<String> {
    let given = found.overrides.iter().map(|o| (&o.mount, &o.target));
    let kept = volumes
        .inside
        .iter()
        .filter(|(_, target)| checkpoints != Some(target))
        .map(|(mount, target)| (mount, target));
    let maps = given.chain(kept).flat_map(|(mount, target)| {
        let map = format!("{}={}", mount.display(), target.display());
        ["--map".to_owned(), map]
    });
    let workers = request
        .workers
        .iter()
        .flat_map(|n| ["--workers".to_owned(), n.to_string()]);
    let trainer = request
        .trainer
        .iter()
        .flat_map(|_| ["--trainer".to_owned(), found.trainer.display().to_string()]);
    maps.chain(workers).chain(trainer).collect()
}

/// Opens or makes `membership.json`; the first file that needs space on the disk.
fn open_membership(output: &OutputDirectory) -> anyhow::Result<FilePersist> {
    FilePersist::open(output.path()).map_err(|error| match &error {
        PersistError::Io { source, .. } => {
            let way_out = way_out(source);
            anyhow!("{error}{way_out}")
        }
        _ => error.into(),
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

/// `command` makes, of what was saved, the command that begins a new run from the newest checkpoint.
fn refuse_finished(
    output: &OutputDirectory,
    command: impl FnOnce(&Saved) -> Option<String>,
) -> anyhow::Result<()> {
    let shown = output.path().display();
    let saved = open_membership(output)?.saved()?;
    match &saved.ending {
        None => Ok(()),
        Some(Ending::Complete { done }) => bail!(
            "run in {shown}: that run is complete ({} steps) and finished for ever; choose another directory with --out",
            done.total_steps
        ),
        Some(Ending::Failed { error }) => {
            let way_on = match command(&saved) {
                Some(command) => format!("a new run goes on from its newest checkpoint with\n  {command}"),
                None => {
                    "there is no checkpoint to go on from; choose another directory with --out".to_owned()
                }
            };
            bail!("run in {shown}: that run has failed and is finished for ever ({error}); {way_on}")
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_new_run_finds_the_data_and_the_program_of_this_one_from_any_directory() {
        let mount = |name: &str| json!({"name": name, "mountPath": format!("/{name}")});
        let claim = |name: &str| json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
        let spec = json!({
            "task": {"name": "count"},
            "training": {"globalBatchSize": 8, "steps": 1, "seed": 1, "optimizer": {"name": "SGD", "learningRate": 1}},
            "sync": {"strategy": "AllReduce"},
            "workers": {"replicas": 1, "template": {"spec": {
                "containers": [{"name": "trainer", "volumeMounts": [mount("data"), mount("ckpt"), mount("more")]}],
                "volumes": [claim("data"), claim("ckpt"), claim("more")]}}},
        });
        let found = Found {
            name: "job".into(),
            run_config: resolve("job", &spec).unwrap(),
            trainer: "/here/bin/own".into(),
            overrides: vec![MapArgument {
                mount: "/more".into(),
                target: "/here/more".into(),
            }],
        };
        let request = Request {
            manifest: "job.yaml".into(),
            workers: Some(2),
            out: None,
            map: vec!["/more=more".into()],
            set: vec![],
            trainer: Some("bin/own".into()),
            resume: false,
            fresh: false,
        };
        let volumes = map_volumes(&spec, Path::new("/out"), &found.overrides).unwrap();
        let checkpoints = volumes.map.apply(Path::new("/ckpt"));
        let more = again(&request, &found, &volumes, Some(&checkpoints)).join(" ");
        assert_eq!(
            more,
            "--map /more=/here/more --map /data=/out/volumes/data --workers 2 --trainer /here/bin/own"
        );
    }
}
