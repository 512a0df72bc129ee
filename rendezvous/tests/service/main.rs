//! Service and client over loopback, with scripted members.

mod life;
mod rank;
mod relay;
mod strangers;

use gradsync_formats::run_config::{RunConfig, resolve};
use gradsync_rendezvous::membership::{Settings, SizeBounds};
use gradsync_rendezvous::server::{
    FilePersist, Limits, LocalAuthenticator, ServiceHandle, ServiceOptions, ServiceSnapshot, start,
};
use rank::Rank;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

/// Nothing here takes long; a test that hangs ends with a message.
const DEADLINE: Duration = Duration::from_secs(60);

fn run_config() -> RunConfig {
    let spec = serde_json::json!({
        "task": {"name": "count"},
        "training": {
            "globalBatchSize": 8, "steps": 10, "seed": 1,
            "optimizer": {"name": "SGD", "learningRate": 1.0}
        },
        "sync": {"strategy": "AllReduce"},
        "checkpoint": {"directory": "/checkpoints", "everySteps": 2},
        "workers": {"replicas": 3, "template": {"spec": {"containers": [{"name": "trainer"}]}}}
    });
    resolve("test", &spec).expect("the specification is complete")
}

/// A service in `folder` for a group of fixed size.
async fn service_with(
    folder: &Path,
    pods: u32,
    address: SocketAddr,
    authenticator: LocalAuthenticator,
    limits: Limits,
) -> ServiceHandle<LocalAuthenticator> {
    let persist = FilePersist::open(folder).unwrap();
    let settings = Settings::new(persist.job_uid().clone(), SizeBounds::fixed(pods), String::new());
    let mut options = ServiceOptions::new(settings, run_config());
    options.limits = limits;
    // Scripted members do not beat.
    options.silent_after = Duration::from_secs(3600);
    start(address, options, persist, authenticator).await.unwrap()
}

async fn service(folder: &Path, pods: u32) -> ServiceHandle<LocalAuthenticator> {
    service_with(
        folder,
        pods,
        any_port(),
        LocalAuthenticator::default(),
        Limits::default(),
    )
    .await
}

fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// Waits until the service shows what `holds` asks for.
async fn until(
    service: &ServiceHandle<LocalAuthenticator>,
    holds: impl Fn(&ServiceSnapshot) -> bool,
) -> ServiceSnapshot {
    let mut watch = service.watch();
    let found = tokio::time::timeout(DEADLINE, watch.wait_for(|s| holds(s))).await;
    match found {
        Ok(found) => ServiceSnapshot::clone(&found.unwrap()),
        Err(_) => panic!("the service never came to it: {:?}", service.snapshot()),
    }
}

/// Ranks in slots 0 to `pods - 1`.
fn ranks(service: &ServiceHandle<LocalAuthenticator>, pods: u32) -> Vec<Rank> {
    (0..pods).map(|slot| Rank::start(service, slot)).collect()
}

/// All of `ranks` join, get the same plan and open it.
async fn open_group(ranks: &mut [Rank]) {
    for rank in ranks.iter_mut() {
        rank.join().await;
    }
    for rank in ranks.iter_mut() {
        rank.enter().await;
    }
    for rank in ranks.iter_mut() {
        rank.establish().await;
    }
}
