//! The cache of Services, EndpointSlices, ServiceCIDRs and our Node, reduced to compact values; the API objects are dropped at once.
//! Pure; imports only the API's metadata type.

pub mod objects;
mod service_cidrs;
mod services;
mod slices;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod upstream_tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

pub(crate) use service_cidrs::ServiceCidrs;
pub use services::{Affinity, Port, Protocol, Service, UdpFrontend};
pub use slices::{Endpoint, Hints, Slice, SliceId, SlicePort};
pub use windlass_kit::net::{Cidr, Family, parse_ip};

/// `namespace/name` of a Service.
pub type ServiceId = Arc<str>;

/// The facts of our Node that rules and health depend on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Its addresses, InternalIP before ExternalIP, at most one of each family.
    pub addresses: Vec<std::net::IpAddr>,
    /// Label `topology.kubernetes.io/zone`; empty if not set.
    pub zone: String,
    /// `spec.podCIDRs`.
    pub pod_cidrs: Vec<Cidr>,
    /// Not being deleted, by the API or by the cluster autoscaler (kube-proxy: node eligibility of `/healthz`).
    pub eligible: bool,
}

impl NodeFacts {
    /// Reads the facts from the API object.
    #[must_use]
    pub fn of(node: &objects::Node) -> Self {
        let mut addresses: Vec<std::net::IpAddr> = Vec::new();
        let all = node.status.as_ref().and_then(|s| s.addresses.as_deref()).unwrap_or_default();
        for kind in ["InternalIP", "ExternalIP"] {
            for ip in all.iter().filter(|a| *a.r#type == *kind).filter_map(|a| parse_ip(&a.address)) {
                if !addresses.iter().any(|known| Family::of(known) == Family::of(&ip)) {
                    addresses.push(ip);
                }
            }
        }
        let spec = node.spec.as_ref();
        let pod_cidrs = spec
            .and_then(|s| s.pod_cidrs.clone().or_else(|| s.pod_cidr.clone().map(|c| vec![c])))
            .unwrap_or_default()
            .iter()
            .filter_map(|c| Cidr::parse(c))
            .collect();
        let being_deleted = spec
            .and_then(|s| s.taints.as_deref())
            .unwrap_or_default()
            .iter()
            .any(|t| &*t.key == "ToBeDeletedByClusterAutoscaler");
        let labels = node.metadata.labels.as_ref();
        Self {
            addresses,
            zone: labels.and_then(|l| l.get("topology.kubernetes.io/zone").cloned()).unwrap_or_default(),
            pod_cidrs,
            eligible: node.metadata.deletion_timestamp.is_none() && !being_deleted,
        }
    }
}

/// What changed since the last [`Model::take_changes`].
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Changes {
    /// By address family: Services that changed, or whose endpoints did.
    pub services: [BTreeSet<ServiceId>; 2],
    /// By address family: Services whose UDP conntrack entries may be stale.
    pub udp: [BTreeSet<ServiceId>; 2],
    /// UDP frontends that a Service lost; another Service may have them now.
    pub removed_udp: BTreeSet<(Family, UdpFrontend)>,
    /// A health check node port or the endpoints behind one may have changed.
    pub health_checks: bool,
}

impl Changes {
    /// The Services whose rules of a family may have changed.
    #[must_use]
    pub const fn of(&self, family: Family) -> &BTreeSet<ServiceId> {
        &self.services[family as usize]
    }

    fn note(&mut self, id: &ServiceId, family: Family) {
        self.services[family as usize].insert(id.clone());
    }
}

/// All Services and slices, and the changes since the last [`take_changes`](Self::take_changes).
#[derive(Debug, Default, Clone)]
pub struct Model {
    services: BTreeMap<ServiceId, Arc<Service>>,
    /// Slices by Service, then by their id.
    slices: HashMap<ServiceId, BTreeMap<SliceId, Arc<Slice>>>,
    /// The Service that each slice belongs to, so that one whose label changes never belongs to two.
    owners: HashMap<SliceId, ServiceId>,
    /// The ranges of cluster IPs.
    pub(crate) service_cidrs: ServiceCidrs,
    /// Services with a health check node port.
    health_checked: BTreeSet<ServiceId>,
    /// Services with a UDP port.
    udp_services: BTreeSet<ServiceId>,
    /// Endpoints of each Service's ports by family, as of the last [`take_changes`](Self::take_changes).
    counts: HashMap<ServiceId, [usize; 2]>,
    /// Their sums.
    endpoints: [usize; 2],
    changes: Changes,
}

impl Model {
    /// Adds or updates a Service; returns whether anything that rules depend on changed.
    pub fn put_service(&mut self, object: &objects::Service) -> bool {
        let id = services::id(&object.metadata);
        match Service::of(object) {
            None => self.remove_service(&id),
            Some(service) => {
                if self.services.get(&id).is_some_and(|known| **known == service) {
                    return false;
                }
                self.note_service(&id, Some(&service));
                self.retire_udp(&id, Some(&service));
                match service.health_check_node_port {
                    0 => self.health_checked.remove(&id),
                    _ => self.health_checked.insert(id.clone()),
                };
                if service.has_udp() {
                    self.udp_services.insert(id.clone());
                }
                self.changes.health_checks |= service.health_check_node_port != 0
                    || self.services.get(&id).is_some_and(|s| s.health_check_node_port != 0);
                self.services.insert(id, Arc::new(service));
                true
            }
        }
    }

    /// Removes a Service; returns whether it existed.
    pub fn delete_service(&mut self, object: &objects::Service) -> bool {
        self.remove_service(&services::id(&object.metadata))
    }

    fn remove_service(&mut self, id: &ServiceId) -> bool {
        if !self.services.contains_key(id) {
            return false;
        }
        self.note_service(id, None);
        self.retire_udp(id, None);
        self.changes.health_checks |= self.health_checked.remove(id);
        self.services.remove(id);
        true
    }

    /// Records that a Service changes, for the families in which it has rules, or had.
    fn note_service(&mut self, id: &ServiceId, next: Option<&Service>) {
        let known = self.services.get(id).cloned();
        for family in Family::BOTH {
            let has = |service: Option<&Service>| service.is_some_and(|service| service.cluster_ip(family).is_some());
            if has(known.as_deref()) || has(next) {
                self.changes.note(id, family);
            }
        }
    }

    /// Records the UDP frontends that a Service loses, and requests a search for stale entries of those it gets.
    fn retire_udp(&mut self, id: &ServiceId, next: Option<&Service>) {
        let known = self.services.get(id).cloned();
        for family in Family::BOTH {
            let of = |service: Option<&Service>| -> BTreeSet<UdpFrontend> {
                service.into_iter().flat_map(|s| s.udp_frontends(family)).map(|(frontend, _)| frontend).collect()
            };
            let (before, after) = (of(known.as_deref()), of(next));
            if !(before.is_empty() && after.is_empty()) {
                self.changes.udp[family as usize].insert(id.clone());
            }
            self.changes.removed_udp.extend(before.difference(&after).map(|frontend| (family, *frontend)));
        }
        self.udp_services.remove(id);
    }

    /// The endpoints of a Service's ports, by family.
    fn count(&self, id: &ServiceId) -> [usize; 2] {
        let (Some(service), Some(slices)) = (self.services.get(id), self.slices.get(id)) else { return [0; 2] };
        Family::BOTH.map(|family| {
            if service.cluster_ip(family).is_none() {
                return 0;
            }
            let of_port = |port: &Port| {
                let mut matching = slices.values().filter(|s| s.family == family && s.serves(port).next().is_some());
                match (matching.next(), matching.next()) {
                    (None, _) => 0,
                    (Some(only), None) => only.endpoints.len() * only.serves(port).count(),
                    // Only here may one endpoint be in two slices.
                    _ => {
                        let of_family = slices.values().filter(|s| s.family == family);
                        let all = of_family.flat_map(|s| {
                            s.serves(port).flat_map(|number| s.endpoints.iter().map(move |e| (e.ip, number)))
                        });
                        all.collect::<HashSet<_>>().len()
                    }
                }
            };
            service.ports.iter().map(of_port).sum()
        })
    }

    /// Adds or updates a slice; endpoints on `node`, our node, are local.
    pub fn put_slice(&mut self, object: &objects::EndpointSlice, node: &str) -> bool {
        let id = slices::id(object);
        let of = slices::service_of(object).and_then(|service| Some((service, Slice::of(object, node)?)));
        let Some((service, slice)) = of else { return self.remove_slice(&id) };
        let moved = self.owners.get(&id).is_some_and(|owner| *owner != service) && self.remove_slice(&id);
        let known = self.slices.get(&service).and_then(|of_service| of_service.get(&id));
        if known.is_some_and(|known| **known == slice) {
            return moved;
        }
        let had_udp = known.is_some_and(|known| known.has_udp());
        self.record_slice_change(&service, slice.family, had_udp || slice.has_udp());
        self.owners.insert(id.clone(), service.clone());
        self.slices.entry(service).or_default().insert(id, Arc::new(slice));
        true
    }

    /// Records that a slice of a Service was added, changed or removed. A Service without endpoints may have a slice
    /// without ports, so the previous ports and those of the Service count, too.
    fn record_slice_change(&mut self, service: &ServiceId, family: Family, has_udp: bool) {
        if has_udp || self.udp_services.contains(service) {
            self.changes.udp[family as usize].insert(service.clone());
        }
        self.changes.health_checks |= self.health_checked.contains(service);
        self.changes.note(service, family);
    }

    /// Removes a slice; returns whether it existed.
    pub fn delete_slice(&mut self, object: &objects::EndpointSlice) -> bool {
        self.remove_slice(&slices::id(object))
    }

    fn remove_slice(&mut self, id: &SliceId) -> bool {
        let Some(service) = self.owners.remove(id) else { return false };
        let Some(slice) = self.slices.get_mut(&service).and_then(|of_service| of_service.remove(id)) else {
            return false;
        };
        if self.slices.get(&service).is_some_and(BTreeMap::is_empty) {
            self.slices.remove(&service);
        }
        self.record_slice_change(&service, slice.family, slice.has_udp());
        true
    }

    /// After a new list: removes every Service that was not in it.
    pub fn retain_services(&mut self, listed: &BTreeSet<ServiceId>) -> bool {
        let removed: Vec<ServiceId> = self.services.keys().filter(|id| !listed.contains(*id)).cloned().collect();
        for id in &removed {
            self.remove_service(id);
        }
        !removed.is_empty()
    }

    /// After a new list: removes every slice that was not in it.
    pub fn retain_slices(&mut self, listed: &BTreeSet<SliceId>) -> bool {
        let removed: Vec<SliceId> = self.owners.keys().filter(|id| !listed.contains(*id)).cloned().collect();
        for id in &removed {
            self.remove_slice(id);
        }
        !removed.is_empty()
    }

    /// The key of an object for [`retain_services`](Self::retain_services).
    #[must_use]
    pub fn service_key(object: &objects::Service) -> ServiceId {
        services::id(&object.metadata)
    }

    /// The key of an object for [`retain_slices`](Self::retain_slices).
    #[must_use]
    pub fn slice_key(object: &objects::EndpointSlice) -> SliceId {
        slices::id(object)
    }

    /// The Service that a slice is of now.
    #[must_use]
    pub fn owner_of(&self, object: &objects::EndpointSlice) -> Option<&ServiceId> {
        self.owners.get(&slices::id(object))
    }

    /// The changes since the last call; recounts the endpoints of the changed Services.
    pub fn take_changes(&mut self) -> Changes {
        let changes = std::mem::take(&mut self.changes);
        for id in changes.services[0].union(&changes.services[1]) {
            let after = self.count(id);
            let before = match after {
                [0, 0] => self.counts.remove(id),
                _ => self.counts.insert(id.clone(), after),
            };
            for ((sum, before), after) in self.endpoints.iter_mut().zip(before.unwrap_or_default()).zip(after) {
                *sum = *sum + after - before;
            }
        }
        changes
    }

    /// Whether there are changes that were not drained.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.changes.services.iter().any(|of| !of.is_empty())
    }

    /// Services with a health check port, in order of name.
    pub fn health_checked(&self) -> impl Iterator<Item = (&ServiceId, &Arc<Service>)> {
        self.health_checked.iter().filter_map(|id| self.services.get_key_value(id))
    }

    /// Services with a UDP port, in order of name.
    pub fn udp_services(&self) -> impl Iterator<Item = (&ServiceId, &Arc<Service>)> {
        self.udp_services.iter().filter_map(|id| self.services.get_key_value(id))
    }

    /// Endpoints of all service ports of a family, as of the last [`take_changes`](Self::take_changes).
    #[must_use]
    pub const fn endpoint_count(&self, family: Family) -> usize {
        self.endpoints[family as usize]
    }

    /// Services in order of name.
    pub fn services(&self) -> impl Iterator<Item = (&ServiceId, &Arc<Service>)> {
        self.services.iter()
    }

    /// One Service, if it exists.
    #[must_use]
    pub fn service(&self, id: &str) -> Option<&Arc<Service>> {
        self.services.get(id)
    }

    /// The same, with its key.
    #[must_use]
    pub fn service_entry(&self, id: &str) -> Option<(&ServiceId, &Arc<Service>)> {
        self.services.get_key_value(id)
    }

    /// The endpoints behind one port of a Service, one for each address and port, sorted as text (`10.2.2.22:80` before
    /// `10.2.2.2:80`), which is kube-proxy's order. An endpoint in two slices counts once; one that is not terminating
    /// wins.
    #[must_use]
    pub fn endpoints(&self, service: &str, port: &Port, family: Family) -> Vec<Endpoint> {
        let mut found: Vec<Endpoint> = Vec::new();
        let slices = self.slices.get(service).into_iter().flat_map(BTreeMap::values);
        for slice in slices.filter(|s| s.family == family) {
            for number in slice.serves(port) {
                found.extend(slice.endpoints.iter().map(|endpoint| Endpoint { port: number, ..endpoint.clone() }));
            }
        }
        found.sort_by_cached_key(Endpoint::text_key);
        found.dedup_by(|later, kept| {
            let same = (later.ip, later.port) == (kept.ip, kept.port);
            if same && !later.terminating {
                std::mem::swap(later, kept);
            }
            same
        });
        found
    }
}
