//! Proof that all members see the same directory: rank 0 writes a nonce, the others must read it.

use crate::identity::{Generation, JobUid};
use crate::store::{Store, StoreError};

const NAME: &str = ".nonce-";

fn key(job: &JobUid, generation: Generation) -> String {
    format!("{job}/{NAME}{generation}")
}

/// Why the directory cannot be used by this group.
#[derive(Debug, thiserror::Error)]
pub enum NonceError {
    /// Rank 0's nonce is not where this member looks.
    #[error(
        "check directory {place}: rank 0 wrote a nonce there that this member {sees}: the directory is not shared by all workers; mount the same volume in each (checkpoint.directory), or set checkpoint.shared: false so that one worker writes for all"
    )]
    NotShared {
        /// The directory as this member sees it.
        place: String,
        /// What it found instead.
        sees: &'static str,
    },
    /// The directory could not be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Rank 0 of `generation`: writes `nonce`, before the generation's opening barrier, and removes those of
/// earlier generations.
///
/// # Errors
/// When the directory cannot be written.
pub fn write_nonce(
    store: &dyn Store,
    job: &JobUid,
    generation: Generation,
    nonce: &str,
) -> Result<(), NonceError> {
    store.put(&key(job, generation), nonce.as_bytes())?;
    let prefix = format!("{job}/{NAME}");
    for old in store.list(&prefix)? {
        let number = old.strip_prefix(&prefix).and_then(|n| n.parse().ok());
        if number.is_some_and(|n: u64| n < generation.0) {
            store.delete(&old)?;
        }
    }
    Ok(())
}

/// The nonce of `generation`, or None where there is none.
///
/// # Errors
/// When the directory cannot be read.
pub fn read_nonce(
    store: &dyn Store,
    job: &JobUid,
    generation: Generation,
) -> Result<Option<String>, NonceError> {
    match store.get(&key(job, generation)) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(StoreError::NotFound { .. }) => Ok(None),
        Err(other) => Err(other.into()),
    }
}

/// Every other member, once it has learned rank 0's `nonce`: is the same one in its own directory?
///
/// # Errors
/// `NotShared` when it is not, saying what to do.
pub fn check_nonce(
    store: &dyn Store,
    job: &JobUid,
    generation: Generation,
    nonce: &str,
) -> Result<(), NonceError> {
    let sees = match read_nonce(store, job, generation)? {
        Some(found) if found == nonce => return Ok(()),
        Some(_) => "sees with another value",
        None => "does not see",
    };
    Err(NonceError::NotShared {
        place: store.describe(),
        sees,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{DirectoryStore, MemoryStore};

    #[test]
    fn a_directory_that_is_not_shared_is_told_from_one_that_is() {
        let dir = tempfile::tempdir().unwrap();
        let job = JobUid("u".into());
        let (rank0, same) = (DirectoryStore::new(dir.path()), DirectoryStore::new(dir.path()));
        let elsewhere = MemoryStore::new();
        for generation in [Generation(1), Generation(2), Generation(10)] {
            write_nonce(&rank0, &job, generation, "n1").unwrap();
            check_nonce(&same, &job, generation, "n1").unwrap();
        }
        assert_eq!(rank0.list("").unwrap(), ["u/.nonce-10"], "earlier ones are gone");
        for (store, nonce, text) in [
            (&same as &dyn Store, "n2", "sees with another value"),
            (&elsewhere, "n1", "does not see"),
        ] {
            let error = check_nonce(store, &job, Generation(10), nonce)
                .unwrap_err()
                .to_string();
            assert!(
                error.contains(text) && error.contains("checkpoint.shared: false"),
                "{error}"
            );
        }
    }
}
