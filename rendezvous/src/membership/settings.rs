//! What the machine is told once: the job, the sizes, the times.

use gradsync_formats::identity::JobUid;
use gradsync_formats::run_config::ResumePolicy;
use std::time::Duration;

/// Time since an arbitrary start, on one clock that never goes back. The machine compares, it never reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Monotonic(pub Duration);

impl Monotonic {
    /// `duration` later.
    #[must_use]
    pub fn after(self, duration: Duration) -> Monotonic {
        Monotonic(self.0.saturating_add(duration))
    }
}

/// How many worker pods the group may have. A job of fixed size has three equal numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeBounds {
    /// Fewest pods with which it trains.
    pub min: u32,
    /// Most pods that it takes.
    pub max: u32,
    /// Pods that it should have now.
    pub desired: u32,
}

impl SizeBounds {
    /// A job that always has `pods` pods.
    #[must_use]
    pub fn fixed(pods: u32) -> SizeBounds {
        SizeBounds {
            min: pods,
            max: pods,
            desired: pods,
        }
    }

    /// The pods to aim at: what is desired, within the bounds, and at least one.
    #[must_use]
    pub fn target(self) -> usize {
        self.desired.min(self.max).max(self.min).max(1) as usize
    }

    /// Fewest pods with which a group forms.
    #[must_use]
    pub fn least(self) -> usize {
        self.min.max(1) as usize
    }
}

/// How long a member that cannot be reached is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The first time.
    pub first: Duration,
    /// Doubled each time, up to this.
    pub largest: Duration,
}

impl Backoff {
    /// How long the `times`-th time takes, counted from 1.
    #[must_use]
    pub fn delay(self, times: u32) -> Duration {
        let doublings = times.saturating_sub(1).min(20);
        self.first.saturating_mul(1 << doublings).min(self.largest)
    }
}

/// The machine's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The job.
    pub job_uid: JobUid,
    /// Ranks in each pod; a pod counts when all of them are in.
    pub ranks_per_pod: u32,
    /// Sizes.
    pub bounds: SizeBounds,
    /// How long the first forming, and growth, wait for more pods once some are there.
    pub formation_window: Duration,
    /// Charged restarts after which the job fails.
    pub max_restarts: u32,
    /// Digest of the RunConfig in force.
    pub run_config_digest: String,
    /// What the very first generation starts from.
    pub resume: ResumePolicy,
    /// For members that cannot be reached.
    pub backoff: Backoff,
    /// How long to wait after a generation could not be saved.
    pub save_retry: Duration,
    /// Whether a running group may be asked to take in more workers: only where the state reaches them,
    /// that is with a checkpoint directory.
    pub grows: bool,
}

impl Settings {
    /// Settings of job `job_uid` with the usual times: a window of 10 s, back-off from 5 s to 5 min.
    #[must_use]
    pub fn new(job_uid: JobUid, bounds: SizeBounds, run_config_digest: String) -> Settings {
        Settings {
            job_uid,
            ranks_per_pod: 1,
            bounds,
            formation_window: Duration::from_secs(10),
            max_restarts: 3,
            run_config_digest,
            resume: ResumePolicy::Latest,
            backoff: Backoff {
                first: Duration::from_secs(5),
                largest: Duration::from_secs(300),
            },
            save_retry: Duration::from_secs(1),
            grows: false,
        }
    }
}
