//! Names of things that live longer than one process: jobs, generations, members, positions.

use serde::{Deserialize, Serialize};
use std::fmt;
use uuid::Uuid;

/// The identity of a job: the Kubernetes object's UID, or the one that `gradsync run` made for its
/// output directory. Two jobs of the same name have different UIDs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobUid(pub String);

impl fmt::Display for JobUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The generation of a group. It only grows, and is persisted before any member learns of it.
/// Zero means "none yet".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(pub u64);

impl Generation {
    /// No generation has been formed.
    pub const NONE: Generation = Generation(0);

    /// The generation after this one.
    #[must_use]
    pub fn next(self) -> Generation {
        Generation(self.0 + 1)
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A fresh UUID for each process start: a restarted rank is a new member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Incarnation(pub Uuid);

impl Incarnation {
    /// A fresh random incarnation. Called once at process start.
    #[must_use]
    pub fn fresh() -> Incarnation {
        Incarnation(Uuid::new_v4())
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.simple())
    }
}

/// The UID of a pod; in `gradsync run` a UUID made by the launcher for each agent that it starts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PodUid(pub String);

impl fmt::Display for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One rank process. Ordered by slot first, so that ranks follow slots.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberId {
    /// The pod's slot: the index in its name, not a rank.
    pub slot: u32,
    /// Which of the pod's devices: 0 to devicesPerWorker - 1.
    pub local_rank: u32,
    /// The pod that the process runs in.
    pub pod: PodUid,
    /// The process start.
    pub incarnation: Incarnation,
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "worker {}.{} ({})",
            self.slot, self.local_rank, self.incarnation
        )
    }
}

/// How far training has come: the generation that made the last commit, and the number of commits since
/// the start of the lineage (skips included). `(0, 0)` is the initial state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Position {
    /// Commits so far on this lineage. Compared first.
    pub commit: u64,
    /// The generation whose commit this was.
    pub generation: Generation,
}

impl Position {
    /// Before the first commit.
    pub const INITIAL: Position = Position {
        commit: 0,
        generation: Generation::NONE,
    };
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "commit {} of generation {}", self.commit, self.generation)
    }
}
