//! Carrying out what the machine decides, and showing what came of it.

use super::beats::Beats;
use super::persist::{Persist, PersistError};
use super::snapshot::{GenerationSnapshot, MemberSnapshot, RecoverySnapshot, ServicePhase, ServiceSnapshot};
use super::task::{Actor, History};
use crate::membership::{Effect, Event, Member, Membership, Monotonic, NewGeneration, Phase, Reason, decide};
use crate::wire::{Progress, RecoveryPhases, Refusal};
use gradsync_formats::identity::{Generation, MemberId};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Pause before a write or read is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Generations and recoveries that are kept for display.
const KEPT: usize = 1000;

/// Refusals that an event led to.
#[derive(Default)]
pub(super) struct Applied(Vec<(MemberId, Refusal)>);

impl Applied {
    /// The refusal of `member`'s message, as an error.
    pub(super) fn refused(self, member: &MemberId) -> Result<(), Refusal> {
        match self.0.into_iter().find(|(refused, _)| refused == member) {
            Some((_, refusal)) => Err(refusal),
            None => Ok(()),
        }
    }
}

impl<P: Persist> Actor<P> {
    /// Feeds `event` to the machine and carries its effects out, and what follows from them.
    pub(super) async fn apply(&mut self, event: Event) -> Applied {
        let mut applied = Applied::default();
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let before = self.machine.outlook();
            let now = Monotonic(self.start.elapsed());
            for effect in decide(&mut self.machine, event, now).effects {
                self.carry_out(effect, &mut events, &mut applied).await;
            }
            if self.machine.outlook() != before {
                self.wake(None);
            }
        }
        let group: Vec<_> = self
            .machine
            .formed()
            .iter()
            .flat_map(|f| f.members.clone())
            .collect();
        let machine = &self.machine;
        self.beats.keep(|incarnation| {
            machine.members().contains_key(&incarnation) || group.iter().any(|m| m.incarnation == incarnation)
        });
        self.show();
        applied
    }

    async fn carry_out(&mut self, effect: Effect, events: &mut VecDeque<Event>, applied: &mut Applied) {
        match effect {
            Effect::Persist(new) => self.persist_generation(&new, events).await,
            Effect::Publish(generation, _) => self.note_published(generation),
            Effect::Refuse(member, refusal) => {
                tracing::warn!(%member, %refusal, "refused a member");
                applied.0.push((member, refusal));
            }
            Effect::WakeAt(at) => {
                let at = self.start + at.0;
                self.wake_at = Some(self.wake_at.map_or(at, |earlier| earlier.min(at)));
            }
            Effect::Record(phase) => self.note_phase(phase),
            Effect::Latch(ending) => {
                self.unfinished.ending = Some(ending);
                self.save_ending(events).await;
            }
            Effect::SaveRestarts(restarts) => {
                self.unfinished.restarts = Some(restarts);
                self.save_restarts().await;
            }
            Effect::ReadBack => {
                self.unfinished.read = true;
                self.read_back(events).await;
            }
        }
    }

    async fn persist_generation(&mut self, new: &Arc<NewGeneration>, events: &mut VecDeque<Event>) {
        let generation = new.formed.generation;
        match self.persist.form(new.follows, &new.formed).await {
            Ok(()) => {
                self.note_saved();
                events.push_back(Event::Persisted(generation));
            }
            Err(error) => {
                self.note_unsaved(&error);
                self.unfinished.write = Some(generation);
                self.read_back(events).await;
            }
        }
    }

    /// Finds out what the store holds, for whoever waits for that.
    async fn read_back(&mut self, events: &mut VecDeque<Event>) {
        let saved = match self.persist.load().await {
            Ok(saved) => saved,
            Err(error) => {
                self.note_unsaved(&error);
                self.retry_later();
                return;
            }
        };
        let found = saved.formed.map(Box::new);
        if let Some(generation) = self.unfinished.write.take() {
            let found = found.clone();
            events.push_back(Event::PersistRefused { generation, found });
        }
        if std::mem::take(&mut self.unfinished.read) {
            events.push_back(Event::Found(found));
        }
    }

    async fn save_ending(&mut self, events: &mut VecDeque<Event>) {
        let Some(ending) = self.unfinished.ending.clone() else {
            return;
        };
        match self.persist.latch(&ending).await {
            Ok(()) => {
                self.note_saved();
                self.unfinished.ending = None;
                events.push_back(Event::EndingPersisted);
            }
            Err(error) => {
                self.note_unsaved(&error);
                self.retry_later();
            }
        }
    }

    async fn save_restarts(&mut self) {
        let Some(restarts) = self.unfinished.restarts.clone() else {
            return;
        };
        match self.persist.save_restarts(&restarts).await {
            Ok(()) => {
                self.note_saved();
                self.unfinished.restarts = None;
            }
            Err(error) => {
                self.note_unsaved(&error);
                self.retry_later();
            }
        }
    }

    /// An error comes back with each try: it is logged once.
    fn note_unsaved(&mut self, error: &PersistError) {
        let text = error.to_string();
        if self.history.unsaved.as_ref() != Some(&text) {
            tracing::error!(error = text, "the membership cannot be saved; it is tried again");
            self.history.unsaved = Some(text);
        }
    }

    fn note_saved(&mut self) {
        if self.history.unsaved.take().is_some() {
            tracing::info!("the membership is saved again");
        }
    }

    fn retry_later(&mut self) {
        self.unfinished.retry_at.get_or_insert(Instant::now() + RETRY);
    }

    /// Tries again what did not succeed.
    pub(super) async fn finish_unfinished(&mut self) {
        let mut events = VecDeque::new();
        if self.unfinished.write.is_some() || self.unfinished.read {
            self.read_back(&mut events).await;
        }
        self.save_ending(&mut events).await;
        self.save_restarts().await;
        for event in events {
            self.apply(event).await;
        }
        self.show();
    }

    // ----- what happened

    fn note_published(&mut self, generation: Generation) {
        let now = Instant::now();
        let Some(offer) = self.machine.offer() else { return };
        tracing::info!(%generation, world_size = offer.plan.world_size, reason = %offer.plan.reason, "formed");
        push_bounded(
            &mut self.history.generations,
            GenerationSnapshot {
                generation,
                reason: offer.plan.reason.clone(),
                world_size: offer.plan.world_size,
                base: offer.plan.base.clone(),
            },
        );
        self.history.planned_at = Some(now);
        if let (Some(broken), Some(recovery)) =
            (self.history.broken_at.take(), self.history.recoveries.last_mut())
        {
            recovery.to = Some(generation);
            recovery.formed_ms = Some(milliseconds(now - broken));
        }
    }

    fn note_phase(&mut self, phase: Phase) {
        match phase {
            Phase::Broken { generation, cause } if self.is_ending() => {
                tracing::info!(%generation, cause, "members leave, since the run ends");
            }
            Phase::Broken { generation, cause } => {
                tracing::warn!(%generation, cause, "a generation ended");
                self.history.broken_at = Some(Instant::now());
                let recovery = RecoverySnapshot {
                    from: generation,
                    reason: cause,
                    ..RecoverySnapshot::default()
                };
                push_bounded(&mut self.history.recoveries, recovery);
            }
            Phase::Planned { .. } => {}
            Phase::Established { generation } => {
                let opened = self.history.planned_at.map(|at| milliseconds(at.elapsed()));
                if let Some(recovery) = self.recovery_into(generation) {
                    recovery.opened_ms = opened;
                }
            }
        }
    }

    /// Whether no generation will follow: the job has ended, or everybody is asked to stop.
    fn is_ending(&self) -> bool {
        matches!(
            self.machine.reason(),
            Reason::Complete | Reason::Failed { .. } | Reason::Stopping { .. } | Reason::Stopped { .. }
        )
    }

    /// Keeps of each phase the longest that a member measured.
    pub(super) fn note_phases(&mut self, phases: RecoveryPhases) {
        let Some(recovery) = self.recovery_into(phases.generation) else {
            return;
        };
        let longest = recovery.members.get_or_insert_with(|| phases.clone());
        longest.detect_ms = longest.detect_ms.max(phases.detect_ms);
        longest.form_ms = longest.form_ms.max(phases.form_ms);
        longest.state_ms = longest.state_ms.max(phases.state_ms);
        longest.first_step_ms = longest.first_step_ms.max(phases.first_step_ms);
    }

    fn recovery_into(&mut self, generation: Generation) -> Option<&mut RecoverySnapshot> {
        let mut newest_first = self.history.recoveries.iter_mut().rev();
        newest_first.find(|r| r.to == Some(generation))
    }
}

fn push_bounded<T>(list: &mut Vec<T>, item: T) {
    if list.len() >= KEPT {
        list.remove(0);
    }
    list.push(item);
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// How far the lowest rank that has told is.
pub(super) fn progress_of(machine: &Membership, beats: &Beats) -> Option<Progress> {
    let group = machine.formed().map_or(&[][..], |f| &f.members);
    group
        .iter()
        .find_map(|id| beats.get(id.incarnation)?.progress.clone())
}

/// The state of everything at `now`.
pub(super) fn snapshot_of(
    machine: &Membership,
    beats: &Beats,
    history: &History,
    now: Instant,
) -> ServiceSnapshot {
    let group = machine.formed().map_or(&[][..], |f| &f.members);
    let rank_of = |member: &Member| {
        group
            .iter()
            .position(|id| *id == member.id)
            .map(|rank| rank as u32)
    };
    let mut members: Vec<MemberSnapshot> = machine
        .members()
        .values()
        .map(|member| {
            let life = beats.get(member.id.incarnation);
            let progress = life.and_then(|l| l.progress.clone());
            MemberSnapshot {
                id: member.id.clone(),
                rank: rank_of(member),
                live: member.live,
                activity: activity(member, progress.as_ref()),
                beat_age: life.map_or(Duration::ZERO, |l| now.duration_since(l.heard)),
                progress,
                refused: member.refused.as_ref().map(ToString::to_string),
            }
        })
        .collect();
    members.sort_by(|a, b| (a.rank.is_none(), a.rank, &a.id).cmp(&(b.rank.is_none(), b.rank, &b.id)));
    ServiceSnapshot {
        job_uid: machine.settings().job_uid.clone(),
        phase: phase_of(machine.reason()),
        reason: machine.reason().to_string(),
        reason_id: machine.reason().id(),
        generation: machine.generation(),
        world_size: group.len() as u32,
        members,
        progress: history.progress.clone(),
        generations: history.generations.clone(),
        recoveries: history.recoveries.clone(),
        restarts: machine.restarts().clone(),
        ending: machine.ending().cloned(),
        done: history.done.clone(),
        unsaved: history.unsaved.clone(),
    }
}

fn activity(member: &Member, progress: Option<&Progress>) -> String {
    let told = progress
        .map(|p| p.activity.as_str())
        .filter(|text| !text.is_empty());
    match told {
        _ if member.refused.is_some() => "refused",
        _ if !member.live => "silent",
        _ if member.done.is_some() => "done",
        _ if member.leaving.is_some() => "leaving",
        Some(told) => told,
        None if !member.report.ready => "warming up",
        None if member.present_in().is_some() => "in the group",
        None => "waiting",
    }
    .to_owned()
}

fn phase_of(reason: &Reason) -> ServicePhase {
    match reason {
        Reason::Opening { .. } => ServicePhase::Opening,
        Reason::Running { .. } => ServicePhase::Running,
        Reason::Stopping { .. } => ServicePhase::Stopping,
        Reason::Stopped { .. } => ServicePhase::Stopped,
        Reason::Complete => ServicePhase::Complete,
        Reason::Failed { .. } => ServicePhase::Failed,
        Reason::WaitingForWorkers { .. }
        | Reason::FormationWindow { .. }
        | Reason::WaitingForReturn { .. }
        | Reason::WaitingForFencing { .. }
        | Reason::NotSaved { .. }
        | Reason::Persisting { .. } => ServicePhase::Forming,
    }
}
