//! Is a checkpoint whole? Every part is compared with the manifest by size and hash.

use super::error::CheckpointError;
use super::manifest_key;
use crate::digest::sha256_hex;
use crate::manifest::{Manifest, ManifestError, Part};
use crate::store::{Store, StoreError};

/// In which way a checkpoint is not whole.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// The manifest, put last, is not there: writing was cut off, or it is being written.
    #[error("{path} has no manifest: writing it was cut off")]
    Unfinished {
        /// The checkpoint's folder.
        path: String,
    },
    /// The manifest is there and cannot be used.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A part is gone.
    #[error("{file} is missing")]
    MissingPart {
        /// The part's key.
        file: String,
    },
    /// A part is shorter or longer than it was.
    #[error("{file} has {found} bytes, {written} were written: it is torn")]
    TornPart {
        /// The part's key.
        file: String,
        /// Bytes of the part.
        found: u64,
        /// Bytes that the manifest states.
        written: u64,
    },
    /// A part has other bytes.
    #[error("{file} has SHA-256 {found}, {written} was written: it is corrupted")]
    CorruptedPart {
        /// The part's key.
        file: String,
        /// Hash of the part.
        found: String,
        /// Hash that the manifest states.
        written: String,
    },
    /// A part has the right hash and is still no tensor file of ours.
    #[error("read {file}: {problem}")]
    MalformedPart {
        /// The part's key.
        file: String,
        /// What is wrong.
        problem: String,
    },
}

/// Reads the manifest in the folder `path`.
pub(super) fn read_manifest(store: &dyn Store, path: &str) -> Result<Manifest, CheckpointError> {
    let key = manifest_key(path);
    let bytes = match store.get(&key) {
        Err(StoreError::NotFound { .. }) => {
            return Err(Damage::Unfinished {
                path: path.to_owned(),
            }
            .into());
        }
        got => got?,
    };
    Ok(Manifest::parse(&key, &bytes).map_err(Damage::from)?)
}

/// Reads the part `part` of the checkpoint in `path`, if it is what the manifest says.
pub(super) fn read_part(store: &dyn Store, path: &str, part: &Part) -> Result<Vec<u8>, CheckpointError> {
    let file = format!("{path}/{}", part.name);
    if part.name.contains('/') {
        let problem = "a part's name holds no '/'".into();
        return Err(Damage::MalformedPart { file, problem }.into());
    }
    let bytes = match store.get(&file) {
        Err(StoreError::NotFound { .. }) => return Err(Damage::MissingPart { file }.into()),
        Err(bad @ StoreError::BadKey { .. }) => {
            let problem = bad.to_string();
            return Err(Damage::MalformedPart { file, problem }.into());
        }
        got => got?,
    };
    if bytes.len() as u64 != part.bytes {
        return Err(Damage::TornPart {
            file,
            found: bytes.len() as u64,
            written: part.bytes,
        }
        .into());
    }
    let found = sha256_hex(&bytes);
    if found != part.sha256 {
        return Err(Damage::CorruptedPart {
            file,
            found,
            written: part.sha256.clone(),
        }
        .into());
    }
    Ok(bytes)
}

/// The manifest of the checkpoint in `path`, once every part has been read and compared.
///
/// # Errors
/// `CheckpointError::Damaged` says in which way it is not whole; `Store` that it could not be read.
pub fn verify(store: &dyn Store, path: &str) -> Result<Manifest, CheckpointError> {
    let manifest = read_manifest(store, path)?;
    for part in &manifest.parts {
        read_part(store, path, part)?;
    }
    Ok(manifest)
}
