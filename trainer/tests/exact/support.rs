//! A whole group in one process: ranks as threads, the real membership machine in memory, the real step
//! engine, either transport.

use gradsync_collective::{Communicator, in_process};
use gradsync_formats::digest::document_digest;
use gradsync_formats::identity::{Generation, Incarnation, JobUid, MemberId, PodUid};
use gradsync_formats::run_config::RunConfig;
use gradsync_formats::store::{MemoryStore, Store};
use gradsync_rendezvous::membership::{
    Effect, Ending, Event, Formed, Membership, Monotonic, Saved, Settings, SizeBounds, decide, news_of,
};
use gradsync_rendezvous::wire::{
    ExitStatus, MemberMessage, MemberReport, Plan, PlanHead, Progress, Refusal, RestartReport, Secret,
    StopCause,
};
use gradsync_trainer::agent::news::{self, Seen};
use gradsync_trainer::clock::SystemClock;
use gradsync_trainer::group::{Asked, Group, GroupError, Joined, Next};
use gradsync_trainer::step::Fatal;
use gradsync_trainer::task::{PathMap, Task};
use gradsync_trainer::train::{Observer, Patience, Summary, Surroundings, train};
use gradsync_trainer::transport::{Agreement, ConnectFailure, TcpTransport, Transport};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

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
        let job = JobUid("test-job".into());
        let mut settings = Settings::new(job.clone(), SizeBounds::fixed(pods), digest.clone());
        settings.max_restarts = config.failure_policy.max_restarts;
        if let Some(checkpoint) = &config.checkpoint {
            settings.resume = checkpoint.resume.policy;
        }
        let state = Membership::restore(settings, saved.clone());
        Arc::new(Rendezvous {
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
        })
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
}

impl MemoryGroup {
    pub fn new(service: &Arc<Rendezvous>, slot: u32) -> MemoryGroup {
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
            Some(refusal) => Err(GroupError::Refused(refusal)),
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
                return Ok(next.expect("plans of this process can be read"));
            }
            let patience = deadline.saturating_duration_since(Instant::now());
            if patience.is_zero() {
                return Err(GroupError::Deadline {
                    waited_for: "a plan",
                    seconds: 0,
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

    fn alive(&mut self, _: Option<Progress>) {}
}

/// In-process communicators, made when the first rank of a generation connects.
#[derive(Default)]
pub struct Hub(Mutex<BTreeMap<u64, Vec<Option<Arc<dyn Communicator>>>>>);

/// Something that a test puts between the engine and its communicator.
pub type Wrap = Arc<dyn Fn(Arc<dyn Communicator>) -> Arc<dyn Communicator> + Send + Sync>;

pub struct InProcess {
    hub: Arc<Hub>,
    wrap: Option<Wrap>,
}

impl Transport for InProcess {
    fn listen(&mut self) -> Result<Vec<String>, ConnectFailure> {
        Ok(vec!["in-process:0".into()])
    }

    fn connect(
        &mut self,
        plan: &Plan,
        head: &PlanHead,
        _: &Agreement,
        _: Duration,
    ) -> Result<Arc<dyn Communicator>, ConnectFailure> {
        let mut generations = self.hub.0.lock().unwrap();
        let members = generations.entry(plan.generation.0).or_insert_with(|| {
            in_process::group(plan.world_size as usize, &plan.job_uid.0, plan.generation.0)
                .into_iter()
                .map(Some)
                .collect()
        });
        let mine = members[head.rank as usize]
            .take()
            .expect("each rank connects once");
        Ok(match &self.wrap {
            Some(wrap) => wrap(mine),
            None => mine,
        })
    }
}

/// Which transport a group uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    Memory,
    Tcp,
}

/// How a test runs a group.
pub struct Run<'a> {
    pub config: RunConfig,
    pub world: u32,
    pub wire: Wire,
    pub tasks: &'a (dyn Fn() -> Vec<Box<dyn Task>> + Sync),
    pub store: Arc<dyn Store>,
    pub records: Option<PathBuf>,
    pub saved: Saved,
    pub wrap: Option<Wrap>,
}

impl<'a> Run<'a> {
    pub fn new(config: RunConfig, world: u32, tasks: &'a (dyn Fn() -> Vec<Box<dyn Task>> + Sync)) -> Run<'a> {
        Run {
            config,
            world,
            wire: Wire::Memory,
            tasks,
            store: Arc::new(MemoryStore::new()),
            records: None,
            saved: Saved::default(),
            wrap: None,
        }
    }

    /// Runs all ranks to their end. `observe` makes each rank's observer.
    pub fn go<O: Observer>(
        self,
        observe: impl Fn(u32, &Arc<Rendezvous>) -> O + Sync,
    ) -> (Vec<Result<Summary, Fatal>>, Vec<O>, Arc<Rendezvous>) {
        let service = Rendezvous::new(&self.config, self.world, self.saved.clone());
        let hub = Arc::new(Hub::default());
        let (run, service_ref, hub, observe) = (&self, &service, &hub, &observe);
        let ended: Vec<_> = std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..self.world)
                .map(|slot| {
                    scope.spawn(move || {
                        let mut observer = observe(slot, service_ref);
                        let result = run.rank(MemoryGroup::new(service_ref, slot), hub, &mut observer);
                        (result, observer)
                    })
                })
                .collect();
            ranks
                .into_iter()
                .map(|rank| rank.join().expect("a rank panicked"))
                .collect()
        });
        let (results, observers) = ended.into_iter().unzip();
        (results, observers, service)
    }

    fn rank(
        &self,
        mut group: MemoryGroup,
        hub: &Arc<Hub>,
        observer: &mut dyn Observer,
    ) -> Result<Summary, Fatal> {
        let mut memory = InProcess {
            hub: Arc::clone(hub),
            wrap: self.wrap.clone(),
        };
        let mut tcp = TcpTransport::new(IpAddr::V4(Ipv4Addr::LOCALHOST), Duration::from_secs(60));
        let transport: &mut dyn Transport = match self.wire {
            Wire::Memory => &mut memory,
            Wire::Tcp => &mut tcp,
        };
        let tasks = (self.tasks)();
        let store = Arc::clone(&self.store);
        train(
            &tasks,
            &mut Surroundings {
                group: &mut group,
                transport,
                clock: &SystemClock,
                open_store: &move |_| Ok(Arc::clone(&store)),
                observer,
                paths: PathMap::default(),
                records: self.records.clone(),
                patience: Patience {
                    operation: Duration::from_secs(60),
                    plan: Duration::from_secs(60),
                    ..Patience::default()
                },
            },
        )
    }
}

/// The configuration that a manifest's `spec` resolves to.
pub fn config(spec: serde_json::Value) -> RunConfig {
    gradsync_formats::run_config::resolve("test", &spec).expect("the test's specification is valid")
}
