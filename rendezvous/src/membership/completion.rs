//! Ends: of processes and pods, of the job by success, failure or a wish to stop.

use super::joining::with_member;
use super::state::{Charge, Latch, Member, Membership};
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
    if let LeaveCause::Fatal { error } = &cause
        && speaks_for_the_job(state, member)
    {
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

/// Whether an error of `member` is the job's: it is in the group or in the one that is being saved, or no
/// group has been at work yet. One that only wanted to come in harms nobody but itself.
fn speaks_for_the_job(state: &Membership, member: &MemberId) -> bool {
    let inside = state.in_group(member.incarnation)
        || state
            .attempt
            .as_ref()
            .is_some_and(|attempt| attempt.formed.members.contains(member));
    let none_yet = !state.has_worked && state.unheard.is_empty();
    !state.is_ended(member) && (inside || none_yet)
}

/// What the end of a process costs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Weight {
    /// Nothing, and it is not shown: the process said before why it would go.
    Expected,
    Uncharged,
    Charged,
}

impl Weight {
    fn of(status: &ExitStatus) -> Weight {
        match status.is_charged() {
            true => Weight::Charged,
            false => Weight::Uncharged,
        }
    }
}

/// What the end of a process with this `status` costs, if `member` is what was known of it.
fn weigh(state: &Membership, member: Option<&Member>, status: &ExitStatus) -> Weight {
    let Some(member) = member else {
        return Weight::of(status);
    };
    let mistaken = member.refused.is_some() || matches!(member.leaving, Some(LeaveCause::Fatal { .. }));
    match (mistaken, &member.leaving) {
        // The group does without it. One that is needed would fail in the same way for ever.
        (true, _) if state.is_whole() => Weight::Expected,
        (true, _) => Weight::Charged,
        (false, Some(_)) => Weight::Expected,
        (false, None) => Weight::of(status),
    }
}

/// The parent of a process has reaped it.
pub(super) fn exited(
    state: &mut Membership,
    member: &MemberId,
    status: &ExitStatus,
    effects: &mut Vec<Effect>,
) {
    let weight = weigh(state, state.members.get(&member.incarnation), status);
    mark_ended(state, member.incarnation);
    if state.in_group(member.incarnation) {
        state.broke(|| format!("{member} {status}"));
    }
    count(state, member, status, weight, effects);
}

/// Notes the proof that a process has ended.
pub(super) fn mark_ended(state: &mut Membership, incarnation: Incarnation) {
    if let Some(member) = state.members.remove(&incarnation) {
        let start = state.starts.get_mut(&(member.id.pod, member.id.local_rank));
        if let Some((_, newest)) = start {
            newest.take_if(|newest| *newest == incarnation);
        }
    }
    state.unheard.remove(&incarnation);
    state.ended.insert(incarnation);
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
        let as_one = MemberId {
            slot,
            local_rank: 0,
            pod: pod.clone(),
            incarnation: Incarnation(uuid::Uuid::nil()),
        };
        if state.restarts.is_first_word_of(&as_one) {
            // Whichever of its processes is told of first stands for all of them. A pod whose processes came
            // and went at nobody's cost pays itself, or it could do so for ever.
            let first = inside.into_iter().next();
            let unheard = first
                .as_ref()
                .is_none_or(|member| state.restarts.is_first_word_of(member));
            let for_nothing = state.restarts.charged.iter().all(|c| c.member.pod != *pod);
            if unheard || for_nothing {
                charge(
                    state,
                    &first.unwrap_or(as_one),
                    &status,
                    Weight::of(&status),
                    effects,
                );
            }
        }
    }
}

/// Counts the end of a process once, whoever tells of it and how often.
fn count(
    state: &mut Membership,
    member: &MemberId,
    status: &ExitStatus,
    weight: Weight,
    effects: &mut Vec<Effect>,
) {
    if state.restarts.is_first_word_of(member) {
        charge(state, member, status, weight, effects);
    }
}

fn charge(
    state: &mut Membership,
    member: &MemberId,
    status: &ExitStatus,
    weight: Weight,
    effects: &mut Vec<Effect>,
) {
    if !matches!(state.latch, Latch::Open) || state.stop.is_some() {
        return;
    }
    match weight {
        Weight::Expected => {}
        Weight::Uncharged => state.restarts.uncharged += 1,
        Weight::Charged => state.restarts.charged.push(Charge {
            member: member.clone(),
            status: status.clone(),
        }),
    }
    effects.push(Effect::SaveRestarts(state.restarts.clone()));
    if weight != Weight::Charged {
        return;
    }
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
