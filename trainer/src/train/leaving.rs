//! What a member does that is told to stop while its group is not there: it saves what it holds and no
//! checkpoint does.
//!
//! It need not wait for a group. A state (g, c) is one state, whoever holds it: commit c of g took all members.
//! Two that were cut off at different commits save two checkpoints, both on the lineage, and the next generation
//! starts from the further one. Should others have formed a generation from an earlier state in the meantime,
//! then this one is superseded by the lineage as its holder's memory would have been; a member that has accepted
//! such a plan knows, and saves nothing.
//!
//! Nothing that goes wrong here fails the job: what was saved before is there, and a later start goes on from it.

use super::Surroundings;
use super::again::BRIEFLY;
use super::standing::Standing;
use super::warm::Warm;
use crate::record::{self, Recorder};
use crate::step::Fatal;
use gradsync_formats::manifest::checkpoint_folder;
use gradsync_formats::record::RecordLine;

/// Saves the state that `warm` holds, unless a whole checkpoint on its lineage is as far. Returns the folder of
/// the checkpoint of this very state, if there is one now. What cannot be saved is told in the log.
pub(super) fn save_what_is_held(
    warm: &Warm<'_>,
    standing: &Standing,
    around: &Surroundings<'_>,
) -> Option<String> {
    save(warm, standing, around).unwrap_or_else(|fatal| {
        tracing::error!(position = %warm.position(), "what is held is lost: {fatal}");
        None
    })
}

fn save(warm: &Warm<'_>, standing: &Standing, around: &Surroundings<'_>) -> Result<Option<String>, Fatal> {
    let (Some(checkpoints), Some(place)) = (&warm.checkpoints, &warm.place) else {
        return Ok(None);
    };
    let position = warm.position();
    let sees_directory = checkpoints.is_shared() || place.rank == 0;
    if !sees_directory || !warm.holds_state() || position.commit == 0 || !place.lineage.contains(position) {
        return Ok(None);
    }
    if !warm.accepted.contains(position) {
        let (generation, lineage) = (warm.accepted.newest(), &warm.accepted.0);
        let base = lineage.last().map_or(0, |entry| entry.base.commit);
        tracing::warn!(
            %position,
            "generation {generation} began from step {base}: {} steps beyond it, held here, are given up",
            position.commit.saturating_sub(base)
        );
        return Ok(None);
    }
    let folder = checkpoint_folder(position);
    // Where nothing usable is seen, for whatever reason, what is held is worth all the more.
    let found = checkpoints
        .look(around.group.job(), &warm.fingerprints, standing, true)
        .ok();
    let newest = found.and_then(|found| {
        let mut on_lineage = found.whole.into_iter();
        on_lineage.find(|seen| place.lineage.contains(seen.position))
    });
    if let Some(newest) = newest.filter(|newest| newest.position.commit >= position.commit) {
        return Ok((newest.position == position).then_some(folder));
    }
    if let Some(directory) = &around.records {
        record::sync_directory(directory, around.to_disk)?;
    }
    tracing::info!(%position, "saving what no checkpoint holds yet, without the group");
    let began = around.clock.now();
    checkpoints.write(warm, place, 0, BRIEFLY, around)?;
    let seconds = around.clock.now().saturating_duration_since(began).as_secs_f64();
    let (generation, member) = (place.lineage.newest(), around.group.member());
    Recorder::open(around.records.as_deref(), generation, member)?.write(&RecordLine::Checkpointed {
        position,
        path: folder.clone(),
        seconds,
    })?;
    Ok(Some(folder))
}
