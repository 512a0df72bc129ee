//! Who is asking: a pod proves itself with its own credential, later with the session token that its first
//! join was answered with.

use crate::wire::{Refusal, Secret};
use gradsync_formats::digest::sha256_hex;
use gradsync_formats::identity::{Generation, JobUid, PodUid};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex};

/// A pod that has proved who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodIdentity {
    /// Its UID.
    pub pod: PodUid,
    /// The slot that it fills.
    pub slot: u32,
}

/// Verifies a pod's own credential.
pub trait Authenticator: Clone + Send + Sync + 'static {
    /// The pod that `bearer` proves.
    ///
    /// # Errors
    /// [`Refusal::BadToken`] when it proves none; [`Refusal::Unavailable`] when that cannot be told now.
    fn authenticate(&self, bearer: &Secret) -> impl Future<Output = Result<PodIdentity, Refusal>> + Send;
}

/// Pods on this machine, each with a random secret handed to its process.
#[derive(Clone, Debug, Default)]
pub struct LocalAuthenticator {
    // Keyed by the secret's digest, so that looking up takes no time that tells about the secret.
    pods: Arc<Mutex<BTreeMap<String, PodIdentity>>>,
}

impl LocalAuthenticator {
    /// Admits `pod` with `secret`.
    pub fn admit(&self, pod: PodIdentity, secret: &Secret) {
        let mut pods = self.pods.lock().expect("no holder of this lock panics");
        pods.insert(sha256_hex(secret.reveal().as_bytes()), pod);
    }

    /// Admits `pod` no more.
    pub fn dismiss(&self, pod: &PodUid) {
        let mut pods = self.pods.lock().expect("no holder of this lock panics");
        pods.retain(|_, identity| identity.pod != *pod);
    }
}

impl Authenticator for LocalAuthenticator {
    async fn authenticate(&self, bearer: &Secret) -> Result<PodIdentity, Refusal> {
        let pods = self.pods.lock().expect("no holder of this lock panics");
        let known = pods.get(&sha256_hex(bearer.reveal().as_bytes())).cloned();
        known.ok_or_else(|| bad_token("it proves no pod of this job"))
    }
}

pub(super) fn bad_token(problem: &str) -> Refusal {
    Refusal::BadToken {
        problem: problem.into(),
    }
}

/// The service's own secret: it signs session tokens and makes the handshake keys of generations.
#[derive(Clone)]
pub(super) struct ServiceSecret {
    secret: Secret,
    job_uid: JobUid,
}

impl ServiceSecret {
    /// A fresh random one for job `job_uid`.
    pub(super) fn fresh(job_uid: JobUid) -> ServiceSecret {
        ServiceSecret {
            secret: random_secret(),
            job_uid,
        }
    }

    fn mac(&self, purpose: &str, text: &str) -> String {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.secret.reveal().as_bytes())
            .expect("HMAC takes keys of any length");
        for part in [purpose, &self.job_uid.0, text] {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part.as_bytes());
        }
        hex::encode(mac.finalize().into_bytes())
    }

    /// The handshake key of `generation`.
    pub(super) fn generation_key(&self, generation: Generation) -> Secret {
        Secret::new(self.mac("generation", &generation.to_string()))
    }

    /// A token that proves `identity` to this service.
    pub(super) fn session(&self, identity: &PodIdentity) -> Secret {
        let subject = format!("{}.{}", identity.slot, hex::encode(&identity.pod.0));
        Secret::new(format!(
            "{SESSION_PREFIX}{subject}.{}",
            self.mac("session", &subject)
        ))
    }

    /// The pod that a session token proves; `None` if it is no session token at all.
    pub(super) fn identity(&self, bearer: &Secret) -> Option<Result<PodIdentity, Refusal>> {
        let (subject, mac) = bearer.reveal().strip_prefix(SESSION_PREFIX)?.rsplit_once('.')?;
        if Secret::new(mac.into()) != Secret::new(self.mac("session", subject)) {
            return Some(Err(bad_token(
                "this session token is not of this service; join again",
            )));
        }
        let (slot, pod) = subject.split_once('.')?;
        let pod = String::from_utf8(hex::decode(pod).ok()?).ok()?;
        Some(Ok(PodIdentity {
            pod: PodUid(pod),
            slot: slot.parse().ok()?,
        }))
    }
}

const SESSION_PREFIX: &str = "s1.";

/// 244 random bits as text.
pub(super) fn random_secret() -> Secret {
    let [a, b] = [uuid::Uuid::new_v4(), uuid::Uuid::new_v4()];
    Secret::new(format!("{}{}", a.simple(), b.simple()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> PodIdentity {
        PodIdentity {
            pod: PodUid("pod.with.dots".into()),
            slot: 3,
        }
    }

    #[test]
    fn a_session_token_proves_its_pod_to_its_own_service_only() {
        let service = ServiceSecret::fresh(JobUid("a".into()));
        let token = service.session(&identity());
        assert_eq!(service.identity(&token), Some(Ok(identity())));
        let other = ServiceSecret::fresh(JobUid("a".into()));
        assert!(matches!(
            other.identity(&token),
            Some(Err(Refusal::BadToken { .. }))
        ));
        let forged = Secret::new(token.reveal().replacen("s1.3.", "s1.4.", 1));
        assert!(matches!(
            service.identity(&forged),
            Some(Err(Refusal::BadToken { .. }))
        ));
        assert_eq!(service.identity(&Secret::new("whatever".into())), None);
    }

    #[test]
    fn generations_have_different_keys() {
        let service = ServiceSecret::fresh(JobUid("a".into()));
        assert_ne!(
            service.generation_key(Generation(1)),
            service.generation_key(Generation(2))
        );
        assert_eq!(service.generation_key(Generation(1)).reveal().len(), 64);
    }

    #[tokio::test]
    async fn a_dismissed_pod_is_nobody() {
        let local = LocalAuthenticator::default();
        let secret = random_secret();
        local.admit(identity(), &secret);
        assert_eq!(local.authenticate(&secret).await, Ok(identity()));
        local.dismiss(&identity().pod);
        assert!(local.authenticate(&secret).await.is_err());
    }
}
