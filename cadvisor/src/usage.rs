//! The handle that others hold.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot, watch},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    config::{Config, Subject},
    expose::{self, View, summary::Summary},
    history::Point,
    model::{Snapshot, Storage},
    sampler::{Request, Sampler},
    sizes::Sizes,
};

/// A caller that asks for fresh numbers waits this long at most and then takes what there is.
const PATIENCE: Duration = Duration::from_millis(500);

/// Usage of the node, its pods and containers. Clones share the same tasks; the tasks end when the token given to
/// [`Usage::start`] is cancelled or the last clone is dropped.
#[derive(Debug, Clone)]
pub struct Usage {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: Config,
    snapshot: watch::Receiver<Arc<Snapshot>>,
    storage: watch::Receiver<Arc<Storage>>,
    requests: mpsc::Sender<Request>,
    image_bytes: AtomicU64,
    tasks: TaskTracker,
}

impl Usage {
    /// Starts sampling. Must be called on a tokio runtime with timers. Takes two threads of its blocking pool
    /// for as long as it runs. A machine without cgroups is an error in the log, not here: the node's own
    /// numbers are still served.
    #[must_use]
    pub fn start(config: Config, subjects: watch::Receiver<Arc<Vec<Subject>>>, shutdown: CancellationToken) -> Self {
        let (layers, layers_seen) = watch::channel(Arc::default());
        let (sampler, snapshot) = Sampler::new(config.clone(), layers);
        let (sizes, storage) = Sizes::new(config.clone());
        let (requests, asked) = mpsc::channel(64);
        let tasks = TaskTracker::new();
        let runtime = Handle::current();
        let (handle, token) = (runtime.clone(), shutdown.clone());
        tasks.spawn_blocking(move || handle.block_on(sampler.run(subjects, asked, token)));
        tasks.spawn_blocking(move || runtime.block_on(sizes.run(layers_seen, shutdown)));
        tasks.close();
        let inner = Inner { config, snapshot, storage, requests, image_bytes: AtomicU64::new(0), tasks };
        Self { inner: Arc::new(inner) }
    }

    /// Waits for a round that is not older than [`Config::max_age`]; half a second at most.
    /// Call it before one of the pages below when their numbers should be of now.
    pub async fn refresh(&self) {
        let (answer, answered) = oneshot::channel();
        // A full queue means that rounds are already asked for.
        if self.inner.requests.try_send(Request::Fresh(answer)).is_ok() {
            let _ = tokio::time::timeout(PATIENCE, answered).await;
        }
    }

    /// The past (oldest first) of a container, of a pod by its uid, or of the node for an empty id.
    pub async fn history(&self, id: &str) -> Vec<Point> {
        let (answer, answered) = oneshot::channel();
        if self.inner.requests.try_send(Request::History(id.to_owned(), answer)).is_err() {
            return Vec::new();
        }
        tokio::time::timeout(PATIENCE, answered).await.ok().and_then(Result::ok).unwrap_or_default()
    }

    /// The newest round, for use in process (eviction, autoscaling).
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.inner.snapshot.borrow())
    }

    /// Each round as it is taken.
    #[must_use]
    pub fn rounds(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.inner.snapshot.clone()
    }

    /// The newest sizes on disk.
    #[must_use]
    pub fn storage(&self) -> Arc<Storage> {
        Arc::clone(&self.inner.storage.borrow())
    }

    /// Tells the bytes that images take, as the engine counts them; shown as `imageFs.usedBytes`.
    pub fn set_image_bytes(&self, bytes: u64) {
        self.inner.image_bytes.store(bytes, Ordering::Relaxed);
    }

    /// The kubelet's `/stats/summary`; reduced to CPU, memory and swap when asked. Never blocks.
    #[must_use]
    pub fn summary(&self, only_cpu_and_memory: bool) -> Summary {
        expose::summary::summary(&self.view(), only_cpu_and_memory)
    }

    /// The kubelet's `/metrics/cadvisor`. Never blocks.
    #[must_use]
    pub fn cadvisor_text(&self) -> String {
        expose::prom_cadvisor::text(&self.view(), jiff::Timestamp::now())
    }

    /// The kubelet's `/metrics/resource`. Never blocks.
    #[must_use]
    pub fn resource_text(&self) -> String {
        expose::prom_resource::text(&self.view())
    }

    /// Waits until both tasks have ended, after the token was cancelled.
    pub async fn stopped(&self) {
        self.inner.tasks.wait().await;
    }

    fn view(&self) -> View {
        View {
            node_name: self.inner.config.node_name.clone(),
            snapshot: self.snapshot(),
            storage: self.storage(),
            image_bytes: Some(self.inner.image_bytes.load(Ordering::Relaxed)).filter(|bytes| *bytes > 0),
        }
    }
}
