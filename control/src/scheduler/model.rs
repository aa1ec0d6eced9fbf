//! Pods and nodes with parsed quantities. Pure.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{Node, NodeSelector, Pod, PreferredSchedulingTerm, Taint, Toleration};
use windlass_kit::{
    objects::claims::{Claim, claims_of},
    objects::requests::{Amounts, HostPort, host_ports, pod_amounts, requested, requests, requests_of},
    quantity::Quantity,
};

/// Default requests for scoring (upstream's constants).
const UNSET_MILLI_CPU: i64 = 100;
const UNSET_MEMORY: i64 = 200 * 1024 * 1024;

/// A pod in the scheduler's cache.
#[derive(Debug, Clone, Default)]
pub(crate) struct PodInfo {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) version: String,
    pub(crate) priority: i32,
    /// Bound to this node, if any.
    pub(crate) node: Option<String>,
    /// Terminal: its requests do not count.
    pub(crate) terminal: bool,
    pub(crate) deleting: bool,
    pub(crate) gated: bool,
    pub(crate) requests: Amounts,
    /// Milli-CPU and bytes with the defaults for unset requests, for scoring.
    pub(crate) scored: (i64, i64),
    pub(crate) ports: Vec<HostPort>,
    /// The constraints of an unscheduled pod; dropped once it is bound.
    pub(crate) constraints: Option<Arc<Constraints>>,
}

/// The constraints of a pod on its node.
#[derive(Debug, Clone, Default)]
pub(crate) struct Constraints {
    pub(crate) selector: BTreeMap<String, String>,
    pub(crate) required: Option<NodeSelector>,
    pub(crate) preferred: Vec<PreferredSchedulingTerm>,
    pub(crate) tolerations: Vec<Toleration>,
    /// The claims of its volumes.
    pub(crate) claims: Vec<Claim>,
    /// Reason and message of its PodScheduled condition.
    pub(crate) condition: Option<(String, String)>,
}

impl PodInfo {
    pub(crate) fn of(pod: &Pod) -> Self {
        let Some(spec) = &pod.spec else { return Self::default() };
        let node = spec.node_name.clone().filter(|n| !n.is_empty());
        let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default();
        let inits = spec.init_containers.as_deref().unwrap_or_default();
        let mut scored = pod_amounts(&spec.containers, inits, |c| {
            let mut amounts = requests_of(c);
            let set = |name: &str| requested(c).is_some_and(|r| r.contains_key(name));
            amounts.milli_cpu = if set("cpu") { amounts.milli_cpu } else { UNSET_MILLI_CPU };
            amounts.memory = if set("memory") { amounts.memory } else { UNSET_MEMORY };
            amounts
        });
        scored.add(&Amounts::of(spec.overhead.as_ref()));
        let constraints = node.is_none().then(|| Arc::new(constraints(pod)));
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
            requests: requests(pod),
            node,
            constraints,
        }
    }

    pub(crate) fn key(&self) -> (String, String) {
        (self.namespace.clone(), self.name.clone())
    }
}

fn constraints(pod: &Pod) -> Constraints {
    let Some(spec) = &pod.spec else { return Constraints::default() };
    let affinity = spec.affinity.as_ref().and_then(|a| a.node_affinity.as_ref());
    let condition = pod.status.as_ref().and_then(|s| s.conditions.as_ref()).and_then(|conditions| {
        let found = conditions.iter().find(|c| c.type_ == "PodScheduled" && c.status == "False")?;
        Some((found.reason.clone().unwrap_or_default(), found.message.clone().unwrap_or_default()))
    });
    Constraints {
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

/// A node and the resources of its pods.
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
    /// Host ports in use, by pod UID.
    pub(crate) ports: HashMap<String, Vec<HostPort>>,
    pub(crate) pods: i64,
}

impl NodeInfo {
    pub(crate) fn of(node: &Node) -> Self {
        let mut info = Self::default();
        info.update(node);
        info
    }

    /// Updates the node from the API; its pods stay.
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

    pub(crate) fn add_pod(&mut self, pod: &PodInfo) {
        self.used.add(&pod.requests);
        self.scored = (self.scored.0 + pod.scored.0, self.scored.1 + pod.scored.1);
        if !pod.ports.is_empty() {
            self.ports.insert(pod.uid.clone(), pod.ports.clone());
        }
        self.pods += 1;
    }

    pub(crate) fn remove_pod(&mut self, pod: &PodInfo) {
        self.used.subtract(&pod.requests);
        self.scored = (self.scored.0 - pod.scored.0, self.scored.1 - pod.scored.1);
        self.ports.remove(&pod.uid);
        self.pods -= 1;
    }
}
