//! What the launcher holds of its service.

use super::auth::{LocalAuthenticator, PodIdentity, random_secret};
use super::snapshot::ServiceSnapshot;
use super::task::Command;
use crate::membership::{Event, SizeBounds};
use crate::wire::{ExitStatus, Secret, StopCause};
use gradsync_formats::identity::PodUid;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

/// The word of whoever reaped a pod's first process, or saw its object gone for good: nothing of it runs
/// any more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndProof {
    /// How it ended, if that is to count as a restart charged to the user (success and polite signals
    /// never are).
    pub charge: Option<ExitStatus>,
}

/// A running service. Dropping it ends the service.
#[derive(Debug)]
pub struct ServiceHandle<A> {
    address: SocketAddr,
    commands: mpsc::Sender<Command>,
    snapshots: watch::Receiver<Arc<ServiceSnapshot>>,
    authenticator: A,
    tasks: [JoinHandle<()>; 2],
}

impl<A> ServiceHandle<A> {
    pub(super) fn new(
        address: SocketAddr,
        commands: mpsc::Sender<Command>,
        snapshots: watch::Receiver<Arc<ServiceSnapshot>>,
        authenticator: A,
        tasks: [JoinHandle<()>; 2],
    ) -> ServiceHandle<A> {
        ServiceHandle {
            address,
            commands,
            snapshots,
            authenticator,
            tasks,
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The base of its URLs.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The newest snapshot, and every later one.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Arc<ServiceSnapshot>> {
        self.snapshots.clone()
    }

    /// The newest snapshot.
    #[must_use]
    pub fn snapshot(&self) -> Arc<ServiceSnapshot> {
        self.snapshots.borrow().clone()
    }

    /// Asks everybody to stop at the next agreed boundary. The snapshot's phase tells when all have.
    pub async fn stop(&self, cause: StopCause) {
        self.tell(Event::StopWanted(cause)).await;
    }

    /// Changes the sizes.
    pub async fn set_size(&self, bounds: SizeBounds) {
        self.tell(Event::SizeChanged(bounds)).await;
    }

    /// Fails the job for a reason that the membership cannot see.
    pub async fn give_up(&self, error: String) {
        self.tell(Event::GiveUp { error }).await;
    }

    async fn tell(&self, event: Event) {
        self.send(Command::Tell(Box::new(event))).await;
    }

    async fn send(&self, command: Command) {
        // The task lives as long as this handle; without it there is nobody left to tell.
        if self.commands.send(command).await.is_err() {
            tracing::error!("the rendezvous task has ended");
        }
    }

    /// Ends the service: its address is free again, its connections are closed.
    pub async fn shut_down(mut self) {
        for task in &mut self.tasks {
            task.abort();
            // Its only error is the abort just asked for.
            let _ = task.await;
        }
    }
}

impl ServiceHandle<LocalAuthenticator> {
    /// Admits a pod that is about to be started in `slot`; its process gets the secret, in an environment
    /// variable or a file that no other user can read.
    #[must_use]
    pub fn pod_started(&self, pod: PodUid, slot: u32) -> Secret {
        let secret = random_secret();
        self.authenticator.admit(PodIdentity { pod, slot }, &secret);
        secret
    }

    /// Passes on the proof that a pod has ended. Also for pods of an earlier run that share the directory:
    /// until they are proven ended, nothing that only they hold is given up.
    pub async fn pod_ended(&self, pod: PodUid, slot: u32, proof: EndProof) {
        self.authenticator.dismiss(&pod);
        let identity = PodIdentity { pod, slot };
        self.send(Command::PodEnded { identity, proof }).await;
    }
}

impl<A> Drop for ServiceHandle<A> {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}
