//! What an output directory says about its job beside the records.

use anyhow::Context as _;
use gradsync_formats::audit::Given;
use gradsync_formats::identity::JobUid;
use gradsync_rendezvous::membership::{Ending, Saved};
use serde::Deserialize;
use std::path::Path;

/// The service's file of an output directory, as far as the audit needs it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Membership {
    job_uid: JobUid,
    #[serde(flatten)]
    saved: Saved,
}

/// The job and what is known of it from `membership.json` beside the records' folder or in it; None where
/// there is no such file (checkpoint directories): the records speak for themselves.
///
/// # Errors
/// When the file is there and cannot be read.
pub fn known_about(directory: &Path) -> anyhow::Result<Option<(JobUid, Given)>> {
    let parent = directory.parent().unwrap_or(directory);
    for folder in [directory, parent] {
        let file = folder.join(gradsync_rendezvous::server::MEMBERSHIP_FILE);
        let bytes = match std::fs::read(&file) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
            read => read.with_context(|| format!("read {}", file.display()))?,
        };
        let membership: Membership =
            serde_json::from_slice(&bytes).with_context(|| format!("read {}", file.display()))?;
        let mut given = Given {
            lineage: membership.saved.formed.map(|formed| formed.lineage),
            ..Given::default()
        };
        if let Some(Ending::Complete { done }) = membership.saved.ending {
            given.complete = true;
            given.final_position = Some(done.position);
            given.steps = Some(done.total_steps);
        }
        return Ok(Some((membership.job_uid, given)));
    }
    Ok(None)
}
