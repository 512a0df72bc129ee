//! What the machine knows, and the questions about it that its parts share.

use super::reason::Reason;
use super::settings::{Monotonic, Settings};
use super::unreachable::Exclusion;
use crate::wire::{
    Base, DoneReport, EncodedPlan, ExitStatus, HeldState, LeaveCause, MemberReport, Plan, RecoveryPhases,
    Refusal, StopCause,
};
use gradsync_formats::identity::{Generation, Incarnation, MemberId, PodUid};
use gradsync_formats::lineage::Lineage;
use gradsync_formats::manifest::Fingerprints;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What is persisted of a generation before any member learns of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Formed {
    /// The generation.
    pub generation: Generation,
    /// Digest of its plan.
    pub plan_digest: String,
    /// Its members by rank.
    pub members: Vec<MemberId>,
    /// What it started from.
    pub base: Base,
    /// What the very first generation started from; the last resort.
    pub root: Base,
    /// The lineage up to and with it.
    pub lineage: Lineage,
    /// Model and data of the job; whoever joins later must have the same.
    pub fingerprints: Option<Fingerprints>,
    /// The newest usable checkpoint on the lineage that was known of when it was formed. As long as there is one,
    /// the job does not begin anew.
    #[serde(default)]
    pub checkpoint: Option<Base>,
}

/// A generation on its way: what is persisted, and the plan that is published afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewGeneration {
    /// The generation that the store must hold for this one to be persisted.
    pub follows: Generation,
    /// To be persisted.
    pub formed: Formed,
    /// The plan.
    pub plan: Plan,
    /// Its encoding.
    pub encoded: EncodedPlan,
}

/// Restarts so far. Each ended process is counted once, whoever tells of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Restarts {
    /// Charged to the user: errors, fatal signals, want of memory.
    pub charged: Vec<Charge>,
    /// Not charged: drained, preempted, stopped.
    pub uncharged: u64,
    /// Ends that were judged already, oldest first, bounded: they may be told again, also to a later service.
    pub judged: Vec<MemberId>,
}

impl Restarts {
    /// Judged ends that are kept: an agent repeats its last 64 to a service that has forgotten it.
    const JUDGED: usize = 256;

    /// Takes note of an end; false if it was judged before.
    pub(super) fn is_first_word_of(&mut self, member: &MemberId) -> bool {
        let same = |known: &MemberId| known.incarnation == member.incarnation && known.pod == member.pod;
        if self.judged.iter().any(same) || self.charged.iter().any(|charge| same(&charge.member)) {
            return false;
        }
        let surplus = (self.judged.len() + 1).saturating_sub(Self::JUDGED);
        self.judged.drain(..surplus);
        self.judged.push(member.clone());
        true
    }
}

/// One charged end of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Charge {
    /// The process.
    pub member: MemberId,
    /// How it ended.
    pub status: ExitStatus,
}

/// How the job ended, once it has; persisted before anybody is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Ending {
    /// Training is over.
    Complete {
        /// The first report of it.
        done: DoneReport,
    },
    /// It cannot go on.
    Failed {
        /// Why, in one line.
        error: String,
    },
}

/// What is persisted of a job, and all that a new service needs to go on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Saved {
    /// The newest generation; none before the first.
    pub formed: Option<Formed>,
    /// Restarts so far.
    pub restarts: Restarts,
    /// How the job ended.
    pub ending: Option<Ending>,
}

/// One known process.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Who.
    pub id: MemberId,
    /// Its newest report, brought up to date by what it reported since.
    pub report: MemberReport,
    /// Whether it gives signs of life.
    pub live: bool,
    /// Set once it said that it goes for good.
    pub leaving: Option<LeaveCause>,
    /// Set when it cannot be in this job.
    pub refused: Option<Refusal>,
    /// Its report of the end of training.
    pub done: Option<DoneReport>,
    /// Its last recovery.
    pub recovered: Option<RecoveryPhases>,
    /// The state that it offers as a donor, and the generation in which it froze.
    pub frozen: Option<(Generation, HeldState)>,
}

impl Member {
    /// The generation that it takes part in, or may still enter.
    #[must_use]
    pub fn present_in(&self) -> Option<Generation> {
        let newest = self.report.established.max(self.report.planned);
        (self.report.left < newest).then_some(newest)
    }
}

/// Where the job's end stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Latch {
    Open,
    Saving(Ending),
    Closed(Ending),
}

/// A wish that the present generation ends at a boundary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reform {
    pub(super) reason: String,
    pub(super) checkpoint: bool,
}

/// What joiners are compared with before the first generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reference {
    pub(super) peer: String,
    pub(super) fingerprints: Option<Fingerprints>,
    pub(super) nonce: Option<String>,
}

/// See [`Membership::outlook`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outlook {
    generation: Generation,
    checked: Generation,
    whole: bool,
    over: bool,
    stop: bool,
    ending: bool,
    ended: bool,
    run_config_digest: String,
}

/// The state of the membership of one job. It changes in `decide` alone.
#[derive(Clone, Debug)]
pub struct Membership {
    pub(super) settings: Settings,
    /// The newest persisted generation.
    pub(super) formed: Option<Formed>,
    /// Its plan, while this service holds it.
    pub(super) offer: Option<Arc<NewGeneration>>,
    /// Whether a member has passed its opening barrier.
    pub(super) established: bool,
    /// Whether this service has ever known an established generation.
    pub(super) has_worked: bool,
    /// A generation that is being persisted.
    pub(super) attempt: Option<Arc<NewGeneration>>,
    pub(super) reform: Option<Reform>,
    /// What ended the present generation, once something has.
    pub(super) cause: Option<String>,
    pub(super) members: BTreeMap<Incarnation, Member>,
    /// Members of the persisted generation that this service has not heard of yet.
    pub(super) unheard: BTreeSet<Incarnation>,
    /// Processes and pods that are proven ended.
    pub(super) ended: BTreeSet<Incarnation>,
    pub(super) ended_pods: BTreeSet<PodUid>,
    /// The newest start of each (pod, local rank): its number, and its process while that is not ended.
    pub(super) starts: BTreeMap<(PodUid, u32), (u32, Option<Incarnation>)>,
    pub(super) reference: Option<Reference>,
    pub(super) excluded: BTreeMap<PodUid, Exclusion>,
    /// The newest generation whose failed opening was judged.
    pub(super) judged: Generation,
    /// Checkpoints that cannot be used, with what is wrong.
    pub(super) damaged: BTreeMap<String, String>,
    /// The highest number that was ever heard of or tried; the next generation is above it.
    pub(super) highest: Generation,
    /// Up to where the store was asked for generations that this service does not know.
    pub(super) checked: Generation,
    pub(super) waiting_since: Option<Monotonic>,
    pub(super) retry_at: Option<Monotonic>,
    pub(super) stop: Option<StopCause>,
    pub(super) latch: Latch,
    pub(super) restarts: Restarts,
    pub(super) reason: Reason,
    #[cfg(test)]
    pub(super) faults: super::model::Faults,
}

impl Membership {
    /// The machine of a job that goes on from what was `saved`. Members of the saved generation are taken
    /// for live until they are reported silent or ended.
    #[must_use]
    pub fn restore(settings: Settings, saved: Saved) -> Membership {
        let unheard = saved
            .formed
            .iter()
            .flat_map(|f| f.members.iter().map(|m| m.incarnation))
            .collect();
        let reason = match (&saved.ending, &saved.formed) {
            (Some(Ending::Complete { .. }), _) => Reason::Complete,
            (Some(Ending::Failed { error }), _) => Reason::Failed { error: error.clone() },
            (None, Some(formed)) => Reason::Opening {
                generation: formed.generation,
            },
            (None, None) => Reason::WaitingForWorkers {
                ready: 0,
                needed: settings.bounds.least(),
                left_out: Vec::new(),
            },
        };
        Membership {
            highest: saved.formed.as_ref().map_or(Generation::NONE, |f| f.generation),
            formed: saved.formed,
            offer: None,
            established: false,
            has_worked: false,
            attempt: None,
            reform: None,
            cause: None,
            members: BTreeMap::new(),
            unheard,
            ended: BTreeSet::new(),
            ended_pods: BTreeSet::new(),
            starts: BTreeMap::new(),
            reference: None,
            excluded: BTreeMap::new(),
            judged: Generation::NONE,
            damaged: BTreeMap::new(),
            checked: Generation::NONE,
            waiting_since: None,
            retry_at: None,
            stop: None,
            latch: saved.ending.map_or(Latch::Open, Latch::Closed),
            restarts: saved.restarts,
            reason,
            settings,
            #[cfg(test)]
            faults: super::model::Faults::default(),
        }
    }

    /// The newest persisted generation.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.formed.as_ref().map_or(Generation::NONE, |f| f.generation)
    }

    /// What is persisted of it.
    #[must_use]
    pub fn formed(&self) -> Option<&Formed> {
        self.formed.as_ref()
    }

    /// The plan of the newest generation, while this service holds it.
    #[must_use]
    pub fn offer(&self) -> Option<&Arc<NewGeneration>> {
        self.offer.as_ref()
    }

    /// Whether a member of the newest generation has passed its opening barrier.
    #[must_use]
    pub fn is_established(&self) -> bool {
        self.established
    }

    /// All known processes.
    #[must_use]
    pub fn members(&self) -> &BTreeMap<Incarnation, Member> {
        &self.members
    }

    /// Restarts so far.
    #[must_use]
    pub fn restarts(&self) -> &Restarts {
        &self.restarts
    }

    /// How the job ended, once that is persisted.
    #[must_use]
    pub fn ending(&self) -> Option<&Ending> {
        match &self.latch {
            Latch::Closed(ending) => Some(ending),
            Latch::Open | Latch::Saving(_) => None,
        }
    }

    /// What the machine is doing or waiting for.
    #[must_use]
    pub fn reason(&self) -> &Reason {
        &self.reason
    }

    /// The settings in force.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What the news of all members depend on. While it stays the same, an event changes the news of the
    /// pod that it concerns, and of no other.
    #[must_use]
    pub fn outlook(&self) -> Outlook {
        Outlook {
            generation: self.generation(),
            checked: self.checked,
            whole: self.is_whole(),
            over: self.is_over(),
            stop: self.stop.is_some(),
            ending: self.ending().is_some(),
            ended: !matches!(self.latch, Latch::Open),
            run_config_digest: self.settings.run_config_digest.clone(),
        }
    }

    /// Members of the newest generation, by rank.
    pub(super) fn group(&self) -> &[MemberId] {
        self.formed.as_ref().map_or(&[], |f| &f.members)
    }

    pub(super) fn in_group(&self, incarnation: Incarnation) -> bool {
        self.group().iter().any(|m| m.incarnation == incarnation)
    }

    pub(super) fn is_ended(&self, id: &MemberId) -> bool {
        self.ended.contains(&id.incarnation) || self.ended_pods.contains(&id.pod)
    }

    /// Whether the newest generation can still go on, as far as this service knows.
    pub(super) fn is_whole(&self) -> bool {
        let Some(formed) = &self.formed else {
            return false;
        };
        self.reform.is_none()
            && formed.members.iter().all(|id| {
                if self.is_ended(id) {
                    return false;
                }
                match self.members.get(&id.incarnation) {
                    None => self.unheard.contains(&id.incarnation),
                    Some(m) => {
                        m.live
                            && m.leaving.is_none()
                            && m.refused.is_none()
                            && m.report.left < formed.generation
                            // A plan that this service does not hold cannot be given to those who have not seen it.
                            && (self.offer.is_some() || m.report.planned.max(m.report.established) >= formed.generation)
                    }
                }
            })
    }

    /// Whether the newest generation can never commit again: one of its members has left it or ended.
    pub(super) fn is_over(&self) -> bool {
        let generation = self.generation();
        self.group().iter().any(|id| {
            self.is_ended(id)
                || self
                    .members
                    .get(&id.incarnation)
                    .is_some_and(|m| m.report.left >= generation)
        })
    }

    /// Notes what broke the present generation; the first cause counts.
    pub(super) fn broke(&mut self, cause: impl FnOnce() -> String) {
        if self.cause.is_none() && self.formed.is_some() {
            self.cause = Some(cause());
        }
    }
}
