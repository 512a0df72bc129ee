//! Why things are as they are: a text for people, a name for metrics.

use super::settings::Monotonic;
use gradsync_formats::identity::{Generation, MemberId, PodUid};
use std::fmt;

/// What the machine is doing or waiting for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Not enough complete pods are ready.
    WaitingForWorkers {
        /// Complete pods that are ready.
        ready: usize,
        /// Pods needed.
        needed: usize,
        /// Pods left out because they could not be reached, as text that names the link.
        left_out: Vec<String>,
    },
    /// Enough pods are ready, more are hoped for until then.
    FormationWindow {
        /// Complete pods that are ready.
        ready: usize,
        /// Pods that there should be.
        hoped: usize,
        /// When the wait ends.
        until: Monotonic,
    },
    /// Live members have not come back from the generation before.
    WaitingForReturn {
        /// The generation that is over.
        generation: Generation,
        /// Who is still out.
        members: Vec<MemberId>,
    },
    /// Nobody present holds the state, and those who do are not proven ended.
    WaitingForFencing {
        /// The pods whose end must be proven.
        pods: Vec<PodUid>,
    },
    /// A generation could not be saved; it is tried again.
    NotSaved {
        /// When.
        until: Monotonic,
    },
    /// A generation is being saved.
    Persisting {
        /// Which.
        generation: Generation,
    },
    /// A plan is out, its opening barrier not yet passed.
    Opening {
        /// Which generation.
        generation: Generation,
    },
    /// Training.
    Running {
        /// In which generation.
        generation: Generation,
    },
    /// Everybody is asked to stop.
    Stopping {
        /// Members still there.
        left: usize,
        /// Why.
        cause: String,
    },
    /// Nobody is left after a stop.
    Stopped {
        /// Why.
        cause: String,
    },
    /// Finished for ever.
    Complete,
    /// Failed for ever.
    Failed {
        /// Why.
        error: String,
    },
}

impl Reason {
    /// A name for metrics and conditions.
    #[must_use]
    pub fn id(&self) -> &'static str {
        match self {
            Reason::WaitingForWorkers { .. } => "WaitingForWorkers",
            Reason::FormationWindow { .. } => "FormationWindow",
            Reason::WaitingForReturn { .. } => "WaitingForReturn",
            Reason::WaitingForFencing { .. } => "WaitingForFencing",
            Reason::NotSaved { .. } => "NotSaved",
            Reason::Persisting { .. } => "Persisting",
            Reason::Opening { .. } => "Opening",
            Reason::Running { .. } => "Running",
            Reason::Stopping { .. } => "Stopping",
            Reason::Stopped { .. } => "Stopped",
            Reason::Complete => "Complete",
            Reason::Failed { .. } => "Failed",
        }
    }
}

/// At most eight of many, and how many more there are.
fn list<T: fmt::Display>(items: &[T]) -> String {
    const SHOWN: usize = 8;
    let mut text = items
        .iter()
        .take(SHOWN)
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ");
    if items.len() > SHOWN {
        text.push_str(&format!(" and {} more", items.len() - SHOWN));
    }
    text
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::WaitingForWorkers {
                ready,
                needed,
                left_out,
            } => {
                write!(f, "waiting for workers: {ready} of {needed} ready")?;
                if !left_out.is_empty() {
                    write!(f, "; left out for now: {}", list(left_out))?;
                }
                Ok(())
            }
            Reason::FormationWindow { ready, hoped, .. } => {
                write!(f, "waiting a little for more workers: {ready} of {hoped} ready")
            }
            Reason::WaitingForReturn { generation, members } => {
                write!(f, "waiting until {} left generation {generation}", list(members))
            }
            Reason::WaitingForFencing { pods } => write!(
                f,
                "waiting for proof that these pods have ended, since only they hold the training state: {}",
                list(pods)
            ),
            Reason::NotSaved { .. } => f.write_str("the membership could not be saved; trying again"),
            Reason::Persisting { generation } => write!(f, "saving generation {generation}"),
            Reason::Opening { generation } => write!(f, "starting generation {generation}"),
            Reason::Running { generation } => write!(f, "training in generation {generation}"),
            Reason::Stopping { left, cause } => write!(f, "stopping {left} members: {cause}"),
            Reason::Stopped { cause } => write!(f, "stopped: {cause}"),
            Reason::Complete => f.write_str("complete"),
            Reason::Failed { error } => write!(f, "failed: {error}"),
        }
    }
}
