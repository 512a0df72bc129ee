//! A store in memory with faults on demand: what a disk can do to a checkpoint, for tests.

use super::{Store, StoreError, check_key};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard};

/// What goes wrong. Changes (puts and deletes) are counted from 0 since the fault was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The change with this number is refused with an I/O error; nothing changes.
    Refuse(u64),
    /// The put with this number stores only half of its bytes and reports success, as a disk that lies
    /// about syncing does.
    Tear(u64),
    /// The machine dies at the change with this number: it and everything after it fail without effect.
    Die(u64),
    /// The same, but half of the bytes of that put are there afterwards.
    DieTorn(u64),
    /// All objects together hold at most so many bytes.
    Capacity(u64),
}

/// Reads that the store refuses although the object is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadFault {
    /// Only objects whose key contains this.
    pub of: String,
    /// So many such reads succeed first.
    pub after: u64,
    /// So many are refused then; later ones succeed again.
    pub times: u64,
    /// What the system says.
    pub kind: io::ErrorKind,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Vec<u8>>,
    fault: Option<Fault>,
    changes: u64,
    read_fault: Option<ReadFault>,
    reads: Vec<String>,
}

/// Objects in memory.
#[derive(Default)]
pub struct MemoryStore {
    state: Mutex<State>,
}

impl MemoryStore {
    /// An empty store without faults.
    #[must_use]
    pub fn new() -> MemoryStore {
        MemoryStore::default()
    }

    /// Sets (or with None takes away) the fault, and counts changes from 0 again.
    pub fn set_fault(&self, fault: Option<Fault>) {
        let mut state = self.lock();
        state.fault = fault;
        state.changes = 0;
    }

    /// Sets (or with None takes away) what is refused to be read.
    pub fn set_read_fault(&self, fault: Option<ReadFault>) {
        self.lock().read_fault = fault;
    }

    /// The keys that were read since this was asked last, in order.
    pub fn take_reads(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().reads)
    }

    /// Puts and deletes so far, since the fault was set last.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.lock().changes
    }

    /// Damages the object under `key`; whether there was one.
    pub fn damage(&self, key: &str, how: impl FnOnce(&mut Vec<u8>)) -> bool {
        self.lock().objects.get_mut(key).map(how).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl State {
    /// Counts a change; how it ends.
    fn change(&mut self, action: &'static str, key: &str) -> Result<Effect, StoreError> {
        let number = self.changes;
        self.changes += 1;
        let refused = |source| {
            Err(StoreError::Io {
                action,
                path: key.to_owned(),
                source,
            })
        };
        match self.fault {
            Some(Fault::Refuse(n)) if n == number => refused(io::Error::other("input/output error")),
            Some(Fault::Tear(n)) if n == number => Ok(Effect::Torn),
            Some(Fault::DieTorn(n)) if n == number => Ok(Effect::TornAndDead),
            Some(Fault::Die(n) | Fault::DieTorn(n)) if n <= number => {
                refused(io::Error::other("the machine has died"))
            }
            _ => Ok(Effect::Whole),
        }
    }

    /// Notes a read, and refuses it where the fault says so.
    fn read(&mut self, key: &str) -> Result<(), StoreError> {
        self.reads.push(key.to_owned());
        let Some(fault) = self.read_fault.as_mut().filter(|fault| key.contains(&fault.of)) else {
            return Ok(());
        };
        if fault.after > 0 {
            fault.after -= 1;
            return Ok(());
        }
        if fault.times == 0 {
            return Ok(());
        }
        fault.times -= 1;
        Err(StoreError::Io {
            action: "read",
            path: key.to_owned(),
            source: fault.kind.into(),
        })
    }
}

enum Effect {
    Whole,
    Torn,
    TornAndDead,
}

impl Store for MemoryStore {
    fn put(&self, key: &str, bytes: &[u8]) -> Result<(), StoreError> {
        check_key(key)?;
        let mut state = self.lock();
        let effect = state.change("write", key)?;
        if let Some(Fault::Capacity(capacity)) = state.fault {
            let others = state.objects.iter().filter(|(k, _)| *k != key);
            let used: usize = others.map(|(_, b)| b.len()).sum();
            if (used + bytes.len()) as u64 > capacity {
                return Err(StoreError::Io {
                    action: "write",
                    path: key.to_owned(),
                    source: io::ErrorKind::StorageFull.into(),
                });
            }
        }
        let kept = match effect {
            Effect::Whole => bytes,
            Effect::Torn | Effect::TornAndDead => &bytes[..bytes.len() / 2],
        };
        state.objects.insert(key.to_owned(), kept.to_vec());
        match effect {
            Effect::TornAndDead => Err(StoreError::Io {
                action: "write",
                path: key.to_owned(),
                source: io::Error::other("the machine has died"),
            }),
            Effect::Whole | Effect::Torn => Ok(()),
        }
    }

    fn get(&self, key: &str) -> Result<Vec<u8>, StoreError> {
        check_key(key)?;
        let mut state = self.lock();
        state.read(key)?;
        state
            .objects
            .get(key)
            .cloned()
            .ok_or_else(|| StoreError::NotFound {
                key: key.to_owned(),
                place: self.describe(),
            })
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let state = self.lock();
        let keys = state.objects.keys();
        Ok(keys.filter(|k| k.starts_with(prefix)).cloned().collect())
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        check_key(key)?;
        let mut state = self.lock();
        match state.change("delete", key)? {
            Effect::Whole | Effect::Torn => {
                state.objects.remove(key);
                Ok(())
            }
            Effect::TornAndDead => Err(StoreError::Io {
                action: "delete",
                path: key.to_owned(),
                source: io::Error::other("the machine has died"),
            }),
        }
    }

    fn describe(&self) -> String {
        "memory".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_hit_the_change_that_they_name() {
        let s = MemoryStore::new();
        s.set_fault(Some(Fault::Refuse(1)));
        s.put("a", b"1234").unwrap();
        assert!(s.put("b", b"1234").is_err());
        s.put("c", b"1234").unwrap();
        assert_eq!(s.list("").unwrap(), ["a", "c"]);

        s.set_fault(Some(Fault::Tear(0)));
        s.put("b", b"1234").unwrap();
        assert_eq!(s.get("b").unwrap(), b"12");

        s.set_fault(Some(Fault::DieTorn(1)));
        s.delete("a").unwrap();
        assert!(s.put("c", b"xyzw").is_err());
        assert!(s.delete("c").is_err());
        assert_eq!(s.get("c").unwrap(), b"xy");

        s.set_fault(Some(Fault::Capacity(8)));
        s.put("b", b"123456").unwrap();
        let full = s.put("d", b"1").unwrap_err();
        assert!(full.to_string().contains("free space"), "{full}");
        s.set_fault(None);
        s.put("d", b"1").unwrap();
    }

    #[test]
    fn reads_are_refused_as_often_as_asked_and_noted() {
        let s = MemoryStore::new();
        s.put("u/a", b"1").unwrap();
        s.put("u/b", b"2").unwrap();
        s.set_read_fault(Some(ReadFault {
            of: "/a".into(),
            after: 1,
            times: 2,
            kind: io::ErrorKind::StaleNetworkFileHandle,
        }));
        let read = |key: &str| s.get(key).is_ok();
        assert_eq!(
            ["u/a", "u/b", "u/a", "u/a", "u/a"].map(read),
            [true, true, false, false, true]
        );
        assert_eq!(s.take_reads(), ["u/a", "u/b", "u/a", "u/a", "u/a"]);
        assert!(s.take_reads().is_empty());
    }
}
