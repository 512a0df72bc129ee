//! What a member can say about itself, and the promises that it made. Pure bookkeeping: it decides what
//! goes into the next report.

use gradsync_formats::identity::{Generation, MemberId};
use gradsync_formats::manifest::Fingerprints;
use gradsync_rendezvous::wire::{DamagedCheckpoint, HeldState, MemberReport, SeenCheckpoint};

/// A checkpoint report lists at most so many.
pub(crate) const REPORTED_CHECKPOINTS: usize = 16;

/// Where this member stands between two generations.
#[derive(Clone, Debug, Default)]
pub(crate) struct Standing {
    established: Generation,
    planned: Generation,
    planned_digest: Option<String>,
    left: Generation,
    unreachable: Vec<MemberId>,
    damaged: Vec<DamagedCheckpoint>,
    ended: Option<String>,
    /// The furthest commit at which members were found to differ, and how often since training last got
    /// beyond it.
    diverged: (u64, u32),
}

impl Standing {
    /// The promise: this member is in no generation up to this one, and never will be.
    pub(crate) fn left(&self) -> Generation {
        self.left
    }

    /// Accepts a plan: from here on the member is in its opening barrier.
    pub(crate) fn accept(&mut self, generation: Generation, digest: &str) {
        self.planned = generation;
        self.planned_digest = Some(digest.to_owned());
        self.unreachable.clear();
        self.ended = None;
    }

    /// The opening barrier was passed.
    pub(crate) fn establish(&mut self, generation: Generation) {
        self.established = generation;
    }

    /// Raises the promise: everything up to `generation` is over for this member.
    pub(crate) fn leave(&mut self, generation: Generation, why: Option<String>) {
        self.left = self.left.max(generation);
        if why.is_some() {
            self.ended = why;
        }
    }

    /// Notes that members were found to differ when the last commit was `commit`. Returns how often that
    /// has happened without training having got further.
    pub(crate) fn diverged(&mut self, commit: u64) -> u32 {
        let (furthest, times) = self.diverged;
        self.diverged = if commit > furthest || times == 0 {
            (commit, 1)
        } else {
            (furthest, times.saturating_add(1))
        };
        self.diverged.1
    }

    /// Whether members were ever found to differ.
    pub(crate) fn has_diverged(&self) -> bool {
        self.diverged.1 > 0
    }

    /// Notes members that could not be reached.
    pub(crate) fn blame(&mut self, members: Vec<MemberId>) {
        self.unreachable = members;
    }

    /// Notes a checkpoint that cannot be used.
    pub(crate) fn found_damaged(&mut self, path: String, problem: String) {
        self.damaged.retain(|known| known.path != path);
        self.damaged.push(DamagedCheckpoint { path, problem });
        let surplus = self.damaged.len().saturating_sub(REPORTED_CHECKPOINTS);
        self.damaged.drain(..surplus);
    }

    /// Folders of the checkpoints that could not be used, the newest found last.
    pub(crate) fn damaged(&self) -> Vec<String> {
        self.damaged.iter().map(|damaged| damaged.path.clone()).collect()
    }

    /// The report for a join.
    pub(crate) fn report(&self, seen: Seen) -> MemberReport {
        MemberReport {
            ready: seen.fingerprints.is_some(),
            established: self.established,
            planned: self.planned,
            planned_digest: self.planned_digest.clone(),
            left: self.left,
            held: seen.held,
            addresses: seen.addresses,
            run_config_digest: seen.run_config_digest,
            fingerprints: seen.fingerprints,
            directory_nonce: seen.directory_nonce,
            checkpoints: seen.checkpoints,
            resume_from: seen.resume_from,
            damaged: self.damaged.clone(),
            unreachable: self.unreachable.clone(),
            ended: self.ended.clone(),
        }
    }
}

/// What the member finds when it looks around before a join.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) held: Option<HeldState>,
    pub(crate) addresses: Vec<String>,
    pub(crate) run_config_digest: Option<String>,
    pub(crate) fingerprints: Option<Fingerprints>,
    pub(crate) directory_nonce: Option<String>,
    pub(crate) checkpoints: Vec<SeenCheckpoint>,
    pub(crate) resume_from: Option<SeenCheckpoint>,
}
