//! A checkpoint's model as one plain safetensors file, for other programs.

use super::error::CheckpointError;
use super::load::{Expected, load};
use super::snapshot::{Group, Snapshot};
use super::tensors;
use crate::store::Store;

/// Loads the checkpoint in `path` and encodes its parameters and buffers, by their names, as one file.
///
/// # Errors
/// When the checkpoint is not whole or cannot be read: a corrupted one is never exported.
pub fn export(store: &dyn Store, path: &str) -> Result<(Snapshot, Vec<u8>), CheckpointError> {
    let snapshot = load(store, path, &Expected::default())?;
    let model = snapshot
        .group(Group::Parameters)
        .iter()
        .chain(snapshot.group(Group::Buffers));
    let bytes = tensors::encode(model).map_err(|problem| CheckpointError::Unsavable {
        path: path.to_owned(),
        problem,
    })?;
    Ok((snapshot, bytes))
}
