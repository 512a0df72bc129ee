//! The output directory of a run: made once, locked while a run uses it, and the memory of what it was
//! made with.

mod lock;
mod undo;

use gradsync_formats::identity::JobUid;
use gradsync_formats::run_config::RunConfig;
use lock::{LOCK, lock};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use undo::Undo;

/// Version of `run.json`.
const ORIGIN_VERSION: u32 = 1;

/// What an output directory was made with: `OUT/run.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Origin {
    /// Format version.
    pub version: u32,
    /// The job's UID: checkpoints and records carry it.
    pub job_uid: JobUid,
    /// The manifest's name.
    pub name: String,
    /// The spec in force, defaults filled in.
    pub spec: Value,
    /// What it was resolved to. Its micro-batch size stays when the number of workers changes.
    pub run_config: RunConfig,
}

impl Origin {
    /// A new job in a new directory.
    #[must_use]
    pub fn new(job_uid: JobUid, name: &str, spec: Value, run_config: RunConfig) -> Origin {
        Origin {
            version: ORIGIN_VERSION,
            job_uid,
            name: name.to_owned(),
            spec,
            run_config,
        }
    }
}

/// Why an output directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// Another run uses it.
    #[error("use {path}: another run uses it{}; wait for it, stop it, or choose another directory with --out", pid_text(.pid))]
    Locked {
        /// The directory.
        path: String,
        /// The other run's process id, if it could be read.
        pid: Option<u32>,
    },
    /// It is not empty, and gradsync did not make it.
    #[error("use {path}: it holds files but no run of gradsync; choose an empty or new directory with --out")]
    Strange {
        /// The directory.
        path: String,
    },
    /// `--fresh` met a directory that is in use.
    #[error(
        "start over in {path}: --fresh never deletes, and the directory is not empty; choose a new one with --out, or move it away"
    )]
    NotFresh {
        /// The directory.
        path: String,
    },
    /// A file of it cannot be read or written.
    #[error("{action} {path}: {source}{}", way_out(.source))]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: String,
        /// Why not.
        source: std::io::Error,
    },
    /// A file of it is not what it should be.
    #[error(
        "read {path}: {problem}; the directory was damaged or made by another version, choose another one with --out"
    )]
    Damaged {
        /// The file.
        path: String,
        /// What is wrong.
        problem: String,
    },
}

/// What helps against an error of the file system in an output directory.
#[must_use]
pub fn way_out(error: &std::io::Error) -> &'static str {
    use std::io::ErrorKind as Kind;
    match error.kind() {
        Kind::StorageFull | Kind::QuotaExceeded => {
            "; free space there, or choose a directory on another disk with --out"
        }
        Kind::PermissionDenied | Kind::ReadOnlyFilesystem => {
            "; choose a directory that you may write to with --out"
        }
        Kind::NotADirectory | Kind::AlreadyExists | Kind::IsADirectory => {
            "; something else is in its place: move it away, or choose another directory with --out"
        }
        _ => "",
    }
}

fn pid_text(pid: &Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (process {pid})"))
}

/// A locked output directory. The lock is the kernel's and ends with the process, however it ends.
#[derive(Debug)]
pub struct OutputDirectory {
    path: PathBuf,
    undo: Undo,
    _lock: File,
}

impl OutputDirectory {
    /// Makes the directory if need be and locks it for this process.
    ///
    /// # Errors
    /// When another run uses it, it holds a stranger's files, or `fresh` is set and it is not empty.
    pub fn open(path: &Path, fresh: bool) -> Result<OutputDirectory, OutputError> {
        let undo = Undo::before(path);
        OutputDirectory::open_made(path, fresh, undo.clone()).inspect_err(|_| undo.remove_made())
    }

    fn open_made(path: &Path, fresh: bool, undo: Undo) -> Result<OutputDirectory, OutputError> {
        make(path)?;
        let path = fs::canonicalize(path).map_err(|e| io("find", path, e))?;
        let empty = entries(&path)?.is_empty();
        let ours = path.join(LOCK).exists();
        if !empty && !ours {
            let shown = path.display().to_string();
            return Err(if fresh {
                OutputError::NotFresh { path: shown }
            } else {
                OutputError::Strange { path: shown }
            });
        }
        OutputDirectory::claim(path, fresh, empty, undo)
    }

    /// Locks `path`, which was `empty` or ours when it was looked at.
    fn claim(
        path: PathBuf,
        fresh: bool,
        empty: bool,
        mut undo: Undo,
    ) -> Result<OutputDirectory, OutputError> {
        let lock = lock(&path, empty)?;
        // Another start may have come and gone since: only what is seen under the lock is certain.
        let new = empty && entries(&path)?.iter().all(|name| name == LOCK);
        if fresh && !new {
            return Err(OutputError::NotFresh {
                path: path.display().to_string(),
            });
        }
        undo.new = new;
        Ok(OutputDirectory {
            path,
            undo,
            _lock: lock,
        })
    }

    /// Takes back what a start that came to nothing made: of a directory that held something before,
    /// nothing; a new one is empty again, or gone if it was made for this start.
    pub fn abandon(&self) {
        self.undo.run(&self.path);
    }

    /// Removes a file of it, if it is there.
    ///
    /// # Errors
    /// When it is there and cannot be removed.
    pub fn remove(&self, name: &str) -> Result<(), OutputError> {
        let path = self.join(name);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(io("remove", &path, e)),
            _ => Ok(()),
        }
    }

    /// The directory, absolute.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A file or directory in it.
    #[must_use]
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// What it was made with; None for a new one.
    ///
    /// # Errors
    /// When the file cannot be read or is not one of ours.
    pub fn origin(&self) -> Result<Option<Origin>, OutputError> {
        self.read_json("run.json")
    }

    /// Reads a JSON file of the directory; None where it does not exist.
    ///
    /// # Errors
    /// When it cannot be read or is not of this type.
    pub fn read_json<T: serde::de::DeserializeOwned>(&self, name: &str) -> Result<Option<T>, OutputError> {
        let path = self.join(name);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(io("read", &path, e)),
        };
        serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|e| OutputError::Damaged {
                path: path.display().to_string(),
                problem: e.to_string(),
            })
    }

    /// Makes a directory in it, with its parents.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn make(&self, name: &str) -> Result<PathBuf, OutputError> {
        let path = self.join(name);
        make(&path)?;
        Ok(path)
    }

    /// Writes a file whole or not at all, and onto the disk.
    ///
    /// # Errors
    /// When it cannot be written; what was there before stays.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<(), OutputError> {
        let path = self.join(name);
        let temporary = self.join(&format!(".{name}.tmp"));
        let written = File::create(&temporary)
            .and_then(|mut file| {
                file.write_all(bytes)?;
                file.sync_all()
            })
            .and_then(|()| fs::rename(&temporary, &path))
            .and_then(|()| File::open(&self.path)?.sync_all());
        written.map_err(|e| {
            // Best effort: the error that counts is the one reported.
            let _ = fs::remove_file(&temporary);
            io("write", &path, e)
        })
    }
}

/// Makes a directory with its parents.
///
/// # Errors
/// When it cannot be made.
pub fn make(path: &Path) -> Result<(), OutputError> {
    fs::create_dir_all(path).map_err(|e| io("make directory", path, e))
}

/// The names in `directory`.
fn entries(directory: &Path) -> Result<Vec<OsString>, OutputError> {
    let listed = fs::read_dir(directory).and_then(|entries| {
        entries
            .map(|entry| Ok(entry?.file_name()))
            .collect::<Result<_, _>>()
    });
    listed.map_err(|e| io("list", directory, e))
}

fn io(action: &'static str, path: &Path, source: std::io::Error) -> OutputError {
    OutputError::Io {
        action,
        path: path.display().to_string(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_run_in_the_same_directory_is_told_who_uses_it() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("out");
        let first = OutputDirectory::open(&path, false).unwrap();
        let error = OutputDirectory::open(&path, false).unwrap_err().to_string();
        assert!(
            error.contains(&format!("process {}", std::process::id())),
            "{error}"
        );
        assert!(error.contains("--out"), "{error}");
        drop(first);
        OutputDirectory::open(&path, false).unwrap();
    }

    /// What a start does that saw an empty directory before another one locked it.
    fn too_late(path: &Path) -> Result<OutputDirectory, OutputError> {
        OutputDirectory::claim(path.to_owned(), false, true, Undo::before(path))
    }

    #[test]
    fn a_start_that_loses_the_race_for_an_empty_directory_leaves_the_winners_lock() {
        let place = tempfile::tempdir().unwrap();
        let winner = OutputDirectory::open(place.path(), false).unwrap();
        let error = too_late(place.path()).unwrap_err();
        assert!(matches!(error, OutputError::Locked { .. }), "{error}");
        assert!(place.path().join(LOCK).exists());
        let third = OutputDirectory::open(place.path(), false).unwrap_err();
        assert!(matches!(third, OutputError::Locked { .. }), "{third}");
        drop(winner);
    }

    #[test]
    fn what_came_while_a_start_waited_for_the_lock_is_not_taken_back() {
        let place = tempfile::tempdir().unwrap();
        let first = OutputDirectory::open(place.path(), false).unwrap();
        first.write("run.json", b"{}").unwrap();
        drop(first);
        too_late(place.path()).unwrap().abandon();
        assert!(place.path().join("run.json").exists() && place.path().join(LOCK).exists());
    }

    #[test]
    fn a_strangers_directory_is_left_alone() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("thesis.txt"), "mine").unwrap();
        let error = OutputDirectory::open(place.path(), false).unwrap_err();
        assert!(matches!(error, OutputError::Strange { .. }), "{error}");
        assert!(!place.path().join("lock").exists());
    }

    #[test]
    fn a_start_that_came_to_nothing_leaves_nothing_and_takes_nothing_away() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a/b");
        let out = OutputDirectory::open(&path, false).unwrap();
        out.make("logs").unwrap();
        out.make("volumes/c/deep").unwrap();
        fs::write(out.join("logs/launcher.log"), "x").unwrap();
        out.write("run.json", b"{}").unwrap();
        out.abandon();
        assert!(!place.path().join("a").exists());

        fs::create_dir_all(&path).unwrap();
        let out = OutputDirectory::open(&path, false).unwrap();
        out.make("volumes/c").unwrap();
        fs::write(out.join("volumes/c/kept"), "x").unwrap();
        out.abandon();
        assert!(out.join("volumes/c/kept").exists() && !out.join("lock").exists());
    }

    #[test]
    fn a_directory_that_was_in_use_before_is_not_taken_back() {
        let place = tempfile::tempdir().unwrap();
        let first = OutputDirectory::open(place.path(), false).unwrap();
        first.write("run.json", b"{}").unwrap();
        drop(first);
        let second = OutputDirectory::open(place.path(), false).unwrap();
        second.abandon();
        assert!(second.join("run.json").exists() && second.join("lock").exists());
    }

    #[test]
    fn a_place_that_cannot_be_written_is_named_with_the_way_out() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("file");
        fs::write(&file, "x").unwrap();
        let error = OutputDirectory::open(&file.join("out"), false)
            .unwrap_err()
            .to_string();
        assert!(error.contains("file/out") && error.contains("--out"), "{error}");
    }

    #[test]
    fn fresh_never_deletes() {
        let place = tempfile::tempdir().unwrap();
        let first = OutputDirectory::open(place.path(), true).unwrap();
        first.write("summary.json", b"{}").unwrap();
        drop(first);
        let error = OutputDirectory::open(place.path(), true).unwrap_err();
        assert!(matches!(error, OutputError::NotFresh { .. }), "{error}");
        assert!(place.path().join("summary.json").exists());
    }

    #[test]
    fn a_damaged_file_is_named() {
        let place = tempfile::tempdir().unwrap();
        let out = OutputDirectory::open(place.path(), false).unwrap();
        assert_eq!(out.origin().unwrap(), None);
        fs::write(out.join("run.json"), "{").unwrap();
        assert!(out.origin().unwrap_err().to_string().contains("run.json"));
    }
}
