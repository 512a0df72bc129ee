//! What a run that did not complete left to go on from: its newest whole checkpoint, the committed steps
//! that are not in it, and the command that begins a new run there.

use super::history::History;
use gradsync_formats::checkpoint::{newest_whole, verify};
use gradsync_formats::identity::JobUid;
use gradsync_formats::lineage::Lineage;
use gradsync_formats::path_map::PathMap;
use gradsync_formats::store::DirectoryStore;
use serde_json::json;
use std::path::{Path, PathBuf};

/// A whole checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Optimiser steps that its state has seen.
    pub step: u64,
    /// Its folder.
    pub folder: PathBuf,
}

/// The newest whole checkpoint of `job` on `lineage` in `directory`, every hash compared. None too when the
/// directory cannot be read, which is logged: what is found here is told, and decides nothing.
#[must_use]
pub fn newest(directory: &Path, job: &JobUid, lineage: &Lineage) -> Option<Kept> {
    let lineage = Some(lineage).filter(|lineage| !lineage.0.is_empty());
    let listing = newest_whole(&DirectoryStore::new(directory), job, lineage)
        .inspect_err(|error| tracing::warn!(%error, "the checkpoints cannot be listed"))
        .ok()?;
    let whole = listing.whole.into_iter().next()?;
    Some(Kept {
        step: whole.manifest.progress.step,
        folder: directory.join(whole.reference.path),
    })
}

/// Why the checkpoint `folder` (relative to the job's own), which was whole once, cannot be used; None when
/// it is whole, or nothing is left of it that could tell.
#[must_use]
pub fn why_unusable(directory: &Path, job: &JobUid, folder: &str) -> Option<String> {
    if !directory.join(&job.0).join(folder).exists() {
        return None;
    }
    verify(&DirectoryStore::new(directory), &format!("{job}/{folder}"))
        .err()
        .map(|error| error.to_string())
}

/// Committed steps that resuming from `kept` does not see.
#[must_use]
pub fn lost_steps(history: &History, kept: Option<&Kept>) -> u64 {
    let last = history.steps().next_back().map_or(0, |m| m.step);
    let before = match kept {
        Some(kept) => kept.step,
        // A run may begin with another one's steps.
        None => history.steps().next().map_or(0, |m| m.step.saturating_sub(1)),
    };
    last.saturating_sub(before)
}

/// The same for people; None when nothing is lost.
#[must_use]
pub fn loss_text(kept: Option<u64>, lost: u64) -> Option<String> {
    let steps = match lost {
        0 => return None,
        1 => "1 committed step is".to_owned(),
        n => format!("{n} committed steps are"),
    };
    Some(match kept {
        Some(step) => format!("the newest checkpoint holds step {step}: {steps} lost on resume"),
        None => format!("there is no checkpoint: {steps} lost on resume"),
    })
}

/// The command that begins a new run from `kept`, for a run in `output` that is finished for ever. `more`
/// are arguments of this run that the new one needs, too. None where the manifest's volumes hide the
/// checkpoint from the new run.
#[must_use]
pub fn command(kept: &Kept, output: &Path, paths: &PathMap, more: &[String]) -> Option<String> {
    if paths.apply(&kept.folder) != kept.folder {
        return None;
    }
    let next = (2..1000)
        .map(|n| PathBuf::from(format!("{}-{n}", output.display())))
        .find(|path| !path.exists())?;
    let resume = json!({"policy": "Path", "path": kept.folder.display().to_string()});
    let words = [
        "gradsync".to_owned(),
        "run".to_owned(),
        output.join("job.yaml").display().to_string(),
        "--out".to_owned(),
        next.display().to_string(),
        "--set".to_owned(),
        format!("checkpoint.resume={resume}"),
    ];
    let words: Vec<String> = words.iter().chain(more).map(|word| quoted(word)).collect();
    Some(words.join(" "))
}

/// `word` as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/-_.=,:+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_is_said_with_the_step_that_is_kept() {
        assert_eq!(loss_text(Some(20), 0), None);
        assert_eq!(
            loss_text(Some(20), 1).unwrap(),
            "the newest checkpoint holds step 20: 1 committed step is lost on resume"
        );
        assert_eq!(
            loss_text(None, 7).unwrap(),
            "there is no checkpoint: 7 committed steps are lost on resume"
        );
    }

    #[test]
    fn the_command_survives_a_shell_and_hidden_checkpoints_give_none() {
        let kept = Kept {
            step: 3,
            folder: "/o/my out/u/step-3-g1".into(),
        };
        let more = ["--map".to_owned(), "/data=it's".to_owned()];
        let text = command(&kept, Path::new("/o/my out"), &PathMap::default(), &more).unwrap();
        assert_eq!(
            text,
            r#"gradsync run '/o/my out/job.yaml' --out '/o/my out-2' --set 'checkpoint.resume={"policy":"Path","path":"/o/my out/u/step-3-g1"}' --map '/data=it'\''s'"#
        );
        let mut hiding = PathMap::default();
        hiding.set("/o", "/elsewhere");
        assert_eq!(command(&kept, Path::new("/o/my out"), &hiding, &more), None);
    }
}
