//! The end of this process without any clean-up: native threads that still compute could make an orderly end
//! hang or crash, and its exit code would be lost.

/// Ends this process with `code`. Nothing is flushed, no destructor runs.
pub(super) fn exit(code: u8) -> ! {
    // SAFETY: `_exit` may be called from any thread at any time, takes every number and does not return.
    unsafe { libc::_exit(i32::from(code)) }
}
