//! The handle that others hold.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::{broadcast, mpsc, oneshot, watch},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use windlass_kit::expo::{Format, Text};

use crate::{
    config::{Config, Subject, Volume},
    events::{Event, Events},
    expose::{self, View, rest, summary::Summary},
    history::Point,
    model::{Snapshot, Storage},
    rendered::{Page, Ready, Rendered},
    sampler::{Request, Sampler},
    sizes::Sizes,
    source,
};

/// A caller that asks for fresh numbers waits this long at most and then takes what there is.
const PATIENCE: Duration = Duration::from_millis(500);

/// An answer of the REST API.
#[derive(Debug)]
pub enum Rest {
    /// JSON.
    Page(Vec<u8>),
    /// One JSON object after the other, without end.
    Stream(EventStream),
}

/// Events as they happen.
#[derive(Debug)]
pub struct EventStream {
    request: rest::Request,
    events: broadcast::Receiver<Event>,
}

impl EventStream {
    /// The next one that was asked for, on a line; `None` when usage is not read any more.
    pub async fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            let event = match self.events.recv().await {
                Ok(event) => event,
                // Some were missed; those to come are not.
                Err(broadcast::error::RecvError::Lagged(_)) => continue,
                Err(broadcast::error::RecvError::Closed) => return None,
            };
            if let Some(line) = self.request.as_it_comes(&event).filter(|line| !line.is_empty()) {
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
    rounds: Arc<AtomicU64>,
    summaries: [Rendered; 2],
    resources: [Rendered; 2],
    containers: [Rendered; 2],
    image_bytes: AtomicU64,
    tasks: TaskTracker,
}

impl Usage {
    /// Starts sampling. Must be called on a tokio runtime with timers. Takes two threads of its blocking pool
    /// for as long as it runs. A machine without cgroups is an error in the log, not here: the node's own
    /// numbers are still served.
    #[must_use]
    pub fn start(
        config: Config,
        subjects: watch::Receiver<Arc<Vec<Subject>>>,
        volumes: watch::Receiver<Arc<Vec<Volume>>>,
        shutdown: CancellationToken,
    ) -> Self {
        let events = Events::default();
        let (layers, layers_seen) = watch::channel(Arc::default());
        let (sampler, snapshot) = Sampler::new(config.clone(), layers, events.clone());
        let rounds = sampler.rounds();
        let (sizes, storage) = Sizes::new(config.clone(), shutdown.clone());
        let (requests, asked) = mpsc::channel(64);
        let tasks = TaskTracker::new();
        let runtime = Handle::current();
        let (handle, token) = (runtime.clone(), shutdown.clone());
        tasks.spawn_blocking(move || handle.block_on(sampler.run(subjects, asked, token)));
        let rounds_seen = snapshot.clone();
        tasks.spawn_blocking(move || runtime.block_on(sizes.run(layers_seen, volumes, rounds_seen, shutdown)));
        tasks.close();
        // The round before, however long this one took.
        let last_for = config.interval * 3 / 2;
        let inner = Inner {
            config,
            snapshot,
            storage,
            requests,
            events,
            rounds,
            // Each number of the full one carries its time, and it is asked for by many.
            summaries: [Rendered::or_the_last_for(last_for), Rendered::default()],
            resources: Default::default(),
            containers: [Rendered::only_while_read(), Rendered::only_while_read()],
            image_bytes: AtomicU64::new(0),
            tasks,
        };
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

    /// Tells the bytes that images take, as the engine counts them; shown as `imageFs.usedBytes` where Docker keeps no
    /// list of layers to add up.
    pub fn set_image_bytes(&self, bytes: u64) {
        self.inner.image_bytes.store(bytes, Ordering::Relaxed);
    }

    /// The kubelet's `/stats/summary`; reduced to CPU, memory and swap when asked. Never blocks.
    #[must_use]
    pub fn summary(&self, only_cpu_and_memory: bool) -> Summary {
        expose::summary::summary(&self.view(), only_cpu_and_memory)
    }

    /// The same as JSON, as far as nobody has to wait for it.
    #[must_use]
    pub fn summary_json_ready(&self, only_cpu_and_memory: bool) -> Option<Ready> {
        self.rendered_summary(only_cpu_and_memory).ready(&self.view())
    }

    /// The same, rendered once for all who ask between two rounds: with hundreds of pods that takes milliseconds.
    #[must_use]
    pub fn summary_json(&self, only_cpu_and_memory: bool) -> Page {
        self.rendered_summary(only_cpu_and_memory).of(&self.view(), |view| {
            serde_json::to_vec(&expose::summary::summary(view, only_cpu_and_memory)).unwrap_or_default()
        })
    }

    /// The kubelet's `/metrics/cadvisor`, rendered once for all who read it at the same time.
    #[must_use]
    pub fn cadvisor_text(&self, format: Format) -> Page {
        let [plain, open] = &self.inner.containers;
        let page = if format == Format::Plain { plain } else { open };
        page.of(&self.view(), |view| expose::prom_cadvisor::text(view, jiff::Timestamp::now(), format).into_bytes())
    }

    /// The kubelet's `/metrics/resource`, rendered once for all who ask between two rounds.
    #[must_use]
    pub fn resource_text(&self, format: Format) -> Page {
        let [plain, open] = &self.inner.resources;
        let page = if format == Format::Plain { plain } else { open };
        page.of(&self.view(), |view| expose::prom_resource::text(view, format).into_bytes())
    }

    /// Adds the families that tell of volumes, logs and this very work to the node's own page.
    pub fn put_own(&self, page: &mut Text) {
        expose::prom_own::put(&self.view(), self.inner.rounds.load(Ordering::Relaxed), page);
    }

    /// cAdvisor's REST API, read-only: the JSON that answers a path from `/api/` on, with its query and its body.
    ///
    /// # Errors
    /// An HTTP status and what is wrong with the request.
    pub async fn rest(&self, path: &str, query: &str, body: &[u8]) -> Result<Rest, (u16, String)> {
        let request = rest::Request::read(path, query, body)?;
        if request.has_no_end() {
            return Ok(Rest::Stream(EventStream { request, events: self.inner.events.to_come() }));
        }
        if request.wants_processes() {
            let listed = tokio::task::spawn_blocking(source::processes).await.map_err(std::io::Error::other).flatten();
            let all = listed.map_err(|e| (500, format!("the processes could not be listed: {e}")))?;
            return Ok(Rest::Page(serde_json::to_vec(&request.processes(&all)).unwrap_or_default()));
        }
        if request.max_age().is_some_and(|age| age < self.inner.config.interval) {
            self.refresh().await;
        }
        let view = self.view();
        let mut histories = HashMap::new();
        for id in request.wanted(&view)? {
            let past = self.history(&id).await;
            histories.insert(id, past);
        }
        let answer = request.answer(&view, &histories, &self.inner.events.all());
        answer.map(|json| Rest::Page(serde_json::to_vec(&json).unwrap_or_default()))
    }

    /// The starts of a pod's containers that were seen, with the name of each: as far back as events are kept.
    #[must_use]
    pub fn starts(&self, pod_uid: &str) -> Vec<(String, jiff::Timestamp)> {
        self.inner.events.starts(pod_uid)
    }

    /// Waits until both tasks have ended, after the token was cancelled.
    pub async fn stopped(&self) {
        self.inner.tasks.wait().await;
    }

    fn rendered_summary(&self, only_cpu_and_memory: bool) -> &Rendered {
        let [full, small] = &self.inner.summaries;
        if only_cpu_and_memory { small } else { full }
    }

    fn view(&self) -> View {
        let told = self.inner.image_bytes.load(Ordering::Relaxed);
        let storage = self.storage();
        View {
            node_name: self.inner.config.node_name.clone(),
            snapshot: self.snapshot(),
            image_bytes: storage.image_bytes.or(Some(told).filter(|bytes| *bytes > 0)),
            storage,
        }
    }
}
