//! Requests that must not get in, and connections that must not hold others up.

use super::{Rank, any_port, run_config, service, service_with};
use gradsync_formats::identity::JobUid;
use gradsync_rendezvous::server::{Limits, LocalAuthenticator, ServiceHandle};
use gradsync_rendezvous::wire::{
    Envelope, JOIN_PATH, JoinRequest, MAX_REQUEST_BYTES, NEWS_PATH, PROTOCOL_VERSION, ProtocolVersion,
    Refusal, RestartReport,
};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Posts `body` with `bearer` and gives back the status and the refusal.
async fn post(
    service: &ServiceHandle<LocalAuthenticator>,
    path: &str,
    bearer: Option<&str>,
    body: Vec<u8>,
) -> (u16, Refusal) {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let mut request = client.post(format!("{}{path}", service.url())).body(body);
    if let Some(bearer) = bearer {
        request = request.bearer_auth(bearer);
    }
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    let envelope: Envelope<Refusal> = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    (status, envelope.body)
}

fn join_of(rank: &Rank, job_uid: JobUid) -> Envelope<JoinRequest> {
    let request = JoinRequest {
        member: rank.id.clone(),
        report: rank.report.clone(),
        restart: RestartReport::default(),
    };
    Envelope::new(job_uid, request)
}

#[tokio::test]
async fn what_must_not_get_in_is_refused_by_type() {
    let folder = tempfile::tempdir().unwrap();
    let service = service(folder.path(), 1).await;
    let rank = Rank::start(&service, 0);
    let secret = rank.secret.reveal();
    let job_uid = service.snapshot().job_uid.clone();
    let good = join_of(&rank, job_uid.clone());
    let bytes = |envelope: &Envelope<JoinRequest>| serde_json::to_vec(envelope).unwrap();

    let (status, refusal) = post(&service, JOIN_PATH, None, bytes(&good)).await;
    assert!(
        status == 401 && matches!(refusal, Refusal::BadToken { .. }),
        "{refusal}"
    );
    let (status, refusal) = post(&service, JOIN_PATH, Some("guessed"), bytes(&good)).await;
    assert!(
        status == 401 && matches!(refusal, Refusal::BadToken { .. }),
        "{refusal}"
    );
    assert!(!refusal.to_string().contains("guessed"));
    let (_, refusal) = post(&service, JOIN_PATH, Some("s1.0.706f64.00"), bytes(&good)).await;
    assert!(matches!(refusal, Refusal::BadToken { .. }), "{refusal}");

    // Another pod's secret does not let anybody speak for this one.
    let other = Rank::start(&service, 0);
    let (_, refusal) = post(&service, JOIN_PATH, Some(other.secret.reveal()), bytes(&good)).await;
    assert!(matches!(refusal, Refusal::BadToken { .. }), "{refusal}");

    let wrong = join_of(&rank, JobUid("another".into()));
    let (status, refusal) = post(&service, JOIN_PATH, Some(secret), bytes(&wrong)).await;
    let (expected, given) = (job_uid, JobUid("another".into()));
    assert_eq!((status, refusal), (409, Refusal::WrongJob { expected, given }));

    let mut future = good.clone();
    future.protocol = ProtocolVersion {
        major: PROTOCOL_VERSION.major + 1,
        minor: 0,
    };
    let (status, refusal) = post(&service, JOIN_PATH, Some(secret), bytes(&future)).await;
    assert!(
        status == 400 && matches!(refusal, Refusal::ProtocolVersion { .. }),
        "{refusal}"
    );

    let (status, refusal) = post(&service, JOIN_PATH, Some(secret), b"{\"protocol\"".to_vec()).await;
    assert!(
        status == 400 && matches!(refusal, Refusal::Malformed { .. }),
        "{refusal}"
    );
    let (status, refusal) = post(&service, NEWS_PATH, Some(secret), bytes(&good)).await;
    assert!(
        status == 400 && matches!(refusal, Refusal::Malformed { .. }),
        "{refusal}"
    );
    assert!(service.snapshot().members.is_empty());
}

#[tokio::test]
async fn a_body_of_the_largest_size_is_read_and_one_byte_more_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let service = service(folder.path(), 1).await;
    let rank = Rank::start(&service, 0);
    let secret = rank.secret.reveal();
    let (status, refusal) = post(&service, JOIN_PATH, Some(secret), vec![b' '; MAX_REQUEST_BYTES]).await;
    assert!(
        status == 400 && matches!(refusal, Refusal::Malformed { .. }),
        "{refusal}"
    );
    let (status, refusal) = post(
        &service,
        JOIN_PATH,
        Some(secret),
        vec![b' '; MAX_REQUEST_BYTES + 1],
    )
    .await;
    let limit = MAX_REQUEST_BYTES;
    assert_eq!((status, refusal), (413, Refusal::TooLarge { limit }));
    // The same without an announced length.
    let mut stream = TcpStream::connect(service.address()).await.unwrap();
    let head = format!(
        "POST {JOIN_PATH} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {secret}\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let chunk = [b"10001\r\n".as_slice(), &vec![b' '; 0x10001], b"\r\n0\r\n\r\n"].concat();
    // The service may answer and close before it has read everything.
    let _ = stream.write_all(&chunk).await;
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413");
}

#[tokio::test]
async fn a_pod_that_asks_too_much_is_told_to_wait_and_its_client_does() {
    let folder = tempfile::tempdir().unwrap();
    let limits = Limits {
        requests_per_second: 4,
        ..Limits::default()
    };
    let service = service_with(
        folder.path(),
        1,
        any_port(),
        LocalAuthenticator::default(),
        limits,
    )
    .await;
    let mut rank = Rank::start(&service, 0);
    let job_uid = service.snapshot().job_uid.clone();
    let nonsense = serde_json::to_vec(&join_of(&rank, JobUid("another".into()))).unwrap();
    let mut last = None;
    for _ in 0..30 {
        let (status, refusal) = post(&service, JOIN_PATH, Some(rank.secret.reveal()), nonsense.clone()).await;
        last = Some((status, refusal));
        if status == 429 {
            break;
        }
    }
    let (status, refusal) = last.unwrap();
    assert!(
        status == 429 && matches!(refusal, Refusal::RateLimited { per_second: 4, .. }),
        "{refusal}"
    );
    rank.send_join().await.unwrap();
    assert_eq!(service.snapshot().job_uid, job_uid);
    assert_eq!(service.snapshot().members.len(), 1);
}

#[tokio::test]
async fn slow_and_garbage_connections_are_closed_and_hold_nobody_up() {
    let folder = tempfile::tempdir().unwrap();
    let limits = Limits {
        connections: 3,
        request_deadline: Duration::from_millis(200),
        ..Limits::default()
    };
    let service = service_with(
        folder.path(),
        1,
        any_port(),
        LocalAuthenticator::default(),
        limits,
    )
    .await;
    let mut rank = Rank::start(&service, 0);
    // All places are taken: by silence, by half a head, by garbage.
    let mut held = Vec::new();
    for start in ["", "POST /v1/join HT", "\u{0}\u{1}\u{2}nonsense\r\n\r\n"] {
        let mut stream = TcpStream::connect(service.address()).await.unwrap();
        stream.write_all(start.as_bytes()).await.unwrap();
        held.push(stream);
    }
    rank.join().await;
    rank.enter().await;
    for mut stream in held {
        let mut rest = Vec::new();
        // Closed with or without an answer, or reset.
        let _ = stream.read_to_end(&mut rest).await;
        assert!(!String::from_utf8_lossy(&rest).contains("200 OK"));
    }
}

#[tokio::test]
async fn a_body_that_does_not_arrive_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let limits = Limits {
        request_deadline: Duration::from_millis(100),
        ..Limits::default()
    };
    let service = service_with(
        folder.path(),
        1,
        any_port(),
        LocalAuthenticator::default(),
        limits,
    )
    .await;
    let rank = Rank::start(&service, 0);
    let mut stream = TcpStream::connect(service.address()).await.unwrap();
    let secret = rank.secret.reveal();
    let head = format!(
        "POST {JOIN_PATH} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {secret}\r\ncontent-length: 100\r\n\r\n{{"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let text = String::from_utf8_lossy(&answer);
    assert!(
        text.starts_with("HTTP/1.1 400") && text.contains("did not arrive"),
        "{text}"
    );
}

#[tokio::test]
async fn a_taken_address_is_named_with_the_way_out() {
    let folder = tempfile::tempdir().unwrap();
    let first = service(folder.path(), 1).await;
    let persist = gradsync_rendezvous::server::FilePersist::open(folder.path()).unwrap();
    let settings = gradsync_rendezvous::membership::Settings::new(
        persist.job_uid().clone(),
        gradsync_rendezvous::membership::SizeBounds::fixed(1),
        String::new(),
    );
    let options = gradsync_rendezvous::server::ServiceOptions::new(settings, run_config());
    let started =
        gradsync_rendezvous::server::start(first.address(), options, persist, LocalAuthenticator::default())
            .await;
    let text = started.expect_err("the port is taken").to_string();
    assert!(
        text.contains(&first.address().to_string()) && text.contains("free port"),
        "{text}"
    );
}
