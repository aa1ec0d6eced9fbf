//! Pods: from objects of the API to containers of Docker, and back to statuses.
//!
//! `plan` and `status` decide and are pure; `steps` acts; `worker` owns one pod; this module starts and
//! feeds the workers. Talks to Docker through `engine` only.

mod admission;
mod allocated;
mod body;
mod cgroup;
mod clock;
mod container_files;
mod crew;
mod docker;
mod env;
mod env_file;
pub(crate) mod fields;
mod files;
mod handlers;
mod hooks;
mod host;
mod intake;
mod mounts;
mod observed;
pub mod orders;
mod outcome;
mod plan;
mod preempt;
mod pressure;
mod probes;
mod qos;
mod report;
mod resize;
mod services;
mod shared;
mod silence;
mod sources;
mod spec;
mod static_pods;
mod status;
mod steps;
mod sweep;
mod teardown;
#[cfg(test)]
mod tests;
mod traces;
mod worker;

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client, ResourceExt as _,
    runtime::{WatchStreamExt as _, watcher},
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use windlass_kit::{
    heartbeat::{Heart, Heartbeats},
    reflector::{Extent, reflect},
};

pub use admission::unsafe_sysctl_problems;
pub(crate) use cgroup::hold_all;
pub use orders::{Ended, Orders};
pub use spec::is_mirror;
pub(crate) use spec::{SYSTEM_CRITICAL, is_critical, is_over, reference, uid_at_docker};
pub use teardown::teardown;

use crate::{
    BEAT, Config, ContainerRecord, Pressure, STUCK_AFTER,
    engine::{
        Engine, EngineError, Health,
        calls::{Info, Listed},
        instance::Instance,
    },
    images::Images,
    metrics::Metrics,
    network::Network,
    probe_counts::ProbeCounts,
    volumes::placed::Placed,
};
use admission::Admission;
use crew::{Crew, Ended as WorkerEnded};
use docker::{DockerFollower, DockerNews, keep_inventory, keep_runtimes};
use shared::{Parts, Shared};
use sources::Sources;
use static_pods::Running;
use worker::{End, News, Wish, Worker};

/// A lost worker is replaced after this, so that a mistake that happens each time does not fill the machine.
const AFTER_LOSS: Duration = Duration::from_secs(10);
/// Seconds after which a container that lends the files of its image is in nobody's use any more.
const HELPERS_AGE: i64 = 3600;

/// What others may watch while the agent runs, and what they may ask of it.
#[derive(Debug)]
pub struct Published {
    /// Containers that run, sandboxes included, by pod.
    pub containers: watch::Sender<Arc<Vec<ContainerRecord>>>,
    /// The pods of this node as the API last told them.
    pub pods: watch::Sender<Arc<Vec<Arc<Pod>>>>,
    /// Orders to end pods, as made by [`Orders::new`].
    pub orders: (Orders, orders::Inbox),
    /// What the node is short of.
    pub pressure: watch::Receiver<Pressure>,
    /// Whether the machine is about to end.
    pub going_down: watch::Receiver<bool>,
    /// Pulls images.
    pub images: Images,
    /// Names of Docker's runtimes.
    pub runtimes: watch::Sender<Arc<BTreeSet<String>>>,
    /// Whether the loops move.
    pub heartbeats: Heartbeats,
    /// What the work counts.
    pub metrics: Arc<Metrics>,
    /// What came of probes.
    pub probes: ProbeCounts,
    /// Where volumes are.
    pub placed: Placed,
    /// The node's object, as the API has it.
    pub node: watch::Sender<Option<Arc<Node>>>,
}

/// Runs the pods of this node until `shutdown`; their containers go on running after it.
///
/// # Errors
/// When a task that everything depends on has ended.
#[allow(clippy::too_many_arguments, reason = "each is one thing of the node that pods need")]
pub async fn run(
    client: Client,
    engine: Engine,
    network: Network,
    config: Config,
    health: watch::Sender<Health>,
    published: Published,
    shutdown: CancellationToken,
) -> Result<(), EngineError> {
    let (tell_services, services) = watch::channel(None);
    let (tell_info, info) = watch::channel(Info::default());
    let (inventory, inventories) = mpsc::channel(256);
    let (tell_docker, docker) = mpsc::channel(1024);
    let (tell_node, node) = (published.node.clone(), published.node.subscribe());
    let (tell_statics, statics) = watch::channel(None);
    let (tell_images, images) = watch::channel(static_pods::mirrors::Images::default());
    let (orders, inbox) = published.orders;
    let parts = Parts {
        client: client.clone(),
        engine: engine.clone(),
        network,
        config: config.clone(),
        health: health.subscribe(),
        info,
        services,
        node: node.clone(),
        inventory,
        orders,
        pressure: published.pressure,
        going_down: published.going_down,
        images: published.images,
        heartbeats: published.heartbeats.clone(),
        metrics: Arc::clone(&published.metrics),
        probes: published.probes,
        placed: published.placed,
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(services::follow(client.clone(), tell_services, shutdown.clone()));
    tasks.spawn(crate::node::follow(client.clone(), config.node_name.clone(), tell_node, shutdown.clone()));
    let (folder, name) = (config.static_pods_dir.clone(), config.node_name.clone());
    tasks.spawn(static_pods::follow(folder, name, tell_statics, shutdown.clone()));
    tasks.spawn(static_pods::mirrors::keep(client.clone(), node, images, shutdown.clone()));
    tasks.spawn(keep_runtimes(parts.info.clone(), published.runtimes));
    let heart = published.heartbeats.begin("Docker's events", "", STUCK_AFTER);
    let metrics = Arc::clone(&published.metrics);
    let follower = DockerFollower { engine, health, info: tell_info, tell: tell_docker, heart, metrics, first: true };
    tasks.spawn(follower.run(shutdown.clone()));
    tasks.spawn(keep_inventory(inventories, published.containers));

    let dispatcher = Dispatcher {
        shared: Arc::new(Shared::new(parts)),
        workers: HashMap::new(),
        running: Crew::default(),
        searches: JoinSet::new(),
        lost: BTreeSet::new(),
        rooms: JoinSet::new(),
        making_room: BTreeSet::new(),
        room_made: BTreeSet::new(),
        sources: Sources::default(),
        found: None,
        tell_images,
        tell_pods: published.pods,
        orders: inbox,
        settled: false,
        heart: published.heartbeats.begin("pods", "", STUCK_AFTER),
        shutdown: shutdown.clone(),
    };
    let api: Api<Pod> = Api::all(client);
    dispatcher.run(api, docker, statics).await;
    shutdown.cancel();
    while tasks.join_next().await.is_some() {}
    Ok(())
}

#[derive(Debug)]
struct Handle {
    wish: watch::Sender<Wish>,
    news: mpsc::Sender<News>,
    /// Of a static pod: which it is.
    stands_for: Option<Running>,
    /// Of a static pod: what its image in the API shows.
    shown: Option<Arc<Pod>>,
    orders: mpsc::UnboundedSender<orders::Order>,
}

/// Feeds the workers: what the API wants, what Docker tells.
struct Dispatcher {
    shared: Arc<Shared>,
    workers: HashMap<String, Handle>,
    running: Crew,
    /// Looks at what Docker has of pods whose worker was lost.
    searches: JoinSet<(String, Vec<Instance>)>,
    /// Their uids: no worker may start before Docker was looked at.
    lost: BTreeSet<String>,
    /// Ends of pods for whose sake: the uids of critical pods.
    rooms: JoinSet<String>,
    making_room: BTreeSet<String>,
    /// Critical pods that others were ended for once: not a second time.
    room_made: BTreeSet<String>,
    sources: Sources,
    /// What Docker had at the start, by pod, until a worker takes it over; `None` before Docker was listed.
    found: Option<HashMap<String, Vec<Instance>>>,
    tell_images: watch::Sender<static_pods::mirrors::Images>,
    tell_pods: watch::Sender<Arc<Vec<Arc<Pod>>>>,
    orders: orders::Inbox,
    /// Both the API and Docker have told what they have.
    settled: bool,
    heart: Heart,
    shutdown: CancellationToken,
}

impl Dispatcher {
    async fn run(
        mut self,
        api: Api<Pod>,
        mut docker: mpsc::Receiver<DockerNews>,
        mut statics: watch::Receiver<static_pods::StaticPods>,
    ) {
        let config = watcher::Config::default().fields(&format!("spec.nodeName={}", self.shared.config.node_name));
        let mut events = Box::pin(reflect(api, config, Extent::Few).default_backoff());
        let mut still_here = tokio::time::interval(BEAT);
        loop {
            self.heart.beat();
            tokio::select! {
                () = self.shutdown.cancelled() => break,
                event = events.try_next() => match event {
                    Ok(Some(event)) => {
                        self.settled &= !matches!(event, watcher::Event::InitDone);
                        self.take_event(event);
                    }
                    Ok(None) => break,
                    Err(error) => tracing::warn!(%error, "the pods of this node could not be watched; it is tried again"),
                },
                Ok(()) = statics.changed() => {
                    let latest = statics.borrow_and_update().clone();
                    self.take_statics(latest);
                }
                Some(news) = docker.recv() => self.hear(news),
                Some(asked) = self.orders.next() => self.obey(asked),
                Some(Ok(uid)) = self.rooms.join_next(), if !self.rooms.is_empty() => self.room_is_made(&uid),
                _ = still_here.tick() => {}
                Some(Ok((uid, found))) = self.searches.join_next(), if !self.searches.is_empty() => self.replace(uid, found),
                Some((uid, ended)) = self.running.next_ended(), if !self.running.is_empty() => self.reap(uid, ended),
            }
            if !self.settled && self.sources.are_complete() && self.found.is_some() {
                self.settle().await;
            }
        }
        self.heart.end();
        self.shutdown.cancel();
        while self.running.next_ended().await.is_some() {}
    }

    fn wish(&mut self, uid: &str, wish: Wish) {
        if let Some(worker) = self.workers.get(uid) {
            worker.wish.send_replace(wish);
            return;
        }
        if self.making_room.contains(uid) || self.lost.contains(uid) {
            return;
        }
        // Before Docker was listed nobody knows what runs already: no worker may start.
        let Some(found) = &mut self.found else { return };
        let instances = found.remove(uid).unwrap_or_default();
        let pod = match &wish {
            Wish::Pod { pod, .. } | Wish::Static { pod, .. } => Some(Arc::clone(pod)),
            Wish::Gone => None,
        };
        let refused = match pod.as_ref().map(|pod| self.admit(uid, pod, instances.is_empty())) {
            Some(Admission::After(victims)) => return self.make_room(uid, victims),
            Some(Admission::Refused(refused)) => Some(refused),
            Some(Admission::TakenIn) | None => None,
        };
        let shown = pod.filter(|_| matches!(wish, Wish::Static { .. }));
        let (wish, wishes) = watch::channel(wish);
        let (news, all_news) = mpsc::channel(64);
        let (orders, all_orders) = mpsc::unbounded_channel();
        let worker = Worker::new(Arc::clone(&self.shared), uid.to_owned(), instances, refused);
        let (name, shutdown) = (uid.to_owned(), self.shutdown.clone());
        self.running.spawn(name, worker.run(wishes, all_news, all_orders, shutdown));
        let stands_for = shown.as_deref().map(Running::of);
        self.workers.insert(uid.to_owned(), Handle { wish, news, orders, stands_for, shown });
    }

    fn obey(&self, asked: orders::Asked) {
        match asked {
            orders::Asked::End(order) => match self.workers.get(&order.uid) {
                // A worker that has just ended answers by being gone.
                Some(worker) => drop(worker.orders.send(order)),
                None => drop(order.answer.send(orders::Answer::Over)),
            },
            orders::Asked::DropDead(answer) => {
                for worker in self.workers.values() {
                    let _ = worker.news.try_send(News::DropDead);
                }
                let _ = answer.send(());
            }
        }
    }

    fn hear(&mut self, news: DockerNews) {
        match news {
            DockerNews::Changed(changed) => {
                if let Some(worker) = self.workers.get(&changed.pod_uid) {
                    // A full queue means that a list is due anyway.
                    let _ = worker.news.try_send(News::Changed(changed));
                }
            }
            DockerNews::Listed(listed, details) => {
                let (helpers, listed): (Vec<Listed>, Vec<Listed>) = listed.into_iter().partition(|l| l.helper);
                self.remove_helpers(&helpers);
                if self.found.is_none() {
                    let mut found: HashMap<String, Vec<Instance>> = HashMap::new();
                    for instance in details {
                        found.entry(instance.identity.uid.clone()).or_default().push(instance);
                    }
                    self.found = Some(found);
                    self.wish_all();
                    return;
                }
                let mut by_pod: HashMap<String, Vec<Listed>> = HashMap::new();
                for container in listed {
                    by_pod.entry(container.pod_uid.clone()).or_default().push(container);
                }
                self.sweep();
                for (uid, worker) in &self.workers {
                    let _ = worker.news.try_send(News::Listed(by_pod.remove(uid).unwrap_or_default()));
                }
                self.end_orphans(by_pod.into_keys());
            }
        }
    }

    /// Removes containers that lent the files of their images to somebody who is gone: all that an earlier process has
    /// left, and later those that are too old to be in use.
    fn remove_helpers(&self, helpers: &[Listed]) {
        let now = jiff::Timestamp::now().as_second();
        let left = helpers.iter().filter(|l| self.found.is_none() || now.saturating_sub(l.created) > HELPERS_AGE);
        for helper in left {
            let (engine, id) = (self.shared.engine.clone(), helper.id.clone());
            // Nobody waits for it; what fails is tried again at the next list.
            drop(tokio::spawn(async move {
                if let Err(error) = engine.remove(&id).await {
                    tracing::debug!(%error, "a container that only lent the files of its image is left for later");
                }
            }));
        }
    }

    /// Removes the logs of pods that neither a source nor a worker knows.
    fn sweep(&self) {
        if !self.settled {
            return;
        }
        let known: BTreeSet<String> = self.sources.uids().chain(self.workers.keys()).cloned().collect();
        let (pod_logs, container_logs) =
            (self.shared.config.pod_logs_dir.clone(), self.shared.config.container_logs_dir.clone());
        // Nobody waits for it.
        drop(tokio::task::spawn_blocking(move || sweep::sweep(&pod_logs, &container_logs, &known)));
    }

    fn reap(&mut self, uid: String, ended: WorkerEnded) {
        match ended {
            WorkerEnded::As(End::Finished) => {
                self.workers.remove(&uid);
                self.shared.probes.forget(&uid);
                self.shared.placed.forget(&uid);
                // Added again meanwhile, as static pods may be: those are settled below.
                let there = self.sources.api.get(&uid).is_some_and(|p| p.metadata.deletion_timestamp.is_none());
                if let Some(wish) = self.sources.wish(&uid).filter(|_| there) {
                    self.wish(&uid, wish);
                }
                self.settle_statics();
            }
            WorkerEnded::As(End::Shutdown) => {}
            WorkerEnded::Lost(why) => {
                tracing::error!(
                    pod = uid,
                    why,
                    seconds = AFTER_LOSS.as_secs(),
                    "a pod's worker was lost, which is a mistake in Windlass; its containers go on, and another looks after them soon"
                );
                self.workers.remove(&uid);
                self.search(uid, AFTER_LOSS);
            }
        }
    }

    /// Looks, after a while, for what Docker has of a pod that has no worker: no worker may start before.
    fn search(&mut self, uid: String, after: Duration) {
        self.lost.insert(uid.clone());
        let engine = self.shared.engine.clone();
        self.searches.spawn(async move {
            tokio::time::sleep(after).await;
            let found = docker::all_of(&engine, &uid).await;
            (uid, found)
        });
    }

    /// Gives a pod whose worker was lost another one, which takes over what Docker has of it.
    fn replace(&mut self, uid: String, instances: Vec<Instance>) {
        self.lost.remove(&uid);
        let runs = !instances.is_empty();
        if let Some(found) = self.found.as_mut().filter(|_| runs) {
            found.insert(uid.clone(), instances);
        }
        match self.sources.wish(&uid) {
            Some(wish) => self.wish(&uid, wish),
            None if runs => self.wish(&uid, Wish::Gone),
            None => {}
        }
    }
}
