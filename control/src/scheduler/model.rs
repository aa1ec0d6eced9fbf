//! Pods and nodes as the scheduler sees them: small, with all quantities read once. Pure.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use k8s_openapi::{
    api::core::v1::{Container, Node, NodeSelector, Pod, PreferredSchedulingTerm, Taint, Toleration},
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};
use windlass_kit::{
    objects::claims::{Claim, claims_of},
    quantity::Quantity,
};

/// Requests that count for scoring where a container asks for nothing (upstream's constants).
const UNSET_MILLI_CPU: i64 = 100;
const UNSET_MEMORY: i64 = 200 * 1024 * 1024;

/// Amounts of resources.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Amounts {
    pub(crate) milli_cpu: i64,
    /// Bytes.
    pub(crate) memory: i64,
    /// Bytes.
    pub(crate) ephemeral: i64,
    /// Extended resources and huge pages, whole units.
    pub(crate) other: BTreeMap<String, i64>,
}

impl Amounts {
    pub(crate) fn of(list: Option<&BTreeMap<String, ApiQuantity>>) -> Self {
        let mut amounts = Self::default();
        for (name, quantity) in list.into_iter().flatten() {
            let Ok(quantity) = quantity.0.parse::<Quantity>() else { continue };
            match name.as_str() {
                "cpu" => amounts.milli_cpu = quantity.milli(),
                "memory" => amounts.memory = quantity.units(),
                "ephemeral-storage" => amounts.ephemeral = quantity.units(),
                "pods" => {}
                _ => drop(amounts.other.insert(name.clone(), quantity.units())),
            }
        }
        amounts
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.combine(other, i64::saturating_add);
    }

    pub(crate) fn subtract(&mut self, other: &Self) {
        self.combine(other, i64::saturating_sub);
    }

    fn at_least(&mut self, other: &Self) {
        self.combine(other, i64::max);
    }

    fn combine(&mut self, other: &Self, f: impl Fn(i64, i64) -> i64) {
        self.milli_cpu = f(self.milli_cpu, other.milli_cpu);
        self.memory = f(self.memory, other.memory);
        self.ephemeral = f(self.ephemeral, other.ephemeral);
        for (name, amount) in &other.other {
            let mine = self.other.entry(name.clone()).or_default();
            *mine = f(*mine, *amount);
        }
    }
}

/// A port on the node that a pod wants for itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostPort {
    /// Empty stands for all addresses.
    pub(crate) ip: String,
    pub(crate) protocol: String,
    pub(crate) port: i32,
}

impl HostPort {
    pub(crate) fn clashes(&self, other: &Self) -> bool {
        self.port == other.port
            && self.protocol == other.protocol
            && (self.ip.is_empty() || other.ip.is_empty() || self.ip == other.ip)
    }
}

/// A pod as the scheduler sees it.
#[derive(Debug, Clone, Default)]
pub(crate) struct PodInfo {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) version: String,
    pub(crate) priority: i32,
    /// Bound to this node, if any.
    pub(crate) node: Option<String>,
    /// Ended: occupies nothing.
    pub(crate) terminal: bool,
    pub(crate) deleting: bool,
    pub(crate) gated: bool,
    pub(crate) requests: Amounts,
    /// Milli-CPU and bytes with the defaults for unset requests, for scoring.
    pub(crate) scored: (i64, i64),
    pub(crate) ports: Vec<HostPort>,
    /// What only a pod that is to be scheduled needs; dropped once it is bound.
    pub(crate) wants: Option<Arc<Wants>>,
}

/// What a pod demands of its node.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wants {
    pub(crate) selector: BTreeMap<String, String>,
    pub(crate) required: Option<NodeSelector>,
    pub(crate) preferred: Vec<PreferredSchedulingTerm>,
    pub(crate) tolerations: Vec<Toleration>,
    /// The claims that its volumes are.
    pub(crate) claims: Vec<Claim>,
    /// The condition PodScheduled as it stands: its reason and message.
    pub(crate) condition: Option<(String, String)>,
}

impl PodInfo {
    pub(crate) fn of(pod: &Pod) -> Self {
        let Some(spec) = &pod.spec else { return Self::default() };
        let node = spec.node_name.clone().filter(|n| !n.is_empty());
        let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default();
        let inits = spec.init_containers.as_deref().unwrap_or_default();
        let overhead = Amounts::of(spec.overhead.as_ref());
        let mut requests = pod_amounts(&spec.containers, inits, requests_of);
        if let Some(own) = spec.resources.as_ref().and_then(|r| r.requests.as_ref()) {
            // Requests of the pod as a whole take the place of its containers'.
            let whole = Amounts::of(Some(own));
            let set = |name: &str| own.contains_key(name);
            requests.milli_cpu = if set("cpu") { whole.milli_cpu } else { requests.milli_cpu };
            requests.memory = if set("memory") { whole.memory } else { requests.memory };
            requests.other.extend(whole.other);
        }
        let mut scored = pod_amounts(&spec.containers, inits, |c| {
            let mut amounts = requests_of(c);
            let set = |name: &str| requested(c).is_some_and(|r| r.contains_key(name));
            amounts.milli_cpu = if set("cpu") { amounts.milli_cpu } else { UNSET_MILLI_CPU };
            amounts.memory = if set("memory") { amounts.memory } else { UNSET_MEMORY };
            amounts
        });
        requests.add(&overhead);
        scored.add(&overhead);
        let wants = node.is_none().then(|| Arc::new(wants(pod)));
        Self {
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            version: pod.metadata.resource_version.clone().unwrap_or_default(),
            priority: spec.priority.unwrap_or(0),
            terminal: matches!(phase, "Succeeded" | "Failed"),
            deleting: pod.metadata.deletion_timestamp.is_some(),
            gated: spec.scheduling_gates.as_ref().is_some_and(|g| !g.is_empty()),
            ports: host_ports(pod),
            scored: (scored.milli_cpu, scored.memory),
            requests,
            node,
            wants,
        }
    }

    pub(crate) fn key(&self) -> (String, String) {
        (self.namespace.clone(), self.name.clone())
    }
}

fn wants(pod: &Pod) -> Wants {
    let Some(spec) = &pod.spec else { return Wants::default() };
    let affinity = spec.affinity.as_ref().and_then(|a| a.node_affinity.as_ref());
    let condition = pod.status.as_ref().and_then(|s| s.conditions.as_ref()).and_then(|conditions| {
        let found = conditions.iter().find(|c| c.type_ == "PodScheduled" && c.status == "False")?;
        Some((found.reason.clone().unwrap_or_default(), found.message.clone().unwrap_or_default()))
    });
    Wants {
        selector: spec.node_selector.clone().unwrap_or_default(),
        required: affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.clone()),
        preferred: affinity
            .and_then(|a| a.preferred_during_scheduling_ignored_during_execution.clone())
            .unwrap_or_default(),
        tolerations: spec.tolerations.clone().unwrap_or_default(),
        claims: claims_of(pod).collect(),
        condition,
    }
}

fn requested(container: &Container) -> Option<&BTreeMap<String, ApiQuantity>> {
    container.resources.as_ref().and_then(|r| r.requests.as_ref())
}

fn requests_of(container: &Container) -> Amounts {
    Amounts::of(requested(container))
}

/// Containers and sidecars run together; each init container runs with the sidecars before it.
fn pod_amounts(containers: &[Container], inits: &[Container], of: impl Fn(&Container) -> Amounts) -> Amounts {
    let mut running = Amounts::default();
    containers.iter().for_each(|c| running.add(&of(c)));
    let (mut sidecars, mut peak) = (Amounts::default(), Amounts::default());
    for init in inits {
        let own = of(init);
        if init.restart_policy.as_deref() == Some("Always") {
            running.add(&own);
            sidecars.add(&own);
            peak.at_least(&sidecars);
        } else {
            let mut with = own;
            with.add(&sidecars);
            peak.at_least(&with);
        }
    }
    running.at_least(&peak);
    running
}

fn host_ports(pod: &Pod) -> Vec<HostPort> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let host_network = spec.host_network == Some(true);
    let sidecars = spec.init_containers.iter().flatten().filter(|c| c.restart_policy.as_deref() == Some("Always"));
    spec.containers
        .iter()
        .chain(sidecars)
        .flat_map(|c| c.ports.iter().flatten())
        .filter_map(|port| {
            let number = port.host_port.or(host_network.then_some(port.container_port)).filter(|p| *p > 0)?;
            let ip = port.host_ip.clone().filter(|ip| ip != "0.0.0.0" && ip != "::").unwrap_or_default();
            Some(HostPort { ip, protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()), port: number })
        })
        .collect()
}

/// A node with what runs on it.
#[derive(Debug, Clone, Default)]
pub(crate) struct NodeInfo {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) taints: Vec<Taint>,
    pub(crate) unschedulable: bool,
    pub(crate) allocatable: Amounts,
    pub(crate) max_pods: i64,
    pub(crate) used: Amounts,
    pub(crate) scored: (i64, i64),
    /// Ports taken, by pod UID.
    pub(crate) ports: HashMap<String, Vec<HostPort>>,
    pub(crate) pods: i64,
}

impl NodeInfo {
    pub(crate) fn of(node: &Node) -> Self {
        let mut info = Self::default();
        info.update(node);
        info
    }

    /// Takes over what the API says; what runs on it stays.
    pub(crate) fn update(&mut self, node: &Node) {
        let allocatable = node.status.as_ref().and_then(|s| s.allocatable.as_ref());
        self.name = node.metadata.name.clone().unwrap_or_default();
        self.labels = node.metadata.labels.clone().unwrap_or_default();
        self.taints = node.spec.as_ref().and_then(|s| s.taints.clone()).unwrap_or_default();
        self.unschedulable = node.spec.as_ref().and_then(|s| s.unschedulable) == Some(true);
        self.allocatable = Amounts::of(allocatable);
        let pods = allocatable.and_then(|a| a.get("pods")).and_then(|q| q.0.parse::<Quantity>().ok());
        self.max_pods = pods.map_or(0, Quantity::units);
    }

    pub(crate) fn occupy(&mut self, pod: &PodInfo) {
        self.used.add(&pod.requests);
        self.scored = (self.scored.0 + pod.scored.0, self.scored.1 + pod.scored.1);
        if !pod.ports.is_empty() {
            self.ports.insert(pod.uid.clone(), pod.ports.clone());
        }
        self.pods += 1;
    }

    pub(crate) fn vacate(&mut self, pod: &PodInfo) {
        self.used.subtract(&pod.requests);
        self.scored = (self.scored.0 - pod.scored.0, self.scored.1 - pod.scored.1);
        self.ports.remove(&pod.uid);
        self.pods -= 1;
    }
}
