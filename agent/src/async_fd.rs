//! File descriptors that signal by becoming readable.

use std::{io, os::fd::OwnedFd};

use tokio::io::{Interest, unix::AsyncFd};

/// Registers a non-blocking descriptor with the runtime.
///
/// Must be called within the runtime.
///
/// # Errors
/// When the descriptor does not support epoll.
pub(crate) fn readable(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // Deprecated for types that may close or swap their descriptor, which an `OwnedFd` does not; the successor is
    // unsafe.
    #[allow(deprecated)]
    AsyncFd::with_interest(fd, Interest::READABLE)
}
