//! Tensor memory as slices, and lent to the transports. Only contiguous tensors of the CPU have such
//! memory; everything else is refused.
//!
//! A tensor's handles share its memory, as everywhere in libtorch: the slices are sound as long as no
//! other thread writes to the same tensor meanwhile. The step engine keeps this by waiting for every
//! pending operation before it looks at a bucket.

use super::error::TorchError;
use gradsync_collective::Region;
use tch::kind::Element;
use tch::{Device, Tensor};

/// Reads the tensor's memory, in the machine's byte order.
///
/// # Errors
/// When the tensor is not a contiguous one of the CPU.
pub fn read_bytes<R>(tensor: &Tensor, read: impl FnOnce(&[u8]) -> R) -> Result<R, TorchError> {
    let (pointer, length) = memory(tensor, "read a tensor")?;
    if length == 0 {
        return Ok(read(&[]));
    }
    // SAFETY: `memory` checked that `length` initialised bytes lie there, alive as long as the tensor.
    Ok(read(unsafe { std::slice::from_raw_parts(pointer, length) }))
}

/// Reads the elements, innermost dimension fastest.
///
/// # Errors
/// When the tensor is not a contiguous one of the CPU, or of another element type.
pub fn read_elements<T: Element, R>(tensor: &Tensor, read: impl FnOnce(&[T]) -> R) -> Result<R, TorchError> {
    let (pointer, length) = elements::<T>(tensor, "read a tensor")?;
    if length == 0 {
        return Ok(read(&[]));
    }
    // SAFETY: as in `read_bytes`; the element type was checked, and libtorch aligns its elements.
    Ok(read(unsafe { std::slice::from_raw_parts(pointer, length) }))
}

/// Reads and changes the elements in place. Autograd does not notice.
///
/// # Errors
/// When the tensor is not a contiguous one of the CPU, or of another element type.
pub fn write_elements<T: Element, R>(
    tensor: &mut Tensor,
    write: impl FnOnce(&mut [T]) -> R,
) -> Result<R, TorchError> {
    let (pointer, length) = elements::<T>(tensor, "write a tensor")?;
    if length == 0 {
        return Ok(write(&mut []));
    }
    // SAFETY: as in `read_elements`; the exclusive borrow is of the one handle that the caller holds.
    Ok(write(unsafe { std::slice::from_raw_parts_mut(pointer, length) }))
}

/// The tensor's memory as a region that operations of the transports may use. The region keeps the memory
/// alive, however long they take.
///
/// # Errors
/// When the tensor is not a contiguous one of the CPU.
pub fn lend(tensor: &Tensor) -> Result<Region, TorchError> {
    let (pointer, length) = memory(tensor, "lend a tensor")?;
    let owner = Box::new(tensor.shallow_clone());
    // SAFETY: the memory is valid and initialised as long as the handle in `owner`; that nobody touches a
    // range while an operation on it is pending is the step engine's order of things (see the module).
    unsafe { Region::from_raw(pointer, length, owner) }
        .map_err(|error| TorchError::new(format!("lend a tensor: {error}")))
}

fn elements<T: Element>(tensor: &Tensor, doing: &str) -> Result<(*mut T, usize), TorchError> {
    let kind = tensor.f_kind()?;
    if kind != T::KIND {
        return Err(TorchError::new(format!(
            "{doing}: its elements are {kind:?} and not {:?}",
            T::KIND
        )));
    }
    let (pointer, _) = memory(tensor, doing)?;
    Ok((pointer.cast(), tensor.numel()))
}

/// Where the bytes are and how many.
fn memory(tensor: &Tensor, doing: &str) -> Result<(*mut u8, usize), TorchError> {
    if !tensor.defined() || tensor.device() != Device::Cpu || tensor.is_sparse() || tensor.is_mkldnn() {
        return Err(TorchError::new(format!(
            "{doing}: it is not an ordinary tensor of the CPU"
        )));
    }
    if !tensor.is_contiguous() {
        return Err(TorchError::new(format!("{doing}: it is not contiguous")));
    }
    let bytes = tensor.numel() * tensor.f_kind()?.elt_size_in_bytes();
    let pointer: *mut u8 = tensor.data_ptr().cast();
    if pointer.is_null() && bytes > 0 {
        return Err(TorchError::new(format!("{doing}: it has no memory")));
    }
    Ok((pointer, bytes))
}
