//! Never two live groups: a new generation holds somebody who left the one before and holds its state, or
//! everybody who could hold it is proven ended.

use super::Reason;
use super::state::{Member, Membership};
use gradsync_formats::identity::MemberId;
use std::collections::BTreeSet;

/// Whether a group of `planned` members may follow the newest generation; the reason if not.
///
/// Every planned member has promised to stay out of it, so a planned one that was in it fences it: all its
/// commits needed that member. That member holds its state too: either it was in the group when that was
/// committed (and has not thrown it away since), or it never was, and then nothing was committed and the
/// group's base still stands.
pub(super) fn may_follow(state: &Membership, planned: &[&Member]) -> Result<(), Reason> {
    #[cfg(test)]
    if state.faults.ignore_holders {
        return Ok(());
    }
    let before = state.group();
    let generation = state.generation();
    let holds = |m: &Member| m.report.established < generation || m.report.held.is_some();
    let holder = |m: &&Member| state.in_group(m.id.incarnation) && holds(m);
    if before.is_empty() || planned.iter().any(holder) {
        return Ok(());
    }
    // One that came back without the state is no holder that could be missed.
    let came_back_empty = |id: &MemberId| {
        let known = state.members.get(&id.incarnation);
        known.is_some_and(|m| m.report.left >= generation && !holds(m))
    };
    let unproven: BTreeSet<_> = before
        .iter()
        .filter(|id| !state.is_ended(id) && !came_back_empty(id))
        .map(|id| id.pod.clone())
        .collect();
    if unproven.is_empty() {
        return Ok(());
    }
    Err(Reason::WaitingForFencing {
        pods: unproven.into_iter().collect(),
    })
}
