//! The image manager: pulls images once for all pods that want them, and collects garbage when the disk fills up.
//!
//! `gc` decides which images are removed and is pure; `pulls` shares pulls; `credentials` finds the credentials of a
//! registry, also from `plugins`; `records` remembers which credentials images were pulled with, and so which pods may
//! use them. Talks to Docker through `engine` only and imports nothing of `pods`.

pub(crate) mod credentials;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod gc;
mod plugins;
mod pulls;
mod records;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use nix::sys::statvfs::statvfs;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use windlass_cadvisor::Usage;
use windlass_kit::{
    atomic_file, disk,
    events::{Recorder, Severity},
    repairs::Repair,
};

use crate::{
    engine::{
        Engine, EngineError,
        images::{ImageSummary, familiar},
    },
    metrics::Metrics,
};
use gc::ImageRecords;
pub use plugins::Plugins;
pub use pulls::{PullProgress, PullsInProgress};
pub(crate) use pulls::{Pulled, Pulls};
pub(crate) use records::PullRecords;
pub use records::PullVerificationPolicy;

/// Default number of parallel pulls: Docker itself downloads three layers of each in parallel.
const DEFAULT_PARALLEL_PULLS: usize = 16;
/// Intervals of listing images and of garbage collection; upstream's.
const LIST_INTERVAL: Duration = Duration::from_secs(30);
const GC_INTERVAL: Duration = Duration::from_secs(300);

/// Configuration of the image manager.
#[derive(Debug, Clone)]
pub struct ImagesConfig {
    /// The file that records when each image was first seen and last used.
    pub file: PathBuf,
    /// Percent of the file system in use at which garbage collection starts; 100 is never, also of old images, unless these have a
    /// maximum age.
    pub high: u8,
    /// Percent of the file system in use at which garbage collection stops.
    pub low: u8,
    /// Younger images are not collected.
    pub minimum_age: Duration,
    /// Images that were unused for this long are removed whatever the disk usage; zero is never.
    pub maximum_age: Duration,
    /// Whether images that this node did not pull are collected, too.
    pub foreign: bool,
    /// Most parallel pulls.
    pub parallel_pulls: Option<usize>,
    /// A download without news for this long is given up.
    pub pull_progress_deadline: Duration,
    /// The directory of pull records.
    pub records_dir: PathBuf,
    /// Which images of the store a pod must present credentials for.
    pub verification: PullVerificationPolicy,
    /// Credential provider plugins.
    pub plugins: Plugins,
}

impl ImagesConfig {
    /// Whether images are collected only where somebody asks for it.
    fn is_never(&self) -> bool {
        self.high >= 100 && self.maximum_age.is_zero()
    }
}

/// An image in Docker's store, for the node's status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredImage {
    /// Digests, then tags.
    pub names: Vec<String>,
    /// Bytes.
    pub size: i64,
}

/// A handle to the images of this node. Clones share the same state.
#[derive(Debug, Clone)]
pub struct Images {
    pulls: Pulls,
    gc_sender: mpsc::Sender<oneshot::Sender<()>>,
    list: watch::Receiver<Arc<Vec<StoredImage>>>,
    records: PullRecords,
    plugins: Plugins,
}

/// The task behind [`Images`]; [`ImageManager::run`] must be spawned.
#[derive(Debug)]
pub struct ImageManager {
    config: ImagesConfig,
    engine: Engine,
    gc_requests: mpsc::Receiver<oneshot::Sender<()>>,
    list: watch::Sender<Arc<Vec<StoredImage>>>,
    pulls: watch::Receiver<PullsInProgress>,
    image_records: ImageRecords,
    records: PullRecords,
    failures: u32,
    metrics: Arc<Metrics>,
    started: Instant,
}

impl Images {
    /// The handle, and the task behind it.
    #[must_use]
    pub fn build(engine: Engine, config: ImagesConfig, metrics: Arc<Metrics>) -> (Self, ImageManager) {
        let (gc_sender, gc_requests) = mpsc::channel(4);
        let (list, listed) = watch::channel(Arc::default());
        let pulls = Pulls::new(
            engine.clone(),
            config.parallel_pulls.unwrap_or(DEFAULT_PARALLEL_PULLS),
            config.pull_progress_deadline,
        );
        let image_records = read_records(&config.file);
        let progress = pulls.progress();
        let records = PullRecords::open(config.records_dir.clone(), config.verification.clone());
        let images = Self { pulls, gc_sender, list: listed, records: records.clone(), plugins: config.plugins.clone() };
        let manager = ImageManager {
            config,
            engine,
            gc_requests,
            list,
            pulls: progress,
            image_records,
            records,
            failures: 0,
            metrics,
            started: Instant::now(),
        };
        (images, manager)
    }

    /// The images of the store, the largest first.
    #[must_use]
    pub fn list(&self) -> watch::Receiver<Arc<Vec<StoredImage>>> {
        self.list.clone()
    }

    /// Progress of all pulls.
    #[must_use]
    pub fn progress(&self) -> watch::Receiver<PullsInProgress> {
        self.pulls.progress()
    }

    /// Removes every image that may be collected and that no container and no pod uses, except those that are younger
    /// than the minimum age, which are probably about to be used. Waits for it.
    pub async fn remove_unused(&self) {
        let (answer, answered) = oneshot::channel();
        if self.gc_sender.send(answer).await.is_ok() {
            let _ = answered.await;
        }
    }

    pub(crate) fn pulls(&self) -> &Pulls {
        &self.pulls
    }

    /// The pull records.
    pub(crate) fn records(&self) -> &PullRecords {
        &self.records
    }

    /// Credential provider plugins.
    pub(crate) fn plugins(&self) -> &Plugins {
        &self.plugins
    }
}

/// The images of the store, and the ids of those that stay: those in use, and those that are somebody's.
struct Store {
    stored: Vec<ImageSummary>,
    kept: BTreeSet<String>,
}

impl ImageManager {
    /// Lists images and collects garbage until `shutdown`. `node` is the object of events.
    pub async fn run(
        mut self,
        node: ObjectReference,
        recorder: Recorder,
        pods: watch::Receiver<Arc<Vec<Arc<Pod>>>>,
        usage: Usage,
        shutdown: CancellationToken,
    ) {
        let mut list = tokio::time::interval(LIST_INTERVAL);
        let [first, period] = [LIST_INTERVAL, GC_INTERVAL].map(|usual| Repair::ImageCollection.period(usual));
        let mut collect = tokio::time::interval_at(tokio::time::Instant::now() + first, period);
        for timer in [&mut list, &mut collect] {
            timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        }
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                _ = list.tick() => drop(self.refresh(&pods).await),
                _ = collect.tick(), if !self.config.is_never() => {
                    let image_root = usage.storage().image_root.clone();
                    self.collect_garbage(&node, &recorder, &pods, image_root.as_deref()).await;
                }
                Some(answer) = self.gc_requests.recv() => {
                    if let Some(store) = self.refresh(&pods).await {
                        let (age, now) = (self.config.minimum_age, Timestamp::now());
                        let all = gc::unused_images(&self.image_records, &store.stored, &store.kept, age, now);
                        self.remove(&all, "space", |_| true).await;
                    }
                    let _ = answer.send(());
                }
            }
        }
    }

    /// Lists the store and updates the records; `None` when Docker does not answer.
    async fn refresh(&mut self, pods: &watch::Receiver<Arc<Vec<Arc<Pod>>>>) -> Option<Store> {
        let listed = Timestamp::now();
        let listing = async {
            let stored = self.engine.images().await?;
            let used = self.engine.images_in_use().await?;
            Ok::<_, EngineError>((stored, used))
        };
        let (stored, mut in_use) = match listing.await {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(%error, "failed to list images; retrying");
                return None;
            }
        };
        self.records.prune_unknown(&stored, listed).await;
        let own = if self.config.foreign { None } else { Some(self.records.own(&stored).await) };
        let names_in_use = names_in_use(&pods.borrow());
        in_use.extend(stored.iter().filter(|image| gc::has_name(image, &names_in_use)).map(|image| image.id.clone()));
        let before = self.image_records.clone();
        gc::update_records(&mut self.image_records, &stored, &in_use, Timestamp::now());
        if before != self.image_records
            && let Err(error) = write_records(&self.config.file, &self.image_records)
        {
            tracing::warn!(%error, file = %self.config.file.display(), "failed to write image state file; image ages reset on restart");
        }
        let shown = |image: &ImageSummary| StoredImage {
            names: image.digests.iter().chain(&image.tags).cloned().collect(),
            size: image.size,
        };
        let mut list: Vec<StoredImage> = stored.iter().map(shown).collect();
        list.sort_by_key(|image| std::cmp::Reverse(image.size));
        self.list.send_if_modified(|told| {
            let differs = **told != list;
            if differs {
                *told = Arc::new(list);
            }
            differs
        });
        let kept = gc::kept(&stored, in_use, own.as_ref());
        Some(Store { stored, kept })
    }

    /// Removes images beyond the maximum age, and as many as the thresholds require.
    async fn collect_garbage(
        &mut self,
        node: &ObjectReference,
        recorder: &Recorder,
        pods: &watch::Receiver<Arc<Vec<Arc<Pod>>>>,
        image_root: Option<&Path>,
    ) {
        let Some(store) = self.refresh(pods).await else { return };
        let now = Timestamp::now();
        let unused = gc::unused_images(&self.image_records, &store.stored, &store.kept, self.config.minimum_age, now);
        let (stale, unused): (Vec<&ImageSummary>, Vec<&ImageSummary>) = unused.into_iter().partition(|image| {
            gc::exceeds_max_age(&self.image_records, image, self.config.maximum_age, self.started.elapsed(), now)
        });
        self.remove(&stale, "age", |_| true).await;
        let (high, low) = (self.config.high, self.config.low);
        let Some(root) = image_root else {
            tracing::warn!("Docker has not reported where it keeps images; collecting none for space");
            return;
        };
        let Some((capacity, before)) = space(root) else {
            tracing::warn!(dir = %root.display(), "failed to read the space of the file system of images; collecting none");
            return;
        };
        if capacity == 0 {
            recorder.record(node, Severity::Warning, "InvalidDiskCapacity", "invalid capacity 0 on image filesystem");
            return;
        }
        let Some(wanted) = gc::bytes_to_free(capacity, before, high, low) else {
            self.failures = 0;
            return;
        };
        tracing::info!(
            bytes = wanted,
            images = unused.len(),
            "disk usage above the high threshold; removing unused images"
        );
        // Images share layers, so only the file system shows how much was freed.
        let left =
            |_: &ImageSummary| space(root).is_some_and(|(all, free)| gc::bytes_to_free(all, free, low, low).is_some());
        self.remove(&unused, "space", left).await;
        if space(root).and_then(|(all, free)| gc::bytes_to_free(all, free, low, low)).is_none() {
            self.failures = 0;
            return;
        }
        self.failures += 1;
        let freed = space(root).map_or(0, |(_, after)| after.saturating_sub(before));
        let message = gc::insufficient(capacity, before, freed);
        recorder.record(node, Severity::Warning, "FreeDiskSpaceFailed", message.clone());
        if self.failures > 1 {
            recorder.record(node, Severity::Warning, "ImageGCFailed", message);
        }
    }

    /// Removes images one by one while `go_on` returns true. Images that are being pulled, or that came into use
    /// meanwhile, stay.
    async fn remove(&self, images: &[&ImageSummary], reason: &str, go_on: impl Fn(&ImageSummary) -> bool) {
        for image in images {
            if !go_on(image) {
                return;
            }
            let pulled: BTreeSet<String> = self.pulls.borrow().values().map(|p| familiar(&p.image)).collect();
            if gc::has_name(image, &pulled) {
                continue;
            }
            match self.engine.remove_image(image).await {
                Ok(()) => {
                    self.metrics.images_collected.add([reason]);
                    tracing::info!(image = image.tags.first().unwrap_or(&image.id), "removed unused image");
                }
                // Docker refuses to remove an image that a container or another image uses.
                Err(error) => tracing::debug!(%error, "failed to remove image"),
            }
        }
    }
}

/// The image names that active pods use, in containers and volumes.
fn names_in_use(pods: &[Arc<Pod>]) -> BTreeSet<String> {
    let terminal =
        |pod: &Pod| matches!(pod.status.as_ref().and_then(|s| s.phase.as_deref()), Some("Succeeded" | "Failed"));
    let of = |pod: &Arc<Pod>| -> Vec<String> {
        let Some(spec) = &pod.spec else { return Vec::new() };
        let containers = spec.init_containers.iter().flatten().chain(&spec.containers).filter_map(|c| c.image.clone());
        let ephemeral = spec.ephemeral_containers.iter().flatten().filter_map(|c| c.image.clone());
        let volumes = spec.volumes.iter().flatten().filter_map(|v| v.image.as_ref()?.reference.clone());
        containers.chain(ephemeral).chain(volumes).map(|name| familiar(&name)).collect()
    };
    pods.iter().filter(|pod| !terminal(pod)).flat_map(of).chain([familiar(crate::engine::pause::NAME)]).collect()
}

/// Capacity and available bytes of a file system.
fn space(dir: &Path) -> Option<(u64, u64)> {
    let found = statvfs(dir).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.fragment_size());
    Some((bytes(found.blocks()), bytes(found.blocks_available())))
}

/// Reads the image state file; empty if it does not exist or cannot be read.
fn read_records(file: &Path) -> ImageRecords {
    let text = match disk::read(file) {
        Ok(text) => text,
        Err(error) => {
            if error.kind() != std::io::ErrorKind::NotFound {
                tracing::warn!(%error, file = %file.display(), "failed to read image state file; resetting image ages");
            }
            return ImageRecords::new();
        }
    };
    serde_json::from_slice(&text).unwrap_or_else(|error| {
        tracing::warn!(%error, file = %file.display(), "image state file is corrupt; resetting image ages");
        ImageRecords::new()
    })
}

fn write_records(file: &Path, records: &ImageRecords) -> std::io::Result<()> {
    if let Some(parent) = file.parent() {
        atomic_file::make_dir(parent, 0o755)?;
    }
    atomic_file::write_durable(file, &serde_json::to_vec(records)?, 0o644)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_of_a_write_of_image_ages_may_fail() {
        let records = |second| {
            let at = Timestamp::from_second(second).unwrap();
            ImageRecords::from([("sha256:1".to_owned(), gc::ImageRecord { first_seen: at, last_used: Some(at) })])
        };
        let write = |dir: &Path, second| write_records(&dir.join("new/images.json"), &records(second));
        let pairs = windlass_model_disk::Case {
            what: "ages of images",
            prepare: &|dir| write(dir, 1).unwrap(),
            act: &|dir| write(dir, 2).map_err(|e| e.to_string()),
            judge: &|dir, done, what| {
                let found = read_records(&dir.join("new/images.json"));
                assert!(found == records(2) || (!done && found == records(1)), "{what}: {found:?}");
            },
            lasts: windlass_model_disk::Lasts::Power,
            says: &[],
        }
        .run();
        println!("ages of images: {pairs} pairs");
        assert!(pairs > 20, "{pairs}");
    }

    #[test]
    fn image_records_survive_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("new/images.json");
        assert!(read_records(&file).is_empty());
        let at = Timestamp::from_second(1_700_000_000).unwrap();
        let records =
            ImageRecords::from([("sha256:1".to_owned(), gc::ImageRecord { first_seen: at, last_used: Some(at) })]);
        write_records(&file, &records).unwrap();
        assert_eq!(read_records(&file), records);
        std::fs::write(&file, "{half").unwrap();
        assert!(read_records(&file).is_empty(), "half a file is none");
    }

    #[test]
    fn images_of_active_pods_are_in_use() {
        let pod = |text: &str| Arc::new(serde_json::from_str::<Pod>(text).unwrap());
        let pods = [
            pod(r#"{"spec":{"initContainers":[{"name":"i","image":"busybox"}],
                "containers":[{"name":"c","image":"docker.io/library/nginx:1"}],
                "volumes":[{"name":"v","image":{"reference":"host/files:2"}}]}}"#),
            pod(r#"{"spec":{"containers":[{"name":"c","image":"old"}]},"status":{"phase":"Failed"}}"#),
        ];
        let names = names_in_use(&pods);
        for name in ["busybox:latest", "nginx:1", "host/files:2"] {
            assert!(names.contains(name), "{name}: {names:?}");
        }
        assert!(!names.contains("old:latest"));
    }
}
