//! Forming the next generation: when, of whom, and what happens to it in the store.

use super::state::{Formed, Member, Membership, NewGeneration, Reform};
use super::{Effect, Monotonic, Phase, Reason, base, completion, fencing, unreachable};
use crate::wire::{EncodedPlan, PLAN_VERSION, Plan, PlannedMember, Role};
use gradsync_formats::identity::{Generation, MemberId, PodUid};
use gradsync_formats::run_config::ResumePolicy;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A pod of which every rank is ready.
struct ReadyPod<'a> {
    slot: u32,
    members: Vec<&'a Member>,
    /// Whether it was in the newest generation.
    was_in: bool,
}

/// Forms the next generation if that can be done now, else says what it waits for.
pub(super) fn form(state: &mut Membership, now: Monotonic, effects: &mut Vec<Effect>) -> Reason {
    if let Some(until) = state.retry_at.filter(|at| *at > now) {
        effects.push(Effect::WakeAt(until));
        return Reason::NotSaved { until };
    }
    let out = still_out(state);
    if !out.is_empty() {
        return Reason::WaitingForReturn {
            generation: state.generation(),
            members: out,
        };
    }
    judge_opening(state, now);
    if let Some(until) = state
        .excluded
        .values()
        .map(|e| e.until)
        .filter(|at| *at > now)
        .min()
    {
        effects.push(Effect::WakeAt(until));
    }
    let pods = ready_pods(state, now);
    let (ready, target) = (pods.len(), state.settings.bounds.target());
    let first_since = (state.formed.is_none() && ready > 0).then(|| state.waiting_since.unwrap_or(now));
    if ready < state.settings.bounds.least() {
        let waiting = Reason::WaitingForWorkers {
            ready,
            needed: state.settings.bounds.least(),
            left_out: left_out(state, now),
        };
        state.waiting_since = first_since;
        return waiting;
    }
    let until = first_since.map(|since| since.after(state.settings.formation_window));
    if let Some(until) = until.filter(|at| ready < target && *at > now) {
        state.waiting_since = first_since;
        effects.push(Effect::WakeAt(until));
        return Reason::FormationWindow {
            ready,
            hoped: target,
            until,
        };
    }
    let planned = select(pods, target);
    if let Err(waiting) = fencing::may_follow(state, &planned) {
        return waiting;
    }
    match draft(state, &planned) {
        Ok(new) => {
            let new = Arc::new(new);
            let generation = new.formed.generation;
            #[cfg(test)]
            if state.faults.publish_early {
                effects.push(Effect::Publish(generation, new.encoded.clone()));
            }
            effects.push(Effect::Persist(Arc::clone(&new)));
            state.attempt = Some(new);
            state.waiting_since = None;
            Reason::Persisting { generation }
        }
        Err(error) => {
            completion::fail(state, error.clone(), effects);
            Reason::Failed { error }
        }
    }
}

/// Live members that are, or could still come to be, in a generation that must end first.
fn still_out(state: &Membership) -> Vec<MemberId> {
    let generation = state.generation();
    let unheard = state
        .group()
        .iter()
        .filter(|id| state.unheard.contains(&id.incarnation) && !state.is_ended(id));
    let there = state.members.values().filter(|m| {
        m.live
            && m.leaving.is_none()
            && m.refused.is_none()
            && match m.present_in() {
                Some(present) => present >= generation,
                None => state.in_group(m.id.incarnation) && m.report.left < generation,
            }
    });
    unheard.chain(there.map(|m| &m.id)).cloned().collect()
}

/// After an opening barrier that failed: leaves out whom the reports explain it by, once.
fn judge_opening(state: &mut Membership, now: Monotonic) {
    let generation = state.generation();
    if state.established || state.judged >= generation {
        return;
    }
    state.judged = generation;
    let returned = |id: &MemberId| {
        state
            .members
            .get(&id.incarnation)
            .filter(|m| m.live && m.leaving.is_none() && m.report.left >= generation)
    };
    let mut links = Vec::new();
    for reporter in state.group().iter().filter_map(returned) {
        if reporter.report.planned == generation {
            // One that blames nobody went away by itself, for instance because its checkpoint was damaged.
            let blamed = reporter.report.unreachable.iter().filter_map(returned);
            let blamed = blamed.filter(|b| !b.report.unreachable.is_empty());
            links.extend(blamed.map(|b| (reporter.id.clone(), b.id.clone())));
        }
    }
    let mut ranks: BTreeMap<PodUid, usize> = BTreeMap::new();
    for (rank, id) in state.group().iter().enumerate() {
        ranks.entry(id.pod.clone()).or_insert(rank);
    }
    let backoff = state.settings.backoff;
    unreachable::exclude(&mut state.excluded, &links, &ranks, backoff, now);
}

fn left_out(state: &Membership, now: Monotonic) -> Vec<String> {
    let waiting = state.excluded.values().filter(|e| e.until > now);
    waiting.map(|e| e.link.clone()).collect()
}

fn ready_pods(state: &Membership, now: Monotonic) -> Vec<ReadyPod<'_>> {
    let mut ranks: BTreeMap<(u32, &PodUid), BTreeMap<u32, &Member>> = BTreeMap::new();
    for member in state.members.values().filter(|m| is_eligible(state, m, now)) {
        let pod = ranks.entry((member.id.slot, &member.id.pod)).or_default();
        pod.insert(member.id.local_rank, member);
    }
    let wanted = state.settings.ranks_per_pod;
    let mut by_slot: BTreeMap<u32, ReadyPod<'_>> = BTreeMap::new();
    for ((slot, _), members) in ranks {
        if members.len() != wanted as usize || members.keys().any(|&rank| rank >= wanted) {
            continue;
        }
        let members: Vec<&Member> = members.into_values().collect();
        let was_in = members.iter().any(|m| state.in_group(m.id.incarnation));
        let pod = ReadyPod {
            slot,
            members,
            was_in,
        };
        match by_slot.get(&slot) {
            Some(other) if other.was_in => {}
            _ => {
                by_slot.insert(slot, pod);
            }
        }
    }
    by_slot.into_values().collect()
}

fn is_eligible(state: &Membership, member: &Member, now: Monotonic) -> bool {
    let report = &member.report;
    let place = (member.id.pod.clone(), member.id.local_rank);
    member.live
        && report.ready
        && member.leaving.is_none()
        && member.refused.is_none()
        && member.present_in().is_none()
        && report.left >= state.generation()
        && report.run_config_digest.as_ref() == Some(&state.settings.run_config_digest)
        && state
            .starts
            .get(&place)
            .is_none_or(|(_, newest)| *newest == Some(member.id.incarnation))
        && state.excluded.get(&member.id.pod).is_none_or(|e| e.until <= now)
        && (state.settings.resume != ResumePolicy::Path
            || state.formed.is_some()
            || report.resume_from.is_some())
}

/// The members of at most `target` pods by rank: those of the newest generation first, so that its state
/// is kept, then low slots.
fn select(mut pods: Vec<ReadyPod<'_>>, target: usize) -> Vec<&Member> {
    pods.sort_by_key(|p| (!p.was_in, p.slot));
    pods.truncate(target);
    pods.sort_by_key(|p| p.slot);
    pods.into_iter().flat_map(|p| p.members).collect()
}

fn draft(state: &Membership, planned: &[&Member]) -> Result<NewGeneration, String> {
    let generation = state.highest.max(state.generation()).next();
    #[cfg(test)]
    let generation = match state.faults.reuse_generation && state.formed.is_some() && !state.established {
        true => state.generation(),
        false => generation,
    };
    let chosen = base::choose(
        state.formed.as_ref(),
        planned,
        state.settings.resume,
        &state.damaged,
    );
    if let (Some(before), true) = (&state.formed, state.settings.resume != ResumePolicy::Never) {
        base::refuse_to_start_over(before, &chosen.base)?;
    }
    let lineage = base::extend(&chosen.lineage, generation, chosen.base.position);
    let members = planned.iter().enumerate().map(|(rank, member)| PlannedMember {
        rank: rank as u32,
        role: Role::Worker,
        id: member.id.clone(),
        addresses: member.report.addresses.clone(),
    });
    let plan = Plan {
        version: PLAN_VERSION,
        job_uid: state.settings.job_uid.clone(),
        generation,
        world_size: planned.len() as u32,
        members: members.collect(),
        base: chosen.base.clone(),
        lineage: lineage.clone(),
        run_config_digest: state.settings.run_config_digest.clone(),
        reason: match (&state.cause, &state.formed) {
            (Some(cause), _) => cause.clone(),
            (None, None) => "first forming".into(),
            (None, Some(before)) => format!("generation {} is over", before.generation),
        },
    };
    let encoded = EncodedPlan::encode(&plan).map_err(|e| e.to_string())?;
    let known = state.formed.as_ref().and_then(|f| f.fingerprints.clone());
    Ok(NewGeneration {
        follows: state.generation(),
        formed: Formed {
            generation,
            plan_digest: encoded.digest.clone(),
            members: planned.iter().map(|m| m.id.clone()).collect(),
            base: chosen.base,
            root: chosen.root,
            lineage,
            fingerprints: known.or_else(|| planned.iter().find_map(|m| m.report.fingerprints.clone())),
            checkpoint: chosen.checkpoint,
        },
        plan,
        encoded,
    })
}

/// Whether the running group is to be formed anew with more or fewer pods; asks its members to come if so.
pub(super) fn wants_other_size(state: &mut Membership, now: Monotonic, effects: &mut Vec<Effect>) -> bool {
    let pods: BTreeSet<&PodUid> = state.group().iter().map(|m| &m.pod).collect();
    let (size, target) = (pods.len(), state.settings.bounds.target());
    if size > target {
        ask_reform(
            state,
            format!("the number of workers was changed from {size} to {target}"),
        );
        return true;
    }
    let joiners = match state.settings.grows && size < target {
        true => ready_pods(state, now).iter().filter(|p| !p.was_in).count(),
        false => 0,
    };
    if joiners == 0 {
        state.waiting_since = None;
        return false;
    }
    let until = state
        .waiting_since
        .get_or_insert(now)
        .after(state.settings.formation_window);
    if size + joiners < target && until > now {
        effects.push(Effect::WakeAt(until));
        return false;
    }
    ask_reform(state, format!("{joiners} more workers are ready"));
    true
}

/// Wishes that the present generation ends at a boundary. What is committed is written to a checkpoint
/// first: whoever joins has no other way to it.
pub(super) fn ask_reform(state: &mut Membership, reason: String) {
    if state.formed.is_some() && state.reform.is_none() {
        state.broke(|| reason.clone());
        state.reform = Some(Reform {
            reason,
            checkpoint: true,
        });
    }
}

/// The store holds `generation` now.
pub(super) fn persisted(state: &mut Membership, generation: Generation, effects: &mut Vec<Effect>) {
    let Some(new) = state.attempt.take_if(|a| a.formed.generation == generation) else {
        return;
    };
    adopt(state, new.formed.clone());
    state.unheard.clear();
    state.offer = Some(Arc::clone(&new));
    if !state.is_whole() {
        state.broke(|| format!("a member went away while generation {generation} was being saved"));
    }
    effects.push(Effect::Publish(generation, new.encoded.clone()));
    effects.push(Effect::Record(Phase::Planned { generation }));
}

/// The store did not take `generation`, or nobody knows. Its number is never used again, since the write
/// may still arrive; what the store holds counts.
pub(super) fn persist_refused(
    state: &mut Membership,
    generation: Generation,
    found: Option<Formed>,
    now: Monotonic,
    effects: &mut Vec<Effect>,
) {
    let Some(attempt) = state
        .attempt
        .as_ref()
        .filter(|a| a.formed.generation == generation)
    else {
        return;
    };
    if found
        .as_ref()
        .is_some_and(|f| f.plan_digest == attempt.formed.plan_digest)
    {
        persisted(state, generation, effects);
        return;
    }
    state.attempt = None;
    state.highest = state.highest.max(generation);
    state.retry_at = Some(now.after(state.settings.save_retry));
    if let Some(found) = found.filter(|f| f.generation > state.generation()) {
        state.retry_at = None;
        adopt(state, found);
    }
}

/// What the store holds, when members spoke of generations that are not known here.
pub(super) fn found(state: &mut Membership, found: Option<Formed>) {
    if state.attempt.is_some() {
        return;
    }
    state.checked = state.highest;
    if let Some(found) = found.filter(|f| f.generation > state.generation()) {
        adopt(state, found);
    }
}

/// Takes `formed` for the newest generation.
fn adopt(state: &mut Membership, formed: Formed) {
    let generation = formed.generation;
    let unheard = formed
        .members
        .iter()
        .filter(|id| !state.members.contains_key(&id.incarnation) && !state.is_ended(id));
    state.unheard = unheard.map(|id| id.incarnation).collect();
    state.highest = state.highest.max(generation);
    state.established = state
        .members
        .values()
        .any(|m| m.report.established == generation && formed.members.contains(&m.id));
    let inside: BTreeSet<_> = formed.members.iter().map(|m| m.incarnation).collect();
    let pods: BTreeSet<_> = formed.members.iter().map(|m| &m.pod).collect();
    state.ended.retain(|incarnation| inside.contains(incarnation));
    state.ended_pods.retain(|pod| pods.contains(pod));
    state.formed = Some(formed);
    state.offer = None;
    state.reform = None;
    state.cause = None;
    state.retry_at = None;
    state.waiting_since = None;
}
