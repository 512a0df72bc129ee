//! Digests: SHA-256 for files and documents that strangers could change, XXH3-128 for tensors that only
//! chance could change.

use sha2::{Digest as _, Sha256};

/// SHA-256 of `bytes`, in lower-case hex (64 characters).
#[must_use]
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// SHA-256 of the JSON encoding of `value` with sorted keys, as the digest of a document that is
/// compared as a whole: two documents that differ only in the order of their fields are equal.
///
/// # Errors
/// When the value cannot be encoded as JSON.
pub fn document_digest<T: serde::Serialize>(value: &T) -> Result<String, serde_json::Error> {
    let mut document = serde_json::to_value(value)?;
    document.sort_all_objects();
    Ok(sha256_hex(&serde_json::to_vec(&document)?))
}

/// XXH3-128 of `bytes`, in lower-case hex (32 characters).
#[must_use]
pub fn xxh3_hex(bytes: &[u8]) -> String {
    format!("{:032x}", xxhash_rust::xxh3::xxh3_128(bytes))
}
