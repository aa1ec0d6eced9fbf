//! The folder: its files, and waking up when it changes.

use std::{
    collections::BTreeMap,
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::{Interest, unix::AsyncFd};

use super::documents::format_of;

/// Larger files are refused.
const MAX_BYTES: u64 = 10 * 1024 * 1024;

/// What a scan found of one file: its text, or why it cannot be read.
pub(crate) type Scanned = BTreeMap<PathBuf, Result<String, String>>;

/// Reads all manifest files of the folder; subfolders and dotfiles are left alone. Blocking.
pub(crate) fn scan(dir: &Path) -> io::Result<Scanned> {
    let mut found = Scanned::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        if format_of(name).is_none() {
            continue;
        }
        // Follows links; a file that went away between the two calls is not there.
        match fs::metadata(&path) {
            Ok(meta) if !meta.is_file() => {}
            Ok(meta) if meta.len() > MAX_BYTES => {
                found.insert(path, Err(format!("the file has {} bytes; at most {MAX_BYTES} are read", meta.len())));
            }
            Ok(_) => match fs::read_to_string(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                text => drop(found.insert(path, text.map_err(|e| format!("the file cannot be read: {e}")))),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => drop(found.insert(path, Err(format!("the file cannot be examined: {error}")))),
        }
    }
    Ok(found)
}

/// Tells when something in the folder changes.
#[derive(Debug)]
pub(crate) struct Watch {
    events: AsyncFd<OwnedFd>,
}

impl Watch {
    pub(crate) fn new(dir: &Path) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        let flags = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        inotify.add_watch(dir, flags)?;
        // Deprecated for types that may close or swap their descriptor; an `OwnedFd` does neither, and
        // the successor cannot be called without unsafe code.
        #[allow(deprecated)]
        let events = AsyncFd::with_interest(OwnedFd::from(inotify), Interest::READABLE)?;
        Ok(Self { events })
    }

    /// Waits for a change and forgets all that have happened; the folder is read anew anyway.
    pub(crate) async fn changed(&self) -> io::Result<()> {
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
