//! What a pod has told the service, to be told again to one that has forgotten.

use crate::wire::{ExitReport, JoinRequest, MemberMessage, PodNews, Secret};
use gradsync_formats::identity::Incarnation;
use std::collections::{BTreeMap, VecDeque};

/// Ended processes that are remembered.
const EXITS: usize = 64;

/// The newest join of each rank, and the ends of earlier ones.
#[derive(Debug, Default)]
pub(super) struct Standing {
    pub(super) session: Option<Secret>,
    joins: BTreeMap<Incarnation, JoinRequest>,
    exits: VecDeque<ExitReport>,
}

impl Standing {
    pub(super) fn joined(&mut self, request: &JoinRequest) {
        self.joins.insert(request.member.incarnation, request.clone());
    }

    pub(super) fn forget(&mut self, incarnation: Incarnation) {
        self.joins.remove(&incarnation);
    }

    /// Brings the remembered join up to date.
    pub(super) fn reported(&mut self, incarnation: Incarnation, message: &MemberMessage) {
        match message {
            MemberMessage::Established { generation } => {
                if let Some(join) = self.joins.get_mut(&incarnation) {
                    join.report.established = join.report.established.max(*generation);
                    join.report.planned = join.report.planned.max(*generation);
                }
            }
            MemberMessage::Leave { .. } => self.forget(incarnation),
            MemberMessage::Recovered(_) | MemberMessage::Frozen { .. } | MemberMessage::Done(_) => {}
        }
    }

    pub(super) fn exited(&mut self, report: &ExitReport) {
        self.forget(report.member.incarnation);
        if self.exits.len() >= EXITS {
            self.exits.pop_front();
        }
        self.exits.push_back(report.clone());
    }

    pub(super) fn knows(&self, incarnation: Incarnation) -> bool {
        self.joins.contains_key(&incarnation)
    }

    pub(super) fn incarnations(&self) -> Vec<Incarnation> {
        self.joins.keys().copied().collect()
    }

    pub(super) fn missing_in(&self, news: &PodNews) -> Vec<Incarnation> {
        let missing = self.joins.keys().filter(|i| !news.members.contains_key(i));
        missing.copied().collect()
    }

    /// The ends of processes, and the joins of `members`.
    pub(super) fn retold(&self, members: &[Incarnation]) -> (Vec<ExitReport>, Vec<JoinRequest>) {
        let joins = members.iter().filter_map(|i| self.joins.get(i));
        (self.exits.iter().cloned().collect(), joins.cloned().collect())
    }
}
