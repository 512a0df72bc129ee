//! Ends: of processes and pods, of the job by success, failure or a wish to stop.

use super::joining::with_member;
use super::state::{Charge, Latch, Membership};
use super::{Effect, Ending, Reason};
use crate::wire::{DoneReport, ExitStatus, LeaveCause, Refusal, StopCause};
use gradsync_formats::identity::{Incarnation, MemberId, PodUid};

/// A member says that training is over. The first such report of the newest generation ends the job: it
/// is sent only after a closing barrier of all.
pub(super) fn done(state: &mut Membership, member: &MemberId, report: DoneReport, effects: &mut Vec<Effect>) {
    let current = state.generation();
    if report.generation != current || !state.in_group(member.incarnation) {
        let stale = Refusal::StaleGeneration {
            current,
            given: report.generation,
        };
        effects.push(Effect::Refuse(member.clone(), stale));
        return;
    }
    with_member(state, member, effects, |m| m.done = Some(report.clone()));
    if matches!(state.latch, Latch::Open) {
        latch(state, Ending::Complete { done: report }, effects);
    }
}

/// The job cannot go on.
pub(super) fn fail(state: &mut Membership, error: String, effects: &mut Vec<Effect>) {
    if matches!(state.latch, Latch::Open) {
        latch(state, Ending::Failed { error }, effects);
    }
}

fn latch(state: &mut Membership, ending: Ending, effects: &mut Vec<Effect>) {
    state.latch = Latch::Saving(ending.clone());
    effects.push(Effect::Latch(ending));
}

/// A member goes for good.
pub(super) fn leave(state: &mut Membership, member: &MemberId, cause: LeaveCause, effects: &mut Vec<Effect>) {
    if let LeaveCause::Fatal { error } = &cause {
        fail(state, format!("{member}: {error}"), effects);
    }
    let text = match &cause {
        LeaveCause::Stopped { .. } => "stopped",
        LeaveCause::Draining => "is being drained",
        LeaveCause::Fatal { .. } => "gave up",
    };
    with_member(state, member, effects, |m| {
        m.report.left = m.report.left.max(m.report.planned).max(m.report.established);
        m.leaving = Some(cause);
    });
    if state.in_group(member.incarnation) {
        state.broke(|| format!("{member} {text}"));
    }
}

/// The parent of a process has reaped it.
pub(super) fn exited(
    state: &mut Membership,
    member: &MemberId,
    status: &ExitStatus,
    effects: &mut Vec<Effect>,
) {
    let known = state.members.get(&member.incarnation);
    // One that said goodbye, or was told that it cannot be here, is not counted again by its exit code.
    let expected = known.is_some_and(|m| m.leaving.is_some() || m.refused.is_some());
    let new = mark_ended(state, member.incarnation);
    if state.in_group(member.incarnation) {
        state.broke(|| format!("{member} {status}"));
    }
    if new && !expected {
        charge(state, member, status, effects);
    }
}

/// Notes the proof that a process has ended; false if it was known already.
pub(super) fn mark_ended(state: &mut Membership, incarnation: Incarnation) -> bool {
    if let Some(member) = state.members.remove(&incarnation) {
        let start = state.starts.get_mut(&(member.id.pod, member.id.local_rank));
        if let Some((_, newest)) = start {
            newest.take_if(|newest| *newest == incarnation);
        }
    }
    state.unheard.remove(&incarnation);
    state.ended.insert(incarnation)
}

/// A pod is proven ended.
pub(super) fn pod_ended(
    state: &mut Membership,
    pod: &PodUid,
    slot: u32,
    status: Option<ExitStatus>,
    effects: &mut Vec<Effect>,
) {
    if !state.ended_pods.insert(pod.clone()) {
        return;
    }
    state.starts.retain(|(p, _), _| p != pod);
    state.excluded.remove(pod);
    let inside: Vec<MemberId> = state
        .members
        .values()
        .map(|m| &m.id)
        .chain(state.group())
        .filter(|m| m.pod == *pod)
        .cloned()
        .collect();
    let mut in_group = false;
    for id in &inside {
        in_group |= state.in_group(id.incarnation);
        mark_ended(state, id.incarnation);
    }
    if in_group {
        let how = status.as_ref().map_or("ended".into(), ToString::to_string);
        state.broke(|| format!("pod of worker {slot} {how}"));
    }
    if let Some(status) = status {
        let first = inside.into_iter().next().unwrap_or(MemberId {
            slot,
            local_rank: 0,
            pod: pod.clone(),
            incarnation: Incarnation(uuid::Uuid::nil()),
        });
        charge(state, &first, &status, effects);
    }
}

fn charge(state: &mut Membership, member: &MemberId, status: &ExitStatus, effects: &mut Vec<Effect>) {
    if !matches!(state.latch, Latch::Open) || state.stop.is_some() {
        return;
    }
    let again = |c: &Charge| c.member.incarnation == member.incarnation && c.member.pod == member.pod;
    if state.restarts.charged.iter().any(again) {
        return;
    }
    if !status.is_charged() {
        state.restarts.uncharged += 1;
        effects.push(Effect::SaveRestarts(state.restarts.clone()));
        return;
    }
    state.restarts.charged.push(Charge {
        member: member.clone(),
        status: status.clone(),
    });
    effects.push(Effect::SaveRestarts(state.restarts.clone()));
    let (count, most) = (state.restarts.charged.len(), state.settings.max_restarts as usize);
    if count > most {
        let error = format!(
            "{member} {status}; that is failure {count}, and failurePolicy.maxRestarts allows {most} restarts"
        );
        fail(state, error, effects);
    }
}

/// What is still waited for after a wish to stop.
pub(super) fn stopping(state: &Membership, stop: &StopCause) -> Reason {
    let left = state
        .members
        .values()
        .filter(|m| m.live && m.leaving.is_none())
        .count();
    let cause = stop.reason.clone();
    match left {
        0 => Reason::Stopped { cause },
        left => Reason::Stopping { left, cause },
    }
}
