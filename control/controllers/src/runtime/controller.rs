//! What a controller is, and how controllers run: each in a task of its own, which is started again when it panics.

use std::{collections::BTreeMap, convert::Infallible, fmt, future::Future, hash::Hash, sync::Arc};

use futures::future::BoxFuture;
use kube::Client;
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;
use windlass_kit::{
    events::Recorder,
    metrics::Registry,
    prometheus::{Kind, Text},
    supervise::{Supervisor, keep_running},
};

use super::{
    cached::Cached,
    discovery::{Discoverer, Discovery},
    error::Error,
    index::Index,
    informer::{Cache, Informer, Life, MetadataSource as _},
    informers::Informers,
    key::Key,
    workqueue::{Outcome, QueueMetrics, WorkQueue},
};

/// Keys worked on at a time by one controller (upstream's usual number).
const WORKERS: usize = 5;

/// A controller: subscribes to changes, which queue keys, and reconciles one key at a time.
///
/// It is made again, with an empty queue, after a panic of any of its parts.
pub(crate) trait Controller: Sized + Send + Sync + 'static {
    /// Upstream's name of the controller.
    const NAME: &'static str;
    /// The name of its queue in metrics, which dashboards and alerts ask for; upstream's where it has such a queue.
    const QUEUE: &'static str = Self::NAME;
    /// Keys worked on at a time.
    const WORKERS: usize = WORKERS;
    /// What is reconciled, mostly namespace and name of an object.
    type Key: Clone + Eq + Hash + fmt::Display + Send + Sync + 'static;
    type Config: Clone + Send + Sync + 'static;

    /// Makes the controller: asks `context` for informers and adds indexes and handlers to them.
    fn subscribe(context: &mut Context<Self::Key>, config: Self::Config) -> Self;

    /// What comes between the first lists of all informers and the first key. Ends early on `shutdown`.
    fn prepare(&self, shutdown: &CancellationToken) -> impl Future<Output = ()> + Send {
        let _ = shutdown;
        std::future::ready(())
    }

    /// Brings the world in line with what the object of `key` says now.
    ///
    /// Level-triggered: it is not given what has changed, and one call may stand for many changes. It reads the caches, which
    /// may lag behind the API and behind its own writes, so a step that must not be done twice is guarded by a precondition,
    /// by expectations or by a read of the API. No two calls for one key overlap; a key that is queued meanwhile follows.
    ///
    /// `Done` waits for the next change, `After` comes back at that time whether something changes or not, and `Failed` and
    /// errors, which are logged, come back with back-off. A panic ends the controller, which is made again.
    fn reconcile(&self, key: Self::Key) -> impl Future<Output = Result<Outcome, Error>> + Send;

    /// What runs alongside the queue. Ends on `shutdown`.
    fn run(&self, shutdown: CancellationToken) -> impl Future<Output = ()> + Send {
        async move { shutdown.cancelled().await }
    }
}

/// What a controller is made of. Upstream's `ControllerContext`.
pub(crate) struct Context<Q> {
    shared: Shared,
    queue: WorkQueue<Q>,
    life: Life,
    synced: Vec<watch::Receiver<bool>>,
}

impl<Q: Clone + Eq + Hash + Send + 'static> Context<Q> {
    pub(crate) fn client(&self) -> Client {
        self.shared.client.clone()
    }

    /// The controller's queue.
    pub(crate) fn queue(&self) -> WorkQueue<Q> {
        self.queue.clone()
    }

    /// A recorder of events from `component`.
    pub(crate) fn recorder(&self, component: &str) -> Recorder {
        Recorder::new(self.client(), component, "")
    }

    /// The informer of `K`; the controller starts when its first list is complete.
    pub(crate) fn informer<K: Cached<DynamicType = ()>>(&mut self) -> Subscription<K> {
        let informer = self.shared.informers.of::<K>();
        self.synced.push(informer.synced());
        Subscription { informer, life: self.life.clone() }
    }

    /// The informers, for types that are known at run time only.
    pub(crate) fn informers(&self) -> Informers {
        self.shared.informers.clone()
    }

    /// What the API serves.
    pub(crate) fn discovery(&self) -> Discovery {
        self.shared.discovery.clone()
    }

    /// Where metrics are registered: a controller's own are a type, `metrics().of::<M>()`, so that they outlive it.
    pub(crate) fn metrics(&self) -> Registry {
        self.shared.registry.clone()
    }

    /// Of the controller, for handlers that are added later.
    pub(crate) fn life(&self) -> Life {
        self.life.clone()
    }
}

/// An informer, as one controller uses it.
pub(crate) struct Subscription<K> {
    informer: Arc<Informer<K>>,
    life: Life,
}

impl<K: Cached> Subscription<K> {
    pub(crate) fn cache(&self) -> Cache<K> {
        self.informer.cache()
    }

    /// Adds an index to the cache.
    pub(crate) fn index(&self, index: &Index<K>) -> &Self {
        self.informer.add_index(index);
        self
    }

    /// Calls `handler` with the object before and after each change; it must not block.
    pub(crate) fn on_change(
        &self,
        handler: impl Fn(Option<&Arc<K>>, Option<&Arc<K>>) + Send + Sync + 'static,
    ) -> &Self {
        self.informer.on_change(&self.life, handler);
        self
    }

    /// Queues each object that `wants`, initially and on every change.
    pub(crate) fn queue_where(
        &self,
        queue: WorkQueue<Key>,
        wants: impl Fn(&K) -> bool + Send + Sync + 'static,
    ) -> &Self {
        self.on_change(move |_, new| {
            if let Some(object) = new.filter(|object| wants(object)) {
                queue.add(Key::of(object.meta()));
            }
        })
    }

    /// The same for a handler that counts changes: it hears of none a second time.
    pub(crate) fn count_changes(
        &self,
        handler: impl Fn(Option<&Arc<K>>, Option<&Arc<K>>) + Send + Sync + 'static,
    ) -> &Self {
        self.informer.count_changes(&self.life, handler);
        self
    }
}

#[derive(Clone)]
struct Shared {
    client: Client,
    informers: Informers,
    discovery: Discovery,
    registry: Registry,
    metrics: Arc<QueueMetrics>,
    running: Arc<Running>,
    shutdown: CancellationToken,
}

/// Which controllers run: by name, how many instances (none after a panic, until it is started again).
#[derive(Debug, Default)]
struct Running(Mutex<BTreeMap<&'static str, usize>>);

impl Running {
    fn change(&self, name: &'static str, change: impl FnOnce(&mut usize)) {
        change(self.0.lock().entry(name).or_default());
    }

    /// Upstream's metric (`component-base/metrics/prometheus/controllers`).
    #[allow(clippy::cast_precision_loss, reason = "numbers of a metric")]
    fn write(&self, page: &mut Text) {
        let name = "running_managed_controllers";
        page.family(name, "Controllers that run.", Kind::Gauge);
        for (controller, running) in self.0.lock().iter() {
            page.sample(name, &[("name", controller), ("manager", "kube-controller-manager")], *running as f64);
        }
    }
}

/// The controllers of a control plane.
pub(crate) struct Controllers {
    shared: Shared,
    discoverer: Discoverer,
    /// Name and supervised run of each, not started yet.
    added: Vec<(&'static str, BoxFuture<'static, ()>)>,
}

impl Controllers {
    /// No controllers yet; their metrics are written to `registry`.
    pub(crate) fn new(
        client: Client,
        generation: Option<watch::Receiver<u64>>,
        registry: &Registry,
        shutdown: CancellationToken,
    ) -> Self {
        let informers = Informers::new(client.clone(), shutdown.clone());
        let metrics: Arc<QueueMetrics> = Arc::default();
        let (queues, caches) = (Arc::clone(&metrics), informers.clone());
        let running: Arc<Running> = Arc::default();
        let shown = Arc::clone(&running);
        registry.register(move |page| {
            queues.write(page, Instant::now());
            caches.write(page);
            shown.write(page);
        });
        let discoverer = Discoverer::new(client.clone(), generation);
        let discovery = discoverer.discovery();
        Self {
            discoverer,
            shared: Shared { client, informers, discovery, registry: registry.clone(), metrics, running, shutdown },
            added: Vec::new(),
        }
    }

    /// Adds a controller. Its watches start at once, it itself with [`run`](Self::run).
    pub(crate) fn add<C: Controller>(&mut self, config: C::Config) {
        let shared = self.shared.clone();
        let mut first = Some(Instance::<C>::new(&shared, config.clone()));
        self.added.push((
            C::NAME,
            Box::pin(async move {
                let shutdown = shared.shutdown.clone();
                keep_running(C::NAME, &shutdown, || {
                    let (first, shared, config) = (first.take(), shared.clone(), config.clone());
                    // A controller that replaces another is made in its task, so that a panic does not end this one.
                    async move { first.unwrap_or_else(|| Instance::new(&shared, config)).run(&shared.shutdown).await }
                })
                .await;
            }),
        ));
    }

    /// Runs all until shutdown.
    pub(crate) async fn run(self) {
        let mut tasks = Supervisor::new(self.shared.shutdown.clone());
        tasks.forever("discovery", {
            let (discoverer, shutdown) = (Arc::new(self.discoverer), self.shared.shutdown.clone());
            async move {
                keep_running("discovery", &shutdown, || {
                    let (discoverer, shutdown) = (Arc::clone(&discoverer), shutdown.clone());
                    async move {
                        let _ = shutdown.run_until_cancelled(discoverer.run()).await;
                        Ok::<(), Infallible>(())
                    }
                })
                .await;
            }
        });
        for (name, controller) in self.added {
            tasks.forever(name, controller);
        }
        while let Some(ended) = tasks.next_ended().await {
            tracing::debug!(controller = ended.name, "controller ended");
        }
        self.shared.informers.ended().await;
    }
}

/// A controller until it panics.
struct Instance<C: Controller> {
    controller: C,
    queue: WorkQueue<C::Key>,
    synced: Vec<watch::Receiver<bool>>,
    life: Life,
    running: Arc<Running>,
}

impl<C: Controller> Drop for Instance<C> {
    fn drop(&mut self) {
        self.life.end();
        self.running.change(C::NAME, |running| *running -= 1);
    }
}

/// A handler of a controller has panicked.
#[derive(Debug, thiserror::Error)]
#[error("a handler of changes panicked; its message is in the log")]
struct HandlerPanicked;

impl<C: Controller> Instance<C> {
    fn new(shared: &Shared, config: C::Config) -> Self {
        let life = Life::default();
        let queue = WorkQueue::new(C::QUEUE, C::NAME, &shared.metrics);
        let mut context =
            Context { shared: shared.clone(), queue: queue.clone(), life: life.clone(), synced: Vec::new() };
        let controller = C::subscribe(&mut context, config);
        shared.running.change(C::NAME, |running| *running += 1);
        Self { controller, queue, synced: context.synced, life, running: Arc::clone(&shared.running) }
    }

    async fn run(mut self, shutdown: &CancellationToken) -> Result<(), HandlerPanicked> {
        let life = self.life.clone();
        tokio::select! {
            () = life.failed() => Err(HandlerPanicked),
            () = self.work(shutdown) => Ok(()),
        }
    }

    async fn work(&mut self, shutdown: &CancellationToken) {
        for synced in &mut self.synced {
            tokio::select! {
                () = shutdown.cancelled() => return,
                synced = synced.wait_for(|synced| *synced) => drop(synced),
            }
        }
        let controller = &self.controller;
        controller.prepare(shutdown).await;
        tracing::debug!(controller = C::NAME, "informer caches synced; controller starts");
        tokio::join!(
            self.queue.run(C::NAME, C::WORKERS, shutdown.clone(), |key| controller.reconcile(key)),
            controller.run(shutdown.clone()),
        );
    }
}
