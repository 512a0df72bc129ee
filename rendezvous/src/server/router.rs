//! The HTTP side: who asks, how much, in which protocol, for which job; then the message is passed on.

use super::auth::{Authenticator, PodIdentity, ServiceSecret, bad_token};
use super::limits::{Limits, Rates};
use super::task::{Answer, Command};
use crate::wire::{
    BEAT_PATH, EXITED_PATH, Envelope, JOIN_PATH, MAX_HOLD, MAX_REQUEST_BYTES, NEWS_PATH, NewsRequest,
    PROTOCOL_VERSION, PodNews, REPORT_PATH, Refusal, Secret,
};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::post;
use gradsync_formats::identity::JobUid;
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

/// What all handlers share.
pub(super) struct Gate<A> {
    job_uid: JobUid,
    secret: ServiceSecret,
    commands: mpsc::Sender<Command>,
    limits: Limits,
    rates: Mutex<Rates>,
    authenticator: A,
}

impl<A: Authenticator> Gate<A> {
    pub(super) fn new(
        job_uid: JobUid,
        secret: ServiceSecret,
        commands: mpsc::Sender<Command>,
        limits: Limits,
        authenticator: A,
    ) -> Gate<A> {
        Gate {
            job_uid,
            secret,
            commands,
            limits,
            rates: Mutex::default(),
            authenticator,
        }
    }

    /// Lets a request in: proves its sender, counts it, reads it whole and checks its envelope.
    async fn admit<T: DeserializeOwned>(
        &self,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<(PodIdentity, T), Refusal> {
        // Strangers are turned away before a byte of their body is read.
        let identity = self.identify(headers).await?;
        self.count(&identity)?;
        let bytes = self.read(headers, body).await?;
        let head: Envelope<IgnoredAny> = parse(&bytes)?;
        if !PROTOCOL_VERSION.talks_to(head.protocol) {
            return Err(Refusal::ProtocolVersion {
                supported: PROTOCOL_VERSION,
                given: head.protocol,
            });
        }
        if head.job_uid != self.job_uid {
            return Err(Refusal::WrongJob {
                expected: self.job_uid.clone(),
                given: head.job_uid,
            });
        }
        let envelope: Envelope<T> = parse(&bytes)?;
        Ok((identity, envelope.body))
    }

    async fn identify(&self, headers: &HeaderMap) -> Result<PodIdentity, Refusal> {
        let header = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let bearer = header.and_then(|text| text.strip_prefix("Bearer "));
        let bearer = Secret::new(
            bearer
                .ok_or_else(|| bad_token("it carries no bearer token"))?
                .to_owned(),
        );
        match self.secret.identity(&bearer) {
            Some(identity) => identity,
            None => self.authenticator.authenticate(&bearer).await,
        }
    }

    fn count(&self, identity: &PodIdentity) -> Result<(), Refusal> {
        let mut rates = self.rates.lock().expect("no holder of this lock panics");
        let per_second = self.limits.requests_per_second;
        rates
            .take(&identity.pod.0, per_second, Instant::now())
            .map_err(|wait| Refusal::RateLimited {
                per_second,
                retry_after_ms: wait.as_millis().max(1) as u64,
            })
    }

    async fn read(&self, headers: &HeaderMap, body: Body) -> Result<Bytes, Refusal> {
        let limit = MAX_REQUEST_BYTES;
        let length = headers
            .get(CONTENT_LENGTH)
            .and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
        if length.is_some_and(|length| length > limit) {
            return Err(Refusal::TooLarge { limit });
        }
        let malformed = |problem: String| Refusal::Malformed { problem };
        match timeout(self.limits.request_deadline, axum::body::to_bytes(body, limit)).await {
            Ok(Ok(bytes)) => Ok(bytes),
            Ok(Err(error)) if error.to_string().contains("length limit") => Err(Refusal::TooLarge { limit }),
            Ok(Err(error)) => Err(malformed(format!("its body ended early: {error}"))),
            Err(_) => Err(malformed(format!(
                "its body did not arrive within {} ms",
                self.limits.request_deadline.as_millis()
            ))),
        }
    }

    /// Passes a command on and waits for its answer.
    async fn ask<R>(&self, command: impl FnOnce(oneshot::Sender<Answer<R>>) -> Command) -> Answer<R> {
        let (sender, receiver) = oneshot::channel();
        let unavailable = |problem: &str| Refusal::Unavailable {
            problem: problem.into(),
        };
        let exchange = async {
            self.commands.send(command(sender)).await.ok()?;
            receiver.await.ok()
        };
        match timeout(self.limits.answer_deadline, exchange).await {
            Ok(Some(answer)) => answer,
            Ok(None) => Err(unavailable("it is shutting down")),
            Err(_) => Err(unavailable("it is busy")),
        }
    }

    fn respond<R: Serialize>(&self, answer: Result<R, Refusal>) -> Response {
        let (status, body) = match answer {
            Ok(body) => (StatusCode::OK, self.encode(body)),
            Err(refusal) => (status_of(&refusal), self.encode(refusal)),
        };
        let (status, body) = match body {
            Ok(body) => (status, body),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string().into_bytes()),
        };
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        let json = axum::http::HeaderValue::from_static("application/json");
        response.headers_mut().insert(CONTENT_TYPE, json);
        response
    }

    fn encode<R: Serialize>(&self, body: R) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(&Envelope::new(self.job_uid.clone(), body))
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<Envelope<T>, Refusal> {
    serde_json::from_slice(bytes).map_err(|error| Refusal::Malformed {
        problem: error.to_string(),
    })
}

fn status_of(refusal: &Refusal) -> StatusCode {
    match refusal {
        Refusal::BadToken { .. } => StatusCode::UNAUTHORIZED,
        Refusal::UnknownMember { .. } => StatusCode::NOT_FOUND,
        Refusal::Finished { .. } | Refusal::Failed { .. } => StatusCode::GONE,
        Refusal::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
        Refusal::RateLimited { .. } => StatusCode::TOO_MANY_REQUESTS,
        Refusal::Malformed { .. } | Refusal::ProtocolVersion { .. } => StatusCode::BAD_REQUEST,
        Refusal::Unavailable { .. } => StatusCode::SERVICE_UNAVAILABLE,
        Refusal::WrongJob { .. }
        | Refusal::StaleGeneration { .. }
        | Refusal::DifferentLayout { .. }
        | Refusal::DifferentData { .. }
        | Refusal::DifferentDirectory { .. } => StatusCode::CONFLICT,
    }
}

/// The service's routes.
pub(super) fn router<A: Authenticator>(gate: Arc<Gate<A>>) -> Router {
    Router::new()
        .route(
            JOIN_PATH,
            post(simple::<A, _, _>(|identity, request, reply| Command::Join {
                identity,
                request: Box::new(request),
                reply,
            })),
        )
        .route(
            REPORT_PATH,
            post(simple::<A, _, _>(|identity, request, reply| Command::Report {
                identity,
                request: Box::new(request),
                reply,
            })),
        )
        .route(
            BEAT_PATH,
            post(simple::<A, _, _>(|identity, request, reply| Command::Beat {
                identity,
                request,
                reply,
            })),
        )
        .route(
            EXITED_PATH,
            post(simple::<A, _, _>(|identity, request, reply| Command::Exited {
                identity,
                request,
                reply,
            })),
        )
        .route(NEWS_PATH, post(news::<A>))
        .with_state(gate)
}

/// An answer on its way.
type Answering = std::pin::Pin<Box<dyn Future<Output = Response> + Send>>;
/// Makes a command of a pod's request, to be answered through the sender.
type Make<T, R> = fn(PodIdentity, T, oneshot::Sender<Answer<R>>) -> Command;

/// A handler for a request that is answered at once.
fn simple<A, T, R>(
    make: Make<T, R>,
) -> impl Fn(State<Arc<Gate<A>>>, HeaderMap, Body) -> Answering + Clone + Send + Sync + 'static
where
    A: Authenticator,
    T: DeserializeOwned + Send + 'static,
    R: Serialize + Send + 'static,
{
    move |State(gate), headers, body| {
        Box::pin(async move {
            let answer = match gate.admit::<T>(&headers, body).await {
                Ok((identity, request)) => gate.ask(|reply| make(identity, request, reply)).await,
                Err(refusal) => Err(refusal),
            };
            gate.respond(answer)
        })
    }
}

/// The held poll: answered as soon as the news differ from what the pod has seen.
async fn news<A: Authenticator>(
    State(gate): State<Arc<Gate<A>>>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = match gate.admit::<NewsRequest>(&headers, body).await {
        Ok((identity, request)) => hold(&gate, identity, request).await,
        Err(refusal) => Err(refusal),
    };
    gate.respond(answer)
}

async fn hold<A: Authenticator>(
    gate: &Gate<A>,
    identity: PodIdentity,
    request: NewsRequest,
) -> Result<PodNews, Refusal> {
    if request.pod != identity.pod {
        return Err(bad_token("it proves another pod than the one that is asked for"));
    }
    let until = Instant::now() + Duration::from_millis(request.hold_ms).min(MAX_HOLD);
    loop {
        let asking = identity.clone();
        let (news, mut changed) = gate
            .ask(|reply| Command::News {
                identity: asking,
                reply,
            })
            .await?;
        if request.after.as_ref() != Some(&news.revision) {
            return Ok(news);
        }
        match timeout_at(until, changed.changed()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) | Err(_) => return Ok(news),
        }
    }
}
