//! The launcher at work: the rendezvous service in this process, one agent for each worker, and a loop that
//! brings back agents that die, follows the records and shows how it goes.

use super::agents::{Agent, AgentEnd, AgentProgram, exit_code};
use super::finish::{self, Ended};
use super::history::{History, MemberDigest};
use super::live::Live;
use super::logs;
use super::output::OutputDirectory;
use super::prepare::Prepared;
use super::proof;
use super::signals::Signals;
use super::summary::State;
use super::view::{View, put};
use anyhow::Context as _;
use gradsync_formats::identity::PodUid;
use gradsync_formats::run_config::RunConfig;
use gradsync_rendezvous::membership::{Ending, Settings, SizeBounds};
use gradsync_rendezvous::server::{
    self, EndProof, LocalAuthenticator, ServiceHandle, ServiceOptions, ServicePhase,
};
use gradsync_rendezvous::wire::{ExitStatus, StopCause};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// How a run ended.
pub use super::summary::State as Outcome;

/// What concerns this start alone.
#[derive(Clone, Debug)]
pub struct Options {
    /// Lines instead of bars.
    pub plain: bool,
    /// What workers get to stop in order.
    pub grace: Duration,
    /// Address of the rendezvous service.
    pub listen: SocketAddr,
}

/// How often the records are read and the view is brought up to date.
const LOOK: Duration = Duration::from_millis(250);
/// How long agents may take to end once the job has ended: ranks are told by a held poll, then exit.
const END_GRACE: Duration = Duration::from_secs(20);
/// Longest wait before an agent that died again and again is started once more.
const LONGEST_WAIT: Duration = Duration::from_secs(16);

/// Trains; returns when all processes have ended and the output is written.
///
/// # Errors
/// When training could not be started or the output not be written.
pub fn launch(prepared: Prepared, options: &Options) -> anyhow::Result<Outcome> {
    // All on one thread: the kernel ends agents with the thread that started them, and this one lives as
    // long as the process.
    logs::log_to(&prepared.output.join("logs/launcher.log"))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the runtime")?;
    runtime.block_on(work(prepared, options))
}

async fn work(prepared: Prepared, options: &Options) -> anyhow::Result<Outcome> {
    let started = Instant::now();
    let mut view = View::new(options.plain);
    for note in &prepared.notes {
        view.say(note);
    }
    // Signals count from here on; before, they end this process, which has no children yet.
    let mut signals = Signals::watch()?;
    proof::wait_for_earlier_workers(&prepared.output).await?;
    let service = start_service(&prepared, options).await?;
    let (send, ends) = mpsc::channel(64);
    let mut launcher = Launcher {
        program: program(&prepared, &service, options),
        live: Live::new(&prepared, started)?,
        slots: (0..prepared.workers).map(|_| Slot::default()).collect(),
        service,
        send,
        ends,
        stopping: None,
        killed: false,
        over_at: None,
        trouble: None,
        given_up: None,
    };
    view.say(&format!(
        "training {} with {} in {}",
        prepared.name,
        workers(prepared.workers),
        prepared.output.path().display()
    ));
    launcher.train(&mut view, &mut signals, options).await?;
    view.finish();
    let (state, error) = launcher.verdict();
    let snapshot = launcher.service.snapshot();
    let history = launcher.live.into_history();
    let ended = Ended {
        name: prepared.name.clone(),
        job_uid: prepared.persist.job_uid().clone(),
        state,
        error,
        wall_seconds: started.elapsed().as_secs_f64(),
        setup_seconds: history.1,
        restarts: u32::try_from(snapshot.restarts.charged.len()).unwrap_or(u32::MAX),
        digests: final_digests(&snapshot.done, &history.0),
        checkpoints: checkpoint_directory(&prepared),
    };
    launcher.service.shut_down().await;
    report(&prepared.output, &ended, &history.0)?;
    if state == State::Failed
        && let Some(charge) = snapshot.restarts.charged.last()
    {
        let id = &charge.member;
        let log = prepared
            .output
            .join(&format!("logs/worker-{}-{}.log", id.slot, id.local_rank));
        put(&logs::tail(&log));
    }
    Ok(state)
}

fn report(output: &OutputDirectory, ended: &Ended, history: &History) -> anyhow::Result<()> {
    let summary = finish::summarise(ended, history);
    finish::write(output, &summary, history)?;
    put(&summary.for_people(output.path()));
    Ok(())
}

fn workers(count: u32) -> String {
    if count == 1 {
        "1 worker".to_owned()
    } else {
        format!("{count} workers")
    }
}

fn checkpoint_directory(prepared: &Prepared) -> Option<PathBuf> {
    let checkpoint = prepared.run_config.checkpoint.as_ref()?;
    Some(prepared.volumes.map.apply(checkpoint.directory.as_ref()))
}

/// The ranks' own reports; without them what the records say.
fn final_digests(
    done: &std::collections::BTreeMap<u32, gradsync_rendezvous::wire::DoneReport>,
    history: &History,
) -> Vec<MemberDigest> {
    let of_record = history.digests();
    done.iter()
        .map(|(rank, report)| MemberDigest {
            rank: *rank,
            slot: of_record
                .iter()
                .find(|d| d.rank == *rank)
                .map_or(*rank, |d| d.slot),
            digest: report.state_digest.clone(),
        })
        .collect()
}

async fn start_service(
    prepared: &Prepared,
    options: &Options,
) -> anyhow::Result<ServiceHandle<LocalAuthenticator>> {
    let config: &RunConfig = &prepared.run_config;
    let settings = Settings::new(
        prepared.persist.job_uid().clone(),
        SizeBounds::fixed(prepared.workers),
        config.digest(),
    );
    let service = server::start(
        options.listen,
        ServiceOptions::new(settings, config.clone()),
        prepared.persist.clone(),
        LocalAuthenticator::default(),
    )
    .await?;
    // The workers of an earlier start have ended: their locks are free. Nothing waits for them.
    let earlier = prepared.saved.formed.iter().flat_map(|formed| &formed.members);
    for member in earlier {
        service
            .pod_ended(member.pod.clone(), member.slot, EndProof::default())
            .await;
    }
    Ok(service)
}

fn program(
    prepared: &Prepared,
    service: &ServiceHandle<LocalAuthenticator>,
    options: &Options,
) -> AgentProgram {
    AgentProgram {
        trainer: prepared.trainer.clone(),
        job: prepared.persist.job_uid().clone(),
        service: service.url(),
        devices_per_worker: prepared.run_config.workers.devices_per_worker,
        intra_op_threads: prepared.run_config.workers.intra_op_threads,
        paths: prepared.volumes.map.clone(),
        logs: prepared.output.join("logs"),
        records: prepared.output.join("records"),
        alive: proof::lock_file(&prepared.output),
        grace: options.grace,
    }
}

/// One worker's place.
#[derive(Debug, Default)]
struct Slot {
    agent: Option<Agent>,
    /// When to start the next agent.
    start_at: Option<Instant>,
    /// Ends of its agents since the last commit of the group.
    fruitless: u32,
    commit_at_start: u64,
    /// How the last agent ended, for the view.
    last: Option<ExitStatus>,
}

struct Launcher {
    program: AgentProgram,
    live: Live,
    slots: Vec<Slot>,
    service: ServiceHandle<LocalAuthenticator>,
    send: mpsc::Sender<AgentEnd>,
    ends: mpsc::Receiver<AgentEnd>,
    /// Until when the workers may stop in order, once they were asked to.
    stopping: Option<Instant>,
    killed: bool,
    /// Until when agents may end by themselves, once the job has ended.
    over_at: Option<Instant>,
    /// What made an orderly end impossible.
    trouble: Option<String>,
    /// Why the job was failed by the launcher itself.
    given_up: Option<String>,
}

impl Launcher {
    async fn train(
        &mut self,
        view: &mut View,
        signals: &mut Signals,
        options: &Options,
    ) -> anyhow::Result<()> {
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let now = Instant::now();
        for slot in &mut self.slots {
            slot.start_at = Some(now);
        }
        loop {
            self.start_due(view).await;
            if self
                .slots
                .iter()
                .all(|s| s.agent.is_none() && s.start_at.is_none())
            {
                // The last records may have been written since they were read.
                self.live.read()?;
                return Ok(());
            }
            let deadline = self.deadline();
            tokio::select! {
                Some(end) = self.ends.recv() => self.agent_ended(end, view).await,
                name = signals.next() => self.signalled(name, view, options).await,
                () = sleep_until(deadline) => self.time_up(view),
                _ = looks.tick() => {
                    self.live.read()?;
                    self.notice_end();
                    let agents: Vec<Option<&ExitStatus>> = self
                        .slots
                        .iter()
                        .map(|s| if s.agent.is_some() { None } else { s.last.as_ref() })
                        .collect();
                    let snapshot = self.live.snapshot(&self.service.snapshot(), &agents);
                    view.show(&snapshot, std::time::Instant::now());
                }
            }
        }
    }

    /// Whether no agent is to be started any more.
    fn is_over(&self) -> bool {
        self.over_at.is_some() || self.killed
    }

    async fn start_due(&mut self, view: &View) {
        let now = Instant::now();
        let commit = self.live.commit();
        let over = self.is_over();
        let mut failed = None;
        for (index, slot) in (0u32..).zip(&mut self.slots) {
            if over {
                slot.start_at = None;
            }
            if slot.start_at.is_none_or(|at| at > now) {
                continue;
            }
            slot.start_at = None;
            slot.commit_at_start = commit;
            let pod = PodUid(uuid::Uuid::new_v4().to_string());
            let secret = self.service.pod_started(pod.clone(), index);
            match self.program.start(index, &pod, &secret, self.send.clone()) {
                Ok(agent) => slot.agent = Some(agent),
                Err(error) => {
                    let text = format!("start {}: {error}", self.program.trainer.display());
                    view.say(&text);
                    failed = Some(text);
                }
            }
        }
        if let Some(text) = failed {
            self.give_up(text).await;
        }
    }

    /// Fails the job for a reason that the service cannot see.
    async fn give_up(&mut self, error: String) {
        self.given_up.get_or_insert_with(|| error.clone());
        self.service.give_up(error).await;
    }

    async fn agent_ended(&mut self, end: AgentEnd, view: &View) {
        let AgentEnd {
            slot: index,
            pod,
            status,
        } = end;
        let commit = self.live.commit();
        let over = self.is_over();
        let Some(slot) = self.slots.get_mut(index as usize) else {
            return;
        };
        if let Some(agent) = slot.agent.take() {
            agent.forget();
        }
        slot.last = Some(status.clone());
        let orderly = matches!(status.code, Some(exit_code::FINISHED | exit_code::STOPPED));
        // Its ranks' ends were charged one by one already.
        let hopeless = matches!(status.code, Some(exit_code::USER_ERROR | exit_code::USAGE));
        let charged = !orderly && !hopeless && status.code != Some(exit_code::GAVE_UP);
        let proof = EndProof {
            charge: charged.then(|| status.clone()),
        };
        self.service.pod_ended(pod, index, proof).await;
        if orderly || over {
            return;
        }
        if hopeless {
            self.give_up(format!("worker {index}: {}", plain(&status))).await;
            return;
        }
        if self.stopping.is_some() {
            view.say(&format!("worker {index} ended while stopping: {status}"));
            return;
        }
        if commit > slot.commit_at_start {
            slot.fruitless = 0;
        }
        let wait = match slot.fruitless {
            0 => Duration::ZERO,
            n => Duration::from_secs(1 << n.min(5)).min(LONGEST_WAIT),
        };
        slot.fruitless += 1;
        slot.start_at = Some(Instant::now() + wait);
        view.say(&format!("worker {index} ended ({status}); it is started again"));
    }

    async fn signalled(&mut self, name: &str, view: &View, options: &Options) {
        if self.stopping.is_some() {
            view.say(&format!("{name} again: ending the workers at once"));
            self.trouble = Some(
                "ended at once by a second signal; what was trained since the last checkpoint is lost".into(),
            );
            self.kill_all();
            return;
        }
        view.say(&format!(
            "{name}: stopping at the next step and writing a checkpoint (again: at once)"
        ));
        self.stopping = Some(Instant::now() + options.grace);
        for slot in &mut self.slots {
            slot.start_at = None;
        }
        let within_ms = u64::try_from(options.grace.as_millis()).unwrap_or(u64::MAX);
        let reason = format!("interrupted by {name}");
        self.service.stop(StopCause { reason, within_ms }).await;
    }

    /// Notices that the job has ended, from when on agents have a deadline.
    fn notice_end(&mut self) {
        let phase = self.service.snapshot().phase;
        if matches!(
            phase,
            ServicePhase::Complete | ServicePhase::Failed | ServicePhase::Stopped
        ) {
            self.over_at.get_or_insert_with(|| Instant::now() + END_GRACE);
        }
    }

    fn deadline(&self) -> Instant {
        let start = self.slots.iter().filter_map(|s| s.start_at).min();
        let far = Instant::now() + Duration::from_secs(3600);
        if self.killed {
            return far;
        }
        [self.stopping, self.over_at, start]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(far)
    }

    fn time_up(&mut self, view: &View) {
        let now = Instant::now();
        if self.over_at.is_some_and(|at| at <= now) {
            self.kill_all();
        } else if self.stopping.is_some_and(|at| at <= now) {
            view.say("the workers did not stop in time: ending them");
            self.trouble = Some(
                "the workers did not stop in time; what was trained since the last checkpoint is lost".into(),
            );
            self.kill_all();
        }
    }

    fn kill_all(&mut self) {
        self.killed = true;
        for slot in &mut self.slots {
            slot.start_at = None;
            if let Some(agent) = &slot.agent {
                agent.kill();
            }
        }
    }

    fn verdict(&self) -> (State, Option<String>) {
        let snapshot = self.service.snapshot();
        match (&snapshot.ending, self.stopping) {
            (Some(Ending::Complete { .. }), _) => (State::Complete, None),
            (Some(Ending::Failed { error }), _) => (State::Failed, Some(error.clone())),
            (None, _) if self.given_up.is_some() => (State::Failed, self.given_up.clone()),
            (None, Some(_)) => (State::Stopped, self.trouble.clone()),
            (None, None) => {
                let stopped = self.slots.iter().any(|s| {
                    s.last
                        .as_ref()
                        .is_some_and(|l| l.code == Some(exit_code::STOPPED))
                });
                if stopped {
                    let text = "a worker was told to stop (SIGTERM to its agent)";
                    (State::Stopped, Some(text.to_owned()))
                } else {
                    (
                        State::Failed,
                        Some("all workers ended before the run was complete".to_owned()),
                    )
                }
            }
        }
    }
}

/// An agent's own error where it left one.
fn plain(status: &ExitStatus) -> String {
    status.error.clone().unwrap_or_else(|| status.to_string())
}
