//! The plan of a generation: one immutable document, encoded once, identical for all members; and the head
//! that each member gets beside it.

use super::Secret;
use gradsync_formats::digest::sha256_hex;
use gradsync_formats::identity::{Generation, Incarnation, JobUid, MemberId, Position};
use gradsync_formats::lineage::Lineage;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::sync::Arc;

/// Version of the plan format.
pub const PLAN_VERSION: u32 = 1;
/// Largest encoding of a [`PlanHead`], in bytes.
pub const MAX_HEAD_BYTES: usize = 1024;

/// Who is in generation `generation`, in which role, and from which state all of them start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// Format version.
    pub version: u32,
    /// The job.
    pub job_uid: JobUid,
    /// The generation; larger than any before it.
    pub generation: Generation,
    /// Number of workers: ranks 0 to `world_size - 1`.
    pub world_size: u32,
    /// All members, ordered by rank.
    pub members: Vec<PlannedMember>,
    /// What everybody starts from.
    pub base: Base,
    /// The lineage up to and with this generation. A generation whose commits all lie beyond a later base
    /// contributes nothing and is left out.
    pub lineage: Lineage,
    /// Digest of the RunConfig in force, compared as opaque bytes.
    pub run_config_digest: String,
    /// Why this generation was formed, for people.
    pub reason: String,
}

/// One member of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedMember {
    /// Position in the plan; workers come first.
    pub rank: u32,
    /// What it does.
    pub role: Role,
    /// Which process.
    pub id: MemberId,
    /// Where its listener can be reached, as `host:port`, best first.
    pub addresses: Vec<String>,
}

/// What a member does in a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Role {
    /// Computes parts of every step.
    Worker,
    /// Holds shards of the parameters.
    Server,
    /// Warm and waiting.
    Standby,
}

/// The state that a generation starts from. A member whose own state is another, even a later one, discards
/// it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Base {
    /// Which state.
    pub position: Position,
    /// Where it comes from.
    pub source: BaseSource,
    /// Digest of the replicated state, hex, where it is known. A member checks what it obtained against it.
    pub state_digest: Option<String>,
    /// Chain value at `position`, hex, where it is known.
    pub chain: Option<String>,
}

/// Where the base state is obtained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum BaseSource {
    /// Initialised from the seed.
    Initial,
    /// Every member holds it already.
    Memory,
    /// Loaded from a checkpoint.
    Checkpoint {
        /// Folder, relative to the job's checkpoint directory; absolute for another job's checkpoint.
        path: String,
    },
    /// Copied from members that hold it.
    Donor {
        /// The members that hold it.
        members: Vec<MemberId>,
    },
}

impl Plan {
    /// The entry of the process `incarnation`.
    #[must_use]
    pub fn member(&self, incarnation: Incarnation) -> Option<&PlannedMember> {
        self.members.iter().find(|m| m.id.incarnation == incarnation)
    }
}

/// A plan as it was encoded once, with its digest. Cloning shares the bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EncodedPlan {
    /// SHA-256 of the document's bytes, hex.
    pub digest: String,
    /// The plan as JSON text.
    #[serde(serialize_with = "shared_text", deserialize_with = "owned_text")]
    pub document: Arc<str>,
}

fn shared_text<S: Serializer>(text: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(text)
}

fn owned_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<str>, D::Error> {
    String::deserialize(deserializer).map(Arc::from)
}

impl EncodedPlan {
    /// Encodes `plan`.
    ///
    /// # Errors
    /// When the plan cannot be written as JSON.
    pub fn encode(plan: &Plan) -> Result<EncodedPlan, PlanError> {
        let document = serde_json::to_string(plan).map_err(PlanError::Encoding)?;
        Ok(EncodedPlan {
            digest: plan_digest(document.as_bytes()),
            document: Arc::from(document),
        })
    }

    /// The plan itself.
    ///
    /// # Errors
    /// When the bytes are not those that the digest stands for, the version is a later one, or the
    /// document is no plan.
    pub fn decode(&self) -> Result<Plan, PlanError> {
        let found = plan_digest(self.document.as_bytes());
        if found != self.digest {
            return Err(PlanError::Digest {
                expected: self.digest.clone(),
                found,
            });
        }
        let plan: Plan = serde_json::from_str(&self.document).map_err(PlanError::Encoding)?;
        if plan.version > PLAN_VERSION {
            return Err(PlanError::Version(plan.version));
        }
        Ok(plan)
    }
}

/// The digest by which a plan is known: SHA-256 of its encoded bytes, hex.
#[must_use]
pub fn plan_digest(bytes: &[u8]) -> String {
    sha256_hex(bytes)
}

/// Why a plan could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The bytes were changed on the way.
    #[error("check plan: its digest is {found}, expected {expected}")]
    Digest {
        /// The digest given beside it.
        expected: String,
        /// The digest of the bytes.
        found: String,
    },
    /// A later format.
    #[error("read plan: format version {0} is newer than {PLAN_VERSION}; update this program")]
    Version(u32),
    /// No plan.
    #[error("read plan: {0}")]
    Encoding(serde_json::Error),
}

/// What one member gets beside the plan; at most [`MAX_HEAD_BYTES`] long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanHead {
    /// The plan's generation.
    pub generation: Generation,
    /// This member's rank.
    pub rank: u32,
    /// This member's role.
    pub role: Role,
    /// Its share of every step's micro-batch grid; absent unless it is a worker.
    pub share: Option<Share>,
    /// The handshake key of this generation: hex HMAC-SHA-256 over job UID and generation with the
    /// service's secret. Never logged, never recorded.
    pub key: Secret,
}

/// Share `index` of `of` of the micro-batch grid: `gradsync_formats::grid::parts_of_share` says which parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Which share, from 0.
    pub index: u32,
    /// How many shares.
    pub of: u32,
}
