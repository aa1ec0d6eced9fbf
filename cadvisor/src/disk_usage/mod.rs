//! The task that owns usage of disks. Scans are slow, and a dead file system can stall them, so they run in a pool of
//! their own, and pages show the last result.

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use nix::sys::stat::{major, minor};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    config::{Config, EngineDirs, Volume},
    model::{ContainerSize, Filesystem, Size, Snapshot, Storage, VolumeSize},
    parse::cgroup::containerd_root,
    sampler::{Layer, Layers, name_thread},
    source,
    stall_pool::StallTolerantPool,
};

/// How often the space of whole file systems is queried, which is cheap.
const SPACE_INTERVAL: Duration = Duration::from_secs(30);
/// How often volumes and files of pods on the disk are walked over, while somebody runs who may write there.
const EPHEMERAL_INTERVAL: Duration = Duration::from_secs(10);
/// How often the sizes of image layers are read although no image has changed.
const IMAGE_LAYERS_INTERVAL: Duration = Duration::from_secs(3600);
/// A scan takes at most one part in so many of the time: the next one follows after its duration times this.
const SCAN_COST_FACTOR: u32 = 50;
/// While no process ran that could have written, files are scanned this often: other programs may write, too, such as
/// `docker cp`.
const IDLE_SCAN_INTERVAL: Duration = Duration::from_secs(300);
/// Scans that are due within so short a time run together.
const SCAN_BATCH_WINDOW: Duration = Duration::from_secs(1);
/// A scan that takes longer is left to its thread, and another one starts.
const SCAN_TIMEOUT: Duration = Duration::from_secs(2);
/// Scans that may be stalled at once.
const MAX_STALLED_THREADS: u64 = 32;

/// What is scanned.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum ScanKey {
    /// The file systems of the node, of images and of logs.
    Spaces,
    /// The sizes of image layers, one file for each: read when images change.
    ImageLayers,
    Container(String),
    /// By pod uid and volume name.
    Volume(String, String),
    /// By pod uid: its files beside volumes.
    PodFiles(String),
}

#[derive(Debug, Clone)]
enum ScanJob {
    Spaces { node: PathBuf, images: Option<PathBuf>, logs: Option<PathBuf> },
    ImageLayers { data_root: PathBuf },
    Container { id: String, layer: Option<PathBuf>, data_root: Option<PathBuf> },
    Volume(Volume),
    PodFiles { dir: PathBuf },
}

impl ScanJob {
    /// Whether it walks over files, which is expensive, instead of querying a file system.
    fn is_walk(&self) -> bool {
        match self {
            Self::Spaces { .. } | Self::ImageLayers { .. } => false,
            Self::Container { .. } | Self::PodFiles { .. } => true,
            Self::Volume(volume) => volume.of_pod,
        }
    }
}

/// When something is scanned again, and the state of its last scan.
#[derive(Debug)]
struct ScanSchedule {
    /// `None` while a scan is in flight.
    at: Option<Instant>,
    /// When it was walked, and the CPU time that its writers had used before.
    walked: Option<(Instant, Option<u64>)>,
}

impl ScanSchedule {
    fn new(at: Instant) -> Self {
        Self { at: Some(at), walked: None }
    }

    /// Whether no writer has run since the last walk. `used` is their CPU time.
    fn is_idle(&self, used: Option<u64>, now: Instant) -> bool {
        self.walked.is_some_and(|(walked, then)| then == used && now < walked + IDLE_SCAN_INTERVAL)
    }
}

#[derive(Debug)]
enum ScanResult {
    Spaces {
        node: Option<(Filesystem, u64)>,
        images: Option<(Filesystem, u64)>,
        logs: Option<(Filesystem, u64)>,
        image_root: Option<PathBuf>,
    },
    ImageLayers(Option<u64>),
    Container(Option<ContainerSize>),
    Volume(Option<VolumeSize>),
    PodFiles(Option<Size>),
}

/// The result of a scan, and its duration.
type TimedResult = (ScanResult, Duration);

#[derive(Debug)]
pub(crate) struct DiskUsage {
    config: Config,
    pool: StallTolerantPool<ScanKey, ScanJob, TimedResult>,
    schedules: HashMap<ScanKey, ScanSchedule>,
    storage: watch::Sender<Arc<Storage>>,
    inputs: Inputs,
}

/// What is told from outside.
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
        (Self { config, pool, schedules: HashMap::new(), storage, inputs }, receiver)
    }

    /// Runs until `shutdown`, or until the sampler has ended.
    pub(crate) async fn run(
        mut self,
        mut layers: watch::Receiver<Layers>,
        mut volumes: watch::Receiver<Arc<Vec<Volume>>>,
        snapshot: watch::Receiver<Arc<Snapshot>>,
        shutdown: CancellationToken,
    ) {
        name_thread("sizes rounds");
        let (mut has_volumes, mut has_dirs, mut has_images, mut has_layers) = (true, true, true, true);
        let mut rescans = Vec::new();
        let mut dirs = self.config.engine_dirs.clone();
        loop {
            let jobs = self.jobs(&layers.borrow_and_update(), &volumes.borrow_and_update(), &dirs.borrow_and_update());
            self.set_targets(&jobs);
            loop {
                // A clone: a borrowed snapshot would block the publication of the next.
                self.run_due(&jobs, &ran(&Arc::clone(&snapshot.borrow())));
                for answer in rescans.drain(..) {
                    // The caller may have timed out.
                    let _ = oneshot::Sender::send(answer, ());
                }
                let next = self.schedules.values().filter_map(|due| due.at).min();
                let next = next.map_or(SPACE_INTERVAL, |at| at.saturating_duration_since(Instant::now()));
                // Stalled scans are checked again soon.
                let timeout =
                    if self.schedules.values().any(|due| due.at.is_none()) { SCAN_TIMEOUT } else { SPACE_INTERVAL };
                tokio::select! {
                    biased;
                    () = shutdown.cancelled() => return,
                    changed = layers.changed() => {
                        if changed.is_err() { return }
                        break;
                    }
                    Some(answer) = self.inputs.rescans.recv() => {
                        self.rescan(&jobs);
                        rescans.push(answer);
                    }
                    changed = volumes.changed(), if has_volumes => {
                        has_volumes = changed.is_ok();
                        break;
                    }
                    changed = dirs.changed(), if has_dirs => {
                        has_dirs = changed.is_ok();
                        if has_dirs {
                            self.schedules.clear();
                            break;
                        }
                    }
                    changed = self.inputs.image_bytes.changed(), if has_images => {
                        has_images = changed.is_ok();
                        if has_images {
                            self.schedules.remove(&ScanKey::ImageLayers);
                            break;
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
    }

    /// All scans.
    fn jobs(&self, layers: &[Layer], volumes: &[Volume], dirs: &EngineDirs) -> BTreeMap<ScanKey, ScanJob> {
        let under = |path: &Path| source::under(&self.config.root, path);
        let data_root = dirs.data_root.as_deref().map(under);
        // Where a layer is, images are; before the first one it is where the engine says.
        let of_layers = layers.iter().find_map(|layer| containerd_root(layer.dir.as_deref()?));
        let images = of_layers.or_else(|| dirs.image_root.as_deref().map(under));
        let spaces = ScanJob::Spaces { node: under(&self.config.data_dir), images, logs: data_root.clone() };
        let image_layers =
            data_root.clone().map(|data_root| (ScanKey::ImageLayers, ScanJob::ImageLayers { data_root }));
        let containers = layers.iter().map(|layer| {
            let (id, dir) = (layer.container_id.clone(), layer.dir.clone());
            let job = ScanJob::Container { id, layer: dir, data_root: data_root.clone() };
            (ScanKey::Container(layer.container_id.clone()), job)
        });
        let pods_dir = self.config.pods_dir.as_deref().map(under);
        let pods = layers.iter().map(|layer| &layer.pod_uid).filter(|uid| !uid.is_empty());
        let pod_files = pods.filter_map(|uid| {
            let dir = pods_dir.as_ref()?.join(uid);
            Some((ScanKey::PodFiles(uid.clone()), ScanJob::PodFiles { dir }))
        });
        let volumes = volumes.iter().map(|volume| {
            let there = Volume { path: under(&volume.path), ..volume.clone() };
            (ScanKey::Volume(volume.pod_uid.clone(), volume.name.clone()), ScanJob::Volume(there))
        });
        let of_node = std::iter::once((ScanKey::Spaces, spaces)).chain(image_layers);
        of_node.chain(containers).chain(volumes).chain(pod_files).collect()
    }

    /// Adds new targets and drops those that no longer exist.
    fn set_targets(&mut self, jobs: &BTreeMap<ScanKey, ScanJob>) {
        self.schedules.retain(|key, _| jobs.contains_key(key));
        let now = Instant::now();
        for key in jobs.keys() {
            self.schedules.entry(key.clone()).or_insert(ScanSchedule::new(now));
        }
        self.storage.send_if_modified(|storage| {
            let has_container = |id: &String| jobs.contains_key(&ScanKey::Container(id.clone()));
            let has_volume = |uid: &str, volume: &VolumeSize| {
                jobs.contains_key(&ScanKey::Volume(uid.to_owned(), volume.name.clone()))
            };
            let has_files = |uid: &String| jobs.contains_key(&ScanKey::PodFiles(uid.clone()));
            let unchanged = storage.pod_files.keys().all(has_files)
                && storage.containers.keys().all(has_container)
                && storage.volumes.iter().all(|(uid, all)| all.iter().all(|v| has_volume(uid, v)));
            if unchanged {
                return false;
            }
            let storage = Arc::make_mut(storage);
            storage.pod_files.retain(|uid, _| has_files(uid));
            storage.containers.retain(|id, _| has_container(id));
            storage.volumes.retain(|uid, all| {
                all.retain(|volume| has_volume(uid, volume));
                !all.is_empty()
            });
            true
        });
    }

    /// Lets everything be walked over at once, whether its writers have run or not.
    fn rescan(&mut self, jobs: &BTreeMap<ScanKey, ScanJob>) {
        let now = Instant::now();
        for (key, schedule) in &mut self.schedules {
            if schedule.at.is_some() && jobs.get(key).is_some_and(ScanJob::is_walk) {
                *schedule = ScanSchedule::new(now);
            }
        }
    }

    /// Runs the scans that are due. `ran` is the CPU time used, by container and by pod.
    fn run_due(&mut self, jobs: &BTreeMap<ScanKey, ScanJob>, ran: &HashMap<&str, u64>) {
        let now = Instant::now();
        let mut due = Vec::new();
        for (key, job) in jobs {
            let Some(known) = self.schedules.get_mut(key).filter(|known| known.at.is_some_and(|at| at <= now)) else {
                continue;
            };
            let used = writers(key).and_then(|id| ran.get(id).copied());
            if job.is_walk() && known.is_idle(used, now) {
                known.at = Some(now + self.config.interval);
            } else {
                *known = ScanSchedule { at: None, walked: Some((now, used)) };
                due.push((key.clone(), job.clone()));
            }
        }
        let mut found = Vec::new();
        for (key, _) in self.pool.run_all(due, &mut found) {
            self.schedules.insert(key, ScanSchedule::new(now + SCAN_TIMEOUT));
        }
        for (key, (found, took)) in found {
            let pause = match key {
                ScanKey::Spaces => SPACE_INTERVAL,
                ScanKey::ImageLayers => IMAGE_LAYERS_INTERVAL,
                // Eviction enforces limits by them.
                ScanKey::PodFiles(_) | ScanKey::Volume(..) => self.config.walk_interval.min(EPHEMERAL_INTERVAL),
                _ => self.config.walk_interval,
            };
            // Dropped meanwhile.
            let Some(due) = self.schedules.get_mut(&key) else { continue };
            due.at = Some(Instant::now() + pause.max(took * SCAN_COST_FACTOR));
            // There is no result that a later scan could keep.
            if matches!(found, ScanResult::Container(None) | ScanResult::Volume(None) | ScanResult::PodFiles(None)) {
                due.walked = None;
            }
            self.put(key, found);
        }
        let late: Vec<ScanKey> =
            self.schedules.iter().filter(|(_, due)| due.at.is_none()).map(|(key, _)| key.clone()).collect();
        self.mark_stale(&late);
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
                    let all = storage.volumes.entry(uid).or_default();
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
            let counted = |(id, size): (&String, &ContainerSize)| {
                let counted = self.layer_size(id).filter(|_| size.rootfs.is_none_or(|size| size.inodes.is_none()));
                counted.filter(|counted| size.rootfs != Some(*counted)).map(|counted| (id.clone(), counted))
            };
            let changed: Vec<(String, Size)> = storage.containers.iter().filter_map(counted).collect();
            let is_changed = !changed.is_empty();
            for (id, counted) in changed {
                if let Some(size) = Arc::make_mut(storage).containers.get_mut(&id) {
                    size.rootfs = Some(counted);
                }
            }
            is_changed
        });
    }

    fn mark_stale(&self, late: &[ScanKey]) {
        self.storage.send_if_modified(|storage| {
            let is_late = |key: &ScanKey| late.contains(key);
            let container = |id: &String| is_late(&ScanKey::Container(id.clone()));
            let volume = |uid: &str, v: &VolumeSize| is_late(&ScanKey::Volume(uid.to_owned(), v.name.clone()));
            let right = storage.containers.iter().all(|(id, size)| size.stale == container(id))
                && storage.volumes.iter().all(|(uid, all)| all.iter().all(|v| v.stale == volume(uid, v)));
            if right {
                return false;
            }
            let storage = Arc::make_mut(storage);
            for (id, size) in &mut storage.containers {
                size.stale = container(id);
            }
            for (uid, all) in &mut storage.volumes {
                for size in all {
                    size.stale = volume(uid, size);
                }
            }
            true
        });
    }

    fn device(&self, device: u64) -> String {
        let numbers = u32::try_from(major(device)).ok().zip(u32::try_from(minor(device)).ok());
        numbers
            .and_then(|(major, minor)| source::block_device_name(&self.config.root, major, minor))
            .unwrap_or_default()
    }
}

/// The CPU time used, by container and by pod.
fn ran(snapshot: &Snapshot) -> HashMap<&str, u64> {
    let mut ran = HashMap::new();
    for row in &snapshot.rows {
        for id in [&row.target.container_id, &row.target.pod_uid] {
            let sum: &mut u64 = ran.entry(id.as_str()).or_default();
            *sum = sum.wrapping_add(row.sample.cpu.usage_ns);
        }
    }
    ran
}

/// The container or the pod whose processes may write there.
fn writers(key: &ScanKey) -> Option<&str> {
    match key {
        ScanKey::Spaces | ScanKey::ImageLayers => None,
        ScanKey::Container(id) => Some(id),
        ScanKey::Volume(uid, _) | ScanKey::PodFiles(uid) => Some(uid),
    }
}

fn scan(job: ScanJob, keep_going: &dyn Fn() -> bool) -> ScanResult {
    let at = jiff::Timestamp::now();
    match job {
        ScanJob::Spaces { node, images, logs } => ScanResult::Spaces {
            node: space_of(&node),
            images: images.as_deref().and_then(space_of),
            logs: logs.as_deref().and_then(space_of),
            image_root: images,
        },
        ScanJob::ImageLayers { data_root } => ScanResult::ImageLayers(source::layers(&data_root)),
        ScanJob::Container { id, layer, data_root } => {
            let size = |(bytes, inodes)| Size { bytes, inodes: Some(inodes) };
            let walked = layer.as_deref().map(|dir| source::tree(dir, keep_going));
            // A walk that was stopped has no result.
            if walked == Some(None) {
                return ScanResult::Container(None);
            }
            // Only overlays have a directory of their own layer; of others the engine is asked.
            let rootfs = walked.flatten().map(size);
            let logs = data_root.and_then(|data_root| source::logs(&data_root, &id)).map(size);
            ScanResult::Container(Some(ContainerSize { at, rootfs, logs, stale: false }))
        }
        ScanJob::Volume(volume) => ScanResult::Volume(volume_size(volume, keep_going)),
        ScanJob::PodFiles { dir } => ScanResult::PodFiles(source::pod_files(&dir, keep_going)),
    }
}

/// Before the first pod the directory may not be there: its parent is on the same file system.
fn space_of(path: &Path) -> Option<(Filesystem, u64)> {
    let there = path.ancestors().find(|p| p.exists())?;
    source::space(there, jiff::Timestamp::now())
        .inspect_err(|error| tracing::debug!(%error, "failed to query the space of a file system; retrying"))
        .ok()
}

fn volume_size(volume: Volume, keep_going: &dyn Fn() -> bool) -> Option<VolumeSize> {
    let (mut space, _) = source::space(&volume.path, jiff::Timestamp::now()).ok()?;
    let mut inodes_used = space.inodes.saturating_sub(space.inodes_free);
    let in_memory = source::is_mount(&volume.path);
    if volume.of_pod {
        (space.used_bytes, inodes_used) = source::tree(&volume.path, keep_going)?;
    }
    Some(VolumeSize {
        name: volume.name,
        claim: volume.claim,
        ephemeral: volume.of_pod && !in_memory,
        space,
        inodes_used,
        stale: false,
    })
}

#[cfg(test)]
mod tests;
