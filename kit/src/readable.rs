//! Descriptors that tell by becoming readable.

use std::{io, os::fd::OwnedFd};

use tokio::io::{Interest, unix::AsyncFd};

/// Lets the runtime watch a descriptor that does not block.
///
/// To be called within the runtime.
///
/// # Errors
/// When the kernel cannot tell of this descriptor.
pub fn readable(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // Deprecated for types that may close or swap their descriptor; an `OwnedFd` does neither, and
    // the successor cannot be called without unsafe code.
    #[allow(deprecated)]
    AsyncFd::with_interest(fd, Interest::READABLE)
}
