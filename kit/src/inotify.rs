//! Waits for changes in a directory.

use std::{io, os::fd::OwnedFd, path::Path};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::unix::AsyncFd;

use crate::async_fd::readable;

/// An inotify watch of a directory.
#[derive(Debug)]
pub struct Watch {
    events: AsyncFd<OwnedFd>,
}

impl Watch {
    /// Files that are created, deleted, renamed, or closed after writing.
    pub const CONTENTS: AddWatchFlags = AddWatchFlags::IN_CLOSE_WRITE
        .union(AddWatchFlags::IN_CREATE)
        .union(AddWatchFlags::IN_MOVED_TO)
        .union(AddWatchFlags::IN_MOVED_FROM)
        .union(AddWatchFlags::IN_DELETE)
        .union(AddWatchFlags::IN_ATTRIB)
        .union(AddWatchFlags::IN_DELETE_SELF)
        .union(AddWatchFlags::IN_MOVE_SELF);
    /// The same, and each write while a file stays open.
    pub const WRITES: AddWatchFlags = Self::CONTENTS.union(AddWatchFlags::IN_MODIFY);

    /// Watches `dir` for `changes`. Must be called within a runtime.
    ///
    /// # Errors
    /// When it is no directory, or the limit of watches is reached.
    pub fn new(dir: &Path, changes: AddWatchFlags) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        inotify.add_watch(dir, changes | AddWatchFlags::IN_ONLYDIR)?;
        Ok(Self { events: readable(OwnedFd::from(inotify))? })
    }

    /// Waits for a change, and discards all that are queued: the caller reads the directory again anyway.
    ///
    /// # Errors
    /// When events cannot be read.
    pub async fn changed(&self) -> io::Result<()> {
        let mut buffer = [0u8; 4096];
        let mut any = false;
        while !any {
            let mut ready = self.events.readable().await?;
            loop {
                match nix::unistd::read(self.events.get_ref(), &mut buffer) {
                    Ok(0) | Err(nix::errno::Errno::EAGAIN) => break,
                    Ok(_) => any = true,
                    Err(nix::errno::Errno::EINTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            ready.clear_ready();
        }
        Ok(())
    }
}
