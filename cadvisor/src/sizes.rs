//! The task that owns sizes on disk. Looks are slow and a dead file system can hang them, so they run on a lane of
//! their own, and pages show the last result.

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use nix::sys::stat::{major, minor};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    config::{Config, Volume},
    lane::Lane,
    model::{ContainerSize, Filesystem, Snapshot, Storage, VolumeSize},
    sampler::{Layers, name_thread},
    source,
};

/// How often the space of whole file systems is asked: cheap.
const SPACE_EVERY: Duration = Duration::from_secs(30);
/// A walk may take this part of the time at most: the next comes after its cost times this.
const SHARE: u32 = 50;
/// While nothing ran that could have written, it is walked so often: others may write too, such as `docker cp`.
const ASLEEP_EVERY: Duration = Duration::from_secs(300);
/// What falls due within so short a time is done together.
const AT_ONCE: Duration = Duration::from_secs(1);
/// A look that takes longer goes on by itself, and another begins.
const PATIENCE: Duration = Duration::from_secs(2);
/// How many may do so.
const HANGING_MOST: u64 = 32;

/// What is looked at.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Key {
    /// The node's file system and the images'.
    Spaces,
    Container(String),
    /// By pod and name.
    Volume(String, String),
}

#[derive(Debug, Clone)]
enum Job {
    Spaces { node: PathBuf, images: PathBuf },
    Container { id: String, layer: Option<PathBuf>, docker_root: PathBuf },
    Volume(Volume),
}

impl Job {
    /// Whether files are counted, which costs; else a file system is asked.
    fn is_walk(&self) -> bool {
        match self {
            Self::Spaces { .. } => false,
            Self::Container { .. } => true,
            Self::Volume(volume) => volume.of_pod,
        }
    }
}

/// When something is looked at again, and what is known of the last time.
#[derive(Debug)]
struct Due {
    /// None while a look is under way.
    at: Option<Instant>,
    /// When it was walked, and the CPU time that those who may write there had used before.
    walked: Option<(Instant, Option<u64>)>,
}

impl Due {
    fn new(at: Instant) -> Self {
        Self { at: Some(at), walked: None }
    }

    /// Whether nobody who may write there has run since the last walk. `used` is their CPU time.
    fn is_asleep(&self, used: Option<u64>, now: Instant) -> bool {
        self.walked.is_some_and(|(walked, then)| then == used && now < walked + ASLEEP_EVERY)
    }
}

#[derive(Debug)]
enum Found {
    Spaces { node: Option<(Filesystem, u64)>, images: Option<(Filesystem, u64)>, image_bytes: Option<u64> },
    Container(Option<ContainerSize>),
    Volume(Option<VolumeSize>),
}

/// What came of a look, and how long it took.
type Answer = (Found, Duration);

#[derive(Debug)]
pub(crate) struct Sizes {
    config: Config,
    lane: Lane<Key, Job, Answer>,
    due: HashMap<Key, Due>,
    storage: watch::Sender<Arc<Storage>>,
}

impl Sizes {
    pub(crate) fn new(config: Config, shutdown: CancellationToken) -> (Self, watch::Receiver<Arc<Storage>>) {
        let (storage, receiver) = watch::channel(Arc::default());
        let lane = Lane::new("sizes", HANGING_MOST, PATIENCE, move |job| {
            let began = Instant::now();
            (look(job, &|| !shutdown.is_cancelled()), began.elapsed())
        });
        (Self { config, lane, due: HashMap::new(), storage }, receiver)
    }

    /// Works until told to stop, or until the sampler is gone.
    pub(crate) async fn run(
        mut self,
        mut layers: watch::Receiver<Layers>,
        mut volumes: watch::Receiver<Arc<Vec<Volume>>>,
        snapshot: watch::Receiver<Arc<Snapshot>>,
        shutdown: CancellationToken,
    ) {
        name_thread("sizes rounds");
        let mut told = true;
        loop {
            let jobs = self.jobs(&layers.borrow_and_update(), &volumes.borrow_and_update());
            self.keep(&jobs);
            loop {
                // A clone: while it were borrowed no round could be published.
                self.look_at(&jobs, &ran(&Arc::clone(&snapshot.borrow())));
                let next = self.due.values().filter_map(|due| due.at).min();
                let next = next.map_or(SPACE_EVERY, |at| at.saturating_duration_since(Instant::now()));
                // What is late is asked for again soon.
                let most = if self.due.values().any(|due| due.at.is_none()) { PATIENCE } else { SPACE_EVERY };
                tokio::select! {
                    biased;
                    () = shutdown.cancelled() => return,
                    changed = layers.changed() => {
                        if changed.is_err() { return }
                        break;
                    }
                    changed = volumes.changed(), if told => {
                        told = changed.is_ok();
                        break;
                    }
                    () = tokio::time::sleep(next.clamp(AT_ONCE, most)) => {}
                }
            }
        }
    }

    /// Everything that has a size.
    fn jobs(&self, layers: &[(String, Option<PathBuf>)], volumes: &[Volume]) -> BTreeMap<Key, Job> {
        let under = |path: &Path| source::under(&self.config.root, path);
        let docker_root = under(&self.config.docker_root);
        let spaces = Job::Spaces { node: under(&self.config.data_dir), images: docker_root.clone() };
        let containers = layers.iter().map(|(id, layer)| {
            let job = Job::Container { id: id.clone(), layer: layer.clone(), docker_root: docker_root.clone() };
            (Key::Container(id.clone()), job)
        });
        let volumes = volumes.iter().map(|volume| {
            let there = Volume { path: under(&volume.path), ..volume.clone() };
            (Key::Volume(volume.pod_uid.clone(), volume.name.clone()), Job::Volume(there))
        });
        std::iter::once((Key::Spaces, spaces)).chain(containers).chain(volumes).collect()
    }

    /// Takes in what is new and lets go of what is no more.
    fn keep(&mut self, jobs: &BTreeMap<Key, Job>) {
        self.due.retain(|key, _| jobs.contains_key(key));
        let now = Instant::now();
        for key in jobs.keys() {
            self.due.entry(key.clone()).or_insert(Due::new(now));
        }
        self.storage.send_if_modified(|storage| {
            let has_container = |id: &String| jobs.contains_key(&Key::Container(id.clone()));
            let has_volume =
                |uid: &str, volume: &VolumeSize| jobs.contains_key(&Key::Volume(uid.to_owned(), volume.name.clone()));
            let kept = storage.containers.keys().all(has_container)
                && storage.volumes.iter().all(|(uid, all)| all.iter().all(|v| has_volume(uid, v)));
            if kept {
                return false;
            }
            let storage = Arc::make_mut(storage);
            storage.containers.retain(|id, _| has_container(id));
            storage.volumes.retain(|uid, all| {
                all.retain(|volume| has_volume(uid, volume));
                !all.is_empty()
            });
            true
        });
    }

    /// Does what is due. `ran` is the CPU time used, by container and by pod.
    fn look_at(&mut self, jobs: &BTreeMap<Key, Job>, ran: &HashMap<&str, u64>) {
        let now = Instant::now();
        let mut due = Vec::new();
        for (key, job) in jobs {
            let Some(known) = self.due.get_mut(key).filter(|known| known.at.is_some_and(|at| at <= now)) else {
                continue;
            };
            let used = writers(key).and_then(|id| ran.get(id).copied());
            if job.is_walk() && known.is_asleep(used, now) {
                known.at = Some(now + self.config.interval);
            } else {
                *known = Due { at: None, walked: Some((now, used)) };
                due.push((key.clone(), job.clone()));
            }
        }
        let mut found = Vec::new();
        for (key, _) in self.lane.round(due, &mut found) {
            self.due.insert(key, Due::new(now + PATIENCE));
        }
        for (key, (found, took)) in found {
            let pause = if key == Key::Spaces { SPACE_EVERY } else { self.config.walk_interval };
            // Forgotten meanwhile.
            let Some(due) = self.due.get_mut(&key) else { continue };
            due.at = Some(Instant::now() + pause.max(took * SHARE));
            // Nothing was counted that could still be so.
            if matches!(found, Found::Container(None) | Found::Volume(None)) {
                due.walked = None;
            }
            self.put(key, found);
        }
        let late: Vec<Key> = self.due.iter().filter(|(_, due)| due.at.is_none()).map(|(key, _)| key.clone()).collect();
        self.mark_stale(&late);
    }

    fn put(&self, key: Key, found: Found) {
        self.storage.send_modify(|storage| {
            let storage = Arc::make_mut(storage);
            match (key, found) {
                (_, Found::Spaces { node, images, image_bytes }) => {
                    storage.node = node.map(|(space, _)| space);
                    storage.images = images.map(|(space, _)| space);
                    storage.images_device = images.map_or_else(String::new, |(_, device)| self.device(device));
                    storage.image_bytes = image_bytes;
                }
                (Key::Container(id), Found::Container(Some(size))) => {
                    storage.containers.insert(id, size);
                }
                (Key::Volume(uid, _), Found::Volume(Some(size))) => {
                    let all = storage.volumes.entry(uid).or_default();
                    match all.binary_search_by(|known| known.name.cmp(&size.name)) {
                        Ok(at) => all[at] = size,
                        Err(at) => all.insert(at, size),
                    }
                }
                // A folder that is not there (yet, or any more) has no size.
                _ => {}
            }
        });
    }

    fn mark_stale(&self, late: &[Key]) {
        self.storage.send_if_modified(|storage| {
            let is_late = |key: &Key| late.contains(key);
            let container = |id: &String| is_late(&Key::Container(id.clone()));
            let volume = |uid: &str, v: &VolumeSize| is_late(&Key::Volume(uid.to_owned(), v.name.clone()));
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
            .unwrap_or_else(|| self.config.docker_root.display().to_string())
    }
}

/// The CPU time used, by container and by pod.
fn ran(snapshot: &Snapshot) -> HashMap<&str, u64> {
    let mut ran = HashMap::new();
    for row in &snapshot.rows {
        for id in [&row.subject.container_id, &row.subject.pod_uid] {
            let sum: &mut u64 = ran.entry(id.as_str()).or_default();
            *sum = sum.wrapping_add(row.sample.cpu.usage_ns);
        }
    }
    ran
}

/// The container or the pod that may write there.
fn writers(key: &Key) -> Option<&str> {
    match key {
        Key::Spaces => None,
        Key::Container(id) => Some(id),
        Key::Volume(uid, _) => Some(uid),
    }
}

fn look(job: Job, go_on: &dyn Fn() -> bool) -> Found {
    let at = jiff::Timestamp::now();
    match job {
        Job::Spaces { node, images } => {
            Found::Spaces { node: space_of(&node), images: space_of(&images), image_bytes: source::layers(&images) }
        }
        Job::Container { id, layer, docker_root } => {
            let walked = layer.as_deref().map(|dir| source::tree(dir, go_on));
            let (logs_bytes, logs_inodes) = source::logs(&docker_root, &id);
            // Stopped in the middle, a walk tells nothing.
            let size = (walked != Some(None)).then(|| {
                let (rootfs_bytes, rootfs_inodes) = walked.flatten().unwrap_or_default();
                ContainerSize { at, rootfs_bytes, rootfs_inodes, logs_bytes, logs_inodes, stale: false }
            });
            Found::Container(size)
        }
        Job::Volume(volume) => Found::Volume(volume_size(volume, go_on)),
    }
}

/// Before the first pod the directory may not be there: its parent is on the same file system.
fn space_of(path: &Path) -> Option<(Filesystem, u64)> {
    let there = path.ancestors().find(|p| p.exists())?;
    source::space(there, jiff::Timestamp::now())
        .inspect_err(|error| tracing::debug!(%error, "space of a file system is unknown for now"))
        .ok()
}

fn volume_size(volume: Volume, go_on: &dyn Fn() -> bool) -> Option<VolumeSize> {
    let (mut space, _) = source::space(&volume.path, jiff::Timestamp::now()).ok()?;
    let mut inodes_used = space.inodes.saturating_sub(space.inodes_free);
    let in_memory = source::is_mount(&volume.path);
    if volume.of_pod {
        (space.used_bytes, inodes_used) = source::tree(&volume.path, go_on)?;
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
