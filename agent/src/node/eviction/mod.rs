//! Eviction: ends pods before the machine runs out of memory, disk or process ids.
//!
//! `thresholds`, `state` and `ranking` decide and are pure; `signals` and `usage` look at the machine; this
//! module is the loop. Ends pods by [`PodKiller`] alone and imports nothing else of `pods`.

mod ranking;
mod signals;
mod state;
pub mod thresholds;
mod usage;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Resource as _;
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use windlass_kit::{
    events::{Recorder, Severity},
    object_ref,
};

use crate::{
    Pressure,
    images::Images,
    metrics::Metrics,
    pods::{self, KillReason, PodKiller, is_terminal},
};
use ranking::Candidate;
use signals::Observations;
use state::{State, is_close};
use thresholds::{Condition, Signal, Threshold};
use usage::Walks;

/// Between passes; upstream's, and when memory is nearly short.
const PASS_EVERY: Duration = Duration::from_secs(10);
const PASS_EVERY_WHEN_CLOSE: Duration = Duration::from_secs(1);
/// A file system that does not answer in this time is left out of a pass.
const LOOK: Duration = Duration::from_secs(5);
/// Seconds that containers have when a hard threshold or a limit is passed; upstream's.
const AT_ONCE: i64 = 1;
/// How long an evicted pod is waited for until what it held is free; upstream's.
const CLEAN_UP: Duration = Duration::from_secs(30);
/// What no pod needs is removed this often at most.
const RECLAIM_AGAIN: Duration = Duration::from_secs(60);
/// What was freed shows in the next look only after a moment.
const SETTLE: Duration = Duration::from_secs(2);

/// Settings of eviction.
#[derive(Debug, Clone)]
pub struct EvictionConfig {
    /// The node's name.
    pub node_name: String,
    /// How little may be left, as [`thresholds::parse`] gives it.
    pub thresholds: Vec<Threshold>,
    /// How long a condition stays after its last threshold was met.
    pub transition: Duration,
    /// Most seconds that containers have when a soft threshold is passed.
    pub max_pod_grace: i64,
    /// Bytes of memory that all pods together may have.
    pub pods_memory: i64,
    /// The folder of pods' folders; its file system is the node's.
    pub pods_dir: PathBuf,
    /// Docker's data root.
    pub image_dir: PathBuf,
}

/// What eviction works with.
#[derive(Debug)]
pub struct Parts {
    /// For events.
    pub recorder: Recorder,
    /// What pods use.
    pub usage: windlass_cadvisor::Usage,
    /// The pods of this node.
    pub pods: watch::Receiver<Arc<Vec<Arc<Pod>>>>,
    /// Where evictions are counted.
    pub metrics: Arc<Metrics>,
    /// Ends pods.
    pub killer: PodKiller,
    /// What is reclaimed before pods.
    pub images: Images,
    /// Where the node's state is told.
    pub pressure: watch::Sender<Pressure>,
}

/// Looks at the machine and acts until `shutdown`.
pub async fn run(config: EvictionConfig, parts: Parts, shutdown: CancellationToken) {
    let apart = !signals::same_file_system(&config.pods_dir, &config.image_dir);
    let walks = Walks::new(config.pods_dir.clone(), shutdown.clone());
    let mut eviction = Eviction {
        config,
        parts,
        apart,
        walks,
        state: State::default(),
        under_way: None,
        reclaiming: None,
        said: None,
        ended: BTreeSet::new(),
    };
    loop {
        let wait = eviction.pass().await;
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
            () = done(&mut eviction.under_way) => tokio::time::sleep(SETTLE).await,
        }
    }
}

/// Waits for the end of an eviction that is under way.
async fn done(under_way: &mut Option<JoinHandle<()>>) {
    match under_way {
        Some(task) => drop(task.await),
        None => std::future::pending().await,
    }
    *under_way = None;
}

struct Eviction {
    config: EvictionConfig,
    parts: Parts,
    /// Docker's data is on a file system of its own.
    apart: bool,
    walks: Walks,
    state: State,
    under_way: Option<JoinHandle<()>>,
    /// The last removal of what no pod needs, and when it was begun.
    reclaiming: Option<(JoinHandle<()>, Instant)>,
    /// When it was last told that something is short.
    said: Option<Instant>,
    /// Pods that were told to end already: the next in line is chosen instead of asking again.
    ended: BTreeSet<String>,
}

impl Eviction {
    /// One look at the machine and what follows; gives when to look again.
    async fn pass(&mut self) -> Duration {
        let seen = self.look().await;
        let config = &self.config;
        let verdict = self.state.judge(&config.thresholds, config.transition, &seen, Timestamp::now());
        self.parts.pressure.send_if_modified(|told| std::mem::replace(told, verdict.pressure) != verdict.pressure);
        let wait = if is_close(&config.thresholds, seen.get(&Signal::Memory).copied()) {
            PASS_EVERY_WHEN_CLOSE
        } else {
            PASS_EVERY
        };
        let all = Arc::clone(&self.parts.pods.borrow_and_update());
        let alive: Vec<&Pod> = all.iter().map(AsRef::as_ref).filter(|pod| !is_terminal(pod)).collect();
        self.ended.retain(|known| alive.iter().any(|pod| pod.metadata.uid.as_deref() == Some(known)));
        let empty_dirs = usage::empty_dirs_of(alive.iter().copied());
        if self.under_way.is_some() {
            return wait;
        }
        if verdict.reclaim.is_some_and(|(threshold, _)| threshold.signal.condition() == Condition::Disk) {
            // Who has filled the disk since the last walk must not be taken for somebody else.
            self.walks.renew(&empty_dirs).await;
        } else {
            self.walks.go_on(&empty_dirs).await;
        }
        let usages = {
            let found = self.walks.found();
            usage::by_pod(&self.parts.usage.snapshot(), &self.parts.usage.storage(), &found)
        };
        let none = ranking::Usage::default();
        let candidates: Vec<Candidate<'_>> = alive
            .into_iter()
            .filter_map(|pod| {
                let uid = pod.metadata.uid.as_deref().filter(|uid| !self.ended.contains(*uid))?;
                Some(Candidate { pod, usage: usages.get(uid).unwrap_or(&none) })
            })
            .collect();
        let beyond = candidates.iter().filter(|c| !pods::is_critical(c.pod));
        if let Some((pod, (limit, why))) =
            beyond.clone().find_map(|c| Some((c.pod, ranking::beyond_limits(c.pod, c.usage)?)))
        {
            self.parts.metrics.evictions.add([limit]);
            self.evict(pod, AT_ONCE, why, BTreeMap::new(), false);
            return wait;
        }
        let Some((threshold, observation)) = verdict.reclaim else { return wait };
        let resource = threshold.signal.resource();
        let say = self.said.is_none_or(|at| at.elapsed() >= PASS_EVERY);
        if say {
            self.said = Some(Instant::now());
            let message = format!("Attempting to reclaim {resource}");
            let node = object_ref::node(&self.config.node_name);
            self.parts.recorder.record(&node, Severity::Warning, "EvictionThresholdMet", message);
        }
        if self.helps(threshold.signal) && !self.reclaim() {
            return PASS_EVERY_WHEN_CLOSE;
        }
        let Some(first) = ranking::rank(threshold.signal, candidates.into_iter()).into_iter().next() else {
            if say {
                tracing::warn!(resource, "the node is short of it, and there is no pod left to evict");
            }
            return wait;
        };
        let (message, annotations) = ranking::words(&threshold, observation, first);
        let grace = if threshold.soft.is_some() { self.config.max_pod_grace } else { AT_ONCE };
        self.parts.metrics.evictions.add([threshold.signal.name()]);
        self.evict(first.pod, grace, message, annotations, true);
        wait
    }

    /// What is left of everything; what does not answer in time is left out.
    async fn look(&self) -> Observations {
        let (pods_dir, image_dir) = (self.config.pods_dir.clone(), self.config.image_dir.clone());
        let read = tokio::task::spawn_blocking(move || signals::read(&pods_dir, &image_dir));
        let mut seen = match tokio::time::timeout(LOOK, read).await {
            Ok(Ok(seen)) => seen,
            _ => {
                tracing::warn!("a file system of the node does not answer; memory alone is looked after");
                signals::read_memory().into_iter().map(|memory| (Signal::Memory, memory)).collect()
            }
        };
        let snapshot = self.parts.usage.snapshot();
        if !snapshot.pods.is_empty() {
            let sets = snapshot.pods.values().map(|row| row.sample.memory.working_set_bytes());
            seen.insert(Signal::AllocatableMemory, signals::of_pods(self.config.pods_memory, sets));
        }
        seen
    }

    /// Whether removing images and dead containers frees what is short. Where Docker's data has a file system of its own
    /// it does not help the node's.
    fn helps(&self, signal: Signal) -> bool {
        let images = matches!(signal, Signal::ImageFs | Signal::ImageFsInodes);
        signal.condition() == Condition::Disk && (images || !self.apart)
    }

    /// Frees what no pod needs, in the background since Docker takes its time; whether that was done lately, so that it
    /// is the pods' turn.
    fn reclaim(&mut self) -> bool {
        if let Some((task, at)) = &self.reclaiming
            && (!task.is_finished() || at.elapsed() < RECLAIM_AGAIN)
        {
            return task.is_finished();
        }
        let (killer, images) = (self.parts.killer.clone(), self.parts.images.clone());
        let task = tokio::spawn(async move {
            killer.gc_exited_containers().await;
            images.remove_unused().await;
        });
        self.reclaiming = Some((task, Instant::now()));
        false
    }

    /// Ends a pod in the background.
    fn evict(
        &mut self,
        pod: &Pod,
        grace: i64,
        message: String,
        annotations: BTreeMap<String, String>,
        disruption: bool,
    ) {
        let Some(uid) = pod.metadata.uid.clone() else { return };
        tracing::info!(pod = pod.metadata.name, namespace = pod.metadata.namespace, message, "a pod is evicted");
        let recorder = &self.parts.recorder;
        recorder.record_annotated(&pod.object_ref(&()), Severity::Warning, "Evicted", message.clone(), annotations);
        self.ended.insert(uid.clone());
        let (killer, mut pods) = (self.parts.killer.clone(), self.parts.pods.clone());
        let reason = KillReason { reason: "Evicted".to_owned(), message, grace: Some(grace), disruption };
        self.under_way = Some(tokio::spawn(async move {
            let answer = killer.kill(&uid, reason).await;
            tracing::debug!(pod = uid, ?answer, "an eviction has ended");
            let over = pods.wait_for(|all| all.iter().all(|p| p.metadata.uid.as_ref() != Some(&uid) || is_terminal(p)));
            let _ = tokio::time::timeout(CLEAN_UP, over).await;
        }));
    }
}
