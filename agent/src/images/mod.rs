//! Images of the node: pulled once for all who want them, and collected when the disk fills up.
//!
//! `gc` decides which images go and is pure; `pulls` shares pulls; `credentials` finds what a registry is shown, also from
//! `plugins`; `records` keeps what was pulled with what, and so who may use it; this module owns what is known of images
//! and removes them. Talks to Docker through `engine` only and imports nothing of `pods`.

pub(crate) mod credentials;
mod gc;
mod plugins;
mod pulls;
mod records;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use nix::sys::statvfs::statvfs;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use windlass_kit::{
    atomic_file,
    events::{Recorder, Severity},
};

use crate::{
    engine::{
        Engine, EngineError,
        images::{Stored, familiar},
    },
    metrics::Metrics,
};
use gc::Memory;
pub use plugins::Plugins;
pub use pulls::{AllProgress, Progress};
pub(crate) use pulls::{Pulled, Pulls};
pub(crate) use records::Records;
pub use records::Verification;

/// Pulls at once where no number is set: Docker itself downloads three layers of each at a time.
const PULLS_AT_ONCE: usize = 16;
/// Images are listed this often, and collected this often; upstream's.
const LIST_EVERY: Duration = Duration::from_secs(30);
const COLLECT_EVERY: Duration = Duration::from_secs(300);

/// Settings of images.
#[derive(Debug, Clone)]
pub struct ImagesConfig {
    /// Docker's data root: the file system that images fill.
    pub data_root: PathBuf,
    /// Where is kept when each image was first seen and last used.
    pub file: PathBuf,
    /// Percent of the file system in use from which images are removed, and down to which; 100 is never.
    pub high: u8,
    /// See `high`.
    pub low: u8,
    /// Younger images stay.
    pub minimum_age: Duration,
    /// Images that were unused for this long go whatever room there is; zero is never.
    pub maximum_age: Duration,
    /// How many are pulled at once.
    pub parallel_pulls: Option<usize>,
    /// The folder that tells who may use which image.
    pub records_dir: PathBuf,
    /// For which images that are there a pod must show credentials all the same.
    pub verification: Verification,
    /// Programs that know credentials.
    pub plugins: Plugins,
}

/// An image in Docker's store, for the node's status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredImage {
    /// Digests, then tags.
    pub names: Vec<String>,
    /// Bytes.
    pub size: i64,
}

/// The images of this node. Clones share the same state.
#[derive(Debug, Clone)]
pub struct Images {
    pulls: Pulls,
    ask: mpsc::Sender<oneshot::Sender<()>>,
    list: watch::Receiver<Arc<Vec<StoredImage>>>,
    records: Records,
    plugins: Plugins,
}

/// What looks after images; [`Keeper::run`] must be spawned.
#[derive(Debug)]
pub struct Keeper {
    config: ImagesConfig,
    engine: Engine,
    asked: mpsc::Receiver<oneshot::Sender<()>>,
    list: watch::Sender<Arc<Vec<StoredImage>>>,
    pulls: watch::Receiver<AllProgress>,
    memory: Memory,
    records: Records,
    failures: u32,
    metrics: Arc<Metrics>,
}

impl Images {
    /// The handle, and what stands behind it.
    #[must_use]
    pub fn new(engine: Engine, config: ImagesConfig, metrics: Arc<Metrics>) -> (Self, Keeper) {
        let (ask, asked) = mpsc::channel(4);
        let (list, listed) = watch::channel(Arc::default());
        let pulls = Pulls::new(engine.clone(), config.parallel_pulls.unwrap_or(PULLS_AT_ONCE));
        let memory = read(&config.file);
        let progress = pulls.progress();
        let records = Records::open(config.records_dir.clone(), config.verification.clone());
        let images = Self { pulls, ask, list: listed, records: records.clone(), plugins: config.plugins.clone() };
        let keeper = Keeper { config, engine, asked, list, pulls: progress, memory, records, failures: 0, metrics };
        (images, keeper)
    }

    /// The largest of the store's images first.
    #[must_use]
    pub fn list(&self) -> watch::Receiver<Arc<Vec<StoredImage>>> {
        self.list.clone()
    }

    /// How far pulls are.
    #[must_use]
    pub fn progress(&self) -> watch::Receiver<AllProgress> {
        self.pulls.progress()
    }

    /// Removes every image that no container and no pod needs, and waits for it.
    pub async fn remove_unused(&self) {
        let (answer, answered) = oneshot::channel();
        if self.ask.send(answer).await.is_ok() {
            let _ = answered.await;
        }
    }

    pub(crate) fn pulls(&self) -> &Pulls {
        &self.pulls
    }

    /// Who may use which image.
    pub(crate) fn records(&self) -> &Records {
        &self.records
    }

    /// Programs that know credentials.
    pub(crate) fn plugins(&self) -> &Plugins {
        &self.plugins
    }
}

/// What the store holds and who needs it.
struct Store {
    stored: Vec<Stored>,
    in_use: BTreeSet<String>,
}

impl Keeper {
    /// Lists and collects until `shutdown`. `node` is who events are about.
    pub async fn run(
        mut self,
        node: ObjectReference,
        recorder: Recorder,
        pods: watch::Receiver<Arc<Vec<Arc<Pod>>>>,
        shutdown: CancellationToken,
    ) {
        let mut list = tokio::time::interval(LIST_EVERY);
        let mut collect = tokio::time::interval_at(tokio::time::Instant::now() + LIST_EVERY, COLLECT_EVERY);
        for timer in [&mut list, &mut collect] {
            timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        }
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                _ = list.tick() => drop(self.look(&pods).await),
                _ = collect.tick() => self.collect(&node, &recorder, &pods).await,
                Some(answer) = self.asked.recv() => {
                    if let Some(store) = self.look(&pods).await {
                        let all = gc::unused(&self.memory, &store.stored, &store.in_use, Duration::ZERO, Timestamp::now());
                        self.remove(&all, "space", |_| true).await;
                    }
                    let _ = answer.send(());
                }
            }
        }
    }

    /// What is there now, taken note of; `None` when Docker does not say.
    async fn look(&mut self, pods: &watch::Receiver<Arc<Vec<Arc<Pod>>>>) -> Option<Store> {
        let listed = Timestamp::now();
        let ask = async {
            let stored = self.engine.images().await?;
            let used = self.engine.images_in_use().await?;
            Ok::<_, EngineError>((stored, used))
        };
        let (stored, mut in_use) = match ask.await {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(%error, "images could not be listed; they are again in a while");
                return None;
            }
        };
        self.records.settle(&stored, listed).await;
        let wanted = wanted(&pods.borrow());
        in_use.extend(stored.iter().filter(|image| gc::is_called(image, &wanted)).map(|image| image.id.clone()));
        let before = self.memory.clone();
        gc::note(&mut self.memory, &stored, &in_use, Timestamp::now());
        if before != self.memory
            && let Err(error) = write(&self.config.file, &self.memory)
        {
            tracing::warn!(%error, file = %self.config.file.display(), "what is known of images could not be kept; after a restart their ages begin anew");
        }
        let shown = |image: &Stored| StoredImage {
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
        Some(Store { stored, in_use })
    }

    /// Removes images that are too old, and as many as the disk needs.
    async fn collect(
        &mut self,
        node: &ObjectReference,
        recorder: &Recorder,
        pods: &watch::Receiver<Arc<Vec<Arc<Pod>>>>,
    ) {
        let Some(store) = self.look(pods).await else { return };
        let now = Timestamp::now();
        let unused = gc::unused(&self.memory, &store.stored, &store.in_use, self.config.minimum_age, now);
        let (stale, unused): (Vec<&Stored>, Vec<&Stored>) =
            unused.into_iter().partition(|image| gc::is_stale(&self.memory, image, self.config.maximum_age, now));
        self.remove(&stale, "age", |_| true).await;
        let (root, high, low) = (self.config.data_root.clone(), self.config.high, self.config.low);
        let Some(wanted) = space(&root).and_then(|(all, free)| gc::to_free(all, free, high, low)) else {
            self.failures = 0;
            return;
        };
        let eligible: u64 = unused.iter().filter_map(|image| u64::try_from(image.size).ok()).sum();
        tracing::info!(bytes = wanted, images = unused.len(), "images are removed: the disk is nearly full");
        // Layers are shared, so that only the file system knows what was gained.
        let left = |_: &Stored| space(&root).is_some_and(|(all, free)| gc::to_free(all, free, low, low).is_some());
        self.remove(&unused, "space", left).await;
        if space(&root).and_then(|(all, free)| gc::to_free(all, free, high, low)).is_none() {
            self.failures = 0;
            return;
        }
        self.failures += 1;
        let message = format!(
            "Failed to garbage collect required amount of images. Attempted to free {wanted} bytes, but only found {eligible} bytes eligible to free."
        );
        recorder.record(node, Severity::Warning, "FreeDiskSpaceFailed", message.clone());
        if self.failures > 1 {
            recorder.record(node, Severity::Warning, "ImageGCFailed", message);
        }
    }

    /// Removes images one after the other for as long as `go_on` says so. One that is being pulled, or that something
    /// has begun to use meanwhile, stays.
    async fn remove(&self, images: &[&Stored], reason: &str, go_on: impl Fn(&Stored) -> bool) {
        for image in images {
            if !go_on(image) {
                return;
            }
            let pulled: BTreeSet<String> = self.pulls.borrow().values().map(|p| familiar(&p.image)).collect();
            if gc::is_called(image, &pulled) {
                continue;
            }
            match self.engine.remove_image(image).await {
                Ok(()) => {
                    self.metrics.images_collected.add([reason]);
                    tracing::info!(image = image.tags.first().unwrap_or(&image.id), "an unused image was removed");
                }
                // Docker refuses what a container or another image is made of.
                Err(error) => tracing::debug!(%error, "an image stays"),
            }
        }
    }
}

/// The names that pods which are not over call images by: of containers and of volumes.
fn wanted(pods: &[Arc<Pod>]) -> BTreeSet<String> {
    let over = |pod: &Pod| matches!(pod.status.as_ref().and_then(|s| s.phase.as_deref()), Some("Succeeded" | "Failed"));
    let of = |pod: &Arc<Pod>| -> Vec<String> {
        let Some(spec) = &pod.spec else { return Vec::new() };
        let containers = spec.init_containers.iter().flatten().chain(&spec.containers).filter_map(|c| c.image.clone());
        let visitors = spec.ephemeral_containers.iter().flatten().filter_map(|c| c.image.clone());
        let volumes = spec.volumes.iter().flatten().filter_map(|v| v.image.as_ref()?.reference.clone());
        containers.chain(visitors).chain(volumes).map(|name| familiar(&name)).collect()
    };
    pods.iter().filter(|pod| !over(pod)).flat_map(of).chain([familiar(crate::engine::pause::NAME)]).collect()
}

/// Bytes of a file system, and those that are free.
fn space(dir: &Path) -> Option<(u64, u64)> {
    let found = statvfs(dir).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.fragment_size());
    Some((bytes(found.blocks()), bytes(found.blocks_available())))
}

/// What an earlier start has kept; nothing when there is none, or it cannot be read.
fn read(file: &Path) -> Memory {
    let text = match fs::read(file) {
        Ok(text) => text,
        Err(error) => {
            if error.kind() != std::io::ErrorKind::NotFound {
                tracing::warn!(%error, file = %file.display(), "what was known of images could not be read; their ages begin anew");
            }
            return Memory::new();
        }
    };
    serde_json::from_slice(&text).unwrap_or_else(|error| {
        tracing::warn!(%error, file = %file.display(), "what was known of images makes no sense; their ages begin anew");
        Memory::new()
    })
}

fn write(file: &Path, memory: &Memory) -> std::io::Result<()> {
    if let Some(parent) = file.parent() {
        fs::create_dir_all(parent)?;
    }
    atomic_file::write_durable(file, &serde_json::to_vec(memory)?, 0o644)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_outlives_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("new/images.json");
        assert!(read(&file).is_empty());
        let at = Timestamp::from_second(1_700_000_000).unwrap();
        let memory = Memory::from([("sha256:1".to_owned(), gc::Known { first_seen: at, last_used: at })]);
        write(&file, &memory).unwrap();
        assert_eq!(read(&file), memory);
        fs::write(&file, "{half").unwrap();
        assert!(read(&file).is_empty(), "half a file is none");
    }

    #[test]
    fn images_of_live_pods_are_wanted() {
        let pod = |text: &str| Arc::new(serde_json::from_str::<Pod>(text).unwrap());
        let pods = [
            pod(r#"{"spec":{"initContainers":[{"name":"i","image":"busybox"}],
                "containers":[{"name":"c","image":"docker.io/library/nginx:1"}],
                "volumes":[{"name":"v","image":{"reference":"host/files:2"}}]}}"#),
            pod(r#"{"spec":{"containers":[{"name":"c","image":"old"}]},"status":{"phase":"Failed"}}"#),
        ];
        let names = wanted(&pods);
        for name in ["busybox:latest", "nginx:1", "host/files:2"] {
            assert!(names.contains(name), "{name}: {names:?}");
        }
        assert!(!names.contains("old:latest"));
    }
}
