//! Taking in what members say about themselves.

use super::completion;
use super::state::{Latch, Member, Membership, Reference};
use super::{Effect, Ending, Phase};
use crate::wire::{MemberReport, Refusal, RestartReport};
use gradsync_formats::identity::{Generation, Incarnation, MemberId};
use gradsync_formats::manifest::Fingerprints;

/// A join, the first or a later one.
pub(super) fn join(
    state: &mut Membership,
    member: MemberId,
    report: MemberReport,
    restart: &RestartReport,
    effects: &mut Vec<Effect>,
) {
    if let Latch::Closed(ending) = &state.latch {
        let refusal = match ending {
            Ending::Complete { done } => Refusal::Finished {
                reason: format!("complete after {} steps", done.total_steps),
            },
            Ending::Failed { error } => Refusal::Failed {
                reason: error.clone(),
            },
        };
        effects.push(Effect::Refuse(member, refusal));
        return;
    }
    if is_superseded(state, &member, restart) {
        let unknown = Refusal::UnknownMember {
            member: member.clone(),
        };
        effects.push(Effect::Refuse(member, unknown));
        return;
    }
    if let (Some(before), Some(status)) = (restart.replaces, &restart.last) {
        let predecessor = MemberId {
            incarnation: before,
            ..member.clone()
        };
        completion::exited(state, &predecessor, status, effects);
    } else if let Some(before) = restart.replaces {
        completion::mark_ended(state, before);
    }
    if !matches!(state.latch, Latch::Open) {
        // The end is being saved: there is nothing to judge any more, but it must hear of the end.
        record(state, member, report);
        return;
    }
    hear_of_generations(state, &report, effects);
    for damaged in &report.damaged {
        state
            .damaged
            .insert(damaged.path.clone(), damaged.problem.clone());
    }
    // One with another configuration is given the one in force by the answer; it is judged once it has it.
    let judged = report.ready && report.run_config_digest.as_ref() == Some(&state.settings.run_config_digest);
    let refusal = judged.then(|| misfit(state, &member, &report)).flatten();
    record(state, member.clone(), report);
    note_return(state, &member);
    if let Some(refusal) = refusal {
        refuse(state, &member, refusal, effects);
    }
}

/// Keeps what the member says of itself.
fn record(state: &mut Membership, member: MemberId, report: MemberReport) {
    state.unheard.remove(&member.incarnation);
    match state.members.get_mut(&member.incarnation) {
        Some(known) => {
            known.live = true;
            if order(&report) >= order(&known.report) {
                known.report = report;
            }
        }
        None => {
            state.members.insert(
                member.incarnation,
                Member {
                    id: member,
                    report,
                    live: true,
                    leaving: None,
                    refused: None,
                    done: None,
                    recovered: None,
                    frozen: None,
                },
            );
        }
    }
}

/// What this report tells about the newest generation.
fn note_return(state: &mut Membership, member: &MemberId) {
    let generation = state.generation();
    if !state.in_group(member.incarnation) {
        return;
    }
    let Some(known) = state.members.get(&member.incarnation) else {
        return;
    };
    if known.report.established == generation {
        state.established = true;
    }
    if known.report.left >= generation {
        let ended = known.report.ended.clone();
        state.broke(|| match ended {
            Some(why) => format!("{member}: {why}"),
            None => format!("{member} left"),
        });
    }
}

/// Members' reports only ever grow in these; a smaller one is late or repeated.
fn order(report: &MemberReport) -> (Generation, Generation, Generation, bool) {
    (report.left, report.planned, report.established, report.ready)
}

/// Whether a later process is known in this one's place, or this one has ended.
fn is_superseded(state: &mut Membership, member: &MemberId, restart: &RestartReport) -> bool {
    if state.is_ended(member) {
        return true;
    }
    let place = (member.pod.clone(), member.local_rank);
    let later = |&(number, newest): &(u32, Option<Incarnation>)| match newest {
        Some(newest) if newest != member.incarnation => number >= restart.number,
        _ => number > restart.number,
    };
    if state.starts.get(&place).is_some_and(later) {
        return true;
    }
    state
        .starts
        .insert(place, (restart.number, Some(member.incarnation)));
    false
}

fn hear_of_generations(state: &mut Membership, report: &MemberReport, effects: &mut Vec<Effect>) {
    let newest = report.left.max(report.planned).max(report.established);
    let in_files = report.checkpoints.iter().map(|c| c.position.generation).max();
    state.highest = state
        .highest
        .max(newest)
        .max(in_files.unwrap_or(Generation::NONE));
    if newest > state.generation() && newest > state.checked && state.attempt.is_none() {
        effects.push(Effect::ReadBack);
    }
}

/// Why this member cannot be in the group, if it cannot.
fn misfit(state: &mut Membership, member: &MemberId, report: &MemberReport) -> Option<Refusal> {
    let agreed = state.formed.as_ref().and_then(|f| f.fingerprints.clone());
    let reference = state.reference.get_or_insert_with(|| Reference {
        peer: agreed
            .as_ref()
            .map_or_else(|| member.to_string(), |_| "the group".into()),
        fingerprints: agreed,
        nonce: None,
    });
    if let Some(given) = &report.fingerprints {
        let expected = reference.fingerprints.get_or_insert_with(|| given.clone());
        if let Some(refusal) = other_fingerprints(member, &reference.peer, expected, given) {
            return Some(refusal);
        }
    }
    if let Some(given) = &report.directory_nonce {
        let expected = reference.nonce.get_or_insert_with(|| given.clone());
        if expected != given {
            return Some(Refusal::DifferentDirectory {
                member: member.clone(),
                peer: reference.peer.clone(),
                expected: expected.clone(),
                given: given.clone(),
            });
        }
    }
    None
}

fn other_fingerprints(
    member: &MemberId,
    peer: &str,
    expected: &Fingerprints,
    given: &Fingerprints,
) -> Option<Refusal> {
    if (&expected.task, &expected.parameter_layout) != (&given.task, &given.parameter_layout) {
        let layout = |f: &Fingerprints| format!("{} of task {}", f.parameter_layout, f.task);
        return Some(Refusal::DifferentLayout {
            member: member.clone(),
            peer: peer.into(),
            expected: layout(expected),
            given: layout(given),
        });
    }
    (expected.data != given.data).then(|| Refusal::DifferentData {
        member: member.clone(),
        peer: peer.into(),
        expected: expected.data.clone(),
        given: given.data.clone(),
    })
}

fn refuse(state: &mut Membership, member: &MemberId, refusal: Refusal, effects: &mut Vec<Effect>) {
    if let Some(known) = state.members.get_mut(&member.incarnation) {
        known.refused = Some(refusal.clone());
    }
    // Before the first generation nobody can say which of two is right: the job cannot start.
    if state.formed.is_none() {
        completion::fail(state, refusal.to_string(), effects);
    }
    effects.push(Effect::Refuse(member.clone(), refusal));
}

/// A member has passed the opening barrier of `generation`.
pub(super) fn established(
    state: &mut Membership,
    member: &MemberId,
    generation: Generation,
    effects: &mut Vec<Effect>,
) {
    let current = state.generation();
    if generation != current || !state.in_group(member.incarnation) {
        let stale = Refusal::StaleGeneration {
            current,
            given: generation,
        };
        effects.push(Effect::Refuse(member.clone(), stale));
        return;
    }
    with_member(state, member, effects, |m| {
        m.report.established = m.report.established.max(generation);
        m.report.planned = m.report.planned.max(generation);
    });
    if !state.established && state.members.contains_key(&member.incarnation) {
        state.established = true;
        // Whoever is in an established group can be reached by all of it.
        let pods: Vec<_> = state.group().iter().map(|m| m.pod.clone()).collect();
        state.excluded.retain(|pod, _| !pods.contains(pod));
        effects.push(Effect::Record(Phase::Established { generation }));
    }
}

/// Changes a known member, or refuses the message of an unknown one.
pub(super) fn with_member(
    state: &mut Membership,
    member: &MemberId,
    effects: &mut Vec<Effect>,
    change: impl FnOnce(&mut Member),
) {
    match state.members.get_mut(&member.incarnation) {
        Some(known) => change(known),
        None => effects.push(Effect::Refuse(
            member.clone(),
            Refusal::UnknownMember {
                member: member.clone(),
            },
        )),
    }
}
