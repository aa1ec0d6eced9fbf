//! A pod and what it demands of its node. Pure.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Container, NodeSelector, Pod, PodSpec, PreferredSchedulingTerm, Toleration},
    apimachinery::pkg::api::resource::Quantity,
};
use windlass_kit::objects::{
    claims::{Claim, claims_of},
    requests::{Amounts, HostPort, host_ports, requested, requests_of, requests_with},
};

use super::{Disk, Key, PodAffinity, SpreadConstraint};

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
    pub(crate) generation: Option<i64>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) priority: i32,
    /// Bound to this node, if any.
    pub(crate) node: Option<String>,
    /// `status.nominatedNodeName`.
    pub(crate) nominated: Option<String>,
    /// Terminal: its requests do not count.
    pub(crate) terminal: bool,
    pub(crate) deleting: bool,
    pub(crate) gated: bool,
    /// The scheduler has preempted it: its condition DisruptionTarget says so.
    pub(crate) preempted: bool,
    pub(crate) started: Option<Timestamp>,
    pub(crate) requests: Amounts,
    /// Milli-CPU and bytes with the defaults for unset requests, for scoring.
    pub(crate) scored: (i64, i64),
    pub(crate) ports: Vec<HostPort>,
    pub(crate) affinity: Option<Arc<PodAffinity>>,
    /// The claims of its volumes.
    pub(crate) claims: Vec<Claim>,
    /// The disks that it names itself.
    pub(crate) disks: Vec<Disk>,
    /// What only matters before it is bound; dropped then.
    pub(crate) constraints: Option<Arc<Constraints>>,
}

/// Which pod of the API is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodReference {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) generation: Option<i64>,
}

/// What an unbound pod demands of its node.
#[derive(Debug, Clone, Default)]
pub(crate) struct Constraints {
    pub(crate) selector: BTreeMap<String, String>,
    pub(crate) required: Option<NodeSelector>,
    pub(crate) preferred: Vec<PreferredSchedulingTerm>,
    pub(crate) tolerations: Vec<Toleration>,
    pub(crate) spread: Vec<SpreadConstraint>,
    /// Its images by their normalized names; `None` for a container that has none.
    pub(crate) images: Vec<String>,
    /// Kind and name of the controller that owns it.
    pub(crate) owner: Option<(String, String)>,
    /// What its node must declare to support.
    pub(crate) features: Vec<&'static str>,
    /// It claims devices.
    pub(crate) claims_devices: bool,
    /// `preemptionPolicy` is not `Never`.
    pub(crate) preempts: bool,
    /// Reason and message of its PodScheduled condition.
    pub(crate) condition: Option<(String, String)>,
}

impl PodInfo {
    pub(crate) fn of(pod: &Pod) -> Self {
        let Some(spec) = &pod.spec else { return Self::default() };
        let (metadata, status) = (&pod.metadata, pod.status.as_ref());
        let namespace = metadata.namespace.clone().unwrap_or_default();
        let node = spec.node_name.clone().filter(|n| !n.is_empty());
        let phase = status.and_then(|s| s.phase.as_deref()).unwrap_or_default();
        let whole = held_by_pod(pod, spec);
        let scored = requests_with(pod, whole.clone(), |container| with_defaults(container, held(pod, container)));
        let mut conditions = status.iter().flat_map(|s| s.conditions.iter().flatten());
        let constraints = node.is_none().then(|| Arc::new(Constraints::of(pod, spec)));
        Self {
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            version: metadata.resource_version.clone().unwrap_or_default(),
            generation: metadata.generation,
            labels: metadata.labels.clone().unwrap_or_default(),
            priority: spec.priority.unwrap_or(0),
            nominated: status.and_then(|s| s.nominated_node_name.clone()).filter(|n| !n.is_empty()),
            terminal: matches!(phase, "Succeeded" | "Failed"),
            deleting: metadata.deletion_timestamp.is_some(),
            gated: spec.scheduling_gates.as_ref().is_some_and(|g| !g.is_empty()),
            preempted: conditions.any(|c| {
                c.type_ == "DisruptionTarget"
                    && c.status == "True"
                    && c.reason.as_deref() == Some("PreemptionByScheduler")
            }),
            started: status.and_then(|s| s.start_time.as_ref()).map(|time| time.0),
            requests: requests_with(pod, whole, |container| held(pod, container)),
            scored: (scored.milli_cpu, scored.memory),
            ports: host_ports(pod),
            affinity: PodAffinity::of(spec.affinity.as_ref(), &namespace),
            claims: claims_of(pod).collect(),
            disks: spec.volumes.iter().flatten().filter_map(Disk::of).collect(),
            namespace,
            node,
            constraints,
        }
    }

    pub(crate) fn key(&self) -> Key {
        (self.namespace.clone(), self.name.clone())
    }

    pub(crate) fn reference(&self) -> PodReference {
        PodReference {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            uid: self.uid.clone(),
            generation: self.generation,
        }
    }

    pub(crate) fn claim_keys(&self) -> impl Iterator<Item = Key> {
        self.claims.iter().map(|claim| (self.namespace.clone(), claim.name.clone()))
    }
}

/// What a container holds: it requests it, or it still has it while it is resized (upstream's
/// `determineEffectiveRequests`). Of init containers only sidecars are resized.
fn held(pod: &Pod, container: &Container) -> Amounts {
    let status = pod.status.as_ref();
    let main = status.and_then(|s| s.container_statuses.as_ref());
    let sidecars = status.and_then(|s| s.init_container_statuses.as_ref());
    let is_sidecar = container.restart_policy.as_deref() == Some("Always");
    let statuses = main.into_iter().chain(sidecars.filter(|_| is_sidecar)).flatten();
    let Some(has) = statuses.into_iter().find(|status| status.name == container.name) else {
        return requests_of(container);
    };
    let in_force = has.resources.as_ref().and_then(|r| r.requests.as_ref());
    if in_force.is_none() && has.allocated_resources.is_none() {
        return requests_of(container);
    }
    effective(pod, requests_of(container), in_force, has.allocated_resources.as_ref())
}

/// What the resources of a pod as a whole are while they are resized; `None` where its spec alone says so.
fn held_by_pod(pod: &Pod, spec: &PodSpec) -> Option<Amounts> {
    let requested = spec.resources.as_ref()?.requests.as_ref()?;
    let status = pod.status.as_ref()?;
    let in_force = status.resources.as_ref()?.requests.as_ref();
    Some(effective(pod, Amounts::of(Some(requested)), in_force, status.allocated_resources.as_ref()))
}

/// The most of what is requested, in force and promised; what is requested in vain does not count.
fn effective(
    pod: &Pod,
    requested: Amounts,
    in_force: Option<&BTreeMap<String, Quantity>>,
    allocated: Option<&BTreeMap<String, Quantity>>,
) -> Amounts {
    let mut conditions = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
    let in_vain = conditions.any(|c| c.type_ == "PodResizePending" && c.reason.as_deref() == Some("Infeasible"));
    let mut amounts = if in_vain { Amounts::default() } else { requested };
    amounts.at_least(&Amounts::of(allocated));
    amounts.at_least(&Amounts::of(in_force));
    amounts
}

/// The same with the defaults for scoring.
fn with_defaults(container: &Container, mut amounts: Amounts) -> Amounts {
    let set = |name: &str| requested(container).is_some_and(|r| r.contains_key(name));
    amounts.milli_cpu = if set("cpu") { amounts.milli_cpu } else { UNSET_MILLI_CPU };
    amounts.memory = if set("memory") { amounts.memory } else { UNSET_MEMORY };
    amounts
}

impl Constraints {
    fn of(pod: &Pod, spec: &PodSpec) -> Self {
        let affinity = spec.affinity.as_ref().and_then(|a| a.node_affinity.as_ref());
        let condition = pod.status.as_ref().and_then(|s| s.conditions.as_ref()).and_then(|conditions| {
            let found = conditions.iter().find(|c| c.type_ == "PodScheduled" && c.status == "False")?;
            Some((found.reason.clone().unwrap_or_default(), found.message.clone().unwrap_or_default()))
        });
        let labels = pod.metadata.labels.clone().unwrap_or_default();
        let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
        let images = containers.map(|c| normalized_image_name(c.image.as_deref().unwrap_or_default()));
        let volumes = spec.volumes.iter().flatten().filter_map(|v| v.image.as_ref());
        let volumes = volumes.map(|image| normalized_image_name(image.reference.as_deref().unwrap_or_default()));
        let owners = pod.metadata.owner_references.iter().flatten();
        let owner = owners.into_iter().find(|owner| owner.controller == Some(true));
        let spread = spec.topology_spread_constraints.iter().flatten();
        Self {
            selector: spec.node_selector.clone().unwrap_or_default(),
            required: affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.clone()),
            preferred: affinity
                .and_then(|a| a.preferred_during_scheduling_ignored_during_execution.clone())
                .unwrap_or_default(),
            tolerations: spec.tolerations.clone().unwrap_or_default(),
            spread: spread.map(|constraint| SpreadConstraint::of(constraint, &labels)).collect(),
            images: images.chain(volumes).collect(),
            owner: owner.map(|owner| (owner.kind.clone(), owner.name.clone())),
            features: needed_features(spec),
            claims_devices: spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()),
            preempts: spec.preemption_policy.as_deref() != Some("Never"),
            condition,
        }
    }
}

/// The features that a pod needs of its node from the beginning (upstream's `InferForScheduling`).
fn needed_features(spec: &PodSpec) -> Vec<&'static str> {
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let mut rules = containers.flat_map(|container| container.restart_policy_rules.iter().flatten());
    let restarts_all = rules.any(|rule| rule.action == "RestartAllContainers");
    restarts_all.then_some("RestartAllContainersOnContainerExits").into_iter().collect()
}

/// An image name with a tag (upstream's `normalizedImageName`).
fn normalized_image_name(name: &str) -> String {
    let tagged = match (name.rfind(':'), name.rfind('/')) {
        (Some(colon), Some(slash)) => colon > slash,
        (colon, None) => colon.is_some(),
        (None, Some(_)) => false,
    };
    if tagged { name.to_owned() } else { format!("{name}:latest") }
}
