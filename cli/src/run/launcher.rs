//! The launcher's loop: starts one agent for each worker, brings back those that die, passes on signals,
//! follows the records and shows how it goes.

use super::after_agent::{AfterAgent, AgentFacts, wait_before_restart};
use super::agents::{Agent, AgentEnd, AgentProgram, exit_code};
use super::fallbacks::Fallbacks;
use super::live::Live;
use super::signals::Signals;
use super::view::View;
use gradsync_formats::identity::PodUid;
use gradsync_rendezvous::server::{EndProof, LocalAuthenticator, ServiceHandle, ServicePhase};
use gradsync_rendezvous::wire::{ExitStatus, StopCause};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// How often the records are read and the view is brought up to date.
const LOOK: Duration = Duration::from_millis(250);
/// How long agents may take to end once the job has ended: ranks are told by a held poll, then exit.
const END_GRACE: Duration = Duration::from_secs(20);

/// One worker's place.
#[derive(Debug, Default)]
struct Slot {
    agent: Option<Agent>,
    /// Whether a rank of the agent has joined.
    joined: bool,
    /// When to start the next agent.
    start_at: Option<Instant>,
    /// Ends of its agents since the last commit of the group.
    fruitless: u32,
    /// Of these, the ones that cost nothing.
    free_ends: u32,
    commit_at_start: u64,
    /// How the last agent ended, for the view.
    last: Option<ExitStatus>,
}

/// A wish that the workers stop.
#[derive(Clone, Copy, Debug)]
struct Stopping {
    /// Until when they may stop in order.
    until: Instant,
    /// Whether a signal to the launcher asked for it.
    by_signal: bool,
}

/// See the module.
pub(super) struct Launcher {
    /// How agents are started.
    pub(super) program: AgentProgram,
    /// What is known of the run so far.
    pub(super) live: Live,
    slots: Vec<Slot>,
    /// The rendezvous service.
    pub(super) service: ServiceHandle<LocalAuthenticator>,
    send: mpsc::Sender<AgentEnd>,
    ends: mpsc::Receiver<AgentEnd>,
    grace: Duration,
    stopping: Option<Stopping>,
    killed: bool,
    /// Until when agents may end by themselves, once the job has ended.
    over_at: Option<Instant>,
    /// What made an orderly end impossible, or was not the user's wish.
    pub(super) trouble: Option<String>,
    /// Why the job was failed by the launcher itself.
    pub(super) given_up: Option<String>,
    /// Whether a worker ended by the user's mistake, or could not be run.
    pub(super) mistake: bool,
    /// The worker whose program is no trainer.
    pub(super) stranger: Option<u32>,
    /// Returns beyond the newest checkpoint.
    pub(super) fallbacks: Fallbacks,
    /// Whether it was told that the records cannot be read.
    blind: bool,
    /// Why the membership could not be saved, as it was told.
    unsaved: Option<String>,
}

impl Launcher {
    pub(super) fn new(
        program: AgentProgram,
        live: Live,
        workers: u32,
        service: ServiceHandle<LocalAuthenticator>,
        grace: Duration,
        fallbacks: Fallbacks,
    ) -> Launcher {
        let (send, ends) = mpsc::channel(64);
        Launcher {
            program,
            live,
            slots: (0..workers).map(|_| Slot::default()).collect(),
            service,
            send,
            ends,
            grace,
            stopping: None,
            killed: false,
            over_at: None,
            trouble: None,
            given_up: None,
            mistake: false,
            stranger: None,
            fallbacks,
            blind: false,
            unsaved: None,
        }
    }

    /// Whether the workers were asked to stop.
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.is_some()
    }

    /// Trains until all agents have ended.
    pub(super) async fn train(&mut self, view: &mut View, signals: &mut Signals) {
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
                while self.read(view) {}
                self.fallbacks.take(self.live.fallbacks(), view);
                tokio::select! {
                    () = self.fallbacks.rest(view) => {}
                    _ = signals.next() => {}
                }
                self.fallbacks.give_up(view);
                return;
            }
            let deadline = self.deadline();
            tokio::select! {
                Some(end) = self.ends.recv() => self.agent_ended(end, view).await,
                name = signals.next() => self.signalled(name, view).await,
                () = sleep_until(deadline) => self.time_up(view),
                () = self.fallbacks.next(view) => {}
                _ = looks.tick() => self.look(view),
            }
        }
    }

    fn look(&mut self, view: &mut View) {
        self.read(view);
        self.fallbacks.take(self.live.fallbacks(), view);
        let service = self.service.snapshot();
        let ended = matches!(
            service.phase,
            ServicePhase::Complete | ServicePhase::Failed | ServicePhase::Stopped
        );
        if ended {
            // From now on agents have a deadline.
            self.over_at.get_or_insert_with(|| Instant::now() + END_GRACE);
        }
        for slot in &mut self.slots {
            let pod = slot.agent.as_ref().map(|agent| &agent.pod);
            slot.joined |= service.members.iter().any(|m| Some(&m.id.pod) == pod);
        }
        let agents: Vec<Option<&ExitStatus>> = self
            .slots
            .iter()
            .map(|s| if s.agent.is_some() { None } else { s.last.as_ref() })
            .collect();
        if service.unsaved.is_some() && service.unsaved != self.unsaved {
            let what = service.unsaved.as_deref().unwrap_or_default();
            view.say(&format!(
                "the membership of the run cannot be saved, which is tried again: {what}"
            ));
        }
        self.unsaved.clone_from(&service.unsaved);
        view.show(&self.live.snapshot(&service, &agents), std::time::Instant::now());
    }

    /// Takes in new records; says whether there were any. What is shown is not worth a worker's life: an
    /// error is told once.
    fn read(&mut self, view: &View) -> bool {
        match self.live.read() {
            Ok(any) => {
                self.blind = false;
                any
            }
            Err(error) => {
                if !std::mem::replace(&mut self.blind, true) {
                    let text = crate::terminal::with_causes(&error);
                    tracing::warn!(error = text, "progress cannot be followed");
                    view.say(&format!("progress cannot be followed, training goes on: {text}"));
                }
                false
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
            slot.joined = false;
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
            self.mistake = true;
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
        self.read(view);
        let commit = self.live.commit();
        let service = self.service.snapshot();
        let (stopping, over) = (self.stopping.is_some(), self.is_over());
        let Some(slot) = self.slots.get_mut(index as usize) else {
            return;
        };
        if let Some(agent) = slot.agent.take() {
            agent.forget();
        }
        slot.last = Some(status.clone());
        if commit > slot.commit_at_start {
            (slot.fruitless, slot.free_ends) = (0, 0);
        }
        let facts = AgentFacts {
            status: &status,
            joined: slot.joined || service.members.iter().any(|m| m.id.pod == pod),
            done: !service.done.is_empty(),
            stopping,
            over,
            paid: service.restarts.charged.iter().any(|c| c.member.pod == pod),
            free_ends: slot.free_ends,
        };
        slot.free_ends += u32::from(!facts.costs());
        self.mistake |= facts.is_mistake();
        let proof = EndProof {
            charge: facts.is_charged().then(|| status.clone()),
        };
        self.service.pod_ended(pod, index, proof).await;
        match facts.next() {
            AfterAgent::Nothing => self.name_who_was_told(&status),
            AfterAgent::StopAll => self.stop_all_after(index, &status, view).await,
            AfterAgent::GiveUp => self.give_up(format!("worker {index}: {}", plain(&status))).await,
            AfterAgent::NoTrainer => {
                self.mistake = true;
                self.stranger = Some(index);
                let text = format!("worker {index}: {}", self.program.not_a_trainer(index, &status));
                self.give_up(text).await;
            }
            AfterAgent::EndedEarly => {
                let text = format!("worker {index} ended as if training were over, and it is not");
                self.give_up(text).await;
            }
            AfterAgent::TooOften => {
                let (ends, text) = (slot.free_ends, plain(&status));
                self.give_up(format!(
                    "worker {index}: {text}; it ended {ends} times without a committed step in between, so it is not \
                     started again"
                ))
                .await;
            }
            AfterAgent::FailedToStop => {
                view.say(&format!("worker {index} ended while stopping: {status}"));
            }
            AfterAgent::Restart => {
                slot.start_at = Some(Instant::now() + wait_before_restart(slot.fruitless));
                slot.fruitless += 1;
                view.say(&format!("worker {index} ended ({status}); it is started again"));
            }
        }
    }

    /// An agent was told to stop by somebody else. Nobody takes its place, so that the others stop, too.
    async fn stop_all_after(&mut self, index: u32, status: &ExitStatus, view: &View) {
        let text = match &status.error {
            Some(word) => told_text(word),
            // The members of a group stop together, and the one that was told need not be the first to end.
            None => format!("worker {index} has stopped, asked by nobody here, so all workers stop"),
        };
        view.say(&text);
        self.trouble = Some(text.clone());
        self.stop(text, false).await;
    }

    /// Once the agent that was told to stop has ended too, its last word says more than that of the first one.
    fn name_who_was_told(&mut self, status: &ExitStatus) {
        let unasked = self.stopping.is_some_and(|s| !s.by_signal);
        if let Some(word) = &status.error
            && status.code == Some(exit_code::STOPPED)
            && unasked
            && !self.killed
        {
            self.trouble = Some(told_text(word));
        }
    }

    async fn signalled(&mut self, name: &str, view: &View) {
        if self.over_at.is_some() {
            view.say(&format!("{name}: the run has ended, ending the workers at once"));
            self.kill_all();
            return;
        }
        match &mut self.stopping {
            Some(stopping) if stopping.by_signal => {
                view.say(&format!("{name} again: ending the workers at once"));
                self.trouble = Some("ended at once by a second signal".into());
                self.kill_all();
            }
            Some(stopping) => {
                stopping.by_signal = true;
                view.say(&format!("{name}: the workers stop already (again: at once)"));
            }
            None => {
                view.say(&format!(
                    "{name}: stopping at the next step and writing a checkpoint (again: at once)"
                ));
                self.stop(format!("interrupted by {name}"), true).await;
            }
        }
    }

    /// Asks all workers to stop in order.
    async fn stop(&mut self, reason: String, by_signal: bool) {
        self.stopping = Some(Stopping {
            until: Instant::now() + self.grace,
            by_signal,
        });
        for slot in &mut self.slots {
            slot.start_at = None;
        }
        let within_ms = u64::try_from(self.grace.as_millis()).unwrap_or(u64::MAX);
        self.service.stop(StopCause { reason, within_ms }).await;
    }

    fn deadline(&self) -> Instant {
        let start = self.slots.iter().filter_map(|s| s.start_at).min();
        let far = Instant::now() + Duration::from_secs(3600);
        if self.killed {
            return far;
        }
        [self.stopping.map(|s| s.until), self.over_at, start]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(far)
    }

    fn time_up(&mut self, view: &View) {
        let now = Instant::now();
        if self.over_at.is_some_and(|at| at <= now) {
            self.kill_all();
        } else if self.stopping.is_some_and(|s| s.until <= now) {
            view.say("the workers did not stop in time: ending them");
            self.trouble = Some("the workers did not stop in time".into());
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
}

fn told_text(word: &str) -> String {
    format!("{word}, so all workers stop")
}

/// An agent's own error where it left one.
fn plain(status: &ExitStatus) -> String {
    status.error.clone().unwrap_or_else(|| status.to_string())
}
