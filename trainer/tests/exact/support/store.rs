//! A store that tells a test of each call before it is carried out.

use gradsync_formats::store::{MemoryStore, Store, StoreError};
use std::sync::Arc;

/// What a rank asks of its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call<'a> {
    Get(&'a str),
    Put(&'a str),
}

/// Told of each call; an error is the call's answer.
pub type Told = Arc<dyn Fn(Call<'_>) -> Result<(), StoreError> + Send + Sync>;

pub struct ToldStore {
    pub inner: Arc<MemoryStore>,
    pub told: Told,
}

impl Store for ToldStore {
    fn put(&self, key: &str, bytes: &[u8]) -> Result<(), StoreError> {
        (self.told)(Call::Put(key))?;
        self.inner.put(key, bytes)
    }

    fn get(&self, key: &str) -> Result<Vec<u8>, StoreError> {
        (self.told)(Call::Get(key))?;
        self.inner.get(key)
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        self.inner.list(prefix)
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.inner.delete(key)
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}
