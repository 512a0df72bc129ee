//! A typed range of a region: what an operation works on.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use crate::element::{DType, Element};
use crate::region::{Lease, Region};

/// Why a buffer or region cannot be made or used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BufferError {
    /// The range is not within the region.
    #[error("take bytes {start}..{end} of a region of {length} bytes: the range must lie within it")]
    OutOfRange {
        /// First byte asked for.
        start: usize,
        /// One behind the last byte asked for.
        end: usize,
        /// The region's length.
        length: usize,
    },
    /// The number of bytes is no whole number of elements.
    #[error("view {bytes} bytes as {dtype}: not a whole number of {} byte elements", dtype.size())]
    Fraction {
        /// Length of the range.
        bytes: usize,
        /// Element type asked for.
        dtype: DType,
    },
    /// The first element is not aligned to its size.
    #[error("view memory at address modulo {} = {remainder} as {dtype}: elements must be aligned", dtype.size())]
    Misaligned {
        /// Address modulo element size.
        remainder: usize,
        /// Element type asked for.
        dtype: DType,
    },
    /// The Rust type of an access is not the buffer's element type.
    #[error("access a buffer of {have} as {asked}: the types must agree")]
    WrongType {
        /// Element type of the buffer.
        have: DType,
        /// Element type of the access.
        asked: DType,
    },
    /// A slice has another length than the buffer.
    #[error("copy {given} elements into a buffer of {have}: the numbers must agree")]
    WrongLength {
        /// Elements of the buffer.
        have: usize,
        /// Elements given.
        given: usize,
    },
    /// A pending operation holds an overlapping range.
    #[error("use bytes {start}..{end} of a region: an operation on them is pending, wait for it first")]
    InUse {
        /// First byte asked for.
        start: usize,
        /// One behind the last byte asked for.
        end: usize,
    },
    /// The system has no memory of that size.
    #[error("allocate {bytes} bytes: more than the system gives")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
    },
    /// Memory was lent by a null pointer.
    #[error("lend {bytes} bytes at a null pointer: not valid memory")]
    NullPointer {
        /// Bytes said to be there.
        bytes: usize,
    },
}

/// Tells when a buffer's content is complete: the place for a CUDA event. The I/O thread asks it
/// before it first touches the buffer.
pub trait Readiness: Send + Sync {
    /// True once the content is complete. Waits for that until `until` at the latest: the caller
    /// asks again, and looks in between whether the operation was aborted.
    fn wait_until(&self, until: Instant) -> bool;
}

/// A range of a region with an element type. Cheap to clone; clones name the same memory.
#[derive(Clone)]
pub struct Buffer {
    region: Arc<Region>,
    start: usize,
    elements: usize,
    dtype: DType,
    readiness: Option<Arc<dyn Readiness>>,
    content_hash: bool,
}

impl Buffer {
    /// The bytes `range` of `region` as elements of `dtype`.
    pub fn new(region: Arc<Region>, range: Range<usize>, dtype: DType) -> Result<Buffer, BufferError> {
        if range.start > range.end || range.end > region.len() {
            return Err(BufferError::OutOfRange {
                start: range.start,
                end: range.end,
                length: region.len(),
            });
        }
        let bytes = range.len();
        if !bytes.is_multiple_of(dtype.size()) {
            return Err(BufferError::Fraction { bytes, dtype });
        }
        let remainder = (region.as_ptr() as usize).wrapping_add(range.start) % dtype.size();
        if remainder != 0 && bytes > 0 {
            return Err(BufferError::Misaligned { remainder, dtype });
        }
        Ok(Buffer {
            region,
            start: range.start,
            elements: bytes / dtype.size(),
            dtype,
            readiness: None,
            content_hash: false,
        })
    }

    /// A zeroed buffer in a region of its own.
    pub fn zeroed(elements: usize, dtype: DType) -> Result<Buffer, BufferError> {
        let bytes = elements
            .checked_mul(dtype.size())
            .ok_or(BufferError::OutOfMemory { bytes: usize::MAX })?;
        Buffer::new(Arc::new(Region::zeroed(bytes)?), 0..bytes, dtype)
    }

    /// A buffer in a region of its own with a copy of `values`.
    pub fn from_slice<T: Element>(values: &[T]) -> Result<Buffer, BufferError> {
        let buffer = Buffer::zeroed(values.len(), T::DTYPE)?;
        buffer.copy_from_slice(values)?;
        Ok(buffer)
    }

    /// The elements `range` of this buffer, as a buffer of the same region.
    pub fn slice(&self, range: Range<usize>) -> Result<Buffer, BufferError> {
        if range.start > range.end || range.end > self.elements {
            return Err(BufferError::OutOfRange {
                start: range.start.saturating_mul(self.dtype.size()),
                end: range.end.saturating_mul(self.dtype.size()),
                length: self.byte_len(),
            });
        }
        let start = self.start + range.start * self.dtype.size();
        Ok(Buffer {
            start,
            elements: range.len(),
            ..self.clone()
        })
    }

    /// The same buffer, not to be touched by an operation before `readiness` says so.
    pub fn with_readiness(self, readiness: Arc<dyn Readiness>) -> Buffer {
        Buffer {
            readiness: Some(readiness),
            ..self
        }
    }

    /// The same buffer, whose operation is to report the [content hash](crate::agreement) of what the
    /// buffer holds afterwards: an all-reduce takes it on the way, while the bytes are in the cache.
    pub fn with_content_hash(self) -> Buffer {
        Buffer {
            content_hash: true,
            ..self
        }
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// Number of bytes.
    pub fn byte_len(&self) -> usize {
        self.elements * self.dtype.size()
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The memory that it is a range of.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The bytes of the region that it covers.
    pub fn byte_range(&self) -> Range<usize> {
        self.start..self.start + self.byte_len()
    }

    /// Overwrites the content. Refused while an operation on it is pending.
    pub fn copy_from_slice<T: Element>(&self, values: &[T]) -> Result<(), BufferError> {
        self.check_type::<T>()?;
        if values.len() != self.elements {
            return Err(BufferError::WrongLength {
                have: self.elements,
                given: values.len(),
            });
        }
        self.lease(true)?
            .bytes_mut()
            .copy_from_slice(bytemuck::cast_slice(values));
        Ok(())
    }

    /// A copy of the content. Refused while an operation that writes it is pending.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, BufferError> {
        self.check_type::<T>()?;
        Ok(bytemuck::cast_slice(self.lease(false)?.bytes()).to_vec())
    }

    pub(crate) fn lease(&self, exclusive: bool) -> Result<Lease, BufferError> {
        Lease::take(&self.region, self.start, self.byte_len(), exclusive)
    }

    pub(crate) fn wants_content_hash(&self) -> bool {
        self.content_hash
    }

    pub(crate) fn readiness(&self) -> Option<Arc<dyn Readiness>> {
        self.readiness.clone()
    }

    fn check_type<T: Element>(&self) -> Result<(), BufferError> {
        if T::DTYPE == self.dtype {
            Ok(())
        } else {
            Err(BufferError::WrongType {
                have: self.dtype,
                asked: T::DTYPE,
            })
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Buffer({} x {} at byte {})",
            self.elements, self.dtype, self.start
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_that_does_not_fit_its_region_or_type_is_a_typed_error() {
        let region = Arc::new(Region::zeroed(64).unwrap());
        let make = |range, dtype| Buffer::new(region.clone(), range, dtype).unwrap_err();
        assert!(matches!(make(0..65, DType::U8), BufferError::OutOfRange { .. }));
        #[allow(clippy::reversed_empty_ranges)]
        let reversed = 8..4;
        assert!(matches!(
            make(reversed, DType::U8),
            BufferError::OutOfRange { .. }
        ));
        assert!(matches!(make(0..6, DType::F32), BufferError::Fraction { .. }));
        assert!(matches!(
            make(2..6, DType::F32),
            BufferError::Misaligned { remainder: 2, .. }
        ));
        assert!(matches!(
            Buffer::zeroed(usize::MAX, DType::F64),
            Err(BufferError::OutOfMemory { .. })
        ));
    }

    #[test]
    fn slices_name_the_same_memory_and_type_confusion_is_refused() {
        let buffer = Buffer::from_slice(&[1f32, 2.0, 3.0, 4.0]).unwrap();
        buffer.slice(1..3).unwrap().copy_from_slice(&[9f32, 8.0]).unwrap();
        assert_eq!(buffer.to_vec::<f32>().unwrap(), [1.0, 9.0, 8.0, 4.0]);
        assert!(matches!(
            buffer.to_vec::<i32>(),
            Err(BufferError::WrongType { .. })
        ));
        assert!(matches!(
            buffer.copy_from_slice(&[0f32]),
            Err(BufferError::WrongLength { .. })
        ));
        assert!(matches!(buffer.slice(3..5), Err(BufferError::OutOfRange { .. })));
    }
}
