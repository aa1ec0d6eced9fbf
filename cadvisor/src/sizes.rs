//! The task that owns sizes on disk. Walks are slow and a dead file system can hang them, so they run on a thread
//! of their own, one after the other, and pages show the last result.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use nix::sys::stat::{major, minor};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    config::Config,
    model::{ContainerSize, Filesystem, Storage},
    sampler::Layers,
    source,
};

/// How often the space of whole file systems is asked: cheap.
const SPACE_EVERY: Duration = Duration::from_secs(30);
/// A walk may take this part of the time at most: the next comes after its cost times this.
const SHARE: u32 = 50;

#[derive(Debug)]
pub(crate) struct Sizes {
    config: Config,
    due: HashMap<String, Instant>,
    storage: watch::Sender<Arc<Storage>>,
}

impl Sizes {
    pub(crate) fn new(config: Config) -> (Self, watch::Receiver<Arc<Storage>>) {
        let (storage, receiver) = watch::channel(Arc::default());
        (Self { config, due: HashMap::new(), storage }, receiver)
    }

    /// Works until told to stop, or until the sampler is gone.
    pub(crate) async fn run(mut self, mut layers: watch::Receiver<Layers>, shutdown: CancellationToken) {
        let mut space_at = Instant::now();
        self.space();
        loop {
            let list = Arc::clone(&layers.borrow_and_update());
            self.forget(&list);
            self.walk(&list, &shutdown);
            let walk = self.due.values().min().map_or(SPACE_EVERY, |due| due.saturating_duration_since(Instant::now()));
            let rest = SPACE_EVERY.saturating_sub(space_at.elapsed()).min(walk).max(Duration::from_millis(100));
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                changed = layers.changed() => if changed.is_err() { break },
                () = tokio::time::sleep(rest) => {}
            }
            if space_at.elapsed() >= SPACE_EVERY {
                self.space();
                space_at = Instant::now();
            }
        }
    }

    fn space(&self) {
        let of = |path: &Path| -> Option<(Filesystem, u64)> {
            let path = source::under(&self.config.root, path);
            // Before the first pod the directory may not be there: its parent is on the same file system.
            let there = path.ancestors().find(|p| p.exists())?;
            source::space(there, jiff::Timestamp::now())
                .inspect_err(|error| tracing::debug!(%error, "space of a file system is unknown for now"))
                .ok()
        };
        let (node, images) = (of(&self.config.data_dir), of(&self.config.docker_root));
        let device = images.map(|(_, device)| {
            let (major, minor) = (u32::try_from(major(device)), u32::try_from(minor(device)));
            major
                .ok()
                .zip(minor.ok())
                .and_then(|(major, minor)| source::block_device_name(&self.config.root, major, minor))
                .unwrap_or_else(|| self.config.docker_root.display().to_string())
        });
        self.storage.send_modify(|storage| {
            let storage = Arc::make_mut(storage);
            storage.node = node.map(|(space, _)| space);
            storage.images = images.map(|(space, _)| space);
            storage.images_device = device.unwrap_or_default();
        });
    }

    fn forget(&mut self, list: &[(String, Option<PathBuf>)]) {
        let listed = |id: &str| list.binary_search_by(|(known, _)| known.as_str().cmp(id)).is_ok();
        self.due.retain(|id, _| listed(id));
        self.storage.send_if_modified(|storage| {
            let before = storage.containers.len();
            if storage.containers.keys().all(|id| listed(id)) {
                return false;
            }
            Arc::make_mut(storage).containers.retain(|id, _| listed(id));
            storage.containers.len() != before
        });
    }

    fn walk(&mut self, list: &[(String, Option<PathBuf>)], shutdown: &CancellationToken) {
        for (id, layer) in list {
            let began = Instant::now();
            if shutdown.is_cancelled() {
                return;
            }
            if self.due.get(id).is_some_and(|due| *due > began) {
                continue;
            }
            let go_on = || !shutdown.is_cancelled();
            let (rootfs_bytes, rootfs_inodes) =
                layer.as_deref().and_then(|dir| source::tree(dir, &go_on)).unwrap_or_default();
            let docker_root = source::under(&self.config.root, &self.config.docker_root);
            let (logs_bytes, logs_inodes) = source::logs(&docker_root, id);
            let at = jiff::Timestamp::now();
            let size = ContainerSize { at, rootfs_bytes, rootfs_inodes, logs_bytes, logs_inodes };
            self.storage.send_modify(|storage| {
                Arc::make_mut(storage).containers.insert(id.clone(), size);
            });
            let pause = self.config.walk_interval.max(began.elapsed() * SHARE);
            self.due.insert(id.clone(), Instant::now() + pause);
        }
    }
}
