//! What a member is to be told, as a function of the state alone.

use super::Ending;
use super::state::{Latch, Membership};
use crate::wire::{Ask, EncodedPlan, MemberNews, PlanHead, Role, Secret, Share};
use gradsync_formats::identity::{Generation, Incarnation};

/// The news of the process `incarnation`, and the plan that goes with them; `None` if it is not known.
/// `key` makes the handshake key of a generation.
#[must_use]
pub fn news_of(
    state: &Membership,
    incarnation: Incarnation,
    key: impl FnOnce(Generation) -> Secret,
) -> Option<(MemberNews, Option<EncodedPlan>)> {
    let member = state.members.get(&incarnation)?;
    let generation = state.generation();
    let in_group = state.in_group(incarnation);
    let whole = state.is_whole();
    // A member of the group keeps its way into it open until it is over, or cannot open any more.
    let may_enter = in_group && !state.is_over() && (whole || member.present_in().is_some());
    let floor = match may_enter {
        true => Generation(generation.0.saturating_sub(1)),
        false => generation,
    };
    let ask = if let Some(refusal) = &member.refused {
        Ask::Refused {
            refusal: refusal.clone(),
        }
    } else if let Latch::Closed(ending) = &state.latch {
        match ending {
            Ending::Complete { done } => Ask::Finished {
                reason: format!("complete after {} steps", done.total_steps),
            },
            Ending::Failed { error } => Ask::Failed {
                reason: error.clone(),
            },
        }
    } else if matches!(state.latch, Latch::Saving(_)) || member.leaving.is_some() {
        Ask::None
    } else if let Some(cause) = &state.stop {
        Ask::Stop { cause: cause.clone() }
    } else {
        let stays_in = match member.present_in() {
            // A later generation than this service knows: only the store can say whose it is.
            Some(present) if present > generation => (present <= state.checked).then_some(present),
            Some(present) if present == generation && in_group => (!whole).then_some(generation),
            Some(present) => Some(present),
            None => (in_group && !whole && member.report.left < generation).then_some(generation),
        };
        match stays_in {
            Some(generation) => Ask::Reform {
                generation,
                checkpoint: state.reform.as_ref().is_some_and(|r| r.checkpoint),
                reason: state
                    .cause
                    .clone()
                    .or_else(|| state.reform.as_ref().map(|r| r.reason.clone()))
                    .unwrap_or_else(|| format!("generation {generation} is over")),
            },
            None if wants_config(state, incarnation) => Ask::Rejoin {
                reason: "the configuration was changed".into(),
            },
            None => Ask::None,
        }
    };
    let offer = state
        .offer
        .as_ref()
        .filter(|_| whole && in_group && ask == Ask::None);
    let planned = offer.and_then(|o| o.plan.member(incarnation).map(|p| (o, p)));
    let head = planned.map(|(offer, planned)| PlanHead {
        generation: offer.formed.generation,
        rank: planned.rank,
        role: planned.role,
        share: (planned.role == Role::Worker).then_some(Share {
            index: planned.rank,
            of: offer.plan.world_size,
        }),
        key: key(offer.formed.generation),
    });
    let plan = planned.map(|(offer, _)| offer.encoded.clone());
    Some((MemberNews { head, floor, ask }, plan))
}

fn wants_config(state: &Membership, incarnation: Incarnation) -> bool {
    state.members.get(&incarnation).is_some_and(|m| {
        m.present_in().is_none()
            && m.report
                .run_config_digest
                .as_ref()
                .is_some_and(|d| *d != state.settings.run_config_digest)
    })
}
