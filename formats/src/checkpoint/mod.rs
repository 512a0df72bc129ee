//! Checkpoints: rank-free snapshots of the replicated state, as safetensors by tensor name and a manifest.
//!
//! A checkpoint lies under `<job UID>/step-S-gG/` in a `Store`. Its parts are put first and the manifest,
//! which holds the hash of each part, last: a checkpoint without a manifest does not exist, and one whose
//! parts differ from the manifest is damaged and passed over. Nothing in it depends on ranks or their
//! number. No torch here: the trainer turns tensors into bytes, the command line reads files without it.

mod best;
mod check;
mod error;
mod export;
mod list;
mod load;
mod nonce;
mod retention;
mod save;
mod snapshot;
mod tensors;

#[cfg(test)]
mod tests;

pub use best::best_evaluated;
pub use check::{Damage, verify};
pub use error::{CheckpointError, Mismatch};
pub use export::export;
pub use list::{Listing, PassReason, PassedOver, Whole, list_candidates, list_whole, newest_whole};
pub use load::{Expected, load, open_path};
pub use nonce::{NonceError, check_nonce, read_nonce, write_nonce};
pub use retention::prune;
pub use save::{save, save_beside_others};
pub use snapshot::{Group, NamedTensor, Snapshot, TensorSpec, TensorType};

use crate::identity::{JobUid, Position};
use crate::manifest::{MANIFEST_NAME, checkpoint_folder};

/// A whole checkpoint in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointRef {
    /// The state that it holds.
    pub position: Position,
    /// Its folder as a key prefix of the store: `<job UID>/step-S-gG`.
    pub path: String,
    /// Digest over the replicated state, hex.
    pub digest: String,
}

/// The folder of `job`'s checkpoint of `position`, as a key prefix.
#[must_use]
pub fn path_of(job: &JobUid, position: Position) -> String {
    format!("{job}/{}", checkpoint_folder(position))
}

fn manifest_key(path: &str) -> String {
    format!("{path}/{MANIFEST_NAME}")
}
