//! Pods: from objects of the API to containers of Docker, and back to statuses.
//!
//! `plan` and `status` decide and are pure; `steps` acts; `worker` owns one pod; this module starts and
//! feeds the workers. Talks to Docker through `engine` only.

mod admission;
mod body;
mod cgroup;
mod credentials;
mod env;
pub(crate) mod fields;
mod files;
mod handlers;
mod hooks;
mod host;
mod mounts;
mod observed;
mod outcome;
mod plan;
mod probes;
mod qos;
mod report;
mod resize;
mod services;
mod shared;
mod spec;
mod status;
mod steps;
mod teardown;
#[cfg(test)]
mod tests;
mod traces;
mod worker;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt as _,
    runtime::{WatchStreamExt as _, watcher},
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

pub use teardown::teardown;

use crate::{
    Config, ContainerRecord,
    engine::{
        Engine, EngineError, Health,
        calls::{Info, Listed},
        events::Changed,
        instance::Instance,
    },
    network::Network,
};
use shared::{Parts, Shared};
use worker::{End, News, Wish, Worker};

/// Everything of Docker is listed this often, in case an event was lost.
const RELIST: Duration = Duration::from_secs(60);
/// Between attempts to reach Docker.
const RECONNECT: Duration = Duration::from_secs(1);

/// What others may watch while the agent runs.
#[derive(Debug)]
pub struct Published {
    /// Containers that run, sandboxes included, by pod.
    pub containers: watch::Sender<Arc<Vec<ContainerRecord>>>,
    /// The pods of this node as the API last told them.
    pub pods: watch::Sender<Arc<Vec<Arc<Pod>>>>,
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
    let (tell_services, services) = watch::channel(Arc::default());
    let (tell_info, info) = watch::channel(Info::default());
    let (inventory, inventories) = mpsc::channel(256);
    let (tell_docker, docker) = mpsc::channel(1024);
    let parts = Parts {
        client: client.clone(),
        engine: engine.clone(),
        network,
        config: config.clone(),
        health: health.subscribe(),
        info,
        services,
        inventory,
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(services::follow(client.clone(), tell_services, shutdown.clone()));
    tasks.spawn(follow_docker(engine, health, tell_info, tell_docker, shutdown.clone()));
    tasks.spawn(keep_inventory(inventories, published.containers));

    let dispatcher = Dispatcher {
        shared: Arc::new(Shared::new(parts)),
        workers: HashMap::new(),
        running: JoinSet::new(),
        pods: BTreeMap::new(),
        found: None,
        listed: None,
        tell_pods: published.pods,
        shutdown: shutdown.clone(),
    };
    let api: Api<Pod> = Api::all(client);
    dispatcher.run(api, docker).await;
    shutdown.cancel();
    while tasks.join_next().await.is_some() {}
    Ok(())
}

/// What the Docker side tells the dispatcher.
#[derive(Debug)]
enum DockerNews {
    Changed(Changed),
    /// All containers, with their details when this is the first list.
    Listed(Vec<Listed>, Vec<Instance>),
}

/// Keeps the connection to Docker: lists, follows events, and tells whether it answers.
async fn follow_docker(
    engine: Engine,
    health: watch::Sender<Health>,
    info: watch::Sender<Info>,
    tell: mpsc::Sender<DockerNews>,
    shutdown: CancellationToken,
) {
    let mut first = true;
    loop {
        let followed = tokio::select! {
            () = shutdown.cancelled() => return,
            followed = follow_once(&engine, &health, &info, &tell, &mut first) => followed,
        };
        let Err(error) = followed else { return };
        let reason = error.to_string();
        let news = health.send_if_modified(|old| {
            let was_down = matches!(old, Health::Down { .. });
            *old = Health::Down { reason: reason.clone() };
            !was_down
        });
        if news {
            tracing::warn!(reason, "Docker does not answer; pods are left alone until it does");
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(RECONNECT) => {}
        }
    }
}

async fn follow_once(
    engine: &Engine,
    health: &watch::Sender<Health>,
    tell_info: &watch::Sender<Info>,
    tell: &mpsc::Sender<DockerNews>,
    first: &mut bool,
) -> Result<(), EngineError> {
    let info = engine.info().await?;
    // Subscribed before listing, so that nothing falls between.
    let mut events = Box::pin(engine.events());
    let listed = engine.list().await?;
    let mut details = Vec::new();
    if *first {
        let looks = futures::stream::iter(listed.clone())
            .map(|l| async move { engine.inspect(&l.id).await })
            .buffer_unordered(8);
        details = looks.try_filter_map(|found| async { Ok(found) }).try_collect().await?;
        *first = false;
    }
    let version = info.version.clone();
    let _ = tell_info.send(info);
    if tell.send(DockerNews::Listed(listed, details)).await.is_err() {
        return Ok(());
    }
    let up = Health::Up { version: version.clone() };
    if health.send_replace(up) != (Health::Up { version: version.clone() }) {
        tracing::info!(version, "Docker answers");
    }
    let mut relist = tokio::time::interval(RELIST);
    relist.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    relist.tick().await;
    loop {
        let news = tokio::select! {
            event = events.next() => match event {
                Some(event) => DockerNews::Changed(event?),
                None => return Err(EngineError {
                    attempt: "Docker's events could not be followed".to_owned(),
                    reason: "the stream ended; Docker may be restarting".to_owned(),
                    status: None,
                }),
            },
            _ = relist.tick() => DockerNews::Listed(engine.list().await?, Vec::new()),
        };
        if tell.send(news).await.is_err() {
            return Ok(());
        }
    }
}

async fn keep_inventory(
    mut inventories: mpsc::Receiver<(String, Vec<ContainerRecord>)>,
    tell: watch::Sender<Arc<Vec<ContainerRecord>>>,
) {
    let mut by_pod: BTreeMap<String, Vec<ContainerRecord>> = BTreeMap::new();
    while let Some((uid, records)) = inventories.recv().await {
        if records.is_empty() {
            drop(by_pod.remove(&uid))
        } else {
            drop(by_pod.insert(uid, records))
        }
        // Many pods change together; one list serves them all.
        while let Ok((uid, records)) = inventories.try_recv() {
            if records.is_empty() { drop(by_pod.remove(&uid)) } else { drop(by_pod.insert(uid, records)) }
        }
        tell.send_replace(Arc::new(by_pod.values().flatten().cloned().collect()));
    }
}

#[derive(Debug)]
struct Handle {
    wish: watch::Sender<Wish>,
    news: mpsc::Sender<News>,
}

/// Feeds the workers: what the API wants, what Docker tells.
struct Dispatcher {
    shared: Arc<Shared>,
    workers: HashMap<String, Handle>,
    running: JoinSet<(String, End)>,
    pods: BTreeMap<String, Arc<Pod>>,
    /// What Docker had at the start, by pod, until a worker takes it over; `None` before Docker was listed.
    found: Option<HashMap<String, Vec<Instance>>>,
    /// The pods of a list that the API is in the middle of telling.
    listed: Option<BTreeMap<String, Arc<Pod>>>,
    tell_pods: watch::Sender<Arc<Vec<Arc<Pod>>>>,
    shutdown: CancellationToken,
}

impl Dispatcher {
    async fn run(mut self, api: Api<Pod>, mut docker: mpsc::Receiver<DockerNews>) {
        let config = watcher::Config::default().fields(&format!("spec.nodeName={}", self.shared.config.node_name));
        let mut events = Box::pin(watcher(api, config).default_backoff());
        let mut synced = false;
        loop {
            tokio::select! {
                () = self.shutdown.cancelled() => break,
                event = events.try_next() => match event {
                    Ok(Some(event)) => {
                        synced |= matches!(event, watcher::Event::InitDone);
                        self.take_event(event);
                    }
                    Ok(None) => break,
                    Err(error) => tracing::warn!(%error, "the pods of this node could not be watched; it is tried again"),
                },
                Some(news) = docker.recv() => self.hear(news),
                Some(ended) = self.running.join_next(), if !self.running.is_empty() => self.reap(ended),
            }
            if synced && self.found.is_some() {
                self.settle().await;
                synced = false;
            }
        }
        self.shutdown.cancel();
        while self.running.join_next().await.is_some() {}
    }

    fn take_event(&mut self, event: watcher::Event<Pod>) {
        match event {
            watcher::Event::Init => self.listed = Some(BTreeMap::new()),
            watcher::Event::InitApply(pod) => {
                if let (Some(listed), Some(uid)) = (&mut self.listed, pod.uid()) {
                    listed.insert(uid, Arc::new(trim(pod)));
                }
            }
            watcher::Event::InitDone => {
                if let Some(listed) = self.listed.take() {
                    self.pods = listed;
                    self.tell();
                    self.wish_all();
                }
            }
            watcher::Event::Apply(pod) => {
                let Some(uid) = pod.uid() else { return };
                let pod = Arc::new(trim(pod));
                self.pods.insert(uid.clone(), Arc::clone(&pod));
                self.tell();
                self.wish(&uid, Wish::Pod(pod));
            }
            watcher::Event::Delete(pod) => {
                let Some(uid) = pod.uid() else { return };
                self.pods.remove(&uid);
                self.tell();
                if self.workers.contains_key(&uid) {
                    self.wish(&uid, Wish::Gone);
                }
            }
        }
    }

    fn tell(&self) {
        self.tell_pods.send_replace(Arc::new(self.pods.values().cloned().collect()));
    }

    /// After a full list: every pod has a worker that knows, and every worker a pod or its end.
    fn wish_all(&mut self) {
        let pods: Vec<(String, Arc<Pod>)> = self.pods.iter().map(|(u, p)| (u.clone(), Arc::clone(p))).collect();
        for (uid, pod) in pods {
            self.wish(&uid, Wish::Pod(pod));
        }
        let gone: Vec<String> = self.workers.keys().filter(|uid| !self.pods.contains_key(*uid)).cloned().collect();
        for uid in gone {
            self.wish(&uid, Wish::Gone);
        }
    }

    fn wish(&mut self, uid: &str, wish: Wish) {
        if let Some(worker) = self.workers.get(uid) {
            worker.wish.send_replace(wish);
            return;
        }
        // Before Docker was listed nobody knows what runs already: no worker may start.
        let Some(found) = &mut self.found else { return };
        let instances = found.remove(uid).unwrap_or_default();
        let (wish, wishes) = watch::channel(wish);
        let (news, all_news) = mpsc::channel(64);
        let worker = Worker::new(Arc::clone(&self.shared), uid.to_owned(), instances);
        let (name, shutdown) = (uid.to_owned(), self.shutdown.clone());
        self.running.spawn(async move { (name, worker.run(wishes, all_news, shutdown).await) });
        self.workers.insert(uid.to_owned(), Handle { wish, news });
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
                for (uid, worker) in &self.workers {
                    let _ = worker.news.try_send(News::Listed(by_pod.remove(uid).unwrap_or_default()));
                }
            }
        }
    }

    /// Once both sides are known: ends what no pod claims, and frees addresses that nobody holds.
    async fn settle(&mut self) {
        let orphans: Vec<String> =
            self.found.iter().flat_map(HashMap::keys).filter(|u| !self.pods.contains_key(*u)).cloned().collect();
        for uid in orphans {
            tracing::info!(pod = uid, "containers of a pod that the API does not know are stopped");
            self.wish(&uid, Wish::Gone);
        }
        let live: BTreeSet<String> = self.workers.keys().cloned().collect();
        if let Err(error) = self.shared.network.retain(&live).await {
            tracing::warn!(%error, "addresses of earlier pods could not be freed; they are when the agent starts again");
        }
    }

    fn reap(&mut self, ended: Result<(String, End), tokio::task::JoinError>) {
        match ended {
            Ok((uid, End::Finished)) => {
                self.workers.remove(&uid);
                // Added again meanwhile, as static pods may be.
                if let Some(pod) = self.pods.get(&uid).cloned().filter(|p| p.metadata.deletion_timestamp.is_none()) {
                    self.wish(&uid, Wish::Pod(pod));
                }
            }
            Ok((_, End::Shutdown)) => {}
            Err(error) => {
                tracing::error!(%error, "a pod's worker was lost; its pod is not looked after until the agent starts again")
            }
        }
    }
}

/// Drops what the agent never reads and every pod carries.
fn trim(mut pod: Pod) -> Pod {
    pod.metadata.managed_fields = None;
    if let Some(annotations) = &mut pod.metadata.annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
    pod
}
