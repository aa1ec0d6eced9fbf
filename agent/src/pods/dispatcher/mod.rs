//! Feeds the workers: one task that joins the sources of pods (the API, the directory of static pods) with the events
//! of the container engine, admits pods, and starts and replaces their workers.
//!
//! Its `impl` is cut by subject: [`sources`], [`admit`], [`orphans`]; the other modules are the tasks besides it. The
//! top of `pods`: imports all other folders, and none imports it.

mod admit;
mod cluster_watch;
mod engine_watch;
mod orphan_logs;
mod orphans;
mod running_containers;
mod sources;
mod static_pods;
mod worker_set;

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    sync::Arc,
    time::Duration,
};

use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    runtime::{WatchStreamExt as _, watcher},
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use windlass_cadvisor::Target;
use windlass_kit::{
    liveness::{HEARTBEAT_INTERVAL, LoopProbe, STUCK_AFTER},
    published_map::Publisher,
    reflector::{Extent, reflect},
};

use self::{
    engine_watch::{EngineEvent, EngineWatcher},
    sources::Sources,
    static_pods::{StaticPodKey, StaticPods, mirror_pods::MirrorPods},
    worker_set::{TaskExit, WorkerSet},
};
use super::{
    admission::Admission,
    steps::context::{ContextChannels, NodeHandles, PodContext},
    worker::{
        EVENT_QUEUE_CAPACITY, PodUpdate, RuntimeEvent, Worker, WorkerExit,
        pod_killer::{DispatcherRequest, KillQueue, KillRequest, KillResult, PodKiller},
    },
};
use crate::{
    RunningContainers,
    engine::{Health, containers::Listed, inspect::Instance},
};

/// A worker that panicked is replaced after this, so that a bug that recurs does not use up the machine.
const PANIC_RESTART_DELAY: Duration = Duration::from_secs(10);
/// Events of the engine that wait for the dispatcher at most.
const ENGINE_QUEUE_CAPACITY: usize = 1024;

/// What the rest of the agent observes of pods, and asks of them.
#[derive(Debug, Clone)]
pub struct PodFeeds {
    /// The containers that run, sandboxes included, by pod.
    pub containers: RunningContainers,
    /// The pods of this node, static ones as their mirror pods where the API has them.
    pub pods: watch::Receiver<Arc<Vec<Arc<Pod>>>>,
    /// The names of Docker's runtimes, which RuntimeClasses may name.
    pub runtimes: watch::Receiver<Arc<BTreeSet<String>>>,
    /// Whether Docker answers.
    pub engine_health: watch::Receiver<Health>,
    /// Kills pods.
    pub killer: PodKiller,
}

/// The part of the agent that runs pods, built and not started yet.
pub struct Pods {
    context: Arc<PodContext>,
    channels: ContextChannels,
    containers: Publisher<Arc<str>, Arc<Target>>,
    pods: watch::Sender<Arc<Vec<Arc<Pod>>>>,
    runtimes: watch::Sender<Arc<BTreeSet<String>>>,
    killer: PodKiller,
    kills: KillQueue,
}

impl fmt::Debug for Pods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pods").field("node", &self.context.node).finish_non_exhaustive()
    }
}

impl Pods {
    /// Builds the part of the agent that runs pods, with its channels.
    #[must_use]
    pub fn build(node: NodeHandles) -> (Self, PodFeeds) {
        let (context, channels) = PodContext::new(node);
        let (killer, kills) = PodKiller::new();
        let (containers, pods, runtimes) = (Publisher::default(), watch::Sender::default(), watch::Sender::default());
        let feeds = PodFeeds {
            containers: containers.subscribe(),
            pods: pods.subscribe(),
            runtimes: runtimes.subscribe(),
            engine_health: context.engine_health.clone(),
            killer: killer.clone(),
        };
        let context = Arc::new(context);
        (Self { context, channels, containers, pods, runtimes, killer, kills }, feeds)
    }

    /// Runs the pods of this node until `shutdown`; their containers keep running after it.
    pub async fn run(self, shutdown: CancellationToken) {
        let Self { context, channels, containers, pods, runtimes, killer, kills } = self;
        let (client, config) = (context.node.client.clone(), context.node.config.clone());
        let (events_tx, engine_events) = mpsc::channel(ENGINE_QUEUE_CAPACITY);
        let (static_tx, static_pods) = watch::channel(None);
        let (mirror_pods_tx, mirror_pods) = watch::channel(MirrorPods::default());
        let mut tasks = JoinSet::new();
        let services = Api::all(client.clone());
        tasks.spawn(cluster_watch::run(services, cluster_watch::service, channels.services, shutdown.clone()));
        let (classes, read) = (Api::all(client.clone()), cluster_watch::runtime_handler);
        tasks.spawn(cluster_watch::run(classes, read, channels.runtime_classes, shutdown.clone()));
        tasks.spawn(static_pods::run(config.static_pods_dir, config.node_name, static_tx, shutdown.clone()));
        let node = context.node.node.clone();
        tasks.spawn(static_pods::mirror_pods::run(client.clone(), node, mirror_pods, shutdown.clone()));
        tasks.spawn(running_containers::publish_runtimes(context.engine_info.clone(), runtimes));
        tasks.spawn(running_containers::publish_running(channels.running, containers));
        let watcher = EngineWatcher {
            engine: context.node.engine.clone(),
            health: channels.engine_health,
            info: channels.engine_info,
            events: events_tx,
            heart: context.node.heartbeats.begin("Docker's events", "", STUCK_AFTER),
            metrics: Arc::clone(&context.node.metrics),
            first: true,
        };
        tasks.spawn(watcher.run(shutdown.clone()));

        let dispatcher = Dispatcher {
            heart: context.node.heartbeats.begin("pods", "", STUCK_AFTER),
            context,
            workers: HashMap::new(),
            tasks: WorkerSet::default(),
            searches: JoinSet::new(),
            searching: BTreeSet::new(),
            preemptions: JoinSet::new(),
            preempting: BTreeSet::new(),
            preempted: BTreeSet::new(),
            sources: Sources::default(),
            unadopted: None,
            mirror_pods_tx,
            pods_tx: pods,
            killer,
            kills,
            settled: false,
            shutdown: shutdown.clone(),
        };
        dispatcher.run(Api::all(client), engine_events, static_pods).await;
        shutdown.cancel();
        while tasks.join_next().await.is_some() {}
    }
}

/// The channels of one worker.
#[derive(Debug)]
struct Handle {
    updates: watch::Sender<PodUpdate>,
    events: mpsc::Sender<RuntimeEvent>,
    kills: mpsc::UnboundedSender<KillRequest>,
    /// Of a static pod: what identifies it.
    static_key: Option<StaticPodKey>,
    /// Of a static pod: the pod that its mirror pod is to show.
    static_pod: Option<Arc<Pod>>,
}

struct Dispatcher {
    context: Arc<PodContext>,
    workers: HashMap<String, Handle>,
    tasks: WorkerSet,
    /// Searches for containers of pods that have no worker.
    searches: JoinSet<(String, Vec<Instance>)>,
    /// The uids of these pods: no worker may start before the search is done.
    searching: BTreeSet<String>,
    /// Preemptions in progress; each gives the uid of the critical pod.
    preemptions: JoinSet<String>,
    /// The uids of these critical pods.
    preempting: BTreeSet<String>,
    /// The critical pods that others were preempted for once: not a second time.
    preempted: BTreeSet<String>,
    sources: Sources,
    /// The containers that ran before the agent, by pod, until a worker adopts them; `None` before the engine was
    /// listed.
    unadopted: Option<HashMap<String, Vec<Instance>>>,
    mirror_pods_tx: watch::Sender<MirrorPods>,
    pods_tx: watch::Sender<Arc<Vec<Arc<Pod>>>>,
    killer: PodKiller,
    kills: KillQueue,
    /// All sources and the engine have been listed.
    settled: bool,
    heart: LoopProbe,
    shutdown: CancellationToken,
}

impl Dispatcher {
    async fn run(
        mut self,
        api: Api<Pod>,
        mut engine_events: mpsc::Receiver<EngineEvent>,
        mut static_pods: watch::Receiver<StaticPods>,
    ) {
        let selector = format!("spec.nodeName={}", self.context.node.config.node_name);
        let config = watcher::Config::default().fields(&selector);
        let mut watch_events = Box::pin(reflect(api, config, Extent::Few).default_backoff());
        let mut heartbeat = tokio::time::interval(HEARTBEAT_INTERVAL);
        loop {
            self.heart.beat();
            tokio::select! {
                () = self.shutdown.cancelled() => break,
                event = watch_events.try_next() => match event {
                    Ok(Some(event)) => {
                        self.settled &= !matches!(event, watcher::Event::InitDone);
                        self.on_watch_event(event);
                    }
                    Ok(None) => break,
                    Err(error) => tracing::warn!(error = %windlass_kit::client::message(&error), "failed to watch the pods of this node; retrying"),
                },
                Ok(()) = static_pods.changed() => {
                    let latest = static_pods.borrow_and_update().clone();
                    self.on_static_pods(latest);
                }
                Some(event) = engine_events.recv() => self.on_engine_event(event),
                Some(request) = self.kills.next() => self.on_request(request),
                Some(Ok(uid)) = self.preemptions.join_next(), if !self.preemptions.is_empty() => self.on_preempted(&uid),
                _ = heartbeat.tick() => {}
                Some(Ok((uid, found))) = self.searches.join_next(), if !self.searches.is_empty() => self.on_found(uid, found),
                Some((uid, exit)) = self.tasks.next_exit(), if !self.tasks.is_empty() => self.on_worker_exit(uid, exit),
            }
            if !self.settled && self.sources.are_complete() && self.unadopted.is_some() {
                self.settle().await;
            }
        }
        self.heart.end();
        self.shutdown.cancel();
        while self.tasks.next_exit().await.is_some() {}
    }

    /// Hands an update to the pod's worker; if it has none, one is started after the pod is admitted.
    fn dispatch(&mut self, uid: &str, update: PodUpdate) {
        if matches!(update, PodUpdate::Deleted) {
            // Before another pod that takes its place is admitted.
            self.context.change_reservation(uid, None);
        }
        if let Some(worker) = self.workers.get(uid) {
            worker.updates.send_replace(update);
            return;
        }
        if self.preempting.contains(uid) || self.searching.contains(uid) {
            return;
        }
        // No worker may start before the engine was listed: its containers may run already.
        let Some(unadopted) = &mut self.unadopted else { return };
        let instances = unadopted.remove(uid).unwrap_or_default();
        let pod = match &update {
            PodUpdate::Run { pod, .. } | PodUpdate::RunStatic { pod, .. } => Some(Arc::clone(pod)),
            PodUpdate::Deleted => None,
        };
        let rejected = match pod.as_ref().map(|pod| self.admit(uid, pod, instances.is_empty())) {
            Some(Admission::Preempt(victims)) => return self.preempt(uid, victims),
            Some(Admission::Rejected(reason)) => Some(reason),
            Some(Admission::Admitted) | None => None,
        };
        let static_pod = pod.filter(|_| matches!(update, PodUpdate::RunStatic { .. }));
        let static_key = static_pod.as_deref().map(StaticPodKey::of);
        let (updates, updates_rx) = watch::channel(update);
        let (events, events_rx) = mpsc::channel(EVENT_QUEUE_CAPACITY);
        let (kills, kills_rx) = mpsc::unbounded_channel();
        let worker = Worker::new(Arc::clone(&self.context), uid.to_owned(), instances, rejected);
        self.tasks.spawn(uid.to_owned(), worker.run(updates_rx, events_rx, kills_rx, self.shutdown.clone()));
        self.workers.insert(uid.to_owned(), Handle { updates, events, kills, static_key, static_pod });
    }

    fn on_request(&self, request: DispatcherRequest) {
        match request {
            DispatcherRequest::Kill(request) => match self.workers.get(&request.uid) {
                // A worker that has just exited drops the request, which answers it.
                Some(worker) => drop(worker.kills.send(request)),
                None => drop(request.result.send(KillResult::NotRunning)),
            },
            DispatcherRequest::GcExited(done) => {
                for worker in self.workers.values() {
                    let _ = worker.events.try_send(RuntimeEvent::GcExited);
                }
                let _ = done.send(());
            }
        }
    }

    fn on_engine_event(&mut self, event: EngineEvent) {
        match event {
            EngineEvent::Changed(changed) => {
                if let Some(worker) = self.workers.get(&changed.pod_uid) {
                    // An event that a full queue loses is made up for by the next list.
                    let _ = worker.events.try_send(RuntimeEvent::Changed(changed));
                }
            }
            EngineEvent::ImagesChanged => self.context.images_changed.send_modify(|count| *count += 1),
            EngineEvent::Listed(listed, details) => self.on_listed(listed, details),
        }
    }

    fn on_listed(&mut self, listed: Vec<Listed>, details: Vec<Instance>) {
        let (helpers, listed): (Vec<Listed>, Vec<Listed>) = listed.into_iter().partition(|l| l.helper);
        self.remove_helpers(&helpers);
        if self.unadopted.is_none() {
            let mut unadopted: HashMap<String, Vec<Instance>> = HashMap::new();
            for instance in details {
                unadopted.entry(instance.identity.uid.clone()).or_default().push(instance);
            }
            // A pod's worker starts only when the API has it, or is known not to.
            let containers = &self.context.node.containers;
            unadopted.iter().for_each(|(uid, instances)| containers.set(uid, instances));
            containers.set_listed();
            self.unadopted = Some(unadopted);
            self.dispatch_all();
            return;
        }
        let mut by_pod: HashMap<String, Vec<Listed>> = HashMap::new();
        for container in listed {
            by_pod.entry(container.pod_uid.clone()).or_default().push(container);
        }
        self.remove_orphan_logs();
        for (uid, worker) in &self.workers {
            let _ = worker.events.try_send(RuntimeEvent::Listed(by_pod.remove(uid).unwrap_or_default()));
        }
        self.kill_orphans(by_pod.into_keys());
    }

    fn on_worker_exit(&mut self, uid: String, exit: TaskExit) {
        match exit {
            TaskExit::Returned(WorkerExit::Finished) => {
                self.workers.remove(&uid);
                self.context.node.probe_metrics.forget(&uid);
                self.context.node.volumes.remove_pod(&uid);
                // The API may have the pod again; static pods, which may be added again too, are synced below.
                let exists = self.sources.api.get(&uid).is_some_and(|p| p.metadata.deletion_timestamp.is_none());
                if let Some(update) = self.sources.update(&uid).filter(|_| exists) {
                    self.dispatch(&uid, update);
                }
                self.sync_static_pods();
            }
            TaskExit::Returned(WorkerExit::Shutdown) => {}
            TaskExit::Panicked(error) => {
                tracing::error!(
                    pod = uid,
                    error,
                    delay = ?PANIC_RESTART_DELAY,
                    "pod worker panicked (bug); containers keep running, restarting worker"
                );
                self.workers.remove(&uid);
                self.search(uid, PANIC_RESTART_DELAY);
            }
        }
    }
}
