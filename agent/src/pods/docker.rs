//! The connection to Docker that all pods share: what it has at the start, what happens in it, whether it answers; and
//! the list of what runs, for those who watch it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt as _, TryStreamExt as _};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use windlass_kit::heartbeat::Heart;

use crate::{
    ContainerRecord,
    engine::{
        Cause, Engine, EngineError, Health,
        calls::{Info, Listed},
        events::Changed,
        instance::Instance,
    },
    metrics::Metrics,
};

/// Everything of Docker is listed this often, in case an event was lost.
const RELIST: Duration = Duration::from_secs(60);
/// Docker is asked this often whether it is there: one that hangs keeps its connections open.
const PING: Duration = Duration::from_secs(5);
/// Between attempts to reach Docker.
const RECONNECT: Duration = Duration::from_secs(1);

/// Changes of what runs that come within this time are told together.
const TOGETHER: Duration = Duration::from_millis(10);

/// What the Docker side tells the dispatcher.
#[derive(Debug)]
pub(super) enum DockerNews {
    Changed(Changed),
    /// All containers, with their details when this is the first list.
    Listed(Vec<Listed>, Vec<Instance>),
}

/// Keeps the connection to Docker: lists, follows events, and tells whether it answers.
pub(super) struct DockerFollower {
    pub(super) engine: Engine,
    pub(super) health: watch::Sender<Health>,
    pub(super) info: watch::Sender<Info>,
    pub(super) tell: mpsc::Sender<DockerNews>,
    pub(super) heart: Heart,
    pub(super) metrics: Arc<Metrics>,
    /// The details of what runs were not read yet.
    pub(super) first: bool,
}

impl DockerFollower {
    pub(super) async fn run(mut self, shutdown: CancellationToken) {
        loop {
            let followed = tokio::select! {
                () = shutdown.cancelled() => break,
                followed = self.follow_once() => followed,
            };
            let Err(error) = followed else { break };
            self.heart.beat();
            let reason = error.to_string();
            let news = self.health.send_if_modified(|old| {
                let was_down = matches!(old, Health::Down { .. });
                *old = Health::Down { reason: reason.clone() };
                !was_down
            });
            if news {
                tracing::warn!(reason, "Docker does not answer; pods are left alone until it does");
            }
            tokio::select! {
                () = shutdown.cancelled() => break,
                () = tokio::time::sleep(RECONNECT) => {}
            }
        }
        self.heart.end();
    }

    async fn follow_once(&mut self) -> Result<(), EngineError> {
        let engine = &self.engine;
        let info = engine.info().await?;
        self.heart.beat();
        // Of the time before the list, so that nothing falls between.
        let mut events = Box::pin(engine.events());
        let listed = engine.list().await?;
        let mut details = Vec::new();
        if self.first {
            let of_pods: Vec<Listed> = listed.iter().filter(|l| !l.helper).cloned().collect();
            let looks = futures::stream::iter(of_pods)
                .map(|l| async move { engine.inspect(&l.id).await })
                .buffer_unordered(8)
                .inspect(|_| self.heart.beat());
            details = looks.try_filter_map(|found| async { Ok(found) }).try_collect().await?;
            self.first = false;
        }
        let version = info.version.clone();
        let _ = self.info.send(info);
        if self.tell.send(DockerNews::Listed(listed, details)).await.is_err() {
            return Ok(());
        }
        let up = Health::Up { version: version.clone() };
        if self.health.send_replace(up.clone()) != up {
            tracing::info!(version, "Docker answers");
        }
        let (mut relist, mut ping) = (tokio::time::interval(RELIST), tokio::time::interval(PING));
        for timer in [&mut relist, &mut ping] {
            timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            timer.tick().await;
        }
        loop {
            self.heart.beat();
            let news = tokio::select! {
                event = events.next() => match event {
                    Some(event) => DockerNews::Changed(event?),
                    None => return Err(EngineError {
                        attempt: "Docker's events could not be followed".to_owned(),
                        reason: "the stream ended; Docker may be restarting".to_owned(),
                        cause: Cause::Unreachable,
                    }),
                },
                _ = ping.tick() => {
                    engine.ping().await?;
                    continue;
                }
                _ = relist.tick() => {
                    let begun = tokio::time::Instant::now();
                    let listed = engine.list().await?;
                    self.metrics.relist.took([], begun.elapsed());
                    DockerNews::Listed(listed, Vec::new())
                }
            };
            if self.tell.send(news).await.is_err() {
                return Ok(());
            }
        }
    }
}

/// All that Docker has of a pod, as soon as it answers.
pub(super) async fn all_of(engine: &Engine, uid: &str) -> Vec<Instance> {
    loop {
        match look(engine, uid).await {
            Ok(found) => return found,
            Err(error) => {
                tracing::warn!(%error, pod = uid, "a pod's containers could not be looked for; it is tried again")
            }
        }
        tokio::time::sleep(RECONNECT).await;
    }
}

async fn look(engine: &Engine, uid: &str) -> Result<Vec<Instance>, EngineError> {
    let mut found = Vec::new();
    for container in engine.list().await?.iter().filter(|container| !container.helper && container.pod_uid == uid) {
        found.extend(engine.inspect(&container.id).await?);
    }
    Ok(found)
}

/// Tells which runtimes RuntimeClasses may name.
pub(super) async fn keep_runtimes(mut info: watch::Receiver<Info>, tell: watch::Sender<Arc<BTreeSet<String>>>) {
    while info.changed().await.is_ok() {
        tell.send_replace(Arc::new(info.borrow_and_update().runtimes.clone()));
    }
}

pub(super) async fn keep_inventory(
    mut inventories: mpsc::Receiver<(String, Vec<ContainerRecord>)>,
    tell: watch::Sender<Arc<Vec<ContainerRecord>>>,
) {
    let mut by_pod: BTreeMap<String, Vec<ContainerRecord>> = BTreeMap::new();
    while let Some(first) = inventories.recv().await {
        // Many pods change together; one list serves them all, for it is as long as the node has containers.
        tokio::time::sleep(TOGETHER).await;
        let mut next = Some(first);
        while let Some((uid, records)) = next {
            if records.is_empty() {
                drop(by_pod.remove(&uid))
            } else {
                drop(by_pod.insert(uid, records))
            }
            next = inventories.try_recv().ok();
        }
        tell.send_replace(Arc::new(by_pod.values().flatten().cloned().collect()));
    }
}
