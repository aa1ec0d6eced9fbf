//! Usage of nodes and pods for `metrics.k8s.io`: samples come in as plain [`Readings`], the last two of each container
//! are stored, and rates between them are returned. Pure; samples are pushed by [`crate::ControlPlane::follow_usage`].

mod api_types;

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard},
    time::Duration,
};

use jiff::Timestamp;

pub(crate) use api_types::{node_metrics, pod_metrics};

/// Samples closer than this are dropped: rates cover the ten seconds between regular samples, and a client that
/// requests fresh numbers in between must not turn them into rates over one second. The second sample of a new
/// container is always used, so that its rate is available early.
const MIN_SAMPLE_INTERVAL: Duration = Duration::from_secs(9);

/// Counters of a container or machine at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// When they were sampled.
    pub at: Timestamp,
    /// Cumulative CPU time, in nanoseconds.
    pub cpu_ns: u64,
    /// Working set, in bytes.
    pub memory_bytes: u64,
}

/// A container of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerReading {
    /// The container's id; a restarted container has another one.
    pub id: String,
    /// Of the pod.
    pub namespace: String,
    /// Of the pod.
    pub pod: String,
    /// Its name in the pod.
    pub name: String,
    /// Its counters.
    pub reading: Reading,
}

/// One sample of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Readings {
    /// Name of the node; empty before the first sample.
    pub node: String,
    /// The machine as a whole.
    pub machine: Option<Reading>,
    /// Every container of a pod that runs, without sandboxes.
    pub containers: Vec<ContainerReading>,
}

/// Usage between two readings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rate {
    /// The time of the later reading.
    pub(crate) at: Timestamp,
    /// The time between them.
    pub(crate) window: Duration,
    /// Average CPU usage, in nanocores.
    pub(crate) nano_cores: i64,
    /// Working set of the later reading, in bytes.
    pub(crate) memory_bytes: i64,
}

/// Usage of one pod's containers, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodRates {
    /// Those of the container with the earliest reading.
    pub(crate) at: Timestamp,
    pub(crate) window: Duration,
    pub(crate) containers: Vec<(String, Rate)>,
}

#[derive(Debug, Clone, Copy)]
struct SamplePair {
    last: Reading,
    before: Option<Reading>,
}

impl SamplePair {
    /// The pair after a further reading.
    fn advance(samples: Option<&Self>, now: Reading) -> Self {
        let first = Self { last: now, before: None };
        let Some(samples) = samples else { return first };
        // A counter that decreased was reset.
        if now.cpu_ns < samples.last.cpu_ns {
            return first;
        }
        let passed = duration_between(samples.last.at, now.at);
        let counts = if samples.before.is_some() { passed >= MIN_SAMPLE_INTERVAL } else { !passed.is_zero() };
        if counts { Self { last: now, before: Some(samples.last) } } else { *samples }
    }

    fn rate(&self) -> Option<Rate> {
        let before = self.before?;
        let window = duration_between(before.at, self.last.at);
        let used = u128::from(self.last.cpu_ns.checked_sub(before.cpu_ns)?);
        let nano_cores = (used * 1_000_000_000).checked_div(window.as_nanos())?;
        Some(Rate {
            at: self.last.at,
            window,
            nano_cores: i64::try_from(nano_cores).ok()?,
            memory_bytes: i64::try_from(self.last.memory_bytes).ok()?,
        })
    }
}

/// The time from `from` to `to`; zero when `to` is not later.
fn duration_between(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}

#[derive(Debug)]
struct ContainerSamples {
    namespace: String,
    pod: String,
    name: String,
    pair: SamplePair,
}

/// The samples that recording and reading share.
#[derive(Debug, Clone, Default)]
pub(crate) struct Usage(Arc<RwLock<SampleWindow>>);

impl Usage {
    /// Adds a sample.
    pub(crate) fn record(&self, readings: &Readings) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).record(readings);
    }

    /// The samples.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, SampleWindow> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The last two readings of the node and of each container of the latest sample.
#[derive(Debug, Default)]
pub(crate) struct SampleWindow {
    node: String,
    machine: Option<SamplePair>,
    /// By container id.
    containers: BTreeMap<String, ContainerSamples>,
}

impl SampleWindow {
    /// Adds a sample; containers that it does not have are dropped.
    pub(crate) fn record(&mut self, readings: &Readings) {
        let same_node = self.node == readings.node;
        let machine = self.machine.as_ref().filter(|_| same_node);
        self.machine = readings.machine.map(|now| SamplePair::advance(machine, now));
        self.node.clone_from(&readings.node);
        let mut before = std::mem::take(&mut self.containers);
        for container in &readings.containers {
            let samples = before.remove(&container.id);
            let pair = SamplePair::advance(samples.as_ref().map(|k| &k.pair), container.reading);
            let (namespace, pod, name) = (container.namespace.clone(), container.pod.clone(), container.name.clone());
            self.containers.insert(container.id.clone(), ContainerSamples { namespace, pod, name, pair });
        }
    }

    /// The usage of a node.
    pub(crate) fn node(&self, name: &str) -> Option<Rate> {
        self.machine.as_ref().filter(|_| self.node == name)?.rate()
    }

    /// The usage of pods, by namespace and name. A pod is included once each of its containers has a rate and non-zero
    /// counters: a partial sum would make an autoscaler believe that the other containers are idle.
    pub(crate) fn pods(&self) -> BTreeMap<(&str, &str), PodRates> {
        let mut pods: BTreeMap<(&str, &str), Option<PodRates>> = BTreeMap::new();
        for samples in self.containers.values() {
            let real = samples.pair.last.cpu_ns > 0 && samples.pair.last.memory_bytes > 0;
            let rate = samples.pair.rate().filter(|_| real);
            let so_far = pods.entry((&samples.namespace, &samples.pod));
            let Some(rate) = rate else {
                so_far.insert_entry(None);
                continue;
            };
            let pod =
                so_far.or_insert_with(|| Some(PodRates { at: rate.at, window: rate.window, containers: Vec::new() }));
            let Some(pod) = pod else { continue };
            if rate.at < pod.at {
                (pod.at, pod.window) = (rate.at, rate.window);
            }
            let at = pod.containers.partition_point(|(name, _)| *name < samples.name);
            pod.containers.insert(at, (samples.name.clone(), rate));
        }
        pods.into_iter().filter_map(|(name, pod)| Some((name, pod?))).collect()
    }
}
