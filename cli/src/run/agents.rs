//! The agents: one process for each worker, the parent of its ranks, as a pod would be on a cluster.

use gradsync_formats::environment as names;
use gradsync_formats::identity::{JobUid, PodUid};
use gradsync_formats::path_map::PathMap;
use gradsync_rendezvous::wire::{ExitStatus, Secret};
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use serde::Deserialize;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

/// The trainer's exit codes that the launcher tells apart (`trainer/src/agent/exit_code.rs` has all).
pub mod exit_code {
    /// The job is complete, or there was nothing left to do.
    pub const FINISHED: i32 = 0;
    /// Wrong use of the program.
    pub const USAGE: i32 = 2;
    /// The user's mistake.
    pub const USER_ERROR: i32 = 3;
    /// The service refused a rank: its model or data are not the group's, or the job has failed.
    pub const REFUSED: i32 = 5;
    /// Stopped in order on request.
    pub const STOPPED: i32 = 6;
    /// Its ranks were started too often in vain.
    pub const GAVE_UP: i32 = 7;
}

/// How agents are started.
#[derive(Clone, Debug)]
pub struct AgentProgram {
    /// The trainer.
    pub trainer: PathBuf,
    /// The job.
    pub job: JobUid,
    /// URL of the rendezvous service.
    pub service: String,
    /// Ranks of each worker.
    pub devices_per_worker: u32,
    /// Threads of one operator in one rank.
    pub intra_op_threads: u32,
    /// Where container paths lie.
    pub paths: PathMap,
    /// `OUT/logs`.
    pub logs: PathBuf,
    /// `OUT/records`.
    pub records: PathBuf,
    /// The file that agents and ranks lock while they live.
    pub alive: PathBuf,
    /// What ranks get to stop in order once their agent is told to.
    pub grace: Duration,
}

/// A running agent. Dropping it kills the process and its ranks.
#[derive(Debug)]
pub struct Agent {
    /// Its pod.
    pub pod: PodUid,
    /// Process id, which is also its process group's.
    pid: Option<Pid>,
}

/// An agent has ended and was reaped.
#[derive(Clone, Debug)]
pub struct AgentEnd {
    /// Its slot.
    pub slot: u32,
    /// Its pod.
    pub pod: PodUid,
    /// How it ended, with its last word.
    pub status: ExitStatus,
}

/// What an agent leaves in a file (`trainer/src/agent/last_word.rs`).
#[derive(Deserialize)]
struct LastWord {
    error: Option<String>,
}

impl AgentProgram {
    /// The file of an agent's own output.
    #[must_use]
    pub fn log_file(&self, slot: u32) -> PathBuf {
        self.logs.join(format!("worker-{slot}-agent.log"))
    }

    fn last_word_file(&self, slot: u32) -> PathBuf {
        self.logs.join(format!("worker-{slot}-last-word.json"))
    }

    /// What to say of an agent that ended with `status` and never spoke to the service.
    #[must_use]
    pub fn not_a_trainer(&self, slot: u32, status: &ExitStatus) -> String {
        let trainer = self.trainer.display();
        format!(
            "{trainer} {status} without joining the run; it was called as `{trainer} agent` with what it needs in \
             environment variables (GRADSYNC_*), and what it printed is in {}; --trainer takes gradsync-trainer, or a \
             program of yours whose main calls gradsync_trainer::main",
            self.log_file(slot).display()
        )
    }

    /// Starts the agent of `slot` as `pod`; its end is sent to `ends`. Must be called on the thread that
    /// lives as long as this process: the kernel ends the agent with the thread that started it.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn start(
        &self,
        slot: u32,
        pod: &PodUid,
        secret: &Secret,
        ends: mpsc::Sender<AgentEnd>,
    ) -> io::Result<Agent> {
        // A last word of an earlier process must not be taken for this one's.
        match std::fs::remove_file(self.last_word_file(slot)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log_file(slot))?;
        let paths = serde_json::to_string(&self.paths)?;
        let mut command = Command::new(&self.trainer);
        command
            .arg("agent")
            .env(names::SERVICE, &self.service)
            .env(names::JOB_UID, &self.job.0)
            .env(names::SLOT, slot.to_string())
            .env(names::POD_UID, &pod.0)
            .env(names::POD_SECRET, secret.reveal())
            .env(names::DEVICES_PER_WORKER, self.devices_per_worker.to_string())
            .env(names::INTRA_OP_THREADS, self.intra_op_threads.to_string())
            .env(names::PATH_MAP, paths)
            .env(names::LOG_DIRECTORY, &self.logs)
            .env(names::RECORD_DIRECTORY, &self.records)
            .env(names::LISTEN_ADDRESS, "127.0.0.1")
            .env(names::ALIVE_LOCK, &self.alive)
            .env(names::GRACE_SECONDS, self.grace.as_secs().to_string())
            .env(names::TERMINATION_MESSAGE, self.last_word_file(slot))
            .env(names::PARENT_PID, std::process::id().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::from(log.try_clone()?))
            .stderr(Stdio::from(log))
            // A group of its own: Ctrl-C in the terminal reaches the launcher alone, which decides.
            .process_group(0)
            .kill_on_drop(true);
        let child = command.spawn()?;
        let pid = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw);
        tokio::spawn(reap(
            child,
            pid,
            slot,
            pod.clone(),
            self.last_word_file(slot),
            ends,
        ));
        Ok(Agent {
            pod: pod.clone(),
            pid,
        })
    }
}

impl Agent {
    /// Kills the agent and its ranks; its end is told as any other.
    pub fn kill(&self) {
        signal_group(self.pid, Signal::KILL);
    }

    /// Notes that its end was told: the process id may be another's by now.
    pub fn forget(mut self) {
        self.pid = None;
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Without effect where the group is gone already.
        self.kill();
    }
}

fn signal_group(pid: Option<Pid>, signal: Signal) {
    if let Some(pid) = pid {
        // The only error that can come is that the group is gone.
        let _ = kill_process_group(pid, signal);
    }
}

/// Waits until no process of the group is left. Where nobody reaps orphans they stay as zombies, which do
/// nothing any more: hence the deadline.
async fn wait_for_group(pid: Option<Pid>) {
    const STEP: Duration = Duration::from_millis(10);
    const STEPS: u32 = 100;
    let Some(pid) = pid else { return };
    for _ in 0..STEPS {
        if test_kill_process_group(pid).is_err() {
            return;
        }
        tokio::time::sleep(STEP).await;
    }
}

async fn reap(
    mut child: Child,
    pid: Option<Pid>,
    slot: u32,
    pod: PodUid,
    last_word: PathBuf,
    ends: mpsc::Sender<AgentEnd>,
) {
    let ended = child.wait().await;
    // Ranks die with their agent by the kernel's hand; those that could not ask for it yet die here, so
    // that the end of the agent proves the end of all.
    signal_group(pid, Signal::KILL);
    wait_for_group(pid).await;
    let word: Option<LastWord> = std::fs::read(&last_word)
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let status = match ended {
        Ok(status) => ExitStatus {
            code: status.code(),
            signal: status.signal(),
            oom_killed: false,
            error: word.and_then(|word| word.error),
        },
        Err(error) => ExitStatus {
            error: Some(format!("wait for the agent: {error}")),
            ..ExitStatus::default()
        },
    };
    // A launcher that does not listen any more is ending itself.
    let _ = ends.send(AgentEnd { slot, pod, status }).await;
}
