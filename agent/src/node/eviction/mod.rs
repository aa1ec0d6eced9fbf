//! The eviction manager: evicts pods before the machine runs out of memory, disk or process ids.
//!
//! `thresholds`, `state`, `ranking`, `signals` and `usage` decide and are pure; this module is the loop, and cadvisor measures. Of
//! `pods` only the killing of pods is imported.

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
use windlass_cadvisor::{NodeSignals, model::Sample};
use windlass_kit::{
    blocking::DISK,
    events::{Recorder, Severity},
    moment::Moment,
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
use state::{State, is_any_met, is_close};
use thresholds::{Condition, Signal, Threshold};

/// Interval of monitoring; upstream's, and the one close to a memory threshold.
const MONITOR_INTERVAL: Duration = Duration::from_secs(10);
const URGENT_MONITOR_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of reading the signals: file systems may hang.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// Grace period in seconds when a hard threshold or a limit is exceeded; upstream's.
const IMMEDIATE_GRACE_SECONDS: i64 = 1;
/// How long to wait until an evicted pod's resources are released; upstream's `podCleanupTimeout`.
const POD_CLEANUP_TIMEOUT: Duration = Duration::from_secs(30);
/// The shortest interval between reclaims of node-level resources.
const NODE_RECLAIM_INTERVAL: Duration = Duration::from_secs(60);
/// Delay until released resources show in the signals.
const SETTLE_DELAY: Duration = Duration::from_secs(2);

/// Configuration of the eviction manager.
#[derive(Debug, Clone)]
pub struct EvictionConfig {
    /// The node's name.
    pub node_name: String,
    /// The thresholds, of [`thresholds::parse`].
    pub thresholds: Vec<Threshold>,
    /// `evictionPressureTransitionPeriod`: how long a condition holds after its last threshold was met.
    pub transition: Duration,
    /// `evictionMaxPodGracePeriod`: most seconds of grace at a soft threshold.
    pub max_pod_grace: i64,
    /// The memory limit of all pods together, in bytes.
    pub pods_memory: i64,
    /// The directory of the node's own data, whose file system the nodefs is.
    pub data_dir: PathBuf,
}

/// What the eviction manager needs of the agent's other parts.
#[derive(Debug)]
pub struct EvictionInputs {
    /// For events.
    pub recorder: Recorder,
    /// Usage of pods.
    pub usage: windlass_cadvisor::Usage,
    /// The pods of this node.
    pub pods: watch::Receiver<Arc<Vec<Arc<Pod>>>>,
    /// Counts evictions.
    pub metrics: Arc<Metrics>,
    /// Kills pods.
    pub killer: PodKiller,
    /// Images, which are reclaimed before pods.
    pub images: Images,
    /// The node's pressure conditions.
    pub pressure: watch::Sender<Pressure>,
}

/// Monitors the signals and evicts pods until `shutdown`.
pub async fn run(config: EvictionConfig, inputs: EvictionInputs, shutdown: CancellationToken) {
    let mut eviction = Eviction {
        config,
        inputs,
        dedicated_image_fs: false,
        state: State::default(),
        evicting: None,
        released: Moment::ZERO,
        reclaiming: None,
        event_recorded_at: None,
        evicted: BTreeSet::new(),
    };
    loop {
        let wait = eviction.synchronize().await;
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
            () = eviction_done(&mut eviction.evicting) => {
                eviction.released = Moment::now();
                tokio::time::sleep(SETTLE_DELAY).await;
            }
        }
    }
}

/// Waits for the end of the running eviction.
async fn eviction_done(evicting: &mut Option<JoinHandle<()>>) {
    match evicting {
        Some(task) => drop(task.await),
        None => std::future::pending().await,
    }
    *evicting = None;
}

struct Eviction {
    config: EvictionConfig,
    inputs: EvictionInputs,
    /// Whether the imagefs is separate from the nodefs, as far as is known.
    dedicated_image_fs: bool,
    state: State,
    evicting: Option<JoinHandle<()>>,
    /// When the last evicted pod was gone: what was measured before it counts that pod.
    released: Moment,
    /// The last reclaim of node-level resources, and when it started.
    reclaiming: Option<(JoinHandle<()>, Instant)>,
    /// When an event was last recorded.
    event_recorded_at: Option<Instant>,
    /// Pods that were already evicted: the next in rank is chosen.
    evicted: BTreeSet<String>,
}

impl Eviction {
    /// One pass of upstream's `synchronize`: observe, decide, evict one pod at most. Returns the delay until the next
    /// pass.
    async fn synchronize(&mut self) -> Duration {
        let mut observed = self.observe().await;
        if is_any_met(&self.config.thresholds, &observed) {
            // Samples may be as old as their interval: a pod has ended since, and one that started has none, which would
            // be the first in rank.
            self.inputs.usage.refresh().await;
            observed = self.observe().await;
        }
        let config = &self.config;
        let decision = self.state.evaluate(&config.thresholds, config.transition, &observed, Timestamp::now());
        self.inputs.pressure.send_if_modified(|told| std::mem::replace(told, decision.pressure) != decision.pressure);
        let wait = if is_close(&config.thresholds, observed.get(&Signal::Memory).copied()) {
            URGENT_MONITOR_INTERVAL
        } else {
            MONITOR_INTERVAL
        };
        let all = Arc::clone(&self.inputs.pods.borrow_and_update());
        let active: Vec<&Pod> = all.iter().map(AsRef::as_ref).filter(|pod| !is_terminal(pod)).collect();
        self.evicted.retain(|known| active.iter().any(|pod| pod.metadata.uid.as_deref() == Some(known)));
        if self.evicting.is_some() {
            return wait;
        }
        if decision.reclaim.is_some_and(|(threshold, _)| threshold.signal.condition() == Condition::Disk) {
            // Rescan, so that the pod that filled the disk since the last scan is ranked first.
            self.inputs.usage.rescan_disks().await;
        }
        let usages = usage::by_pod(&self.inputs.usage.snapshot(), &self.inputs.usage.storage());
        let none = ranking::PodStats::default();
        let candidates: Vec<Candidate<'_>> = active
            .into_iter()
            .filter_map(|pod| {
                let uid = pod.metadata.uid.as_deref().filter(|uid| !self.evicted.contains(*uid))?;
                Some(Candidate { pod, usage: usages.get(uid).unwrap_or(&none) })
            })
            .collect();
        let beyond = candidates.iter().filter(|c| !pods::is_critical(c.pod));
        if let Some((pod, (limit, why))) =
            beyond.clone().find_map(|c| Some((c.pod, ranking::exceeded_limit(c.pod, c.usage)?)))
        {
            self.inputs.metrics.evictions.add([limit]);
            self.evict(pod, IMMEDIATE_GRACE_SECONDS, why, BTreeMap::new(), false);
            return wait;
        }
        let Some((threshold, observation)) = decision.reclaim else { return wait };
        let resource = threshold.signal.resource();
        let record_event = self.event_recorded_at.is_none_or(|at| at.elapsed() >= MONITOR_INTERVAL);
        if record_event {
            self.event_recorded_at = Some(Instant::now());
            let message = format!("Attempting to reclaim {resource}");
            let node = object_ref::node(&self.config.node_name);
            self.inputs.recorder.record(&node, Severity::Warning, "EvictionThresholdMet", message);
        }
        if self.frees_signal(threshold.signal) && !self.reclaim_node_resources() {
            return URGENT_MONITOR_INTERVAL;
        }
        let Some(first) = ranking::rank(threshold.signal, candidates.into_iter()).into_iter().next() else {
            if record_event {
                tracing::warn!(resource, "eviction threshold still met, no pod left to evict");
            }
            return wait;
        };
        let (message, annotations) = ranking::eviction_message(&threshold, observation, first);
        let grace = if threshold.soft.is_some() { self.config.max_pod_grace } else { IMMEDIATE_GRACE_SECONDS };
        self.inputs.metrics.evictions.add([threshold.signal.name()]);
        self.evict(first.pod, grace, message, annotations, true);
        wait
    }

    /// Observes all signals; those of hanging file systems are left out.
    async fn observe(&mut self) -> Observations {
        let (data_dir, image_root) = (self.config.data_dir.clone(), self.inputs.usage.storage().image_root.clone());
        let read = DISK.call(move || NodeSignals::read(&data_dir, image_root.as_deref()));
        let read = match tokio::time::timeout(READ_TIMEOUT, read).await {
            Ok(Ok(read)) => read,
            _ => {
                tracing::warn!("reading eviction signals timed out; monitoring memory only");
                NodeSignals { memory: NodeSignals::of_memory(), ..NodeSignals::default() }
            }
        };
        if let Some(is_one) = read.is_one_file_system {
            self.dedicated_image_fs = !is_one;
        }
        let mut observed = signals::observations(&read);
        let snapshot = self.inputs.usage.snapshot();
        if !snapshot.pods.is_empty() {
            // Their common cgroup also has what ended pods have left there.
            let together = snapshot.all_pods.as_ref().map(|all| &all.sample).filter(|sample| sample.memory.is_some());
            let samples: Vec<&Sample> = match together {
                Some(sample) => vec![sample],
                None => snapshot.pods.values().map(|row| &row.sample).collect(),
            };
            let left = signals::allocatable_memory(self.config.pods_memory, &samples, self.released);
            observed.extend(left.map(|left| (Signal::AllocatableMemory, left)));
        }
        observed
    }

    /// Whether removing images and exited containers helps a signal: that of the nodefs only if Docker's data is on it
    /// too.
    fn frees_signal(&self, signal: Signal) -> bool {
        let images = matches!(signal, Signal::ImageFs | Signal::ImageFsInodes);
        signal.condition() == Condition::Disk && (images || !self.dedicated_image_fs)
    }

    /// Reclaims node-level resources in the background, since Docker takes its time. Returns whether that was done
    /// lately, so that it is the turn of pods.
    fn reclaim_node_resources(&mut self) -> bool {
        if let Some((task, at)) = &self.reclaiming
            && (!task.is_finished() || at.elapsed() < NODE_RECLAIM_INTERVAL)
        {
            return task.is_finished();
        }
        let (killer, images) = (self.inputs.killer.clone(), self.inputs.images.clone());
        let task = tokio::spawn(async move {
            killer.gc_exited_containers().await;
            images.remove_unused().await;
        });
        self.reclaiming = Some((task, Instant::now()));
        false
    }

    /// Evicts a pod in the background.
    fn evict(
        &mut self,
        pod: &Pod,
        grace: i64,
        message: String,
        annotations: BTreeMap<String, String>,
        disruption: bool,
    ) {
        let Some(uid) = pod.metadata.uid.clone() else { return };
        tracing::info!(pod = pod.metadata.name, namespace = pod.metadata.namespace, message, "evicting pod");
        let recorder = &self.inputs.recorder;
        recorder.record_annotated(&pod.object_ref(&()), Severity::Warning, "Evicted", message.clone(), annotations);
        self.evicted.insert(uid.clone());
        let (killer, mut pods) = (self.inputs.killer.clone(), self.inputs.pods.clone());
        let reason = KillReason { reason: "Evicted".to_owned(), message, grace: Some(grace), disruption };
        self.evicting = Some(tokio::spawn(async move {
            let result = killer.kill(&uid, reason).await;
            tracing::debug!(pod = uid, ?result, "eviction finished");
            let over = pods.wait_for(|all| all.iter().all(|p| p.metadata.uid.as_ref() != Some(&uid) || is_terminal(p)));
            let _ = tokio::time::timeout(POD_CLEANUP_TIMEOUT, over).await;
        }));
    }
}
