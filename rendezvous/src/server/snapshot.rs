//! What the service shows of itself: for the progress display, the summary and metrics.

use crate::membership::{Ending, Restarts};
use crate::wire::{Base, DoneReport, Progress, RecoveryPhases};
use gradsync_formats::identity::{Generation, JobUid, MemberId};
use std::collections::BTreeMap;
use std::time::Duration;

/// Where a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServicePhase {
    /// No group: members are waited for, or a generation is being saved.
    Forming,
    /// A plan is out; its members obtain their state and connect.
    Opening,
    /// A group trains.
    Running,
    /// Everybody is asked to stop.
    Stopping,
    /// Everybody has stopped.
    Stopped,
    /// Finished for ever.
    Complete,
    /// Failed for ever.
    Failed,
}

/// The state of a job at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceSnapshot {
    /// The job.
    pub job_uid: JobUid,
    /// Where it is.
    pub phase: ServicePhase,
    /// Why, for people.
    pub reason: String,
    /// Why, for metrics.
    pub reason_id: &'static str,
    /// The newest generation.
    pub generation: Generation,
    /// Its ranks.
    pub world_size: u32,
    /// All known processes, those with a rank first.
    pub members: Vec<MemberSnapshot>,
    /// How far training is: the furthest that a member told, kept when members go.
    pub progress: Progress,
    /// All generations that this service formed, oldest first, at most the last 1000.
    pub generations: Vec<GenerationSnapshot>,
    /// All recoveries, oldest first, at most the last 1000.
    pub recoveries: Vec<RecoverySnapshot>,
    /// Restarts so far.
    pub restarts: Restarts,
    /// How the job ended, once that is persisted.
    pub ending: Option<Ending>,
    /// What each rank reported at the end.
    pub done: BTreeMap<u32, DoneReport>,
    /// Why the membership cannot be saved at present, naming where.
    pub unsaved: Option<String>,
}

/// One process.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberSnapshot {
    /// Who.
    pub id: MemberId,
    /// Its rank in the newest generation.
    pub rank: Option<u32>,
    /// Whether it gives signs of life.
    pub live: bool,
    /// What it does, in a word or two.
    pub activity: String,
    /// Time since its last sign of life, when the snapshot was taken.
    pub beat_age: Duration,
    /// How far it is.
    pub progress: Option<Progress>,
    /// Why it cannot be in this job.
    pub refused: Option<String>,
}

/// One generation.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerationSnapshot {
    /// Which.
    pub generation: Generation,
    /// Why it was formed.
    pub reason: String,
    /// Its ranks.
    pub world_size: u32,
    /// What it started from.
    pub base: Base,
}

/// How the group came back after something ended a generation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecoverySnapshot {
    /// The generation that ended.
    pub from: Generation,
    /// The one that followed; none yet.
    pub to: Option<Generation>,
    /// What ended it.
    pub reason: String,
    /// From the first sign here to the plan, in milliseconds.
    pub formed_ms: Option<f64>,
    /// From the plan to the first member past its opening barrier, in milliseconds.
    pub opened_ms: Option<f64>,
    /// The phases as the members measured them; of each phase the longest.
    pub members: Option<RecoveryPhases>,
}
