//! Memory that I/O threads may read and write, and who holds which part of it.
//!
//! The only module of the crate with `unsafe`: it turns a pointer into slices. What makes that sound
//! is the table of leases: an operation takes a lease on its range when it is issued and gives it
//! back when no thread touches the range any more; a range under a writing lease has no other.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::buffer::BufferError;

/// Alignment of owned memory: a cache line, and enough for every vector instruction in use.
const ALIGNMENT: usize = 64;

/// Where a region's bytes live. Transports refuse kinds that they cannot reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Ordinary memory of this process.
    Host,
}

enum Memory {
    Owned {
        pointer: NonNull<u8>,
        layout: Option<Layout>,
    },
    // The owner is never looked at, only kept: it is what keeps the pointer valid.
    Lent {
        pointer: NonNull<u8>,
        _owner: Box<dyn Any + Send>,
    },
}

#[derive(Clone, Copy)]
struct Held {
    id: u64,
    start: usize,
    end: usize,
    exclusive: bool,
}

#[derive(Default)]
struct Leases {
    next: u64,
    held: Vec<Held>,
}

/// A piece of memory with an owner, shared by reference count with the operations that use it.
pub struct Region {
    memory: Memory,
    length: usize,
    leases: Mutex<Leases>,
}

// SAFETY: the bytes are reached only through leases (exclusive ones do not overlap others) or by
// the caller's own unsafe code; the owner of lent memory is only moved and dropped, never shared.
unsafe impl Send for Region {}
// SAFETY: as above; the table of leases is behind a mutex.
unsafe impl Sync for Region {}

impl Region {
    /// Zeroed host memory of `bytes` bytes, aligned to 64. Refuses sizes beyond the address space
    /// and reports memory that the system does not give.
    pub fn zeroed(bytes: usize) -> Result<Region, BufferError> {
        let layout =
            Layout::from_size_align(bytes, ALIGNMENT).map_err(|_| BufferError::OutOfMemory { bytes })?;
        let (pointer, layout) = if bytes == 0 {
            (NonNull::<AlignedByte>::dangling().cast(), None)
        } else {
            // SAFETY: the layout has a size above zero.
            let pointer = unsafe { alloc_zeroed(layout) };
            (
                NonNull::new(pointer).ok_or(BufferError::OutOfMemory { bytes })?,
                Some(layout),
            )
        };
        Ok(Region {
            memory: Memory::Owned { pointer, layout },
            length: bytes,
            leases: Mutex::default(),
        })
    }

    /// Memory of somebody else, kept alive by `owner` (a tensor, say), which is dropped with the
    /// region. A null pointer with a length above zero is refused.
    ///
    /// # Safety
    /// `pointer` is valid for reads and writes of `length` bytes, all initialised, until `owner` is
    /// dropped; and while an operation on a buffer of this region is pending, nobody reads what it
    /// writes or writes what it reads by other means.
    pub unsafe fn from_raw(
        pointer: *mut u8,
        length: usize,
        owner: Box<dyn Any + Send>,
    ) -> Result<Region, BufferError> {
        let pointer = match NonNull::new(pointer) {
            Some(pointer) => pointer,
            None if length == 0 => NonNull::<AlignedByte>::dangling().cast(),
            None => return Err(BufferError::NullPointer { bytes: length }),
        };
        Ok(Region {
            memory: Memory::Lent {
                pointer,
                _owner: owner,
            },
            length,
            leases: Mutex::default(),
        })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// True for a region without bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Where the bytes live.
    pub fn kind(&self) -> MemoryKind {
        MemoryKind::Host
    }

    /// The first byte. What the caller does with it is under the rules of [`Region::from_raw`].
    pub fn as_ptr(&self) -> *mut u8 {
        match &self.memory {
            Memory::Owned { pointer, .. } | Memory::Lent { pointer, .. } => pointer.as_ptr(),
        }
    }

    fn leases(&self) -> MutexGuard<'_, Leases> {
        // Nothing under this lock can panic, so a poisoned table is still whole.
        self.leases
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region")
            .field("length", &self.length)
            .field("kind", &self.kind())
            .finish()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Memory::Owned {
            pointer,
            layout: Some(layout),
        } = &self.memory
        {
            // SAFETY: allocated in `zeroed` with this layout; every lease holds the region's Arc,
            // so none is left.
            unsafe { dealloc(pointer.as_ptr(), *layout) };
        }
    }
}

/// Gives the dangling pointer of an empty region the alignment of a full one.
#[repr(align(64))]
struct AlignedByte(#[allow(dead_code)] u8);

/// The right to touch a range of a region, for as long as it lives.
#[derive(Debug)]
pub(crate) struct Lease {
    region: Arc<Region>,
    id: u64,
    start: usize,
    length: usize,
    exclusive: bool,
}

impl Lease {
    /// Takes `length` bytes from `start`, which the caller has checked against the region. Refused
    /// while a lease that overlaps is held, unless both only read.
    pub(crate) fn take(
        region: &Arc<Region>,
        start: usize,
        length: usize,
        exclusive: bool,
    ) -> Result<Lease, BufferError> {
        let end = start
            .checked_add(length)
            .filter(|end| *end <= region.length)
            .ok_or(BufferError::OutOfRange {
                start,
                end: start.saturating_add(length),
                length: region.length,
            })?;
        let mut leases = region.leases();
        let conflict = leases
            .held
            .iter()
            .any(|held| held.start < end && start < held.end && (held.exclusive || exclusive));
        if conflict {
            return Err(BufferError::InUse { start, end });
        }
        let id = leases.next;
        leases.next += 1;
        if length > 0 {
            leases.held.push(Held {
                id,
                start,
                end,
                exclusive,
            });
        }
        drop(leases);
        Ok(Lease {
            region: region.clone(),
            id,
            start,
            length,
            exclusive,
        })
    }

    /// The leased bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: in range by `take`; no exclusive lease of others overlaps, and our own writes go
        // through `&mut self`.
        unsafe { std::slice::from_raw_parts(self.region.as_ptr().add(self.start), self.length) }
    }

    /// The leased bytes, to write; empty for a lease that only reads.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let length = if self.exclusive { self.length } else { 0 };
        // SAFETY: in range by `take`; an exclusive lease overlaps no other, and `&mut self` makes
        // this the only slice of it.
        unsafe { std::slice::from_raw_parts_mut(self.region.as_ptr().add(self.start), length) }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.region.leases().held.retain(|held| held.id != self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writing_lease_excludes_every_overlapping_one_until_it_is_dropped() {
        let region = Arc::new(Region::zeroed(128).unwrap());
        let first = Lease::take(&region, 0, 64, true).unwrap();
        assert!(matches!(
            Lease::take(&region, 63, 2, false),
            Err(BufferError::InUse { .. })
        ));
        let beside = Lease::take(&region, 64, 64, true).unwrap();
        drop((first, beside));
        let reader = Lease::take(&region, 0, 128, false).unwrap();
        let second = Lease::take(&region, 0, 128, false).unwrap();
        assert!(matches!(
            Lease::take(&region, 5, 1, true),
            Err(BufferError::InUse { .. })
        ));
        drop((reader, second));
        Lease::take(&region, 5, 1, true).unwrap();
    }

    #[test]
    fn a_lease_beyond_the_region_is_refused_even_when_the_sum_overflows() {
        let region = Arc::new(Region::zeroed(16).unwrap());
        for (start, length) in [(0, 17), (17, 0), (8, usize::MAX)] {
            assert!(matches!(
                Lease::take(&region, start, length, false),
                Err(BufferError::OutOfRange { .. })
            ));
        }
    }

    #[test]
    fn lent_memory_is_written_through_and_its_owner_dropped_with_the_region() {
        let owner = Arc::new(());
        let mut bytes = vec![1u8; 8];
        // SAFETY: `bytes` outlives the region, which is dropped below.
        let region = unsafe { Region::from_raw(bytes.as_mut_ptr(), 8, Box::new(owner.clone())) }.unwrap();
        let region = Arc::new(region);
        Lease::take(&region, 2, 3, true).unwrap().bytes_mut().fill(7);
        assert_eq!(Arc::strong_count(&owner), 2);
        drop(region);
        assert_eq!(Arc::strong_count(&owner), 1);
        assert_eq!(bytes, [1, 1, 7, 7, 7, 1, 1, 1]);
    }

    #[test]
    fn owned_memory_is_aligned_zeroed_and_impossible_sizes_are_errors() {
        for bytes in [0, 1, 4097] {
            let region = Arc::new(Region::zeroed(bytes).unwrap());
            assert_eq!(region.as_ptr() as usize % ALIGNMENT, 0);
            let lease = Lease::take(&region, 0, bytes, false).unwrap();
            assert!(lease.bytes().iter().all(|byte| *byte == 0));
        }
        assert!(matches!(
            Region::zeroed(usize::MAX),
            Err(BufferError::OutOfMemory { .. })
        ));
    }
}
