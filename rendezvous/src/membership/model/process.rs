//! A simulated rank: what it promises, what it holds, which plan it follows. It behaves as a trainer must.

use super::super::NewGeneration;
use crate::wire::{Ask, BaseSource, HeldState, MemberNews, MemberReport, RestartReport, SeenCheckpoint};
use gradsync_formats::identity::{Generation, Incarnation, MemberId, PodUid, Position};
use gradsync_formats::lineage::Lineage;
use std::sync::Arc;

/// A checkpoint on the shared directory.
pub(super) struct Checkpoint {
    pub(super) position: Position,
    pub(super) lineage: Lineage,
}

/// One simulated process.
pub(super) struct Process {
    pub(super) id: MemberId,
    pub(super) alive: bool,
    /// Whether the service and it reach each other.
    pub(super) linked: bool,
    pub(super) ready: bool,
    pub(super) left: Generation,
    pub(super) planned: Generation,
    pub(super) established: Generation,
    pub(super) held: Option<Position>,
    pub(super) plan: Option<Arc<NewGeneration>>,
    pub(super) unreachable: Vec<MemberId>,
    pub(super) restart: RestartReport,
}

impl Process {
    pub(super) fn new(slot: u32, pod: u32, number: u128, restart: RestartReport) -> Process {
        Process {
            id: MemberId {
                slot,
                local_rank: 0,
                pod: PodUid(pod.to_string()),
                incarnation: Incarnation(uuid::Uuid::from_u128(number)),
            },
            alive: true,
            linked: true,
            ready: false,
            left: Generation::NONE,
            planned: Generation::NONE,
            established: Generation::NONE,
            held: None,
            plan: None,
            unreachable: Vec::new(),
            restart,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.left >= self.planned
    }

    /// Whether it takes part in commits of `generation`.
    pub(super) fn runs_in(&self, generation: Generation) -> bool {
        self.alive && self.established == generation && self.left < generation
    }

    pub(super) fn report(&self, checkpoints: &[Checkpoint]) -> MemberReport {
        let newest = checkpoints.iter().rev().take(3);
        MemberReport {
            ready: self.ready,
            established: self.established,
            planned: self.planned,
            left: self.left,
            held: self.held.map(|position| HeldState {
                position,
                chain: String::new(),
                state_digest: String::new(),
            }),
            run_config_digest: Some("c".into()),
            checkpoints: newest
                .map(|c| SeenCheckpoint {
                    position: c.position,
                    path: String::new(),
                    state_digest: String::new(),
                    chain: String::new(),
                    lineage: c.lineage.clone(),
                })
                .collect(),
            unreachable: self.unreachable.clone(),
            ..MemberReport::default()
        }
    }

    /// Leaves everything up to `generation` for ever.
    pub(super) fn leave(&mut self, generation: Generation) {
        self.left = self.left.max(generation);
        if self.is_idle() {
            self.plan = None;
        }
    }

    /// Takes in news; true if it has something to report afterwards.
    pub(super) fn hear(
        &mut self,
        news: &MemberNews,
        offer: Option<&Arc<NewGeneration>>,
    ) -> Result<bool, String> {
        if let Ask::Reform { generation, .. } = news.ask
            && generation > self.left
            && !self.is_idle()
        {
            self.leave(generation);
            return Ok(true);
        }
        if news.floor > self.left && (self.is_idle() || news.floor >= self.planned) {
            self.leave(news.floor);
            return Ok(true);
        }
        let Some(offer) = offer else { return Ok(false) };
        if news.head.is_none() || !self.is_idle() || offer.formed.generation <= self.left {
            return Ok(false);
        }
        self.accept(offer)?;
        Ok(false)
    }

    fn accept(&mut self, offer: &Arc<NewGeneration>) -> Result<(), String> {
        let base = &offer.plan.base;
        if base.source == BaseSource::Memory && self.held != Some(base.position) {
            return Err(format!(
                "plan {} starts from memory at {}, but {} holds {:?}",
                offer.formed.generation, base.position, self.id, self.held
            ));
        }
        self.planned = offer.formed.generation;
        self.plan = Some(Arc::clone(offer));
        self.held = Some(base.position);
        self.unreachable.clear();
        Ok(())
    }
}
