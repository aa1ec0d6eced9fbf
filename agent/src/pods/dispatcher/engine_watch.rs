//! The connection to the container engine that all pods share: lists it, follows its events, and notices whether it
//! answers. Upstream's PLEG, driven by events.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt as _, TryStreamExt as _};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, Interval, MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;
use windlass_kit::{
    liveness::LoopProbe,
    repairs::{MainPath, Repair},
};

use crate::{
    engine::{
        Cause, Engine, EngineError, Health,
        containers::{Info, Listed},
        events::Changed,
        inspect::Instance,
    },
    metrics::Metrics,
};

/// All containers are listed this often, in case an event was lost.
const RELIST_INTERVAL: Duration = Duration::from_secs(60);
/// Docker is pinged this often: one that hangs keeps its connections open.
const PING_INTERVAL: Duration = Duration::from_secs(5);
/// Between attempts to connect to Docker.
const RECONNECT_DELAY: Duration = Duration::from_secs(1);
/// How many containers are inspected at once at the start.
const INSPECT_CONCURRENCY: usize = 8;

/// What the watcher reports to the dispatcher.
#[derive(Debug)]
pub(super) enum EngineEvent {
    Changed(Changed),
    /// Image names may refer to other images now.
    ImagesChanged,
    /// All containers, with their details when this is the first list.
    Listed(Vec<Listed>, Vec<Instance>),
}

/// Keeps the connection to Docker.
pub(super) struct EngineWatcher {
    pub(super) engine: Engine,
    pub(super) health: watch::Sender<Health>,
    pub(super) info: watch::Sender<Info>,
    pub(super) events: mpsc::Sender<EngineEvent>,
    pub(super) heart: LoopProbe,
    pub(super) metrics: Arc<Metrics>,
    /// The details of the containers were not read yet.
    pub(super) first: bool,
}

impl EngineWatcher {
    pub(super) async fn run(mut self, shutdown: CancellationToken) {
        loop {
            let watched = tokio::select! {
                () = shutdown.cancelled() => break,
                watched = self.watch_once() => watched,
            };
            let Err(error) = watched else { break };
            self.heart.beat();
            let reason = error.to_string();
            let is_news = self.health.send_if_modified(|old| {
                let was_down = matches!(old, Health::Down { .. });
                *old = Health::Down { reason: reason.clone() };
                !was_down
            });
            if is_news {
                tracing::warn!(reason, "Docker does not answer; pods are left as they are until it does");
            }
            tokio::select! {
                () = shutdown.cancelled() => break,
                () = tokio::time::sleep(RECONNECT_DELAY) => {}
            }
        }
        self.heart.end();
    }

    /// Lists the engine and follows its events until the connection fails, or the dispatcher has gone.
    async fn watch_once(&mut self) -> Result<(), EngineError> {
        let info = self.engine.info().await?;
        self.heart.beat();
        // From before the list, so that no event falls between.
        let mut events = Box::pin(self.engine.events());
        let mut image_events = Box::pin(self.engine.image_events());
        let listed = self.engine.list().await?;
        let details = if self.first { self.inspect_all(&listed).await? } else { Vec::new() };
        self.first = false;
        let (version, api) = (info.version.clone(), info.api.clone());
        let _ = self.info.send(info);
        // Events of images were lost while Docker was away.
        let listed = [EngineEvent::ImagesChanged, EngineEvent::Listed(listed, details)];
        if send_all(&self.events, listed).await.is_err() {
            return Ok(());
        }
        let up = Health::Up { version: version.clone() };
        if self.health.send_replace(up.clone()) != up {
            tracing::info!(version, api, "Docker answers");
        }
        let period = Repair::EngineRelist.period(RELIST_INTERVAL);
        let (mut relist, mut ping) = (later_interval(period).await, later_interval(PING_INTERVAL).await);
        let mut listed_at = Instant::now();
        loop {
            self.heart.beat();
            let event = tokio::select! {
                event = events.next() => match event {
                    Some(Ok(_)) if MainPath::EngineEvents.is_off() => continue,
                    Some(event) => EngineEvent::Changed(event?),
                    None => return Err(stream_ended()),
                },
                changed = image_events.next() => match changed {
                    Some(changed) => changed.map(|()| EngineEvent::ImagesChanged)?,
                    None => return Err(stream_ended()),
                },
                _ = ping.tick() => {
                    self.engine.ping().await?;
                    continue;
                }
                _ = relist.tick() => {
                    let started = Instant::now();
                    self.metrics.relist_interval.observe_duration([], started - listed_at);
                    listed_at = started;
                    let listed = self.engine.list().await?;
                    self.metrics.last_seen.set([], jiff::Timestamp::now().as_second());
                    self.metrics.relist.observe_duration([], started.elapsed());
                    EngineEvent::Listed(listed, Vec::new())
                }
            };
            if self.events.send(event).await.is_err() {
                return Ok(());
            }
        }
    }

    /// The details of all containers of pods.
    async fn inspect_all(&self, listed: &[Listed]) -> Result<Vec<Instance>, EngineError> {
        let of_pods: Vec<String> = listed.iter().filter(|l| !l.helper).map(|l| l.id.clone()).collect();
        let inspections = futures::stream::iter(of_pods)
            .map(|id| async move { self.engine.inspect(&id).await })
            .buffer_unordered(INSPECT_CONCURRENCY)
            .inspect(|_| self.heart.beat());
        inspections.try_filter_map(|found| async { Ok(found) }).try_collect().await
    }
}

fn stream_ended() -> EngineError {
    EngineError {
        attempt: "failed to follow Docker's events".to_owned(),
        reason: "the stream ended; Docker may be restarting".to_owned(),
        cause: Cause::Unreachable,
    }
}

async fn send_all<const N: usize>(to: &mpsc::Sender<EngineEvent>, all: [EngineEvent; N]) -> Result<(), ()> {
    for event in all {
        to.send(event).await.map_err(drop)?;
    }
    Ok(())
}

/// An interval whose first tick is a period away.
async fn later_interval(period: Duration) -> Interval {
    let mut interval = interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval.tick().await;
    interval
}

/// All containers of a pod, as soon as the engine answers.
pub(super) async fn list_pod_containers(engine: &Engine, uid: &str) -> Vec<Instance> {
    loop {
        match inspect_pod(engine, uid).await {
            Ok(found) => return found,
            Err(error) => tracing::warn!(%error, pod = uid, "failed to list the containers of a pod; retrying"),
        }
        tokio::time::sleep(RECONNECT_DELAY).await;
    }
}

async fn inspect_pod(engine: &Engine, uid: &str) -> Result<Vec<Instance>, EngineError> {
    let mut found = Vec::new();
    for container in engine.list().await?.iter().filter(|container| !container.helper && container.pod_uid == uid) {
        found.extend(engine.inspect(&container.id).await?);
    }
    Ok(found)
}
