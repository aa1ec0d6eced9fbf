//! What nodes and pods use, as `metrics.k8s.io` tells it: plain [`Readings`] come in, two of each container are
//! kept, and rates between them go out. Pure; whoever reads usage hands it over ([`crate::ControlPlane::follow_usage`]).

mod wire;

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;

pub(crate) use wire::{NodeMetrics, PodMetrics, node_metrics, pod_metrics};

/// Rounds closer than this add nothing: rates are told over the ten seconds between regular rounds, and a client that
/// asks for fresh numbers in between must not turn them into rates over one second. The second round of a container
/// that is new counts at once, so that it shows up early.
const STEP: Duration = Duration::from_secs(9);

/// Counters of one container or machine at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// When they were read.
    pub at: Timestamp,
    /// CPU time used so far.
    pub cpu_ns: u64,
    /// Memory that cannot be freed easily.
    pub memory_bytes: u64,
}

/// A container of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerReading {
    /// Of this very container: one that was started again is another.
    pub id: String,
    /// Of the pod.
    pub namespace: String,
    /// Of the pod.
    pub pod: String,
    /// Its name in the pod.
    pub name: String,
    /// What it uses.
    pub reading: Reading,
}

/// One round over a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Readings {
    /// Name of the node; empty before there was a round.
    pub node: String,
    /// The machine as a whole.
    pub machine: Option<Reading>,
    /// Every container of a pod that runs, without sandboxes.
    pub containers: Vec<ContainerReading>,
}

/// Usage between two readings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rate {
    /// When the later one was taken.
    pub(crate) at: Timestamp,
    /// The time between them.
    pub(crate) window: Duration,
    /// Billionths of a core.
    pub(crate) nano_cores: i64,
    /// As last read.
    pub(crate) memory_bytes: i64,
}

/// Usage of one pod's containers, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodRates {
    /// Those of the container that was read first.
    pub(crate) at: Timestamp,
    pub(crate) window: Duration,
    pub(crate) containers: Vec<(String, Rate)>,
}

#[derive(Debug, Clone, Copy)]
struct Pair {
    last: Reading,
    before: Option<Reading>,
}

impl Pair {
    /// The pair after one more reading.
    fn then(known: Option<&Self>, now: Reading) -> Self {
        let first = Self { last: now, before: None };
        let Some(known) = known else { return first };
        // A counter that went back belongs to something that began anew.
        if now.cpu_ns < known.last.cpu_ns {
            return first;
        }
        let passed = between(known.last.at, now.at);
        let counts = if known.before.is_some() { passed >= STEP } else { !passed.is_zero() };
        if counts { Self { last: now, before: Some(known.last) } } else { *known }
    }

    fn rate(&self) -> Option<Rate> {
        let before = self.before?;
        let window = between(before.at, self.last.at);
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

/// No time at all when `to` is not later.
fn between(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}

#[derive(Debug)]
struct Known {
    namespace: String,
    pod: String,
    name: String,
    pair: Pair,
}

/// The last two readings of everything that the newest round has shown.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    node: String,
    machine: Option<Pair>,
    /// By container id.
    containers: BTreeMap<String, Known>,
}

impl Ledger {
    /// Adds a round; what is not in it is forgotten.
    pub(crate) fn take(&mut self, round: &Readings) {
        let same_node = self.node == round.node;
        let machine = self.machine.as_ref().filter(|_| same_node);
        self.machine = round.machine.map(|now| Pair::then(machine, now));
        self.node.clone_from(&round.node);
        let mut before = std::mem::take(&mut self.containers);
        for container in &round.containers {
            let known = before.remove(&container.id);
            let pair = Pair::then(known.as_ref().map(|k| &k.pair), container.reading);
            let (namespace, pod, name) = (container.namespace.clone(), container.pod.clone(), container.name.clone());
            self.containers.insert(container.id.clone(), Known { namespace, pod, name, pair });
        }
    }

    /// What a node uses.
    pub(crate) fn node(&self, name: &str) -> Option<Rate> {
        self.machine.as_ref().filter(|_| self.node == name)?.rate()
    }

    /// What the pods use, by namespace and name; a pod shows once each of its containers has a rate and real numbers,
    /// since a sum over some of them would make an autoscaler believe that the others rest.
    pub(crate) fn pods(&self) -> BTreeMap<(&str, &str), PodRates> {
        let mut pods: BTreeMap<(&str, &str), Option<PodRates>> = BTreeMap::new();
        for known in self.containers.values() {
            let real = known.pair.last.cpu_ns > 0 && known.pair.last.memory_bytes > 0;
            let rate = known.pair.rate().filter(|_| real);
            let so_far = pods.entry((&known.namespace, &known.pod));
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
            let at = pod.containers.partition_point(|(name, _)| *name < known.name);
            pod.containers.insert(at, (known.name.clone(), rate));
        }
        pods.into_iter().filter_map(|(name, pod)| Some((name, pod?))).collect()
    }
}
