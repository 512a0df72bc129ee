//! The agent at work: feeds the supervisor with what happens and does what it says.

use super::exit_code;
use super::last_word::LastWord;
use super::oom::OomCounter;
use super::process::{RankProcess, RankProgram, last_error_in};
use super::rank_start::{StartError, hold_alive_lock, tie_to_parent};
use super::service::Service;
use super::supervisor::{Action, Event, Supervisor};
use gradsync_formats::environment as names;
use gradsync_formats::identity::{Incarnation, JobUid, PodUid};
use gradsync_rendezvous::wire::{BEAT_INTERVAL, ExitStatus, Secret};
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Happenings that may wait: ranks speak once a second, so a full queue means that this process hangs.
const QUEUE: usize = 1024;

/// Arguments of the agent; launcher and operator give them as environment variables.
#[derive(Debug, clap::Args)]
pub struct AgentArgs {
    /// URL of the rendezvous service.
    #[arg(long, env = names::SERVICE)]
    pub service: String,
    /// UID of the job.
    #[arg(long, env = names::JOB_UID)]
    pub job_uid: String,
    /// Slot of this pod.
    #[arg(long, env = names::SLOT)]
    pub slot: u32,
    /// UID of this pod.
    #[arg(long, env = names::POD_UID)]
    pub pod_uid: String,
    /// Secret with which this pod proves itself to the service.
    #[arg(long, env = names::POD_SECRET, hide_env_values = true)]
    pub pod_secret: String,
    /// Ranks of this pod: one process for each device.
    #[arg(long, env = names::DEVICES_PER_WORKER, default_value_t = 1)]
    pub devices_per_worker: u32,
    /// Threads of one operator in one rank.
    #[arg(long, env = names::INTRA_OP_THREADS, default_value_t = 1)]
    pub intra_op_threads: u32,
    /// Directory for each rank's output; without it output is passed through.
    #[arg(long, env = names::LOG_DIRECTORY)]
    pub log_directory: Option<PathBuf>,
    /// Seconds that ranks get to stop in order after SIGTERM or SIGINT.
    #[arg(long, env = names::GRACE_SECONDS, default_value_t = 25)]
    pub grace_seconds: u64,
    /// File for the agent's last word, as JSON.
    #[arg(long, env = names::TERMINATION_MESSAGE)]
    pub termination_message: Option<PathBuf>,
    /// File to hold a shared lock on while this process lives.
    #[arg(long, env = names::ALIVE_LOCK)]
    pub alive_lock: Option<PathBuf>,
    /// Process id of the parent with which to end; without it the parent is not watched.
    #[arg(long, env = names::PARENT_PID)]
    pub parent_pid: Option<i32>,
}

/// Something for the agent's loop.
#[derive(Debug)]
pub enum Happening {
    /// For the supervisor.
    Event(Event),
    /// SIGTERM or SIGINT.
    Signal(&'static str),
    /// The service cannot be spoken to, for good.
    ServiceLost(String),
}

/// Why the agent could not work at all.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// It cannot start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The system refused something.
    #[error("{action}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// Why not.
        source: std::io::Error,
    },
    /// The service's URL or secret is of no use.
    #[error("reach the rendezvous service at {url}: {problem}")]
    Service {
        /// Its URL.
        url: String,
        /// What is wrong.
        problem: String,
    },
}

/// Runs the agent until all its ranks are through; returns its exit code. Ranks are started as
/// `<this program> rank`.
///
/// # Errors
/// When it could not work at all.
pub fn run(args: AgentArgs) -> Result<u8, AgentError> {
    // All on one thread: the kernel ends children with the thread that started them, and this one lives as
    // long as the process.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| AgentError::System {
            action: "start the runtime",
            source,
        })?;
    runtime.block_on(work(args))
}

async fn work(args: AgentArgs) -> Result<u8, AgentError> {
    tie_to_parent(args.parent_pid)?;
    hold_alive_lock(args.alive_lock.as_deref())?;
    let program = std::env::current_exe().map_err(|source| AgentError::System {
        action: "find this program's own file",
        source,
    })?;
    let job = JobUid(args.job_uid.clone());
    let pod = PodUid(args.pod_uid.clone());
    let (send, mut receive) = mpsc::channel(QUEUE);
    watch_signals(send.clone())?;
    let service = Service::start(
        &args.service,
        job.clone(),
        pod.clone(),
        Secret::new(args.pod_secret),
        send.clone(),
    )
    .map_err(|error| AgentError::Service {
        url: args.service.clone(),
        problem: error.to_string(),
    })?;
    let (mut supervisor, first) = Supervisor::new(args.slot, pod, args.devices_per_worker);
    let mut hands = Hands {
        program: RankProgram {
            program,
            arguments: vec!["rank".into()],
            job,
            slot: args.slot,
            logs: args.log_directory,
            intra_op_threads: args.intra_op_threads,
        },
        service,
        send,
        ranks: BTreeMap::new(),
        log_starts: BTreeMap::new(),
        oom: OomCounter::start(),
    };
    let begun = Instant::now();
    let grace = Duration::from_secs(args.grace_seconds);
    let mut ticks = tokio::time::interval(BEAT_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut actions = VecDeque::from(first);
    loop {
        while let Some(action) = actions.pop_front() {
            if let Action::Exit { code, error } = action {
                hands.service.drain().await;
                LastWord { code, error }.leave(args.termination_message.as_deref());
                return Ok(code);
            }
            for event in hands.act(action) {
                actions.extend(supervisor.handle(event));
            }
        }
        actions = VecDeque::from(tokio::select! {
            Some(happening) = receive.recv() => match happening {
                Happening::Event(event) => {
                    let event = hands.complete(event);
                    supervisor.handle(event)
                }
                Happening::Signal(name) => {
                    tracing::info!(signal = name, "told to stop");
                    supervisor.handle(Event::StopSignal { name: name.into(), grace })
                }
                Happening::ServiceLost(problem) => {
                    return Err(AgentError::Service { url: args.service, problem });
                }
            },
            _ = ticks.tick() => {
                if let Some(beat) = supervisor.beat() {
                    hands.service.beat(beat);
                }
                supervisor.handle(Event::Tick { now: begun.elapsed() })
            }
        });
    }
}

fn watch_signals(send: mpsc::Sender<Happening>) -> Result<(), AgentError> {
    for (kind, name) in [
        (SignalKind::terminate(), "SIGTERM"),
        (SignalKind::interrupt(), "SIGINT"),
    ] {
        let mut stream = signal(kind).map_err(|source| AgentError::System {
            action: "watch signals",
            source,
        })?;
        let send = send.clone();
        tokio::spawn(async move {
            while stream.recv().await.is_some() {
                if send.send(Happening::Signal(name)).await.is_err() {
                    return;
                }
            }
        });
    }
    Ok(())
}

/// What the agent acts with.
struct Hands {
    program: RankProgram,
    service: Service,
    send: mpsc::Sender<Happening>,
    ranks: BTreeMap<u32, RankProcess>,
    /// Length of each rank's log when its present process was started.
    log_starts: BTreeMap<u32, u64>,
    oom: OomCounter,
}

impl Hands {
    /// Does it; returns what happened at once.
    fn act(&mut self, action: Action) -> Vec<Event> {
        match action {
            Action::Start { local, number } => return self.start(local, number),
            Action::StartAfter { local, wait } => self.later(wait, Event::StartDue { local }),
            Action::Tell { local, message } => {
                if let Some(rank) = self.ranks.get(&local)
                    && !rank.tell(message)
                {
                    tracing::warn!(local, "the rank does not read its link");
                }
            }
            Action::Join(request) => self.service.join(*request),
            Action::Report { number, request } => self.service.report(number, *request),
            Action::ReportExit(report) => {
                tracing::info!(member = %report.member, status = %report.status, "rank ended");
                self.service.exited(report);
            }
            Action::Kill { local, reason } => {
                tracing::warn!(local, reason, "killing the rank");
                if let Some(rank) = self.ranks.get(&local) {
                    rank.kill();
                }
            }
            Action::KillAfter(wait) => self.later(wait, Event::KillDue),
            // Taken by the loop, which ends with it.
            Action::Exit { .. } => {}
        }
        vec![]
    }

    fn start(&mut self, local: u32, number: u32) -> Vec<Event> {
        let incarnation = Incarnation::fresh();
        let log = self.program.log_file(local);
        let length = log.and_then(|path| path.metadata().ok()).map_or(0, |m| m.len());
        self.log_starts.insert(local, length);
        let mut events = vec![Event::Started { local, incarnation }];
        match self.program.start(local, number, incarnation, self.send.clone()) {
            Ok(process) => {
                tracing::info!(local, %incarnation, number, "rank started");
                self.ranks.insert(local, process);
            }
            Err(error) => {
                let error = format!("start {}: {error}", self.program.program.display());
                tracing::error!(local, error);
                let status = ExitStatus {
                    code: Some(i32::from(exit_code::FAULT)),
                    error: Some(error),
                    ..ExitStatus::default()
                };
                events.push(Event::Exited { local, status });
            }
        }
        events
    }

    fn later(&self, wait: Duration, event: Event) {
        let send = self.send.clone();
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            let _ = send.send(Happening::Event(event)).await;
        });
    }

    /// Adds to the end of a process what only this machine knows.
    fn complete(&mut self, event: Event) -> Event {
        let Event::Exited { local, mut status } = event else {
            return event;
        };
        self.ranks.remove(&local);
        let killed = status.signal == Some(rustix::process::Signal::KILL.as_raw());
        status.oom_killed = self.oom.rose() && killed;
        let failed = status.code != Some(0);
        if status.error.is_none()
            && failed
            && let Some(log) = self.program.log_file(local)
        {
            let from = self.log_starts.get(&local).copied().unwrap_or(0);
            status.error = last_error_in(&log, from);
        }
        Event::Exited { local, status }
    }
}
