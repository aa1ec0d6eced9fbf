//! What the proxy remembers of Services, EndpointSlices and its Node: compact values made from the
//! API objects at once, which are then dropped. Pure; imports only the API's metadata type.

pub mod objects;
mod services;
mod slices;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

pub use services::{Affinity, Port, Protocol, Service};
pub use slices::{Endpoint, Hints, Slice, SlicePort};
pub use windlass_kit::net::{Cidr, Family, parse_ip};

/// `namespace/name` of a Service.
pub type ServiceId = Arc<str>;

/// What matters of the proxy's own Node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Addresses, internal ones first, one of each family at most.
    pub addresses: Vec<std::net::IpAddr>,
    /// Label `topology.kubernetes.io/zone`; empty when there is none.
    pub zone: String,
    /// `spec.podCIDRs`.
    pub pod_cidrs: Vec<Cidr>,
    /// Not being deleted, and not about to be by the cluster autoscaler.
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
        let leaving = spec
            .and_then(|s| s.taints.as_deref())
            .unwrap_or_default()
            .iter()
            .any(|t| &*t.key == "ToBeDeletedByClusterAutoscaler");
        let labels = node.metadata.labels.as_ref();
        Self {
            addresses,
            zone: labels.and_then(|l| l.get("topology.kubernetes.io/zone").cloned()).unwrap_or_default(),
            pod_cidrs,
            eligible: node.metadata.deletion_timestamp.is_none() && !leaving,
        }
    }
}

/// All Services and slices, and which Services changed since the last look.
#[derive(Debug, Default)]
pub struct Model {
    services: BTreeMap<ServiceId, Arc<Service>>,
    /// Slices by Service, then by slice name.
    slices: HashMap<ServiceId, BTreeMap<Box<str>, Slice>>,
    /// Services that want a health check port.
    health_checked: BTreeSet<ServiceId>,
    /// Endpoints of all service ports, by family.
    endpoints: [usize; 2],
    dirty: BTreeSet<ServiceId>,
    /// Of the dirty ones, those whose UDP connections need a look.
    udp: bool,
}

impl Model {
    /// Takes in a Service; returns whether anything that matters changed.
    pub fn put_service(&mut self, object: &objects::Service) -> bool {
        let id = services::id(&object.metadata);
        match Service::of(object) {
            None => self.remove_service(&id),
            Some(service) => {
                if self.services.get(&id).is_some_and(|known| **known == service) {
                    return false;
                }
                if service.has_udp() || self.services.get(&id).is_some_and(|s| s.has_udp()) {
                    self.udp = true;
                }
                match service.health_check_node_port {
                    0 => self.health_checked.remove(&id),
                    _ => self.health_checked.insert(id.clone()),
                };
                self.counted(&id.clone(), |model| model.services.insert(id, Arc::new(service)));
                true
            }
        }
    }

    /// Forgets a Service.
    pub fn delete_service(&mut self, object: &objects::Service) -> bool {
        self.remove_service(&services::id(&object.metadata))
    }

    fn remove_service(&mut self, id: &ServiceId) -> bool {
        if !self.services.contains_key(id) {
            return false;
        }
        self.health_checked.remove(id);
        self.counted(id, |model| model.services.remove(id));
        true
    }

    /// Changes something of a Service, which is dirty then, and counts its endpoints anew.
    fn counted<T>(&mut self, id: &ServiceId, change: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.count(id);
        let out = change(self);
        let after = self.count(id);
        for (sum, (before, after)) in self.endpoints.iter_mut().zip(before.into_iter().zip(after)) {
            *sum = *sum + after - before;
        }
        self.dirty.insert(id.clone());
        out
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
                    _ => self.endpoints(id, port, family).len(),
                }
            };
            service.ports.iter().map(of_port).sum()
        })
    }

    /// Takes in a slice; `node` is our node's name, which decides what is local.
    pub fn put_slice(&mut self, object: &objects::EndpointSlice, node: &str) -> bool {
        let Some((service, name)) = slices::key(object) else { return false };
        let Some(slice) = Slice::of(object, node) else { return self.remove_slice(&service, &name) };
        if self.slices.get(&service).and_then(|of_service| of_service.get(&*name)) == Some(&slice) {
            return false;
        }
        self.udp |= slice.ports.iter().any(|p| p.protocol == Protocol::Udp);
        self.counted(&service.clone(), |model| model.slices.entry(service).or_default().insert(name, slice));
        true
    }

    /// Forgets a slice.
    pub fn delete_slice(&mut self, object: &objects::EndpointSlice) -> bool {
        slices::key(object).is_some_and(|(service, name)| self.remove_slice(&service, &name))
    }

    fn remove_slice(&mut self, service: &ServiceId, name: &str) -> bool {
        let Some(slice) = self.slices.get(service).and_then(|of_service| of_service.get(name)) else { return false };
        self.udp |= slice.ports.iter().any(|p| p.protocol == Protocol::Udp);
        self.counted(service, |model| {
            if let Some(of_service) = model.slices.get_mut(service) {
                of_service.remove(name);
                if of_service.is_empty() {
                    model.slices.remove(service);
                }
            }
        });
        true
    }

    /// After a new list: forgets every Service that was not in it.
    pub fn keep_services(&mut self, listed: &BTreeSet<ServiceId>) -> bool {
        let gone: Vec<ServiceId> = self.services.keys().filter(|id| !listed.contains(*id)).cloned().collect();
        for id in &gone {
            self.remove_service(id);
        }
        !gone.is_empty()
    }

    /// After a new list: forgets every slice that was not in it, by (Service, slice name).
    pub fn keep_slices(&mut self, listed: &BTreeSet<(ServiceId, Box<str>)>) -> bool {
        let gone: Vec<(ServiceId, Box<str>)> = self
            .slices
            .iter()
            .flat_map(|(service, of)| of.keys().map(move |name| (service.clone(), name.clone())))
            .filter(|key| !listed.contains(key))
            .collect();
        for (service, name) in &gone {
            self.remove_slice(service, name);
        }
        !gone.is_empty()
    }

    /// The key under which [`keep_services`](Self::keep_services) knows an object.
    #[must_use]
    pub fn service_key(object: &objects::Service) -> ServiceId {
        services::id(&object.metadata)
    }

    /// The key under which [`keep_slices`](Self::keep_slices) knows an object; `None` for slices
    /// that belong to no Service.
    #[must_use]
    pub fn slice_key(object: &objects::EndpointSlice) -> Option<(ServiceId, Box<str>)> {
        slices::key(object)
    }

    /// The Services that changed since the last call, and whether any of them has UDP to clean up.
    pub fn take_dirty(&mut self) -> (BTreeSet<ServiceId>, bool) {
        (std::mem::take(&mut self.dirty), std::mem::take(&mut self.udp))
    }

    /// Whether anything waits to be taken.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Services with a health check port, in order of name.
    pub fn health_checked(&self) -> impl Iterator<Item = (&ServiceId, &Arc<Service>)> {
        self.health_checked.iter().filter_map(|id| self.services.get_key_value(id))
    }

    /// Endpoints of all service ports of a family.
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

    /// The endpoints behind one port of a Service, one for each address and port, sorted as text
    /// (`10.2.2.22:80` before `10.2.2.2:80`). An endpoint that two slices hold counts once; one that
    /// does not terminate wins.
    #[must_use]
    pub fn endpoints(&self, service: &str, port: &Port, family: Family) -> Vec<Endpoint> {
        let mut found: BTreeMap<String, Endpoint> = BTreeMap::new();
        let slices = self.slices.get(service).into_iter().flat_map(BTreeMap::values);
        for slice in slices.filter(|s| s.family == family) {
            for number in slice.serves(port) {
                for endpoint in &slice.endpoints {
                    let endpoint = Endpoint { port: number, ..endpoint.clone() };
                    match found.entry(endpoint.address()) {
                        std::collections::btree_map::Entry::Vacant(free) => {
                            free.insert(endpoint);
                        }
                        std::collections::btree_map::Entry::Occupied(mut held) => {
                            if !endpoint.terminating {
                                held.insert(endpoint);
                            }
                        }
                    }
                }
            }
        }
        found.into_values().collect()
    }
}
