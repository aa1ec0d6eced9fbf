//! What a pod requests from its node: resources and host ports. Used by the scheduler and by the node itself, which
//! must agree. Pure.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, ContainerPort, Pod, PodSpec},
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};

use crate::quantity::Quantity;

/// Amounts of resources.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Amounts {
    /// Millicores.
    pub milli_cpu: i64,
    /// Bytes.
    pub memory: i64,
    /// Bytes.
    pub ephemeral: i64,
    /// Extended resources and huge pages, whole units.
    pub other: BTreeMap<String, i64>,
}

impl Amounts {
    /// Parses a resource list of the API; invalid quantities count as zero.
    #[must_use]
    pub fn of(list: Option<&BTreeMap<String, ApiQuantity>>) -> Self {
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

    /// Adds, saturating.
    pub fn add(&mut self, other: &Self) {
        self.combine(other, i64::saturating_add);
    }

    /// Subtracts, saturating.
    pub fn subtract(&mut self, other: &Self) {
        self.combine(other, i64::saturating_sub);
    }

    /// The maximum of each.
    pub fn at_least(&mut self, other: &Self) {
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

/// A host port of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPort {
    /// Empty for all addresses.
    pub ip: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// The port on the node.
    pub port: i32,
}

impl HostPort {
    /// Whether both cannot be on one node.
    #[must_use]
    pub fn clashes(&self, other: &Self) -> bool {
        self.port == other.port
            && self.protocol == other.protocol
            && (self.ip.is_empty() || other.ip.is_empty() || self.ip == other.ip)
    }
}

/// The requests of a pod, as upstream's `PodRequests`: its containers or its most demanding init container, its
/// pod-level resources, and its overhead.
#[must_use]
pub fn requests(pod: &Pod) -> Amounts {
    requests_with(pod, None, requests_of)
}

/// The same, with each container's requests from `of`, and `whole` in place of the pod-level ones, if the pod has some.
#[must_use]
pub fn requests_with(pod: &Pod, whole: Option<Amounts>, of: impl Fn(&Container) -> Amounts) -> Amounts {
    let Some(spec) = &pod.spec else { return Amounts::default() };
    let mut requests = pod_amounts(&spec.containers, spec.init_containers.as_deref().unwrap_or_default(), of);
    if let Some(own) = spec.resources.as_ref().and_then(|r| r.requests.as_ref()) {
        // Pod-level requests replace those of the containers.
        let whole = whole.unwrap_or_else(|| Amounts::of(Some(own)));
        let set = |name: &str| own.contains_key(name);
        requests.milli_cpu = if set("cpu") { whole.milli_cpu } else { requests.milli_cpu };
        requests.memory = if set("memory") { whole.memory } else { requests.memory };
        // There are no others of a whole pod.
        requests.other.extend(whole.other.into_iter().filter(|(name, _)| name.starts_with("hugepages-")));
    }
    requests.add(&Amounts::of(spec.overhead.as_ref()));
    requests
}

/// A container's requests.
#[must_use]
pub fn requested(container: &Container) -> Option<&BTreeMap<String, ApiQuantity>> {
    container.resources.as_ref().and_then(|r| r.requests.as_ref())
}

/// A container's requests as amounts.
#[must_use]
pub fn requests_of(container: &Container) -> Amounts {
    Amounts::of(requested(container))
}

/// Containers and sidecars run together; each init container runs with the sidecars before it.
#[must_use]
pub fn pod_amounts(containers: &[Container], inits: &[Container], of: impl Fn(&Container) -> Amounts) -> Amounts {
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

/// The ports of the containers of a pod that last: main ones and sidecars. Only these are reserved on a node, so only
/// these are opened there.
pub fn lasting_ports(spec: &PodSpec) -> impl Iterator<Item = &ContainerPort> {
    let sidecars = spec.init_containers.iter().flatten().filter(|c| c.restart_policy.as_deref() == Some("Always"));
    spec.containers.iter().chain(sidecars).flat_map(|c| c.ports.iter().flatten())
}

/// The host ports of a pod.
#[must_use]
pub fn host_ports(pod: &Pod) -> Vec<HostPort> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let host_network = spec.host_network == Some(true);
    lasting_ports(spec)
        .filter_map(|port| {
            let number = port.host_port.or(host_network.then_some(port.container_port)).filter(|p| *p > 0)?;
            let ip = port.host_ip.clone().filter(|ip| ip != "0.0.0.0" && ip != "::").unwrap_or_default();
            Some(HostPort { ip, protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()), port: number })
        })
        .collect()
}
