//! The rendezvous service: HTTP with JSON around the membership machine of one job. A task owns the machine
//! and everything that changes; handlers only check, limit and pass on.
//!
//! The launcher keeps a [`ServiceHandle`] to tell it of pods that it started or reaped, and to watch it.

mod auth;
mod beats;
mod effects;
mod handle;
mod limits;
mod listen;
mod persist;
mod router;
mod snapshot;
mod task;
#[cfg(test)]
mod tests;

pub use auth::{Authenticator, LocalAuthenticator, PodIdentity};
pub use handle::{EndProof, ServiceHandle};
pub use limits::Limits;
pub use persist::{FilePersist, MEMBERSHIP_FILE, Persist, PersistError};
pub use snapshot::{GenerationSnapshot, MemberSnapshot, RecoverySnapshot, ServicePhase, ServiceSnapshot};

use crate::membership::{Membership, Settings};
use gradsync_formats::digest::document_digest;
use gradsync_formats::run_config::{ResumePolicy, RunConfig};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

/// How a service is to run.
#[derive(Clone, Debug)]
pub struct ServiceOptions {
    /// The machine's settings. What RunConfig says about resuming, restarts and the digest is taken from it.
    pub settings: Settings,
    /// The configuration that members get.
    pub run_config: RunConfig,
    /// A rank that gives no sign of life for this long is not live.
    pub silent_after: Duration,
    /// How much longer members of an earlier service's group have to come back to a new service.
    pub return_grace: Duration,
    /// What clients may ask of it.
    pub limits: Limits,
}

impl ServiceOptions {
    /// The usual options: silent after 5 s, 10 s more to come back after a restart of the service.
    #[must_use]
    pub fn new(settings: Settings, run_config: RunConfig) -> ServiceOptions {
        ServiceOptions {
            settings,
            run_config,
            silent_after: Duration::from_secs(5),
            return_grace: Duration::from_secs(10),
            limits: Limits::default(),
        }
    }
}

/// Why a service could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its address is taken or not this machine's.
    #[error("listen on {address}: {source}; choose a free port, or 0 for any")]
    Listen {
        /// The address asked for.
        address: SocketAddr,
        /// The system's reason.
        source: std::io::Error,
    },
    /// What was saved cannot be read.
    #[error(transparent)]
    Persist(#[from] PersistError),
    /// The configuration cannot be written as JSON.
    #[error("encode RunConfig: {0}")]
    RunConfig(#[from] serde_json::Error),
}

/// Starts the service of one job on `address` (port 0: any), going on from what `persist` holds.
///
/// # Errors
/// When it cannot listen, or what was saved cannot be read.
pub async fn start<P: Persist, A: Authenticator>(
    address: SocketAddr,
    options: ServiceOptions,
    mut persist: P,
    authenticator: A,
) -> Result<ServiceHandle<A>, StartError> {
    let listening = |source| StartError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(listening)?;
    let local = listener.local_addr().map_err(listening)?;
    let saved = persist.load().await?;
    let mut settings = options.settings.clone();
    settings.run_config_digest = document_digest(&options.run_config)?;
    settings.max_restarts = options.run_config.failure_policy.max_restarts;
    settings.ranks_per_pod = options.run_config.workers.devices_per_worker;
    let checkpoint = options.run_config.checkpoint.as_ref();
    settings.resume = checkpoint.map_or(ResumePolicy::Never, |c| c.resume.policy);
    settings.grows = checkpoint.is_some() && settings.bounds.min < settings.bounds.max;
    let job_uid = settings.job_uid.clone();
    let machine = Membership::restore(settings, saved);
    let secret = auth::ServiceSecret::fresh(job_uid.clone());
    let (commands, snapshots, actor) = task::spawn(machine, persist, secret.clone(), &options);
    let gate = router::Gate::new(
        job_uid,
        secret,
        commands.clone(),
        options.limits,
        authenticator.clone(),
    );
    let acceptor = listen::spawn(listener, router::router(Arc::new(gate)), options.limits);
    Ok(ServiceHandle::new(
        local,
        commands,
        snapshots,
        authenticator,
        [actor, acceptor],
    ))
}
