//! What the tests of `gradsync run` share: a place with a manifest, a running launcher, and ways to look at
//! what it does. All waits poll facts, with a deadline.

#![allow(dead_code, reason = "each test binary uses a part")]

use serde_json::{Value, json};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for anything. Generous, since a machine may be busy with other things.
const PATIENCE: Duration = Duration::from_secs(120);

/// Polls until `look` finds something.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

/// A directory for one test, with an output directory in it.
pub(crate) struct Place {
    directory: tempfile::TempDir,
    trainer: PathBuf,
}

impl Place {
    /// A place whose workers are the scripted ones.
    pub(crate) fn scripted() -> Place {
        Place::with_trainer(&beside_gradsync(
            "examples/scripted_trainer",
            "--example scripted_trainer",
        ))
    }

    /// A place whose workers train.
    pub(crate) fn training() -> Place {
        Place::with_trainer(&beside_gradsync("gradsync-trainer", "--bins"))
    }

    /// A place whose workers are never started.
    pub(crate) fn without_trainer() -> Place {
        Place::with_trainer(Path::new("/bin/true"))
    }

    /// A place whose workers are this program.
    pub(crate) fn with_trainer(trainer: &Path) -> Place {
        Place {
            directory: tempfile::tempdir().unwrap(),
            trainer: trainer.to_owned(),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn out(&self) -> PathBuf {
        self.path("out")
    }

    /// Writes the manifest of a scripted job of 12 steps on two workers.
    pub(crate) fn script(&self, parameters: Value, max_restarts: u32) -> PathBuf {
        self.manifest(json!({
            "task": {"name": "scripted", "parameters": parameters},
            "training": {"globalBatchSize": 8, "steps": 12, "optimizer": {"name": "SGD", "learningRate": 1}},
            "workers": {"replicas": 2},
            "failurePolicy": {"maxRestarts": max_restarts},
        }))
    }

    /// Writes a manifest with this spec. (JSON is YAML.)
    pub(crate) fn manifest(&self, spec: Value) -> PathBuf {
        let manifest = json!({
            "apiVersion": "gradsync.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": "test"},
            "spec": spec,
        });
        let path = self.path("job.yaml");
        fs::write(&path, manifest.to_string()).unwrap();
        path
    }

    /// `gradsync run MANIFEST` with this place's trainer and output, and more arguments.
    pub(crate) fn command(&self, manifest: &Path, more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gradsync"));
        command
            .arg("run")
            .arg(manifest)
            .arg("--out")
            .arg(self.out())
            .arg("--trainer")
            .arg(&self.trainer)
            .arg("--plain")
            .args(more)
            .stdin(Stdio::null());
        command
    }

    /// Starts the launcher with no signal ignored, however this test was started: a shell's background jobs
    /// ignore SIGINT, what `nohup` starts ignores SIGHUP, and the launcher heeds that.
    pub(crate) fn start(&self, manifest: &Path, more: &[&str]) -> Running {
        self.start_through(&["env", "--default-signal"], manifest, more)
    }

    /// Starts the launcher through `wrapper`, a program that becomes it, with its arguments.
    pub(crate) fn start_through(&self, wrapper: &[&str], manifest: &Path, more: &[&str]) -> Running {
        let plain = self.command(manifest, more);
        let mut command = Command::new(wrapper[0]);
        command
            .args(&wrapper[1..])
            .arg(plain.get_program())
            .args(plain.get_args())
            .stdin(Stdio::null());
        self.start_command(command)
    }

    pub(crate) fn start_command(&self, mut command: Command) -> Running {
        let text = self.path("terminal.txt");
        let file = File::create(&text).unwrap();
        let child = command
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        Running { child, text }
    }

    /// Runs to the end; the exit code and what was printed.
    pub(crate) fn run(&self, manifest: &Path, more: &[&str]) -> (i32, String) {
        self.start(manifest, more).end()
    }

    /// The same command while the first one runs.
    pub(crate) fn run_beside(&self, manifest: &Path) -> (i32, String) {
        let output = self.command(manifest, &[]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code().unwrap(), text)
    }

    pub(crate) fn summary(&self) -> Value {
        serde_json::from_slice(&fs::read(self.out().join("summary.json")).unwrap()).unwrap()
    }

    /// The file for which scripted ranks wait at a hold.
    pub(crate) fn hold(&self, before_step: u64) -> Value {
        json!({"beforeStep": before_step, "file": self.path("go")})
    }

    pub(crate) fn release_hold(&self) {
        fs::write(self.path("go"), "").unwrap();
    }

    /// Waits until the ranks of `generation` have recorded `commits` commits, and all `ranks` are in it.
    pub(crate) fn until_committed(&self, generation: u64, ranks: usize, commits: usize) {
        until(&format!("{commits} commits of generation {generation}"), || {
            let prefix = format!("{generation}-");
            let files: Vec<String> = fs::read_dir(self.out().join("records"))
                .ok()?
                .filter_map(|entry| entry.ok())
                .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
                .filter_map(|entry| fs::read_to_string(entry.path()).ok())
                .collect();
            let done = files
                .iter()
                .filter(|text| text.matches("\"committed\"").count() >= commits)
                .count();
            (done >= ranks).then_some(())
        });
    }

    /// Processes of this place's workers: process id, slot, and whether it is a rank.
    pub(crate) fn workers(&self) -> Vec<(i32, String, bool)> {
        let logs = format!(
            "GRADSYNC_LOG_DIRECTORY={}",
            fs::canonicalize(self.out()).unwrap().join("logs").display()
        );
        fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
            .filter_map(|pid| {
                let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
                let variables: Vec<String> = environment
                    .split(|b| *b == 0)
                    .map(|v| String::from_utf8_lossy(v).into_owned())
                    .collect();
                if !variables.contains(&logs) {
                    return None;
                }
                let slot = variables.iter().find_map(|v| v.strip_prefix("GRADSYNC_SLOT="))?;
                let rank = variables.iter().any(|v| v.starts_with("GRADSYNC_LOCAL_RANK="));
                Some((pid, slot.to_owned(), rank))
            })
            .collect()
    }

    /// Waits until no worker process is left.
    pub(crate) fn until_no_worker(&self) {
        until("no worker process", || self.workers().is_empty().then_some(()));
    }

    /// Kills the agent of `slot` as the kernel would.
    pub(crate) fn kill_agent(&self, slot: &str) {
        self.signal_agent(slot, rustix::process::Signal::KILL);
    }

    pub(crate) fn signal_agent(&self, slot: &str, which: rustix::process::Signal) {
        let (pid, ..) = until("an agent", || {
            self.workers()
                .into_iter()
                .find(|(_, its, rank)| its == slot && !rank)
        });
        signal(pid, which);
    }
}

pub(crate) fn signal(pid: i32, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// A launcher at work; killed when dropped.
pub(crate) struct Running {
    pub(crate) child: Child,
    text: PathBuf,
}

impl Running {
    pub(crate) fn signal(&self, which: rustix::process::Signal) {
        signal(i32::try_from(self.child.id()).unwrap(), which);
    }

    pub(crate) fn text(&self) -> String {
        fs::read_to_string(&self.text).unwrap()
    }

    pub(crate) fn status(&mut self) -> ExitStatus {
        until("the end of the launcher", || self.child.try_wait().unwrap())
    }

    /// Waits for the end; the exit code and what was printed.
    pub(crate) fn end(mut self) -> (i32, String) {
        let status = self.status();
        let text = self.text();
        (status.code().unwrap_or_else(|| panic!("{status}: {text}")), text)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn beside_gradsync(name: &str, build: &str) -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_gradsync"))
        .parent()
        .unwrap()
        .join(name);
    assert!(
        program.exists(),
        "{} is missing: build it first with cargo build -p gradsync-trainer {build}",
        program.display()
    );
    program
}
