//! The service's keeping of time and files, on paused time and without sockets.

mod time;

use super::task::{Command, spawn};
use super::*;
use crate::membership::{Ending, Formed, Restarts, Saved, SizeBounds};
use crate::wire::{
    Ask, Beat, JoinReply, JoinRequest, MemberReport, PodNews, RankBeat, Refusal, RestartReport,
};
use gradsync_formats::identity::{Generation, Incarnation, JobUid, MemberId, PodUid};
use gradsync_formats::run_config::resolve;
use std::sync::{Mutex, atomic};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

/// A store in memory that fails when told to.
#[derive(Clone, Default)]
struct Memory {
    saved: Arc<Mutex<Saved>>,
    broken: Arc<atomic::AtomicBool>,
}

impl Memory {
    fn change(&self, change: impl FnOnce(&mut Saved)) -> Result<(), PersistError> {
        if self.broken.load(atomic::Ordering::Relaxed) {
            return Err(PersistError::Closing);
        }
        change(&mut self.saved.lock().unwrap());
        Ok(())
    }
}

impl Persist for Memory {
    async fn load(&mut self) -> Result<Saved, PersistError> {
        Ok(self.saved.lock().unwrap().clone())
    }
    async fn form(&mut self, _: Generation, formed: &Formed) -> Result<(), PersistError> {
        self.change(|saved| saved.formed = Some(formed.clone()))
    }
    async fn latch(&mut self, ending: &Ending) -> Result<(), PersistError> {
        self.change(|saved| saved.ending = Some(ending.clone()))
    }
    async fn save_restarts(&mut self, restarts: &Restarts) -> Result<(), PersistError> {
        self.change(|saved| saved.restarts = restarts.clone())
    }
}

fn run_config() -> RunConfig {
    let spec = serde_json::json!({
        "task": {"name": "count"},
        "training": {
            "globalBatchSize": 8, "steps": 10, "seed": 1,
            "optimizer": {"name": "SGD", "learningRate": 1.0}
        },
        "sync": {"strategy": "AllReduce"},
        "workers": {"replicas": 2, "template": {"spec": {"containers": [{"name": "trainer"}]}}}
    });
    resolve("test", &spec).expect("the specification is complete")
}

fn options(pods: u32) -> ServiceOptions {
    let digest = document_digest(&run_config()).unwrap();
    let settings = Settings::new(JobUid("job".into()), SizeBounds::fixed(pods), digest);
    ServiceOptions::new(settings, run_config())
}

/// A task without sockets.
struct Bench {
    commands: mpsc::Sender<Command>,
    snapshots: watch::Receiver<Arc<ServiceSnapshot>>,
    digest: String,
}

fn bench(pods: u32, memory: &Memory) -> Bench {
    let options = options(pods);
    let saved = memory.saved.lock().unwrap().clone();
    let machine = Membership::restore(options.settings.clone(), saved);
    let secret = auth::ServiceSecret::fresh(JobUid("job".into()));
    let (commands, snapshots, _) = spawn(machine, memory.clone(), secret, &options);
    Bench {
        commands,
        snapshots,
        digest: options.settings.run_config_digest,
    }
}

fn member(slot: u32) -> MemberId {
    MemberId {
        slot,
        local_rank: 0,
        pod: PodUid(format!("pod-{slot}")),
        incarnation: Incarnation(uuid::Uuid::from_u128(u128::from(slot) + 1)),
    }
}

fn identity(slot: u32) -> PodIdentity {
    PodIdentity {
        pod: member(slot).pod,
        slot,
    }
}

impl Bench {
    async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<task::Answer<T>>) -> Command,
    ) -> task::Answer<T> {
        let (reply, answer) = oneshot::channel();
        assert!(self.commands.send(command(reply)).await.is_ok());
        answer.await.unwrap()
    }

    async fn join(&self, slot: u32, report: MemberReport) -> task::Answer<JoinReply> {
        let request = Box::new(JoinRequest {
            member: member(slot),
            report,
            restart: RestartReport::default(),
        });
        let identity = identity(slot);
        self.ask(|reply| Command::Join {
            identity,
            request,
            reply,
        })
        .await
    }

    fn idle(&self, left: u64) -> MemberReport {
        MemberReport {
            ready: true,
            left: Generation(left),
            run_config_digest: Some(self.digest.clone()),
            ..MemberReport::default()
        }
    }

    async fn beat(&self, slot: u32, thread_counter: u64) -> Vec<Incarnation> {
        let request = Beat {
            pod: member(slot).pod,
            ranks: vec![RankBeat {
                incarnation: member(slot).incarnation,
                step_counter: 0,
                thread_counter,
                progress: None,
            }],
        };
        let identity = identity(slot);
        let answer = self
            .ask(|reply| Command::Beat {
                identity,
                request,
                reply,
            })
            .await;
        answer.unwrap().unknown
    }

    async fn news(&self, slot: u32) -> PodNews {
        let identity = identity(slot);
        self.ask(|reply| Command::News { identity, reply })
            .await
            .unwrap()
            .0
    }

    async fn established(&self, slot: u32, generation: u64) -> task::Answer<crate::wire::ReportReply> {
        let request = Box::new(crate::wire::ReportRequest {
            member: member(slot),
            message: crate::wire::MemberMessage::Established {
                generation: Generation(generation),
            },
        });
        let identity = identity(slot);
        self.ask(|reply| Command::Report {
            identity,
            request,
            reply,
        })
        .await
    }

    async fn until(&mut self, holds: impl FnMut(&Arc<ServiceSnapshot>) -> bool) -> ServiceSnapshot {
        let found = self.snapshots.wait_for(holds).await.unwrap();
        ServiceSnapshot::clone(&found)
    }
}

fn ask_of(news: &PodNews, slot: u32) -> &Ask {
    &news.members[&member(slot).incarnation].ask
}

#[tokio::test(start_paused = true)]
async fn a_rank_whose_thread_counter_stands_still_for_the_timeout_is_silent_and_joins_again() {
    let mut bench = bench(2, &Memory::default());
    for slot in 0..2 {
        bench.join(slot, bench.idle(0)).await.unwrap();
    }
    bench.established(0, 1).await.unwrap();
    bench.established(1, 1).await.unwrap();
    let start = Instant::now();
    // Rank 1's agent goes on beating, with a counter that stands still.
    for second in 1..=4 {
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(bench.beat(0, second).await.is_empty());
        assert!(bench.beat(1, 7).await.is_empty());
    }
    assert_eq!(ask_of(&bench.news(0).await, 0), &Ask::None);
    let silent = bench.until(|s| s.members.iter().any(|m| !m.live)).await;
    assert_eq!(silent.members[1].activity, "silent");
    assert!(silent.members[0].live, "whose counter rose had longer");
    assert!(
        start.elapsed() >= Duration::from_secs(5),
        "it had 5 s from its first beat"
    );
    assert!(matches!(ask_of(&bench.news(0).await, 0), Ask::Reform { .. }));
    assert_eq!(
        bench.beat(1, 8).await,
        [member(1).incarnation],
        "it is asked to join again"
    );
    bench.join(1, bench.idle(0)).await.unwrap();
    assert!(bench.beat(1, 9).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn members_of_an_earlier_service_have_longer_to_come_back() {
    let memory = Memory::default();
    let first = bench(1, &memory);
    first.join(0, first.idle(0)).await.unwrap();
    let mut second = bench(1, &memory);
    let start = Instant::now();
    let snapshot = second.until(|s| s.reason_id == "WaitingForWorkers").await;
    assert!(
        start.elapsed() >= Duration::from_secs(15),
        "{:?} {}",
        start.elapsed(),
        snapshot.reason
    );
}

#[tokio::test(start_paused = true)]
async fn a_generation_that_cannot_be_saved_is_not_published_and_another_number_is_tried() {
    let memory = Memory::default();
    memory.broken.store(true, atomic::Ordering::Relaxed);
    let mut bench = bench(1, &memory);
    bench.join(0, bench.idle(0)).await.unwrap();
    assert_eq!(bench.news(0).await.plan, None);
    assert_eq!(bench.snapshots.borrow().reason_id, "NotSaved");
    memory.broken.store(false, atomic::Ordering::Relaxed);
    let formed = bench.until(|s| s.generation > Generation::NONE).await;
    let saved = memory.saved.lock().unwrap().formed.clone().unwrap();
    assert_eq!(
        (saved.generation, formed.generation > Generation(1)),
        (formed.generation, true)
    );
    assert!(bench.news(0).await.plan.is_some());
}

#[tokio::test(start_paused = true)]
async fn completion_is_acknowledged_only_once_it_is_saved() {
    let memory = Memory::default();
    let mut bench = bench(1, &memory);
    bench.join(0, bench.idle(0)).await.unwrap();
    bench.established(0, 1).await.unwrap();
    memory.broken.store(true, atomic::Ordering::Relaxed);
    let done = || crate::wire::ReportRequest {
        member: member(0),
        message: crate::wire::MemberMessage::Done(crate::wire::DoneReport {
            generation: Generation(1),
            rank: 0,
            world_size: 1,
            position: gradsync_formats::identity::Position::INITIAL,
            total_steps: 10,
            epochs: 1,
            state_digest: "d".into(),
            final_loss: "0".into(),
            metrics: Default::default(),
            checkpoint: None,
        }),
    };
    let report = |reply| Command::Report {
        identity: identity(0),
        request: Box::new(done()),
        reply,
    };
    assert!(matches!(
        bench.ask(report).await,
        Err(Refusal::Unavailable { .. })
    ));
    assert_eq!(ask_of(&bench.news(0).await, 0), &Ask::None);
    memory.broken.store(false, atomic::Ordering::Relaxed);
    bench.until(|s| s.ending.is_some()).await;
    assert!(bench.ask(report).await.is_ok());
    assert!(matches!(ask_of(&bench.news(0).await, 0), Ask::Finished { .. }));
    assert_eq!(bench.snapshots.borrow().done[&0].total_steps, 10);
}

#[tokio::test(start_paused = true)]
async fn a_pod_speaks_for_its_own_ranks_only_and_not_after_its_end() {
    let bench = bench(2, &Memory::default());
    let request = Box::new(JoinRequest {
        member: member(1),
        report: bench.idle(0),
        restart: RestartReport::default(),
    });
    let foreign = |reply| Command::Join {
        identity: identity(0),
        request,
        reply,
    };
    assert!(matches!(bench.ask(foreign).await, Err(Refusal::BadToken { .. })));
    let end = Command::PodEnded {
        identity: identity(0),
        proof: EndProof::default(),
    };
    assert!(bench.commands.send(end).await.is_ok());
    let late = bench.join(0, bench.idle(0)).await;
    assert!(matches!(late, Err(Refusal::BadToken { .. })));
}

fn formed(generation: u64, digest: &str) -> Formed {
    let base = crate::wire::Base {
        position: gradsync_formats::identity::Position::INITIAL,
        source: crate::wire::BaseSource::Initial,
        state_digest: None,
        chain: None,
    };
    Formed {
        generation: Generation(generation),
        plan_digest: digest.into(),
        members: vec![member(0)],
        root: base.clone(),
        base,
        lineage: Default::default(),
        fingerprints: None,
        checkpoint: None,
    }
}

#[test]
fn a_membership_that_cannot_be_written_leaves_no_temporary_file() {
    let place = tempfile::tempdir().unwrap();
    let temporary = place.path().join("membership.json.tmp");
    std::os::unix::fs::symlink("/dev/full", &temporary).unwrap();
    let error = FilePersist::open(place.path()).unwrap_err().to_string();
    assert!(error.contains("membership.json: No space left"), "{error}");
    assert!(std::fs::symlink_metadata(&temporary).is_err());
}

#[tokio::test]
async fn of_two_services_over_one_file_one_persists_a_generation() {
    let folder = tempfile::tempdir().unwrap();
    let mut ours = FilePersist::open(folder.path()).unwrap();
    let mut theirs = FilePersist::open(folder.path()).unwrap();
    assert_eq!(ours.job_uid(), theirs.job_uid());
    ours.form(Generation::NONE, &formed(1, "a")).await.unwrap();
    let refused = theirs.form(Generation::NONE, &formed(1, "b")).await;
    let Err(PersistError::Conflict { found, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(found, Generation(1));
    theirs.form(Generation(1), &formed(2, "b")).await.unwrap();
    assert_eq!(ours.load().await.unwrap().formed, Some(formed(2, "b")));
    assert!(ours.form(Generation(1), &formed(2, "c")).await.is_err());
}

#[tokio::test]
async fn what_was_saved_survives_and_nothing_else_is_left_behind() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = FilePersist::open(folder.path()).unwrap();
    file.form(Generation::NONE, &formed(1, "a")).await.unwrap();
    let ending = Ending::Failed {
        error: "first".into(),
    };
    file.latch(&ending).await.unwrap();
    file.latch(&Ending::Failed {
        error: "second".into(),
    })
    .await
    .unwrap();
    let again = FilePersist::open(folder.path()).unwrap();
    let saved = again.saved().unwrap();
    assert_eq!((saved.formed, saved.ending), (Some(formed(1, "a")), Some(ending)));
    assert_eq!(again.job_uid(), file.job_uid());
    assert!(!folder.path().join("membership.json.tmp").exists());
}

#[test]
fn a_torn_file_and_another_jobs_file_are_named_and_left_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(MEMBERSHIP_FILE);
    let before = FilePersist::open(folder.path()).unwrap();
    std::fs::write(&path, "{\"version\": 1, \"jobU").unwrap();
    let error = FilePersist::open(folder.path()).unwrap_err().to_string();
    assert!(
        error.contains("membership.json") && error.contains("another output directory"),
        "{error}"
    );
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "{\"version\": 1, \"jobU");
    std::fs::write(&path, "{\"version\": 1, \"jobUid\": \"other\"}").unwrap();
    assert!(matches!(before.saved(), Err(PersistError::OtherJob { .. })));
    std::fs::write(&path, "{\"version\": 9, \"jobUid\": \"other\"}").unwrap();
    assert!(before.saved().unwrap_err().to_string().contains("version 9"));
}
