//! The task that owns usage of disks. Scans are slow, and a dead file system can stall them, so they run in a pool of
//! their own, and pages show the last result.

mod scan;
mod schedule;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use nix::sys::stat::{major, minor};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use windlass_kit::published_map::{Differences, Follower};

use crate::{
    config::{Config, EngineDirs, Target, Volume},
    model::{ContainerSize, Rows, Size, Snapshot, Storage},
    parse::cgroup::containerd_root,
    sampler::{Layer, name_thread},
    source,
    stall_pool::StallTolerantPool,
};
use scan::{ScanJob, ScanResult, scan};
use schedule::{ScanKey, Scanned, Schedules};

/// How often the space of whole file systems is queried, which is cheap.
const SPACE_INTERVAL: Duration = Duration::from_secs(30);
/// How often volumes and files of pods on the disk are walked over, while somebody runs who may write there.
const EPHEMERAL_INTERVAL: Duration = Duration::from_secs(10);
/// How often the sizes of image layers are read although no image has changed.
const IMAGE_LAYERS_INTERVAL: Duration = Duration::from_secs(3600);
/// Scans take at most this fraction of the time (1/n): the next one follows after its duration times this.
const SCAN_COST_FACTOR: u32 = 50;
/// Scans that are due within so short a time run together.
const SCAN_BATCH_WINDOW: Duration = Duration::from_secs(1);
/// A scan that takes longer is left to its thread, and another one starts.
const SCAN_TIMEOUT: Duration = Duration::from_secs(2);
/// Scans that may be stalled at once.
const MAX_STALLED_THREADS: u64 = 32;

/// The result of a scan, and its duration.
type TimedResult = (ScanResult, Duration);

#[derive(Debug)]
pub(crate) struct DiskUsage {
    config: Config,
    pool: StallTolerantPool<ScanKey, ScanJob, TimedResult>,
    schedules: Schedules,
    /// The pods of running containers, by id; empty outside of pods.
    containers: HashMap<Arc<str>, Arc<str>>,
    /// The running containers of pods by uid, which may write there; others have no uid.
    writers: HashMap<Arc<str>, BTreeMap<Arc<str>, Arc<Target>>>,
    /// The volumes of pods that are scanned, by uid.
    volumes: HashMap<Arc<str>, Arc<Vec<Volume>>>,
    dirs: EngineDirs,
    /// Where containerd keeps layers, as one of them shows.
    layers_root: Option<PathBuf>,
    /// Whose sizes are marked stale.
    stale: BTreeSet<ScanKey>,
    storage: watch::Sender<Arc<Storage>>,
    inputs: Inputs,
}

/// The volumes of pods, by uid.
pub(crate) type Volumes = Follower<Arc<str>, Arc<Vec<Volume>>>;

/// Inputs from the agent.
#[derive(Debug)]
pub(crate) struct Inputs {
    /// Bytes of all images; a change means that there are other layers.
    pub(crate) image_bytes: watch::Receiver<u64>,
    /// Bytes of writable layers that have no directory of their own, by container id, as the engine counts them.
    pub(crate) layer_bytes: watch::Receiver<Arc<BTreeMap<String, u64>>>,
    /// Requests to walk over everything now; answered when that is done, or has taken too long.
    pub(crate) rescans: mpsc::Receiver<oneshot::Sender<()>>,
}

impl DiskUsage {
    pub(crate) fn new(
        config: Config,
        inputs: Inputs,
        shutdown: CancellationToken,
    ) -> (Self, watch::Receiver<Arc<Storage>>) {
        let (storage, receiver) = watch::channel(Arc::default());
        let pool = StallTolerantPool::new("sizes", MAX_STALLED_THREADS, SCAN_TIMEOUT, move |job| {
            let began = Instant::now();
            (scan(job, &|| !shutdown.is_cancelled()), began.elapsed())
        });
        let dirs = config.engine_dirs.borrow().clone();
        let mut this = Self {
            config,
            pool,
            schedules: Schedules::default(),
            containers: HashMap::new(),
            writers: HashMap::new(),
            volumes: HashMap::new(),
            dirs,
            layers_root: None,
            stale: BTreeSet::new(),
            storage,
            inputs,
        };
        let now = Instant::now();
        this.schedules.set(ScanKey::Spaces, Scanned::Spaces, now);
        this.schedules.set(ScanKey::ImageLayers, Scanned::ImageLayers, now);
        (this, receiver)
    }

    /// Runs until `shutdown`, or until the sampler has ended.
    pub(crate) async fn run(
        mut self,
        mut layers: Follower<Arc<str>, Layer>,
        mut volumes: Volumes,
        snapshot: watch::Receiver<Arc<Snapshot>>,
        shutdown: CancellationToken,
    ) {
        name_thread("sizes rounds");
        let (mut has_volumes, mut has_dirs, mut has_images, mut has_layers) = (true, true, true, true);
        let mut rescans = Vec::new();
        loop {
            // A clone: a borrowed snapshot would block the publication of the next.
            let rows = snapshot.borrow().rows.clone();
            self.run_due(&rows);
            for answer in rescans.drain(..) {
                // The caller may have timed out.
                let _ = oneshot::Sender::send(answer, ());
            }
            let next = self.schedules.next();
            let next = next.map_or(SPACE_INTERVAL, |at| at.saturating_duration_since(Instant::now()));
            // Stalled scans are checked again soon.
            let timeout = if self.schedules.in_flight().is_empty() { SPACE_INTERVAL } else { SCAN_TIMEOUT };
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                changes = layers.changed() => {
                    let Some(changes) = changes else { return };
                    self.set_layers(changes);
                }
                Some(answer) = self.inputs.rescans.recv() => {
                    self.schedules.restart_walks(Instant::now());
                    rescans.push(answer);
                }
                changes = volumes.changed(), if has_volumes => {
                    has_volumes = changes.is_some();
                    self.set_volumes(changes.unwrap_or_default());
                }
                changed = self.config.engine_dirs.changed(), if has_dirs => {
                    has_dirs = changed.is_ok();
                    if has_dirs {
                        self.dirs = self.config.engine_dirs.borrow_and_update().clone();
                        self.layers_root = None;
                        self.schedules.restart(Instant::now(), |_, _| true);
                    }
                }
                changed = self.inputs.image_bytes.changed(), if has_images => {
                    has_images = changed.is_ok();
                    if has_images {
                        self.schedules.restart(Instant::now(), |key, _| *key == ScanKey::ImageLayers);
                    }
                }
                changed = self.inputs.layer_bytes.changed(), if has_layers => {
                    has_layers = changed.is_ok();
                    self.put_layer_bytes();
                }
                () = tokio::time::sleep(next.clamp(SCAN_BATCH_WINDOW, timeout)) => {}
            }
        }
    }

    fn set_layers(&mut self, changes: Differences<Arc<str>, Layer>) {
        let now = Instant::now();
        for (id, layer) in changes {
            let Some(layer) = layer else {
                self.remove_container(&id);
                continue;
            };
            let (uid, target) = (Arc::<str>::from(layer.target.pod_uid.as_str()), layer.target);
            if let Some(root) = layer.dir.as_deref().and_then(containerd_root)
                && self.layers_root.as_ref() != Some(&root)
            {
                self.layers_root = Some(root);
                self.schedules.restart(now, |key, _| *key == ScanKey::Spaces);
            }
            self.schedules.set(ScanKey::Container(Arc::clone(&id)), Scanned::Container(layer.dir), now);
            if let Some(pods_dir) = self.config.pods_dir.as_deref().filter(|_| !uid.is_empty()) {
                let dir = source::under(&self.config.root, pods_dir).join(&*uid);
                self.schedules.set(ScanKey::PodFiles(Arc::clone(&uid)), Scanned::PodFiles(dir), now);
            }
            self.containers.insert(Arc::clone(&id), Arc::clone(&uid));
            self.writers.entry(uid).or_default().insert(id, target);
        }
    }

    fn remove_container(&mut self, id: &Arc<str>) {
        self.forget(&ScanKey::Container(Arc::clone(id)));
        let uid = self.containers.remove(id);
        let Some(uid) = uid else { return };
        let Some(writers) = self.writers.get_mut(&uid) else { return };
        writers.remove(id);
        if writers.is_empty() {
            self.writers.remove(&uid);
            self.forget(&ScanKey::PodFiles(uid));
        }
    }

    fn set_volumes(&mut self, changes: Differences<Arc<str>, Arc<Vec<Volume>>>) {
        let now = Instant::now();
        for (uid, volumes) in changes {
            let key = |volume: &Volume| ScanKey::Volume(Arc::clone(&uid), Arc::from(volume.name.as_str()));
            let volumes = volumes.unwrap_or_default();
            let before = if volumes.is_empty() {
                self.volumes.remove(&uid)
            } else {
                self.volumes.insert(Arc::clone(&uid), Arc::clone(&volumes))
            };
            let kept: BTreeSet<&str> = volumes.iter().map(|volume| volume.name.as_str()).collect();
            for gone in before.iter().flat_map(|all| all.iter()).filter(|known| !kept.contains(known.name.as_str())) {
                self.forget(&key(gone));
            }
            for volume in volumes.iter() {
                let there = Volume { path: source::under(&self.config.root, &volume.path), ..volume.clone() };
                self.schedules.set(key(volume), Scanned::Volume(there), now);
            }
        }
    }

    /// Drops a scan and its result.
    fn forget(&mut self, key: &ScanKey) {
        self.schedules.remove(key);
        self.stale.remove(key);
        self.storage.send_if_modified(|storage| {
            let known = match key {
                ScanKey::Spaces | ScanKey::ImageLayers => false,
                ScanKey::Container(id) => storage.containers.get(&**id).is_some(),
                ScanKey::Volume(uid, _) => storage.volumes.get(&**uid).is_some(),
                ScanKey::PodFiles(uid) => storage.pod_files.get(&**uid).is_some(),
            };
            if !known {
                return false;
            }
            let storage = Arc::make_mut(storage);
            match key {
                ScanKey::Spaces | ScanKey::ImageLayers => {}
                ScanKey::Container(id) => drop(storage.containers.remove(&**id)),
                ScanKey::PodFiles(uid) => drop(storage.pod_files.remove(&**uid)),
                ScanKey::Volume(uid, name) => {
                    let Some(all) = storage.volumes.get_mut(&**uid) else { return false };
                    all.retain(|volume| *volume.name != **name);
                    if all.is_empty() {
                        storage.volumes.remove(&**uid);
                    }
                }
            }
            true
        });
    }

    /// What a scan does now.
    fn job(&self, key: &ScanKey, scanned: Scanned) -> ScanJob {
        let under = |path: &PathBuf| source::under(&self.config.root, path);
        let data_root = self.dirs.data_root.as_ref().map(under);
        match scanned {
            Scanned::Spaces => {
                // Where a layer is, images are; before the first one it is where the engine says.
                let images = self.layers_root.clone().or_else(|| self.dirs.image_root.as_ref().map(under));
                ScanJob::Spaces { node: under(&self.config.data_dir), images, logs: data_root }
            }
            Scanned::ImageLayers => ScanJob::ImageLayers { data_root },
            Scanned::Container(layer) => {
                let id = if let ScanKey::Container(id) = key { Arc::clone(id) } else { Arc::default() };
                ScanJob::Container { id, layer, data_root }
            }
            Scanned::Volume(volume) => ScanJob::Volume(volume),
            Scanned::PodFiles(dir) => ScanJob::PodFiles { dir },
        }
    }

    /// The CPU time used by the container or the pod whose processes may write there.
    fn used(&self, key: &ScanKey, rows: &Rows) -> Option<u64> {
        let used = |target: &Arc<Target>| rows.get(target).map(|row| row.sample.cpu.usage_ns);
        match key {
            ScanKey::Spaces | ScanKey::ImageLayers => None,
            ScanKey::Container(id) => used(self.writers.get(self.containers.get(id)?)?.get(id)?),
            ScanKey::Volume(uid, _) | ScanKey::PodFiles(uid) => {
                self.writers.get(uid)?.values().filter_map(used).reduce(u64::wrapping_add)
            }
        }
    }

    /// Runs the scans that are due.
    fn run_due(&mut self, rows: &Rows) {
        let now = Instant::now();
        let mut schedules = std::mem::take(&mut self.schedules);
        let due = schedules.start_due(now, self.config.interval, |key| self.used(key, rows));
        self.schedules = schedules;
        let due: Vec<(ScanKey, ScanJob)> = due
            .into_iter()
            .map(|(key, scanned)| {
                let job = self.job(&key, scanned);
                (key, job)
            })
            .collect();
        let mut found = Vec::new();
        for (key, _) in self.pool.run_all(due, &mut found) {
            self.schedules.finish(&key, now + SCAN_TIMEOUT, false);
        }
        for (key, (result, took)) in found {
            let pause = match key {
                ScanKey::Spaces => SPACE_INTERVAL,
                ScanKey::ImageLayers => IMAGE_LAYERS_INTERVAL,
                // Eviction enforces limits by them.
                ScanKey::PodFiles(_) | ScanKey::Volume(..) => self.config.walk_interval.min(EPHEMERAL_INTERVAL),
                ScanKey::Container(_) => self.config.walk_interval,
            };
            let again = Instant::now() + pause.max(took * SCAN_COST_FACTOR);
            let none =
                matches!(result, ScanResult::Container(None) | ScanResult::Volume(None) | ScanResult::PodFiles(None));
            // Unless it was dropped meanwhile.
            if self.schedules.finish(&key, again, !none) {
                self.put(key, result);
            }
        }
        self.mark_stale();
    }

    fn put(&self, key: ScanKey, found: ScanResult) {
        self.storage.send_modify(|storage| {
            let storage = Arc::make_mut(storage);
            match (key, found) {
                (_, ScanResult::Spaces { node, images, logs, image_root }) => {
                    storage.image_root = image_root;
                    storage.is_one_file_system = node.zip(images).map(|((_, node), (_, images))| node == images);
                    [storage.node, storage.images, storage.logs] =
                        [node, images, logs].map(|found| found.map(|(space, _)| space));
                    storage.images_device = images.map_or_else(String::new, |(_, device)| self.device(device));
                }
                (_, ScanResult::ImageLayers(bytes)) => storage.image_bytes = bytes,
                (ScanKey::Container(id), ScanResult::Container(Some(mut size))) => {
                    size.rootfs = size.rootfs.or_else(|| self.layer_size(&id));
                    storage.containers.insert(id, size);
                }
                (ScanKey::Volume(uid, _), ScanResult::Volume(Some(size))) => {
                    if storage.volumes.get(&*uid).is_none() {
                        storage.volumes.insert(Arc::clone(&uid), Vec::new());
                    }
                    let Some(all) = storage.volumes.get_mut(&*uid) else { return };
                    match all.binary_search_by(|known| known.name.cmp(&size.name)) {
                        Ok(at) => all[at] = size,
                        Err(at) => all.insert(at, size),
                    }
                }
                (ScanKey::PodFiles(uid), ScanResult::PodFiles(Some(size))) => {
                    storage.pod_files.insert(uid, size);
                }
                // A directory that does not exist (yet, or any more) has no size.
                _ => {}
            }
        });
    }

    /// The writable layer of a container as the engine counts it.
    fn layer_size(&self, id: &str) -> Option<Size> {
        self.inputs.layer_bytes.borrow().get(id).map(|bytes| Size { bytes: *bytes, inodes: None })
    }

    /// Applies what the engine has counted.
    fn put_layer_bytes(&self) {
        self.storage.send_if_modified(|storage| {
            let counted = |(id, size): (&Arc<str>, &ContainerSize)| {
                let counted = self.layer_size(id).filter(|_| size.rootfs.is_none_or(|size| size.inodes.is_none()));
                counted.filter(|counted| size.rootfs != Some(*counted)).map(|counted| (Arc::clone(id), counted))
            };
            let changed: Vec<(Arc<str>, Size)> = storage.containers.iter().filter_map(counted).collect();
            let is_changed = !changed.is_empty();
            for (id, counted) in changed {
                if let Some(size) = Arc::make_mut(storage).containers.get_mut(&*id) {
                    size.rootfs = Some(counted);
                }
            }
            is_changed
        });
    }

    /// Marks the sizes whose scans have not ended, and no others.
    fn mark_stale(&mut self) {
        let late = self.schedules.in_flight();
        if *late == self.stale {
            return;
        }
        self.storage.send_modify(|storage| {
            let storage = Arc::make_mut(storage);
            for key in late.symmetric_difference(&self.stale) {
                let is_stale = late.contains(key);
                match key {
                    ScanKey::Spaces | ScanKey::ImageLayers | ScanKey::PodFiles(_) => {}
                    ScanKey::Container(id) => {
                        if let Some(size) = storage.containers.get_mut(&**id) {
                            size.stale = is_stale;
                        }
                    }
                    ScanKey::Volume(uid, name) => {
                        let all = storage.volumes.get_mut(&**uid).into_iter().flatten();
                        all.filter(|size| *size.name == **name).for_each(|size| size.stale = is_stale);
                    }
                }
            }
        });
        self.stale = late.clone();
    }

    fn device(&self, device: u64) -> String {
        let numbers = u32::try_from(major(device)).ok().zip(u32::try_from(minor(device)).ok());
        numbers
            .and_then(|(major, minor)| source::block_device_name(&self.config.root, major, minor))
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
