//! A scripted rank with its own agent: keeps its promises, trains nothing.

use super::DEADLINE;
use gradsync_formats::identity::{Generation, Incarnation, MemberId, PodUid, Position};
use gradsync_rendezvous::client::{ClientError, ClientOptions, PodClient};
use gradsync_rendezvous::server::{LocalAuthenticator, ServiceHandle};
use gradsync_rendezvous::wire::{
    Ask, DoneReport, ExitReport, ExitStatus, HeldState, JoinRequest, MemberMessage, MemberNews, MemberReport,
    Plan, PlanHead, RestartReport, Revision, Secret, SeenCheckpoint,
};
use std::time::Duration;

pub(crate) struct Rank {
    pub(crate) client: PodClient,
    pub(crate) id: MemberId,
    pub(crate) secret: Secret,
    pub(crate) report: MemberReport,
    pub(crate) restart: RestartReport,
    pub(crate) plan: Option<(Plan, PlanHead)>,
    seen: Option<Revision>,
}

impl Rank {
    /// A new pod in `slot`.
    pub(crate) fn start(service: &ServiceHandle<LocalAuthenticator>, slot: u32) -> Rank {
        Rank::start_through(service, slot, &service.url())
    }

    /// The same, reaching the service at `url`.
    pub(crate) fn start_through(service: &ServiceHandle<LocalAuthenticator>, slot: u32, url: &str) -> Rank {
        let pod = PodUid(format!("pod-{slot}-{}", uuid::Uuid::new_v4()));
        let secret = service.pod_started(pod.clone(), slot);
        let job_uid = service.snapshot().job_uid.clone();
        let options = ClientOptions {
            deadline: DEADLINE,
            ..ClientOptions::default()
        };
        Rank {
            client: PodClient::new(url, job_uid, pod.clone(), secret.clone(), options).unwrap(),
            id: MemberId {
                slot,
                local_rank: 0,
                pod,
                incarnation: Incarnation::fresh(),
            },
            secret,
            report: MemberReport {
                addresses: vec![format!("127.0.0.1:{}", 7000 + slot)],
                ..MemberReport::default()
            },
            restart: RestartReport::default(),
            plan: None,
            seen: None,
        }
    }

    pub(crate) async fn send_join(&mut self) -> Result<(), ClientError> {
        let request = JoinRequest {
            member: self.id.clone(),
            report: self.report.clone(),
            restart: self.restart.clone(),
        };
        let reply = self.client.join(request).await?;
        self.report.run_config_digest = Some(reply.run_config_digest);
        self.report.left = self.report.left.max(reply.floor);
        Ok(())
    }

    /// Joins cold, warms up, and joins again.
    pub(crate) async fn join(&mut self) {
        self.send_join().await.unwrap();
        self.report.ready = true;
        self.send_join().await.unwrap();
    }

    /// The next news that differ from the last.
    pub(crate) async fn news(&mut self) -> MemberNews {
        loop {
            let polled = self.client.news(self.seen.clone(), Duration::from_secs(20));
            let news = tokio::time::timeout(DEADLINE, polled)
                .await
                .expect("news come in time")
                .unwrap();
            self.seen = Some(news.revision.clone());
            let Some(own) = news.members.get(&self.id.incarnation).cloned() else {
                continue;
            };
            if let (Some(head), Some(plan)) = (&own.head, &news.plan) {
                self.plan = Some((plan.decode().unwrap(), head.clone()));
            }
            return own;
        }
    }

    /// Follows the news until it is in a plan that it may accept, and accepts it.
    pub(crate) async fn enter(&mut self) -> Plan {
        loop {
            let news = self.news().await;
            assert!(
                matches!(news.ask, Ask::None | Ask::Reform { .. }),
                "{} waits for a plan and hears {:?}",
                self.id,
                news.ask
            );
            if let Ask::Reform { generation, .. } = news.ask
                && generation > self.report.left
            {
                self.report.left = generation;
                self.send_join().await.unwrap();
            } else if news.floor > self.report.left && self.report.left >= self.report.planned {
                self.report.left = news.floor;
                self.send_join().await.unwrap();
            } else if let (Some(_), Some((plan, _))) = (&news.head, &self.plan)
                && plan.generation > self.report.left
            {
                self.report.planned = plan.generation;
                self.report.held = Some(state_at(plan.base.position));
                return plan.clone();
            }
        }
    }

    pub(crate) async fn establish(&mut self) {
        let generation = self.report.planned;
        self.report.established = generation;
        self.tell(MemberMessage::Established { generation })
            .await
            .unwrap();
    }

    pub(crate) async fn tell(&self, message: MemberMessage) -> Result<(), ClientError> {
        self.client.report(self.id.clone(), message).await
    }

    /// Makes `commit` the last commit that it holds.
    pub(crate) fn commit(&mut self, commit: u64) {
        self.report.held = Some(state_at(Position {
            commit,
            generation: self.report.established,
        }));
    }

    pub(crate) fn sees_checkpoint(&mut self, generation: u64, commit: u64) {
        let position = Position {
            commit,
            generation: Generation(generation),
        };
        let HeldState {
            chain, state_digest, ..
        } = state_at(position);
        self.report.checkpoints.insert(
            0,
            SeenCheckpoint {
                position,
                path: format!("step-{commit}-g{generation}"),
                state_digest,
                chain,
                lineage: Default::default(),
            },
        );
    }

    /// Leaves its generation because of an error, and joins again.
    pub(crate) async fn abort(&mut self, why: &str) {
        self.report.left = self.report.planned;
        self.report.ended = Some(why.into());
        self.send_join().await.unwrap();
    }

    /// The process is killed; its agent reports that and starts another one.
    pub(crate) async fn crash(&mut self) {
        let status = ExitStatus {
            signal: Some(9),
            ..ExitStatus::default()
        };
        let report = ExitReport {
            member: self.id.clone(),
            status: status.clone(),
        };
        self.client.exited(report).await.unwrap();
        self.restart = RestartReport {
            number: self.restart.number + 1,
            replaces: Some(self.id.incarnation),
            last: Some(status),
        };
        self.id.incarnation = Incarnation::fresh();
        self.report = MemberReport {
            addresses: self.report.addresses.clone(),
            checkpoints: self.report.checkpoints.clone(),
            ..MemberReport::default()
        };
        self.plan = None;
    }

    pub(crate) fn done(&self, digest: &str) -> MemberMessage {
        let (plan, head) = self.plan.as_ref().expect("it is in a group");
        MemberMessage::Done(DoneReport {
            generation: plan.generation,
            rank: head.rank,
            world_size: plan.world_size,
            position: self.report.held.as_ref().expect("it holds a state").position,
            total_steps: 10,
            epochs: 1,
            state_digest: digest.into(),
            final_loss: "0.25".into(),
            metrics: [("accuracy".to_owned(), 0.9)].into(),
            checkpoint: None,
        })
    }
}

pub(crate) fn state_at(position: Position) -> HeldState {
    HeldState {
        position,
        chain: format!("chain {position}"),
        state_digest: format!("digest {position}"),
    }
}
