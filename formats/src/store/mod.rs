//! Where checkpoints lie. A directory is the first implementation; object storage can be another.

mod directory;
mod memory;

pub use directory::DirectoryStore;
pub use memory::{Fault, MemoryStore, ReadFault};

use std::io;

/// A flat key space of immutable objects. Keys are `/`-separated, without `.` or `..` parts.
///
/// The manifest of a checkpoint, put last, is its commit: an implementation must never show a part of
/// an object, and an object that `put` has returned must survive a crash of the machine.
pub trait Store: Send + Sync {
    /// Stores `bytes` under `key`, whole or not at all, replacing what was there.
    ///
    /// # Errors
    /// When the object cannot be written; nothing half-written is left under `key`.
    fn put(&self, key: &str, bytes: &[u8]) -> Result<(), StoreError>;
    /// The object under `key`.
    ///
    /// # Errors
    /// `StoreError::NotFound`, or the reason why it cannot be read.
    fn get(&self, key: &str) -> Result<Vec<u8>, StoreError>;
    /// All keys that begin with `prefix`, sorted.
    ///
    /// # Errors
    /// When the store cannot be listed. A prefix without keys is an empty list.
    fn list(&self, prefix: &str) -> Result<Vec<String>, StoreError>;
    /// Removes the object under `key`; removing what is not there succeeds.
    ///
    /// # Errors
    /// When the object cannot be removed.
    fn delete(&self, key: &str) -> Result<(), StoreError>;
    /// Removes what writers that died in the middle of a `put` left behind under `prefix`; returns how
    /// much. Such leftovers are never listed, so that this only frees space.
    ///
    /// # Errors
    /// When leftovers are there and cannot be removed.
    fn sweep(&self, prefix: &str) -> Result<u64, StoreError> {
        let _ = prefix;
        Ok(0)
    }
    /// Where it is, for messages.
    fn describe(&self) -> String;
}

/// Why the store could not do something.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No object has this key.
    #[error("find {key} in {place}: not found")]
    NotFound {
        /// The key asked for.
        key: String,
        /// The store.
        place: String,
    },
    /// The key is malformed.
    #[error("use key {key:?}: keys are relative paths without '.' or '..' parts")]
    BadKey {
        /// The key given.
        key: String,
    },
    /// Reading or writing failed.
    #[error("{action} {path}: {source}{}", hint(.source))]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file concerned.
        path: String,
        /// The system's reason.
        source: io::Error,
    },
}

/// Checks that `key` is a relative path whose parts stay below the root.
fn check_key(key: &str) -> Result<(), StoreError> {
    let bad = |part: &str| part.is_empty() || part == "." || part == ".." || part.contains(['\0', '\\']);
    if key.split('/').any(bad) {
        return Err(StoreError::BadKey { key: key.to_owned() });
    }
    Ok(())
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; free space or raise the volume's size: nothing half-written is left"
        }
        io::ErrorKind::FileTooLarge => "; raise the limit on the size of one file (ulimit -f)",
        io::ErrorKind::PermissionDenied => {
            "; the process may not write there, check the volume's owner and mode"
        }
        io::ErrorKind::ReadOnlyFilesystem => "; the volume is mounted read-only",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_cannot_leave_the_store() {
        for key in ["a", "a/b", "u/step-1-g1/manifest.json", ".nonce", "a..b"] {
            check_key(key).unwrap();
        }
        for key in [
            "", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "../a", "a/.", "a\\b", "a\0b",
        ] {
            assert!(
                matches!(check_key(key), Err(StoreError::BadKey { .. })),
                "{key:?}"
            );
        }
    }
}
