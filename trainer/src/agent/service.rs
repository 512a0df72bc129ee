//! The agent's side of the rendezvous service: requests that are sent until they are answered, and a held
//! poll for news.

use super::run::Happening;
use super::supervisor::Event;
use gradsync_formats::identity::{Incarnation, JobUid, PodUid};
use gradsync_rendezvous::client::{ClientError, ClientOptions, PodClient};
use gradsync_rendezvous::wire::{Beat, ExitReport, JoinRequest, MAX_HOLD, Refusal, ReportRequest, Secret};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

/// Pause after a request that the service did not answer within the client's own deadline, or refused where
/// that makes no sense for ever.
const PAUSE: Duration = Duration::from_secs(1);
/// What requests on their way get before the agent ends.
const DRAIN: Duration = Duration::from_secs(5);

/// The pod's connection to the service.
pub(super) struct Service {
    client: Arc<PodClient>,
    send: mpsc::Sender<Happening>,
    on_their_way: JoinSet<()>,
    /// The newest join of each rank: an older one is given up for it.
    joins: BTreeMap<Incarnation, AbortHandle>,
    /// A beat is only sent when the one before was answered: they must not pile up while the service is away.
    beating: Option<AbortHandle>,
    poll: tokio::task::JoinHandle<()>,
}

impl Service {
    /// Connects lazily to the service at `url`; what it says is sent to `send`.
    pub(super) fn start(
        url: &str,
        job: JobUid,
        pod: PodUid,
        secret: Secret,
        send: mpsc::Sender<Happening>,
    ) -> Result<Service, ClientError> {
        let client = Arc::new(PodClient::new(url, job, pod, secret, ClientOptions::default())?);
        let poll = tokio::spawn(poll(Arc::clone(&client), send.clone()));
        Ok(Service {
            client,
            send,
            on_their_way: JoinSet::new(),
            joins: BTreeMap::new(),
            beating: None,
            poll,
        })
    }

    pub(super) fn join(&mut self, request: JoinRequest) {
        let (client, send) = (Arc::clone(&self.client), self.send.clone());
        let incarnation = request.member.incarnation;
        let newest = self.spawn(async move {
            let answer = until_answered(&send, || client.join(request.clone())).await;
            if let Some(answer) = answer {
                let answer = Box::new(answer);
                tell(&send, Event::Joined { incarnation, answer }).await;
            }
        });
        self.joins.retain(|_, join| !join.is_finished());
        if let Some(older) = self.joins.insert(incarnation, newest) {
            older.abort();
        }
    }

    pub(super) fn report(&mut self, number: u64, request: ReportRequest) {
        let (client, send) = (Arc::clone(&self.client), self.send.clone());
        self.spawn(async move {
            let ReportRequest { member, message } = request;
            let incarnation = member.incarnation;
            let answer = until_answered(&send, || client.report(member.clone(), message.clone())).await;
            if let Some(answer) = answer {
                let event = Event::Reported {
                    incarnation,
                    number,
                    answer,
                };
                tell(&send, event).await;
            }
        });
    }

    pub(super) fn exited(&mut self, report: ExitReport) {
        let (client, send) = (Arc::clone(&self.client), self.send.clone());
        self.spawn(async move {
            if let Some(Err(refusal)) = until_answered(&send, || client.exited(report.clone())).await {
                tracing::info!(member = %report.member, %refusal, "the service does not take in the end");
            }
        });
    }

    pub(super) fn beat(&mut self, beat: Beat) {
        if self.beating.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        let client = Arc::clone(&self.client);
        let send = self.send.clone();
        let task = self.on_their_way.spawn(async move {
            match client.beat(beat).await {
                Ok(_) => {}
                Err(ClientError::NotTakenBack { member, refusal }) => {
                    not_taken_back(&send, member.incarnation, refusal).await;
                }
                Err(error) => tracing::warn!(%error, "beat"),
            }
        });
        self.beating = Some(task);
    }

    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        // Those that are done are taken out, so that the set stays small.
        while self.on_their_way.try_join_next().is_some() {}
        self.on_their_way.spawn(task)
    }

    /// Waits, not for long, until what was said has arrived.
    pub(super) async fn drain(&mut self) {
        self.poll.abort();
        if let Some(beat) = self.beating.take() {
            beat.abort();
        }
        let drained = tokio::time::timeout(DRAIN, async {
            while self.on_their_way.join_next().await.is_some() {}
        });
        if drained.await.is_err() {
            tracing::warn!("the service did not answer before the end");
        }
    }
}

/// Repeats a request until the service answers; None when it cannot be spoken to at all, which was told.
async fn until_answered<T, F>(
    send: &mpsc::Sender<Happening>,
    request: impl Fn() -> F,
) -> Option<Result<T, Refusal>>
where
    F: Future<Output = Result<T, ClientError>>,
{
    loop {
        match request().await {
            Ok(answer) => return Some(Ok(answer)),
            Err(ClientError::Refused(refusal)) => return Some(Err(*refusal)),
            // The client has forgotten that member: the request is answered next time.
            Err(ClientError::NotTakenBack { member, refusal }) => {
                not_taken_back(send, member.incarnation, refusal).await;
            }
            Err(error @ ClientError::Unreachable { .. }) => {
                tracing::warn!(%error, "trying again");
                tokio::time::sleep(PAUSE).await;
            }
            Err(error @ (ClientError::Protocol { .. } | ClientError::Setup(_))) => {
                // A full queue cannot be: the agent ends with the first of these.
                let _ = send.send(Happening::ServiceLost(error.to_string())).await;
                return None;
            }
        }
    }
}

async fn poll(client: Arc<PodClient>, send: mpsc::Sender<Happening>) {
    let mut after = None;
    loop {
        match client.news(after.clone(), MAX_HOLD).await {
            Ok(news) => {
                after = Some(news.revision.clone());
                tell(&send, Event::News(Box::new(news))).await;
            }
            Err(ClientError::NotTakenBack { member, refusal }) => {
                not_taken_back(&send, member.incarnation, refusal).await;
            }
            Err(error) => {
                tracing::warn!(%error, "ask for news");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn not_taken_back(send: &mpsc::Sender<Happening>, incarnation: Incarnation, refusal: Box<Refusal>) {
    tracing::warn!(%incarnation, %refusal, "the service does not take the rank back");
    tell(send, Event::NotTakenBack { incarnation, refusal }).await;
}

async fn tell(send: &mpsc::Sender<Happening>, event: Event) {
    // Nobody listens only when the agent is ending.
    let _ = send.send(Happening::Event(event)).await;
}
