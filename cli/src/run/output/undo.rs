//! Taking back an output directory whose run never started.

use std::fs;
use std::path::{Path, PathBuf};

/// What a start makes before the first worker runs. Directories only go if they are empty then.
const BEGINNINGS: [&str; 13] = [
    "membership.json",
    ".membership.json.tmp",
    "membership.json.tmp",
    "membership.lock",
    "job.yaml",
    ".job.yaml.tmp",
    "run.json",
    ".run.json.tmp",
    "metrics.jsonl",
    "workers.lock",
    "logs/launcher.log",
    "logs",
    "records",
];

/// What a start found before it made its directory.
#[derive(Clone, Debug)]
pub(super) struct Undo {
    /// Whether there was nothing in it.
    pub(super) new: bool,
    /// The directories that are made for it, deepest first.
    made: Vec<PathBuf>,
}

impl Undo {
    /// To be called before `path` is made.
    pub(super) fn before(path: &Path) -> Undo {
        let made = path
            .ancestors()
            .take_while(|p| !p.as_os_str().is_empty() && !p.exists())
            .map(Path::to_owned)
            .collect();
        Undo { new: false, made }
    }

    /// Empties the new directory `path` of what a start makes, and removes it if it was made for that.
    pub(super) fn run(&self, path: &Path) {
        if !self.new {
            return;
        }
        for name in BEGINNINGS {
            let path = path.join(name);
            // What is not there, or is not empty, stays as it is.
            let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir(&path));
        }
        remove_empty_below(&path.join("volumes"));
        // Last: by this file the directory is known to be ours.
        let _ = fs::remove_file(path.join(super::LOCK));
        self.remove_made();
    }

    /// Removes the directories that were made, as long as they are empty.
    pub(super) fn remove_made(&self) {
        for directory in &self.made {
            if fs::remove_dir(directory).is_err() {
                return;
            }
        }
    }
}

/// Removes `directory` and what is below it, as far as that is empty directories.
fn remove_empty_below(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for entry in entries.filter_map(Result::ok) {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_empty_below(&entry.path());
        }
    }
    let _ = fs::remove_dir(directory);
}
