//! The task that owns the machine: takes commands in, carries its effects out, keeps time.

use super::ServiceOptions;
use super::auth::{PodIdentity, ServiceSecret, bad_token};
use super::beats::Beats;
use super::handle::EndProof;
use super::persist::Persist;
use super::snapshot::{GenerationSnapshot, RecoverySnapshot, ServiceSnapshot};
use crate::membership::{Ending, Event, Membership, Restarts, news_of};
use crate::wire::{
    BEAT_INTERVAL, Beat, BeatReply, DoneReport, EncodedPlan, ExitReport, JoinReply, JoinRequest,
    MemberMessage, PodNews, Progress, Refusal, ReportReply, ReportRequest, Revision,
};
use gradsync_formats::digest::sha256_hex;
use gradsync_formats::identity::{Generation, MemberId, PodUid};
use gradsync_formats::run_config::RunConfig;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

/// Commands that may wait for the task.
const QUEUE: usize = 1024;
/// How often a snapshot is taken while only beats come in.
const SNAPSHOT_INTERVAL: Duration = Duration::from_millis(200);
/// The task sleeps no longer than this.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// The answer to a request.
pub(super) type Answer<T> = Result<T, Refusal>;
/// The news of a pod, and where to wait for the next.
pub(super) type NewsAnswer = (PodNews, watch::Receiver<u64>);
type Reply<T> = oneshot::Sender<Answer<T>>;

/// What the task is asked to do. An answer that nobody waits for any more is dropped.
pub(super) enum Command {
    Join {
        identity: PodIdentity,
        request: Box<JoinRequest>,
        reply: Reply<JoinReply>,
    },
    Report {
        identity: PodIdentity,
        request: Box<ReportRequest>,
        reply: Reply<ReportReply>,
    },
    Beat {
        identity: PodIdentity,
        request: Beat,
        reply: Reply<BeatReply>,
    },
    Exited {
        identity: PodIdentity,
        request: ExitReport,
        reply: Reply<ReportReply>,
    },
    News {
        identity: PodIdentity,
        reply: Reply<NewsAnswer>,
    },
    PodEnded {
        identity: PodIdentity,
        proof: EndProof,
    },
    Tell(Box<Event>),
}

/// A pod that has asked for something.
pub(super) struct Pod {
    ended: bool,
    changed: watch::Sender<u64>,
}

/// What happened so far, for the snapshot.
#[derive(Default)]
pub(super) struct History {
    pub(super) generations: Vec<GenerationSnapshot>,
    pub(super) recoveries: Vec<RecoverySnapshot>,
    pub(super) done: BTreeMap<u32, DoneReport>,
    pub(super) progress: Progress,
    /// Why the last write did not succeed, until one does.
    pub(super) unsaved: Option<String>,
    /// When the present generation broke, and when the newest plan was published.
    pub(super) broken_at: Option<Instant>,
    pub(super) planned_at: Option<Instant>,
}

/// Writes and reads that did not succeed yet.
#[derive(Default)]
pub(super) struct Unfinished {
    pub(super) ending: Option<Ending>,
    pub(super) restarts: Option<Restarts>,
    pub(super) write: Option<Generation>,
    pub(super) read: bool,
    pub(super) retry_at: Option<Instant>,
}

/// The task's own state.
pub(super) struct Actor<P> {
    pub(super) machine: Membership,
    pub(super) persist: P,
    pub(super) secret: ServiceSecret,
    pub(super) run_config: RunConfig,
    pub(super) start: Instant,
    pub(super) beats: Beats,
    pub(super) pods: BTreeMap<PodUid, Pod>,
    pub(super) wake_at: Option<Instant>,
    pub(super) unfinished: Unfinished,
    pub(super) history: History,
    /// When the task last looked at its commands and its time.
    looked: Instant,
    snapshots: watch::Sender<Arc<ServiceSnapshot>>,
    snapshot_due: Option<Instant>,
}

/// Starts the task. It ends when all senders of commands are gone.
pub(super) fn spawn<P: Persist>(
    machine: Membership,
    persist: P,
    secret: ServiceSecret,
    options: &ServiceOptions,
) -> (
    mpsc::Sender<Command>,
    watch::Receiver<Arc<ServiceSnapshot>>,
    JoinHandle<()>,
) {
    let (commands, inbox) = mpsc::channel(QUEUE);
    let now = Instant::now();
    let mut beats = Beats::new(options.silent_after);
    for member in machine.formed().iter().flat_map(|f| &f.members) {
        beats.expect(member, now, options.return_grace);
    }
    let history = History::default();
    let first = super::effects::snapshot_of(&machine, &beats, &history, now);
    let (snapshots, watching) = watch::channel(Arc::new(first));
    let actor = Actor {
        machine,
        persist,
        secret,
        run_config: options.run_config.clone(),
        start: now,
        beats,
        pods: BTreeMap::new(),
        wake_at: None,
        unfinished: Unfinished::default(),
        history,
        looked: now,
        snapshots,
        snapshot_due: None,
    };
    (commands, watching, tokio::spawn(actor.run(inbox)))
}

impl<P: Persist> Actor<P> {
    async fn run(mut self, mut inbox: mpsc::Receiver<Command>) {
        loop {
            let now = self.look();
            let next = self.next_due(now);
            if next <= now {
                // Beats that waited behind a slow disk must not count as silence, so what is there already is
                // taken in first; what comes meanwhile waits, so that a flood cannot keep the time from
                // being looked at.
                for _ in 0..inbox.len() {
                    let Ok(command) = inbox.try_recv() else { break };
                    self.take(command).await;
                }
                let now = self.look();
                self.on_time(now).await;
                continue;
            }
            tokio::select! {
                biased;
                command = inbox.recv() => match command {
                    Some(command) => {
                        // However long the wait was, it was before whoever this command brings.
                        self.look();
                        self.take(command).await;
                    }
                    None => return,
                },
                () = sleep_until(next) => {}
            }
        }
    }

    /// The time. When the last look is longer ago than this task ever waits, the process stood still or
    /// was busy, and nobody could be heard.
    fn look(&mut self) -> Instant {
        let now = Instant::now();
        let since = now.saturating_duration_since(std::mem::replace(&mut self.looked, now));
        self.beats.excuse(since.saturating_sub(BEAT_INTERVAL));
        now
    }

    /// When there is something to do without a command.
    fn next_due(&self, now: Instant) -> Instant {
        let silence = self.beats.next_due();
        let due = [
            self.wake_at,
            silence,
            // Between two looks no more than this, where silence is watched for.
            silence.map(|_| now + BEAT_INTERVAL),
            self.unfinished.retry_at,
            self.snapshot_due,
        ];
        let next = due.into_iter().flatten().min();
        next.unwrap_or(now + LONGEST_SLEEP)
    }

    async fn on_time(&mut self, now: Instant) {
        for member in self.beats.silent(now) {
            self.apply(Event::Silent(member)).await;
        }
        if self.wake_at.is_some_and(|at| at <= now) {
            self.wake_at = None;
            self.apply(Event::Tick).await;
        }
        if self.unfinished.retry_at.is_some_and(|at| at <= now) {
            self.unfinished.retry_at = None;
            self.finish_unfinished().await;
        }
        if self.snapshot_due.is_some_and(|at| at <= now) {
            self.show();
        }
    }

    async fn take(&mut self, command: Command) {
        // A receiver that is gone has run into its deadline; its request was still taken in.
        match command {
            Command::Join {
                identity,
                request,
                reply,
            } => drop(reply.send(self.join(identity, *request).await)),
            Command::Report {
                identity,
                request,
                reply,
            } => drop(reply.send(self.report(&identity, *request).await)),
            Command::Beat {
                identity,
                request,
                reply,
            } => drop(reply.send(self.beat(&identity, request))),
            Command::Exited {
                identity,
                request,
                reply,
            } => drop(reply.send(self.exited(&identity, request).await)),
            Command::News { identity, reply } => drop(reply.send(self.news(&identity))),
            Command::PodEnded { identity, proof } => {
                self.pod(&identity.pod).ended = true;
                let event = Event::PodEnded {
                    pod: identity.pod,
                    slot: identity.slot,
                    charge: proof.charge,
                };
                self.apply(event).await;
            }
            Command::Tell(event) => drop(self.apply(*event).await),
        }
    }

    pub(super) fn pod(&mut self, pod: &PodUid) -> &mut Pod {
        self.pods.entry(pod.clone()).or_insert_with(|| Pod {
            ended: false,
            changed: watch::Sender::new(0),
        })
    }

    /// Wakes the held poll of one pod, or of all.
    pub(super) fn wake(&self, only: Option<&PodUid>) {
        for (uid, pod) in &self.pods {
            if only.is_none_or(|only| only == uid) {
                pod.changed.send_modify(|count| *count += 1);
            }
        }
    }

    /// Whether the sender may speak for `member`.
    fn check(&mut self, identity: &PodIdentity, member: Option<&MemberId>) -> Answer<()> {
        if self.pod(&identity.pod).ended {
            return Err(bad_token("its pod has ended"));
        }
        match member {
            Some(m) if m.pod != identity.pod || m.slot != identity.slot => Err(bad_token(
                "it proves another pod than the one that the message speaks for",
            )),
            _ => Ok(()),
        }
    }

    async fn join(&mut self, identity: PodIdentity, request: JoinRequest) -> Answer<JoinReply> {
        self.check(&identity, Some(&request.member))?;
        let member = request.member.clone();
        let event = Event::Join {
            member: request.member,
            report: Box::new(request.report),
            restart: request.restart,
        };
        self.apply(event).await.refused(&member)?;
        self.beats.expect(&member, Instant::now(), Duration::ZERO);
        self.wake(Some(&identity.pod));
        Ok(JoinReply {
            session: self.secret.session(&identity),
            run_config: self.run_config.clone(),
            run_config_digest: self.machine.settings().run_config_digest.clone(),
            floor: match news_of(&self.machine, member.incarnation, |g| {
                self.secret.generation_key(g)
            }) {
                Some((news, _)) => news.floor,
                None => Generation::NONE,
            },
        })
    }

    async fn report(&mut self, identity: &PodIdentity, request: ReportRequest) -> Answer<ReportReply> {
        self.check(identity, Some(&request.member))?;
        let member = request.member.clone();
        let event = match request.message {
            MemberMessage::Established { generation } => Event::Established {
                member: request.member,
                generation,
            },
            MemberMessage::Leave { cause } => Event::Leave {
                member: request.member,
                cause,
            },
            MemberMessage::Recovered(phases) => Event::Recovered {
                member: request.member,
                phases,
            },
            MemberMessage::Frozen { generation, state } => Event::Frozen {
                member: request.member,
                generation,
                state,
            },
            MemberMessage::Done(report) => return self.done(request.member, report).await,
        };
        if let Event::Recovered { phases, .. } = &event {
            self.note_phases(phases.clone());
        }
        self.apply(event).await.refused(&member)?;
        self.wake(Some(&identity.pod));
        Ok(ReportReply {})
    }

    async fn done(&mut self, member: MemberId, report: DoneReport) -> Answer<ReportReply> {
        let event = Event::Done {
            member: member.clone(),
            report: Box::new(report.clone()),
        };
        self.apply(event).await.refused(&member)?;
        self.history.done.insert(report.rank, report);
        self.show();
        match self.machine.ending() {
            Some(Ending::Failed { error }) => Err(Refusal::Failed {
                reason: error.clone(),
            }),
            Some(Ending::Complete { .. }) => Ok(ReportReply {}),
            None => Err(Refusal::Unavailable {
                problem: "completion could not be saved yet".into(),
            }),
        }
    }

    fn beat(&mut self, identity: &PodIdentity, beat: Beat) -> Answer<BeatReply> {
        self.check(identity, None)?;
        let now = Instant::now();
        let mut unknown = Vec::new();
        for rank in beat.ranks {
            let incarnation = rank.incarnation;
            let known = self.machine.members().get(&incarnation);
            let mine = known.is_some_and(|m| m.live && m.id.pod == identity.pod);
            if !mine || !self.beats.beat(rank, now) {
                unknown.push(incarnation);
            }
        }
        self.snapshot_due.get_or_insert(now + SNAPSHOT_INTERVAL);
        Ok(BeatReply {
            revision: self.news(identity)?.0.revision,
            unknown,
        })
    }

    async fn exited(&mut self, identity: &PodIdentity, request: ExitReport) -> Answer<ReportReply> {
        self.check(identity, Some(&request.member))?;
        let event = Event::Exited {
            member: request.member,
            status: request.status,
        };
        self.apply(event).await;
        self.wake(Some(&identity.pod));
        Ok(ReportReply {})
    }

    fn news(&mut self, identity: &PodIdentity) -> Answer<NewsAnswer> {
        self.check(identity, None)?;
        let changed = self.pod(&identity.pod).changed.subscribe();
        let mut plan: Option<EncodedPlan> = None;
        let mut members = BTreeMap::new();
        let inside = self
            .machine
            .members()
            .values()
            .filter(|m| m.id.pod == identity.pod);
        for incarnation in inside.map(|m| m.id.incarnation) {
            let key = |generation| self.secret.generation_key(generation);
            if let Some((news, offered)) = news_of(&self.machine, incarnation, key) {
                plan = plan.or(offered);
                members.insert(incarnation, news);
            }
        }
        // The debug text says all that matters, and shows no key.
        let text = format!("{:?} {members:?}", plan.as_ref().map(|p| &p.digest));
        let revision = Revision(sha256_hex(text.as_bytes())[..16].to_owned());
        let news = PodNews {
            revision,
            plan,
            members,
        };
        Ok((news, changed))
    }

    /// Takes a new snapshot.
    pub(super) fn show(&mut self) {
        self.snapshot_due = None;
        let now = Instant::now();
        if let Some(progress) = super::effects::progress_of(&self.machine, &self.beats) {
            self.history.progress = progress;
        }
        let snapshot = super::effects::snapshot_of(&self.machine, &self.beats, &self.history, now);
        self.snapshots.send_replace(Arc::new(snapshot));
    }
}
