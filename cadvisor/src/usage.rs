//! The handle to the usage of the node.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{
    runtime::Handle,
    sync::{Mutex, broadcast, mpsc, oneshot, watch},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use windlass_kit::{
    blocking,
    prometheus::{Format, Text},
};

use crate::{
    config::Config,
    disk_usage::{DiskUsage, Inputs, Volumes},
    events::{Event, Events},
    expose::{self, View, rest, summary::Summary},
    history::Point,
    model::{ContainerSize, Process, Snapshot, Storage},
    page_cache::{CachedPage, Page, PageCache},
    sampler::{Layers, Request, Sampler, Targets},
    source,
};

/// A request for fresh samples waits at most this long, and then takes the last ones.
const REFRESH_TIMEOUT: Duration = Duration::from_millis(500);

/// How long a caller waits for a new walk over the disks.
const RESCAN_TIMEOUT: Duration = Duration::from_secs(5);
/// How old a list of processes may be.
const PROCESSES_MAX_AGE: Duration = Duration::from_secs(1);
/// An empty history would look like a container without a past.
const BUSY: &str = "usage is being read at the moment, and the past cannot be read; try again";

/// A response of the REST API.
#[derive(Debug)]
pub enum Rest {
    /// JSON.
    Page(Vec<u8>),
    /// JSON objects, one a line, without end.
    Stream(EventStream),
}

/// A stream of events.
#[derive(Debug)]
pub struct EventStream {
    request: rest::Request,
    events: broadcast::Receiver<Event>,
}

impl EventStream {
    /// The next event that matches the request, as a line; `None` when sampling has ended.
    pub async fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            let event = match self.events.recv().await {
                Ok(event) => event,
                // Some events were missed; later ones are not.
                Err(broadcast::error::RecvError::Lagged(_)) => continue,
                Err(broadcast::error::RecvError::Closed) => return None,
            };
            if let Some(line) = self.request.stream_event(&event).filter(|line| !line.is_empty()) {
                return Some(line);
            }
        }
    }
}

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
    events: Events,
    housekeepings: Arc<AtomicU64>,
    summaries: [PageCache; 2],
    resources: [PageCache; 2],
    containers: [PageCache; 2],
    image_bytes: watch::Sender<u64>,
    layer_bytes: watch::Sender<Arc<BTreeMap<String, u64>>>,
    rescans: mpsc::Sender<oneshot::Sender<()>>,
    processes: Mutex<Option<(Instant, Arc<Vec<Process>>)>>,
    tasks: TaskTracker,
}

impl Usage {
    /// Starts sampling. Must be called within a tokio runtime with timers, of whose blocking pool it occupies two
    /// threads. `targets` are the running containers by id, `volumes` those of pods by uid; both are taken by their
    /// differences. A machine without cgroups is logged as an error; the node's own usage is available nevertheless.
    #[must_use]
    pub fn start(config: Config, targets: Targets, volumes: Volumes, shutdown: CancellationToken) -> Self {
        let events = Events::default();
        let layers = Layers::default();
        let layers_seen = layers.subscribe().follow();
        let (sampler, snapshot) = Sampler::new(config.clone(), layers, events.clone());
        let housekeepings = sampler.housekeepings();
        let (image_bytes, layer_bytes) =
            (watch::Sender::new(0), watch::Sender::<Arc<BTreeMap<String, u64>>>::default());
        let (rescans, rescans_receiver) = mpsc::channel(4);
        let inputs = Inputs {
            image_bytes: image_bytes.subscribe(),
            layer_bytes: layer_bytes.subscribe(),
            rescans: rescans_receiver,
        };
        let (sizes, storage) = DiskUsage::new(config.clone(), inputs, shutdown.clone());
        let (requests, requests_receiver) = mpsc::channel(64);
        let tasks = TaskTracker::new();
        let runtime = Handle::current();
        let (handle, token) = (runtime.clone(), shutdown.clone());
        tasks.spawn_blocking(move || handle.block_on(sampler.run(targets, requests_receiver, token)));
        let snapshots_seen = snapshot.clone();
        tasks.spawn_blocking(move || runtime.block_on(sizes.run(layers_seen, volumes, snapshots_seen, shutdown)));
        tasks.close();
        // The snapshot before, however long this housekeeping took.
        let max_staleness = config.interval * 3 / 2;
        let inner = Inner {
            config,
            snapshot,
            storage,
            requests,
            events,
            housekeepings,
            // Each number of the full summary has its own time, and many clients read it.
            summaries: [PageCache::with_max_staleness(max_staleness), PageCache::default()],
            resources: Default::default(),
            containers: [PageCache::weak(), PageCache::weak()],
            image_bytes,
            layer_bytes,
            rescans,
            processes: Mutex::default(),
            tasks,
        };
        Self { inner: Arc::new(inner) }
    }

    /// Waits for samples that are not older than [`Config::max_age`], at most half a second. Call it before rendering a
    /// page whose numbers should be current.
    pub async fn refresh(&self) {
        let (answer, answered) = oneshot::channel();
        // A full queue means that samples are requested already.
        if self.inner.requests.try_send(Request::Fresh(answer)).is_ok() {
            let _ = tokio::time::timeout(REFRESH_TIMEOUT, answered).await;
        }
    }

    /// The history, oldest first, of a container, of a pod by its uid, or of the node for an empty id.
    pub async fn history(&self, id: &str) -> Vec<Point> {
        let found = self.histories(vec![id.to_owned()]).await;
        found.and_then(|mut found| found.remove(id)).unwrap_or_default()
    }

    /// The histories of many at once, by id; `None` when sampling is too busy to answer.
    async fn histories(&self, ids: Vec<String>) -> Option<HashMap<String, Vec<Point>>> {
        if ids.is_empty() {
            return Some(HashMap::new());
        }
        let (answer, answered) = oneshot::channel();
        self.inner.requests.try_send(Request::Histories(ids, answer)).ok()?;
        tokio::time::timeout(REFRESH_TIMEOUT, answered).await.ok()?.ok()
    }

    /// The machine's processes: one list for all that ask within a second, since it costs a walk over all of `/proc`.
    pub(crate) async fn processes(&self) -> std::io::Result<Arc<Vec<Process>>> {
        let mut listed = self.inner.processes.lock().await;
        if let Some((at, all)) = &*listed
            && at.elapsed() < PROCESSES_MAX_AGE
        {
            return Ok(Arc::clone(all));
        }
        let all = Arc::new(blocking::FILES.io(source::processes).await?);
        *listed = Some((Instant::now(), Arc::clone(&all)));
        Ok(all)
    }

    /// The newest samples, for use in process (eviction, autoscaling).
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.inner.snapshot.borrow())
    }

    /// Snapshots as they are published.
    #[must_use]
    pub fn snapshots(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.inner.snapshot.clone()
    }

    /// The newest disk usage.
    #[must_use]
    pub fn storage(&self) -> Arc<Storage> {
        Arc::clone(&self.inner.storage.borrow())
    }

    /// Sets the bytes that images occupy according to the engine; shown as `imageFs.usedBytes` where Docker has no list
    /// of layers to add up.
    pub fn set_image_bytes(&self, bytes: u64) {
        self.inner.image_bytes.send_if_modified(|known| std::mem::replace(known, bytes) != bytes);
    }

    /// Sets the bytes of writable layers as the engine counts them, by container id, for those that have no directory of
    /// their own.
    pub fn set_layer_bytes(&self, bytes: BTreeMap<String, u64>) {
        self.inner.layer_bytes.send_if_modified(|known| {
            let differs = **known != bytes;
            if differs {
                *known = Arc::new(bytes);
            }
            differs
        });
    }

    /// Walks over everything that pods have on the disk now, and waits for it, at most some seconds: a large tree takes
    /// long, and is found out later.
    pub async fn rescan_disks(&self) {
        let (answer, answered) = oneshot::channel();
        if self.inner.rescans.try_send(answer).is_ok() {
            let _ = tokio::time::timeout(RESCAN_TIMEOUT, answered).await;
        }
    }

    /// Whether there are containers whose writable layers only the engine can count.
    #[must_use]
    pub fn has_uncounted_layers(&self) -> bool {
        let is_uncounted = |size: &ContainerSize| size.rootfs.is_none_or(|size| size.inodes.is_none());
        self.storage().containers.values().any(is_uncounted)
    }

    /// The kubelet's `/stats/summary`, reduced to CPU, memory and swap if `only_cpu_and_memory`. Never blocks.
    #[must_use]
    pub fn summary(&self, only_cpu_and_memory: bool) -> Summary {
        expose::summary::summary(&self.view(), only_cpu_and_memory)
    }

    /// The same as JSON, if it is available without rendering.
    #[must_use]
    pub fn cached_summary_json(&self, only_cpu_and_memory: bool) -> Option<CachedPage> {
        self.rendered_summary(only_cpu_and_memory).cached(&self.view())
    }

    /// The same as JSON, rendered once for all clients between two housekeepings: with hundreds of pods that takes
    /// milliseconds.
    #[must_use]
    pub fn summary_json(&self, only_cpu_and_memory: bool) -> Page {
        self.rendered_summary(only_cpu_and_memory).of(&self.view(), |view| {
            serde_json::to_vec(&expose::summary::summary(view, only_cpu_and_memory)).unwrap_or_default()
        })
    }

    /// The kubelet's `/metrics/cadvisor`, rendered once for all clients that read it at the same time.
    #[must_use]
    pub fn cadvisor_text(&self, format: Format) -> Page {
        let [plain, open] = &self.inner.containers;
        let page = if format == Format::Plain { plain } else { open };
        page.of(&self.view(), |view| expose::prom_cadvisor::text(view, jiff::Timestamp::now(), format).into_bytes())
    }

    /// The kubelet's `/metrics/resource`, rendered once for all clients between two housekeepings.
    #[must_use]
    pub fn resource_text(&self, format: Format) -> Page {
        let [plain, open] = &self.inner.resources;
        let page = if format == Format::Plain { plain } else { open };
        page.of(&self.view(), |view| expose::prom_resource::text(view, format).into_bytes())
    }

    /// Adds the families of volumes, logs and of sampling itself to the kubelet's `/metrics`.
    pub fn render_kubelet_metrics(&self, page: &mut Text) {
        expose::prom_kubelet::put(&self.view(), self.inner.housekeepings.load(Ordering::Relaxed), page);
    }

    /// cAdvisor's REST API, read-only: the response to a path from `/api/` on, with its query and its body.
    ///
    /// # Errors
    /// An HTTP status and a message.
    pub async fn rest(&self, path: &str, query: &str, body: &[u8]) -> Result<Rest, (u16, String)> {
        let request = rest::Request::read(path, query, body)?;
        if request.is_stream() {
            return Ok(Rest::Stream(EventStream { request, events: self.inner.events.subscribe() }));
        }
        if request.needs_processes() {
            let listed = self.processes().await;
            let all = listed.map_err(|e| (500, format!("the processes could not be listed: {e}")))?;
            return Ok(Rest::Page(serde_json::to_vec(&request.processes(&all)).unwrap_or_default()));
        }
        if request.max_age().is_some_and(|age| age < self.inner.config.interval) {
            self.refresh().await;
        }
        let view = self.view();
        let ids: Vec<String> = request.history_ids(&view)?.into_iter().collect();
        let histories = self.histories(ids).await.ok_or_else(|| (503, BUSY.to_owned()))?;
        let answer = request.answer(&view, &histories, &self.inner.events.all());
        answer.map(|json| Rest::Page(serde_json::to_vec(&json).unwrap_or_default()))
    }

    /// The starts of a pod's containers, with their names, as far back as events are kept.
    #[must_use]
    pub fn starts(&self, pod_uid: &str) -> Vec<(String, jiff::Timestamp)> {
        self.inner.events.starts(pod_uid)
    }

    /// Waits until both tasks have ended, after the token was cancelled.
    pub async fn stopped(&self) {
        self.inner.tasks.wait().await;
    }

    fn rendered_summary(&self, only_cpu_and_memory: bool) -> &PageCache {
        let [full, small] = &self.inner.summaries;
        if only_cpu_and_memory { small } else { full }
    }

    fn view(&self) -> View {
        let reported = *self.inner.image_bytes.borrow();
        let storage = self.storage();
        View {
            node_name: self.inner.config.node_name.clone(),
            snapshot: self.snapshot(),
            image_bytes: storage.image_bytes.or(Some(reported).filter(|bytes| *bytes > 0)),
            storage,
            pods_memory_bytes: self.inner.config.pods_memory_bytes,
        }
    }
}
