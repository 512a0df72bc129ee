//! The lock of an output directory: the kernel's, so that it ends with its process, however that ends.

use super::{OutputError, io};
use std::fs::{self, File, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// The file that a run holds locked. By it the directory is known to be ours.
pub(super) const LOCK: &str = "lock";
/// How often a lock file that went away just now is made anew.
const LOCK_TRIES: u32 = 100;

/// Locks `directory` for this process. With `new` the lock file is taken back where this cannot be done,
/// unless it is another start's.
pub(super) fn lock(directory: &Path, new: bool) -> Result<File, OutputError> {
    let path = directory.join(LOCK);
    for _ in 0..LOCK_TRIES {
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|e| io("open", &path, e))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(locked(directory, &mut file)),
            Err(TryLockError::Error(e)) => return Err(io("lock", &path, e)),
        }
        if !is_at(&file, &path) {
            continue;
        }
        let written = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        if let Err(e) = written {
            if new {
                // Best effort, and under the lock: a full disk takes the name of a file, and not its content.
                let _ = fs::remove_file(&path);
            }
            return Err(io("write", &path, e));
        }
        return Ok(file);
    }
    let path = directory.display().to_string();
    Err(OutputError::Locked { path, pid: None })
}

/// Whether `path` still is `file`. A start that comes to nothing takes its lock file back, so that one which
/// was opened before that locks nothing.
fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(own), Ok(there)) = (file.metadata(), fs::metadata(path)) else {
        return false;
    };
    (own.dev(), own.ino()) == (there.dev(), there.ino())
}

fn locked(directory: &Path, file: &mut File) -> OutputError {
    let mut text = String::new();
    let pid = file
        .read_to_string(&mut text)
        .ok()
        .and_then(|_| text.trim().parse().ok());
    OutputError::Locked {
        path: directory.display().to_string(),
        pid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_file_that_was_taken_back_locks_nothing() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join(LOCK);
        let opened = File::create(&path).unwrap();
        assert!(is_at(&opened, &path));
        fs::remove_file(&path).unwrap();
        assert!(!is_at(&opened, &path));
        let _another = File::create(&path).unwrap();
        assert!(!is_at(&opened, &path));
    }
}
