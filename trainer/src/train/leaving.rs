//! What a member does that is told to stop while its group is not there: it saves what it holds and no
//! checkpoint does.
//!
//! It need not wait for a group. A state (g, c) is one state, whoever holds it: commit c of g took all members.
//! Two that were cut off at different commits save two checkpoints, both on the lineage, and the next generation
//! starts from the further one. Should others have formed a generation from an earlier state in the meantime,
//! then this one is superseded by the lineage as its holder's memory would have been.

use super::Surroundings;
use super::standing::Standing;
use super::warm::Warm;
use crate::record::{self, Recorder};
use crate::step::Fatal;
use gradsync_formats::manifest::checkpoint_folder;
use gradsync_formats::record::RecordLine;

/// Saves the state that `warm` holds, unless a whole checkpoint on its lineage is as far. Returns the folder of
/// the checkpoint of this very state, if there is one now.
///
/// # Errors
/// When it cannot be written.
pub(super) fn save_what_is_held(
    warm: &Warm<'_>,
    standing: &Standing,
    around: &Surroundings<'_>,
) -> Result<Option<String>, Fatal> {
    let (Some(checkpoints), Some(place)) = (&warm.checkpoints, &warm.place) else {
        return Ok(None);
    };
    let position = warm.position();
    let sees_directory = checkpoints.is_shared() || place.rank == 0;
    if !sees_directory || !warm.holds_state() || position.commit == 0 || !place.lineage.contains(position) {
        return Ok(None);
    }
    let folder = checkpoint_folder(position);
    // Where nothing usable is seen, for whatever reason, what is held is worth all the more.
    let found = checkpoints
        .look(around.group.job(), &warm.fingerprints, standing)
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
    checkpoints.write(warm, place, 0, around)?;
    let seconds = around.clock.now().saturating_duration_since(began).as_secs_f64();
    let (generation, member) = (place.lineage.newest(), around.group.member());
    Recorder::open(around.records.as_deref(), generation, member)?.write(&RecordLine::Checkpointed {
        position,
        path: folder.clone(),
        seconds,
    })?;
    Ok(Some(folder))
}
