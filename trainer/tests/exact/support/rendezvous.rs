//! The rendezvous without HTTP: the real membership machine, persisted in memory, and a rank's connection to it.

use gradsync_formats::digest::document_digest;
use gradsync_formats::identity::{Generation, Incarnation, JobUid, MemberId, PodUid};
use gradsync_formats::run_config::RunConfig;
use gradsync_rendezvous::membership::{
    Effect, Ending, Event, Formed, Membership, Monotonic, Saved, Settings, SizeBounds, decide, news_of,
};
use gradsync_rendezvous::wire::{
    ExitStatus, MemberMessage, MemberReport, Progress, Refusal, RestartReport, Secret, StopCause,
};
use gradsync_trainer::agent::news::{self, Seen};
use gradsync_trainer::group::{Asked, Group, GroupError, Joined, Next};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Instant;

/// The job of all tests.
pub fn job() -> JobUid {
    JobUid("test-job".into())
}

/// The rendezvous service without HTTP: the same machine, persisted in memory.
pub struct Rendezvous {
    config: RunConfig,
    digest: String,
    job: JobUid,
    started: Instant,
    inner: Mutex<Inner>,
    changed: Condvar,
}

struct Inner {
    state: Membership,
    saved: Saved,
    refusals: BTreeMap<Incarnation, Refusal>,
}

impl Rendezvous {
    pub fn new(config: &RunConfig, pods: u32, saved: Saved) -> Arc<Rendezvous> {
        let digest = document_digest(config).unwrap();
        let job = job();
        let mut settings = Settings::new(job.clone(), SizeBounds::fixed(pods), digest.clone());
        settings.max_restarts = config.failure_policy.max_restarts;
        if let Some(checkpoint) = &config.checkpoint {
            settings.resume = checkpoint.resume.policy;
        }
        let state = Membership::restore(settings, saved.clone());
        let before: Vec<MemberId> = saved.formed.iter().flat_map(|f| f.members.clone()).collect();
        let service = Arc::new(Rendezvous {
            config: config.clone(),
            digest,
            job,
            started: Instant::now(),
            inner: Mutex::new(Inner {
                state,
                saved,
                refusals: BTreeMap::new(),
            }),
            changed: Condvar::new(),
        });
        // A test starts a service on saved state only when all processes of before have ended.
        for MemberId { pod, slot, .. } in before {
            let charge = None;
            service.event(Event::PodEnded { pod, slot, charge });
        }
        service
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// What a service started later would find.
    pub fn saved(&self) -> Saved {
        self.lock().saved.clone()
    }

    pub fn stop(&self) {
        self.event(Event::StopWanted(StopCause {
            reason: "test".into(),
            within_ms: 60_000,
        }));
    }

    /// The process of `member` has ended, and its parent has reaped it.
    pub fn exited(&self, member: &MemberId) {
        let status = ExitStatus {
            signal: Some(9),
            ..ExitStatus::default()
        };
        self.event(Event::Exited {
            member: member.clone(),
            status,
        });
    }

    fn event(&self, event: Event) {
        let mut inner = self.lock();
        let mut queue = vec![event];
        while let Some(event) = queue.pop() {
            let now = Monotonic(self.started.elapsed());
            for effect in decide(&mut inner.state, event, now).effects {
                match effect {
                    Effect::Persist(new) => {
                        inner.saved.formed = Some(new.formed.clone());
                        queue.push(Event::Persisted(new.formed.generation));
                    }
                    Effect::Latch(ending) => {
                        inner.saved.ending = Some(ending);
                        queue.push(Event::EndingPersisted);
                    }
                    Effect::SaveRestarts(restarts) => inner.saved.restarts = restarts,
                    Effect::Refuse(member, refusal) => {
                        inner.refusals.insert(member.incarnation, refusal);
                    }
                    Effect::ReadBack => {
                        let found: Option<Box<Formed>> = inner.saved.formed.clone().map(Box::new);
                        queue.push(Event::Found(found));
                    }
                    Effect::Publish(..) | Effect::WakeAt(_) | Effect::Record(_) => {}
                }
            }
        }
        self.changed.notify_all();
    }

    pub fn ending(&self) -> Option<Ending> {
        self.lock().saved.ending.clone()
    }
}

/// A rank's connection to it.
pub struct MemoryGroup {
    service: Arc<Rendezvous>,
    member: MemberId,
    /// The share that each rank takes instead of its own.
    shares: Option<Vec<u32>>,
    /// So many of its joins after the `n`-th are not answered, and never reach the service.
    lost: Option<LostJoins>,
    joins: u32,
}

/// Joins that the service does not answer: those after the first `after`, `count` of them.
#[derive(Clone, Copy, Debug)]
pub struct LostJoins {
    pub after: u32,
    pub count: u32,
}

impl MemoryGroup {
    pub fn new(
        service: &Arc<Rendezvous>,
        slot: u32,
        shares: Option<Vec<u32>>,
        lost: Option<LostJoins>,
    ) -> MemoryGroup {
        let incarnation = Incarnation::fresh();
        let member = MemberId {
            slot,
            local_rank: 0,
            pod: PodUid(format!("pod-{slot}-{incarnation}")),
            incarnation,
        };
        MemoryGroup {
            service: Arc::clone(service),
            member,
            shares,
            lost,
            joins: 0,
        }
    }

    fn seen(&self, inner: &Inner) -> Seen {
        let mut seen = Seen::default();
        let key = |generation: Generation| Secret::new(format!("key-of-generation-{generation}"));
        if let Some((news, plan)) = news_of(&inner.state, self.member.incarnation, key) {
            seen.take(plan, news);
        }
        seen
    }

    fn send(&self, event: Event) -> Result<(), GroupError> {
        self.service.event(event);
        match self.service.lock().refusals.remove(&self.member.incarnation) {
            Some(refusal) => Err(GroupError::Refused(Box::new(refusal))),
            None => Ok(()),
        }
    }
}

impl Group for MemoryGroup {
    fn job(&self) -> &JobUid {
        &self.service.job
    }

    fn member(&self) -> &MemberId {
        &self.member
    }

    fn join(&mut self, report: MemberReport, _: Instant) -> Result<Joined, GroupError> {
        self.joins += 1;
        if let Some(lost) = self.lost
            && self.joins > lost.after
            && self.joins <= lost.after + lost.count
        {
            return Err(GroupError::Deadline {
                waited_for: "the answer to a join",
                seconds: 60,
            });
        }
        let (member, restart) = (self.member.clone(), RestartReport::default());
        self.send(Event::Join {
            member,
            report: Box::new(report),
            restart,
        })?;
        let service = &self.service;
        Ok(Joined {
            run_config: service.config.clone(),
            run_config_digest: service.digest.clone(),
            floor: Generation::NONE,
        })
    }

    fn next(&mut self, left: Generation, deadline: Instant) -> Result<Next, GroupError> {
        let mut inner = self.service.lock();
        loop {
            if let Some(next) = news::next(&self.seen(&inner), left) {
                let mut next = next.expect("plans of this process can be read");
                if let (Next::Plan { head, .. }, Some(shares)) = (&mut next, &self.shares)
                    && let Some(share) = &mut head.share
                {
                    share.index = shares[share.index as usize];
                }
                return Ok(next);
            }
            let patience = deadline.saturating_duration_since(Instant::now());
            if patience.is_zero() {
                return Err(GroupError::Deadline {
                    waited_for: "a plan",
                    seconds: 60,
                });
            }
            inner = self.service.changed.wait_timeout(inner, patience).unwrap().0;
        }
    }

    fn asked(&mut self, generation: Generation) -> Asked {
        news::asked(&self.seen(&self.service.lock()), generation)
    }

    fn report(&mut self, message: MemberMessage, _: Instant) -> Result<(), GroupError> {
        let member = self.member.clone();
        self.send(match message {
            MemberMessage::Established { generation } => Event::Established { member, generation },
            MemberMessage::Leave { cause } => Event::Leave { member, cause },
            MemberMessage::Recovered(phases) => Event::Recovered { member, phases },
            MemberMessage::Frozen { generation, state } => Event::Frozen {
                member,
                generation,
                state,
            },
            MemberMessage::Done(report) => Event::Done {
                member,
                report: Box::new(report),
            },
        })
    }

    fn tell(&mut self, message: MemberMessage) -> Result<(), GroupError> {
        self.report(message, Instant::now())
    }

    fn alive(&mut self, _: Option<Progress>) {}
}
