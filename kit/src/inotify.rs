//! Waits for changes in directories. All watches of the process share one inotify instance: the kernel gives a user 128 of
//! them, which systemd, dockerd and this process share.

use std::{collections::HashMap, io, path::Path, sync::Arc};

use nix::{
    errno::Errno,
    sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor},
};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The kernel's `IN_MASK_ADD`, which nix does not name: a directory that is watched already is watched for more.
const MASK_ADD: AddWatchFlags = AddWatchFlags::from_bits_retain(0x2000_0000);

/// The inotify instance, and the watches by descriptor.
#[derive(Debug)]
struct Hub {
    inotify: Inotify,
    /// By what the kernel calls a directory; several may watch one.
    watches: Mutex<HashMap<WatchDescriptor, Vec<Arc<Notify>>>>,
}

/// The hub of the process, from the first watch on.
static HUB: Mutex<Option<Arc<Hub>>> = Mutex::new(None);

impl Hub {
    fn get() -> io::Result<Arc<Self>> {
        let mut hub = HUB.lock();
        if let Some(hub) = &*hub {
            return Ok(Arc::clone(hub));
        }
        let made = Arc::new(Self { inotify: Inotify::init(InitFlags::IN_CLOEXEC)?, watches: Mutex::default() });
        let reader = Arc::clone(&made);
        // A thread rather than a task: it must outlive the runtime of its first caller.
        std::thread::Builder::new().name("inotify".to_owned()).spawn(move || reader.read())?;
        Ok(Arc::clone(hub.insert(made)))
    }

    /// Notifies the watches of changes for as long as the process lives.
    fn read(&self) {
        loop {
            let events = match self.inotify.read_events() {
                Ok(events) => events,
                Err(Errno::EINTR) => continue,
                Err(error) => {
                    tracing::error!(%error, "failed to read changes of directories; they are noticed late");
                    return;
                }
            };
            let watches = self.watches.lock();
            for event in events {
                if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                    watches.values().flatten().for_each(|one| one.notify_one());
                }
                watches.get(&event.wd).into_iter().flatten().for_each(|one| one.notify_one());
            }
        }
    }
}

/// A watch of a directory.
#[derive(Debug)]
pub struct Watch {
    hub: Arc<Hub>,
    of: WatchDescriptor,
    changed: Arc<Notify>,
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

    /// Watches `dir` for `changes`; where others watch it too, for theirs as well.
    ///
    /// # Errors
    /// When it is no directory, or the limit of watches is reached.
    pub fn new(dir: &Path, changes: AddWatchFlags) -> io::Result<Self> {
        let hub = Hub::get()?;
        let changed = Arc::new(Notify::new());
        let of = {
            // Added and remembered in one: another watch of it may end now.
            let mut watches = hub.watches.lock();
            let of = hub.inotify.add_watch(dir, changes | AddWatchFlags::IN_ONLYDIR | MASK_ADD)?;
            watches.entry(of).or_default().push(Arc::clone(&changed));
            of
        };
        Ok(Self { hub, of, changed })
    }

    /// Waits for a change since the last call: the caller reads the directory again anyway. One task alone may wait.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut watches = self.hub.watches.lock();
        let Some(all) = watches.get_mut(&self.of) else { return };
        all.retain(|one| !Arc::ptr_eq(one, &self.changed));
        if all.is_empty() {
            watches.remove(&self.of);
            // The directory may be gone, and its watch with it.
            let _ = self.hub.inotify.rm_watch(self.of);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use futures::FutureExt as _;

    use super::*;

    async fn comes(watch: &Watch) {
        tokio::time::timeout(Duration::from_secs(60), watch.changed()).await.expect("nothing was told");
    }

    #[tokio::test]
    async fn many_watches_take_one_instance() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        // More than a user may have instances.
        let idle: Vec<Watch> = (0..200).map(|_| Watch::new(b.path(), Watch::WRITES).unwrap()).collect();
        let one = Watch::new(a.path(), Watch::CONTENTS).unwrap();
        let two = Watch::new(a.path(), Watch::CONTENTS).unwrap();
        fs::write(a.path().join("x"), "").unwrap();
        comes(&one).await;
        comes(&two).await;
        assert!(idle.iter().all(|watch| watch.changed().now_or_never().is_none()), "theirs is another directory");
        drop(one);
        // Earlier notifications may still be pending.
        while two.changed().now_or_never().is_some() {}
        fs::remove_file(a.path().join("x")).unwrap();
        comes(&two).await;
        drop(a);
        comes(&two).await;
        assert!(Watch::new(Path::new("/nowhere"), Watch::CONTENTS).is_err());
        assert!(Watch::new(Path::new("/proc/self/status"), Watch::CONTENTS).is_err());
    }
}
