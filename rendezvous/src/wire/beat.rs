//! Signs of life. They never reach the state machine: the service keeps the time of the last one.

use super::Revision;
use gradsync_formats::identity::{Incarnation, PodUid, Position};
use serde::{Deserialize, Serialize};

/// One beat of a pod for all its ranks, sent every [`super::BEAT_INTERVAL`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Beat {
    /// The pod.
    pub pod: PodUid,
    /// Its ranks that are alive.
    pub ranks: Vec<RankBeat>,
}

/// One rank's sign of life, as its agent received it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RankBeat {
    /// Which process.
    pub incarnation: Incarnation,
    /// Raised by the step loop at every phase of a step: stands still when training does.
    pub step_counter: u64,
    /// Raised by a thread of its own: stands still when the whole process does. The rank counts as silent
    /// when this has not changed for the timeout.
    pub thread_counter: u64,
    /// How far it is; absent when nothing changed since the last beat.
    #[serde(default)]
    pub progress: Option<Progress>,
}

/// How far training is, for display.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Progress {
    /// The last commit.
    pub position: Position,
    /// Optimiser steps so far.
    pub step: u64,
    /// Steps of the whole run, where known.
    pub total_steps: Option<u64>,
    /// Current epoch, from 0.
    pub epoch: u64,
    /// Loss of the last step; text because it may be NaN. Empty before the first.
    pub loss: String,
    /// Samples per second over all workers, as text.
    pub samples_per_second: String,
    /// What the rank does, in a word or two: "warming up", "training", "evaluating", "writing checkpoint".
    pub activity: String,
}

/// Answer to a beat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BeatReply {
    /// The newest news; a poll is due if it differs from the last one seen.
    pub revision: Revision,
    /// Processes in the beat that the service does not know: they must join again.
    pub unknown: Vec<Incarnation>,
}
