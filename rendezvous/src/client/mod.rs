//! The client that an agent uses for all ranks of its pod: one connection pool, retries with jitter under a
//! deadline, typed errors. A service that was started again, or that lost sight of a rank, is told of the
//! pod's ranks and ended processes anew without the caller's doing.

mod retry;
mod standing;

use crate::wire::{
    BEAT_PATH, Beat, BeatReply, EXITED_PATH, Envelope, ExitReport, JOIN_PATH, JoinReply, JoinRequest,
    MAX_HOLD, MemberMessage, NEWS_PATH, NewsRequest, PROTOCOL_VERSION, PodNews, ProtocolVersion, REPORT_PATH,
    Refusal, ReportReply, ReportRequest, Revision, Secret,
};
use gradsync_formats::identity::{Incarnation, JobUid, MemberId, PodUid};
use retry::Pauses;
use serde::Serialize;
use serde::de::DeserializeOwned;
use standing::Standing;
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// Largest answer that is read: a plan of many members takes a few hundred bytes for each.
const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;

/// How patient a client is.
#[derive(Clone, Copy, Debug)]
pub struct ClientOptions {
    /// How long one connection may take to come up.
    pub connect_timeout: Duration,
    /// How long one request may take, held polls apart.
    pub request_timeout: Duration,
    /// How long a call goes on trying before it gives an error.
    pub deadline: Duration,
    /// The first pause between tries; doubled each time, with jitter.
    pub first_pause: Duration,
    /// The longest pause.
    pub longest_pause: Duration,
}

impl Default for ClientOptions {
    fn default() -> ClientOptions {
        ClientOptions {
            connect_timeout: Duration::from_secs(2),
            request_timeout: Duration::from_secs(30),
            deadline: Duration::from_secs(60),
            first_pause: Duration::from_millis(50),
            longest_pause: Duration::from_secs(2),
        }
    }
}

/// Why a call had no success.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The service said no, and would again.
    #[error(transparent)]
    Refused(Box<Refusal>),
    /// The service has lost sight of a rank of this pod and does not take it back. The client has forgotten
    /// it; the call may be tried again for the others.
    #[error("join again as {member}: {refusal}")]
    NotTakenBack {
        /// Which rank.
        member: MemberId,
        /// Why.
        refusal: Box<Refusal>,
    },
    /// The service did not answer before the deadline. Training goes on without it; try again.
    #[error("reach the rendezvous at {url}: no answer for {} s, last: {last}", .waited.as_secs())]
    Unreachable {
        /// Where.
        url: String,
        /// How long it was tried.
        waited: Duration,
        /// What happened the last time.
        last: String,
    },
    /// Whatever answers there is no rendezvous of ours.
    #[error("talk to {url}: {problem}")]
    Protocol {
        /// Where.
        url: String,
        /// What is wrong with the answer.
        problem: String,
    },
    /// The client could not be made.
    #[error("set up the rendezvous client: {0}")]
    Setup(String),
}

/// A pod's client. Calls may run at the same time.
#[derive(Debug)]
pub struct PodClient {
    http: reqwest::Client,
    url: String,
    job_uid: JobUid,
    pod: PodUid,
    credential: Secret,
    options: ClientOptions,
    standing: Mutex<Standing>,
}

/// What one try came to.
enum Try<T> {
    Done(T),
    Refused(Refusal),
    Failed(String),
}

impl PodClient {
    /// A client of pod `pod` for the service at `url` (such as `http://127.0.0.1:4000`), with the pod's own
    /// credential.
    ///
    /// # Errors
    /// When the HTTP client cannot be set up.
    pub fn new(
        url: &str,
        job_uid: JobUid,
        pod: PodUid,
        credential: Secret,
        options: ClientOptions,
    ) -> Result<PodClient, ClientError> {
        let http = reqwest::Client::builder()
            // The service is a neighbour: no proxy that the environment names stands between.
            .no_proxy()
            .connect_timeout(options.connect_timeout)
            .build()
            .map_err(|error| ClientError::Setup(error.to_string()))?;
        Ok(PodClient {
            http,
            url: url.trim_end_matches('/').to_owned(),
            job_uid,
            pod,
            credential,
            options,
            standing: Mutex::default(),
        })
    }

    /// Joins, or joins again with a new report. The client remembers it and repeats it when the service has
    /// lost sight of the member.
    ///
    /// # Errors
    /// See [`ClientError`]. `Refused` is final for this report.
    pub async fn join(&self, request: JoinRequest) -> Result<JoinReply, ClientError> {
        self.lock().joined(&request);
        let member = request.member.clone();
        let answer = self.call(JOIN_PATH, &request, Duration::ZERO, false).await;
        if let Err(ClientError::Refused(_)) = &answer {
            self.lock().forget(member.incarnation);
        }
        let reply: JoinReply = answer?;
        self.lock().session = Some(reply.session.clone());
        Ok(reply)
    }

    /// Reports something of `member`. [`MemberMessage::Done`] returns once completion is persisted.
    ///
    /// # Errors
    /// See [`ClientError`]. `NotTakenBack` may be another rank's; the report was then not sent.
    pub async fn report(&self, member: MemberId, message: MemberMessage) -> Result<(), ClientError> {
        self.lock().reported(member.incarnation, &message);
        let request = ReportRequest { member, message };
        let _: ReportReply = self.call(REPORT_PATH, &request, Duration::ZERO, true).await?;
        Ok(())
    }

    /// Beats for the pod's ranks. Ranks that the service does not know join again within the call.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn beat(&self, beat: Beat) -> Result<BeatReply, ClientError> {
        let reply: BeatReply = self.call(BEAT_PATH, &beat, Duration::ZERO, true).await?;
        if reply.unknown.iter().any(|i| self.lock().knows(*i)) {
            self.rejoin(&reply.unknown).await?;
        }
        Ok(reply)
    }

    /// The pod's news, as soon as they differ from `after`, or as they are after `hold` (at most 20 s).
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn news(&self, after: Option<Revision>, hold: Duration) -> Result<PodNews, ClientError> {
        let hold = hold.min(MAX_HOLD);
        let request = NewsRequest {
            pod: self.pod.clone(),
            after,
            hold_ms: hold.as_millis() as u64,
        };
        let news: PodNews = self.call(NEWS_PATH, &request, hold, true).await?;
        let missing = self.lock().missing_in(&news);
        if !missing.is_empty() {
            self.rejoin(&missing).await?;
        }
        Ok(news)
    }

    /// Reports that a process of this pod was reaped. The client remembers it for a service that is started
    /// again.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn exited(&self, report: ExitReport) -> Result<(), ClientError> {
        self.lock().exited(&report);
        let _: ReportReply = self.call(EXITED_PATH, &report, Duration::ZERO, true).await?;
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Standing> {
        self.standing.lock().expect("no holder of this lock panics")
    }

    /// Tries until success, a final refusal or the deadline.
    async fn call<T: Serialize, R: DeserializeOwned>(
        &self,
        path: &str,
        body: &T,
        hold: Duration,
        with_session: bool,
    ) -> Result<R, ClientError> {
        let envelope = Envelope::new(self.job_uid.clone(), body);
        let encoded = serde_json::to_vec(&envelope).map_err(|error| self.protocol(error.to_string()))?;
        let start = Instant::now();
        let mut pauses = Pauses::new(self.options.first_pause, self.options.longest_pause);
        let mut may_rejoin = with_session;
        loop {
            let bearer = match with_session {
                true => self.lock().session.clone(),
                false => None,
            };
            let bearer = bearer.unwrap_or_else(|| self.credential.clone());
            let (last, wait) = match self.once(path, encoded.clone(), &bearer, hold).await? {
                Try::Done(answer) => return Ok(answer),
                Try::Refused(refusal) if may_rejoin && is_lost_sight(&refusal) => {
                    may_rejoin = false;
                    self.lock().session = None;
                    self.rejoin_all().await?;
                    continue;
                }
                Try::Refused(refusal) if refusal.is_transient() => {
                    let asked = match refusal {
                        Refusal::RateLimited { retry_after_ms, .. } => Duration::from_millis(retry_after_ms),
                        _ => Duration::ZERO,
                    };
                    (refusal.to_string(), pauses.next().max(asked))
                }
                Try::Refused(refusal) => return Err(ClientError::Refused(Box::new(refusal))),
                Try::Failed(error) => (error, pauses.next()),
            };
            let waited = start.elapsed();
            if waited + wait >= self.options.deadline {
                return Err(ClientError::Unreachable {
                    url: self.url.clone(),
                    waited,
                    last,
                });
            }
            tokio::time::sleep(wait).await;
        }
    }

    async fn once<R: DeserializeOwned>(
        &self,
        path: &str,
        body: Vec<u8>,
        bearer: &Secret,
        hold: Duration,
    ) -> Result<Try<R>, ClientError> {
        let sent = self
            .http
            .post(format!("{}{path}", self.url))
            .timeout(self.options.request_timeout + hold)
            .bearer_auth(bearer.reveal())
            .header(reqwest::header::CONTENT_TYPE, "application/json")
            .body(body)
            .send()
            .await;
        let mut response = match sent {
            Ok(response) => response,
            Err(error) => return Ok(Try::Failed(root_cause(&error))),
        };
        let succeeded = response.status().is_success();
        let mut bytes = Vec::new();
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) if bytes.len() + chunk.len() > MAX_ANSWER_BYTES => {
                    return Err(self.protocol(format!("its answer is longer than {MAX_ANSWER_BYTES} bytes")));
                }
                Ok(Some(chunk)) => bytes.extend_from_slice(&chunk),
                Ok(None) => break,
                Err(error) => return Ok(Try::Failed(root_cause(&error))),
            }
        }
        match succeeded {
            true => Ok(Try::Done(self.open(&bytes)?)),
            false => Ok(Try::Refused(self.open(&bytes)?)),
        }
    }

    fn open<R: DeserializeOwned>(&self, bytes: &[u8]) -> Result<R, ClientError> {
        let read = |error: serde_json::Error| self.protocol(format!("its answer cannot be read: {error}"));
        let head: Envelope<serde::de::IgnoredAny> = serde_json::from_slice(bytes).map_err(read)?;
        check_protocol(head.protocol)?;
        // A refusal for the wrong job is written by that other job's service.
        let envelope: Envelope<R> = serde_json::from_slice(bytes).map_err(read)?;
        Ok(envelope.body)
    }

    fn protocol(&self, problem: String) -> ClientError {
        ClientError::Protocol {
            url: self.url.clone(),
            problem,
        }
    }

    async fn rejoin_all(&self) -> Result<(), ClientError> {
        let all = self.lock().incarnations();
        self.rejoin(&all).await
    }

    /// Tells the service of ended processes and of `members` again. A service that does not answer is left
    /// to the next call; the first member that is refused for good is the error, after all were tried.
    async fn rejoin(&self, members: &[Incarnation]) -> Result<(), ClientError> {
        let (exits, joins) = self.lock().retold(members);
        let mut refused = Ok(());
        for join in joins {
            match Box::pin(self.call::<_, JoinReply>(JOIN_PATH, &join, Duration::ZERO, false)).await {
                Ok(reply) => self.lock().session = Some(reply.session),
                Err(ClientError::Refused(refusal)) if refused.is_ok() => {
                    self.lock().forget(join.member.incarnation);
                    refused = Err(ClientError::NotTakenBack {
                        member: join.member,
                        refusal,
                    });
                }
                // A second refused one is found by the next call.
                Err(error) => tracing::warn!(member = %join.member, %error, "join again"),
            }
        }
        for exit in exits {
            let sent = Box::pin(self.call::<_, ReportReply>(EXITED_PATH, &exit, Duration::ZERO, false)).await;
            if let Err(error) = sent {
                tracing::warn!(member = %exit.member, %error, "report an exit again");
            }
        }
        refused
    }
}

/// Whether the service only needs to be told of the pod again.
fn is_lost_sight(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::UnknownMember { .. } | Refusal::BadToken { .. })
}

fn check_protocol(given: ProtocolVersion) -> Result<(), ClientError> {
    match PROTOCOL_VERSION.talks_to(given) {
        true => Ok(()),
        false => Err(ClientError::Refused(Box::new(Refusal::ProtocolVersion {
            supported: PROTOCOL_VERSION,
            given,
        }))),
    }
}

/// The innermost error, which says what happened; the outer ones only say that a request failed.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
