//! Allocates cluster IPs and node ports of services. The store's writer calls it in the order of the writes;
//! allocations belong to the service's uid, so that a recreated service of the same name has its own.

use std::{
    collections::{BTreeSet, HashMap},
    net::Ipv4Addr,
    ops::RangeInclusive,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde_json::{Value, json};

use crate::{
    apiserver::generate::random_u32,
    store::{AllocationError, Allocator, Object, Rollback, Store},
};

const SERVICES: &str = "services";

type NodePort = (u16, String);

/// The allocations of one service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Allocated {
    address: Option<Ipv4Addr>,
    ports: BTreeSet<NodePort>,
}

impl Allocated {
    /// The allocations that a stored service records.
    fn by(service: &Value) -> Self {
        let kind = kind_of(service);
        let address = service["spec"]["clusterIP"].as_str().filter(|_| kind != "ExternalName");
        let ports = service["spec"]["ports"].as_array().filter(|_| has_node_ports(kind));
        Self {
            address: address.and_then(|a| a.parse().ok()),
            ports: ports
                .into_iter()
                .flatten()
                .filter_map(|port| Some((requested_port(port)?.ok()?, protocol_of(port))))
                .collect(),
        }
    }
}

/// All allocations, by value and by service uid.
#[derive(Debug, Default, PartialEq, Eq)]
struct Allocations {
    addresses: HashMap<Ipv4Addr, String>,
    ports: HashMap<NodePort, String>,
    services: HashMap<String, Allocated>,
}

impl Allocations {
    /// Replaces the allocations of a service and returns the previous ones.
    fn set(&mut self, uid: &str, allocated: Allocated) -> Allocated {
        let before = self.services.remove(uid).unwrap_or_default();
        if let Some(address) = &before.address {
            self.addresses.remove(address);
        }
        for port in &before.ports {
            self.ports.remove(port);
        }
        if allocated != Allocated::default() {
            self.addresses.extend(allocated.address.map(|address| (address, uid.to_owned())));
            self.ports.extend(allocated.ports.iter().map(|port| (port.clone(), uid.to_owned())));
            self.services.insert(uid.to_owned(), allocated);
        }
        before
    }
}

/// The ranges and their allocations.
#[derive(Debug)]
pub(crate) struct ServiceAllocator {
    first: u32,
    size: u32,
    ports: RangeInclusive<u16>,
    allocations: Arc<Mutex<Allocations>>,
}

impl ServiceAllocator {
    /// Loads the allocations of the stored services.
    pub(crate) fn new((first, length): (Ipv4Addr, u8), ports: RangeInclusive<u16>, store: &Store) -> Self {
        let mut allocations = Allocations::default();
        for object in store.list(store.resource(SERVICES), None).0 {
            let (key, service) = (&object.key, object.value());
            let mut allocated = Allocated::by(&service);
            let twice = allocated.address.is_some_and(|a| allocations.addresses.contains_key(&a))
                || allocated.ports.iter().any(|p| allocations.ports.contains_key(p));
            if twice {
                tracing::warn!(
                    namespace = key.namespace,
                    service = key.name,
                    "cluster IP or node port of this service is allocated to another service too; recreate the service"
                );
                allocated.address = allocated.address.filter(|a| !allocations.addresses.contains_key(a));
                allocated.ports.retain(|p| !allocations.ports.contains_key(p));
            }
            allocations.set(uid_of(&service), allocated);
        }
        Self {
            first: first.to_bits(),
            size: 1u32.checked_shl(32 - u32::from(length)).unwrap_or(u32::MAX),
            ports,
            allocations: Arc::new(Mutex::new(allocations)),
        }
    }

    /// Fills in what a service lacks without allocating it.
    pub(super) fn dry_run(&self, service: &mut Value) -> Result<(), AllocationError> {
        let uid = uid_of(service).to_owned();
        self.plan(&self.allocations(), &uid, service).map(drop)
    }

    /// Whether the allocations are exactly those of the stored services, and the allocated addresses and node ports.
    #[cfg(test)]
    pub(crate) fn allocated(&self, store: &Store) -> (bool, BTreeSet<Ipv4Addr>, BTreeSet<NodePort>) {
        let allocations = self.allocations();
        let mut wanted = Allocations::default();
        for object in store.list(store.resource(SERVICES), None).0 {
            let service = object.value();
            wanted.set(uid_of(&service), Allocated::by(&service));
        }
        (
            *allocations == wanted,
            allocations.addresses.keys().copied().collect(),
            allocations.ports.keys().cloned().collect(),
        )
    }

    fn allocations(&self) -> MutexGuard<'_, Allocations> {
        self.allocations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn in_range(&self, address: Ipv4Addr) -> bool {
        // Neither the network address nor the broadcast address.
        let offset = address.to_bits().wrapping_sub(self.first);
        offset > 0 && offset < self.size - 1
    }

    /// The low addresses are preferred for static assignment, as upstream's.
    fn static_band(&self) -> u32 {
        (self.size / 16).clamp(16, 256).min(self.size / 2)
    }

    fn next_address(&self, allocations: &Allocations) -> Option<Ipv4Addr> {
        let low = self.static_band();
        let upper = self.size.saturating_sub(low + 1).max(1);
        let start = random_u32() % upper;
        let candidates = (0..upper).map(|i| low + (start + i) % upper).chain(1..low);
        candidates
            .map(|offset| Ipv4Addr::from_bits(self.first.wrapping_add(offset)))
            .find(|a| self.in_range(*a) && !allocations.addresses.contains_key(a))
    }

    fn next_port(&self, protocol: &str, taken: impl Fn(&NodePort) -> bool) -> Option<u16> {
        let size = u32::from(self.ports.end() - self.ports.start()) + 1;
        let low = (size / 32).min(86);
        let upper = size.saturating_sub(low).max(1);
        let start = random_u32() % upper;
        let offsets = (0..upper).map(|i| low + (start + i) % upper).chain(0..low);
        offsets
            .filter_map(|o| u16::try_from(o).ok()?.checked_add(*self.ports.start()))
            .find(|p| !taken(&(*p, protocol.to_owned())))
    }

    /// Fills in what a service lacks and returns its allocations.
    fn plan(&self, allocations: &Allocations, uid: &str, service: &mut Value) -> Result<Allocated, AllocationError> {
        let kind = kind_of(service).to_owned();
        if kind == "ExternalName" {
            return Ok(Allocated::default());
        }
        let before = allocations.services.get(uid).cloned().unwrap_or_default();
        let address = self.plan_address(allocations, &before, service)?;
        let shown = address.map_or_else(|| "None".to_owned(), |a| a.to_string());
        service["spec"]["clusterIP"] = json!(shown);
        service["spec"]["clusterIPs"] = json!([shown]);
        for (field, value) in [("ipFamilies", json!(["IPv4"])), ("ipFamilyPolicy", json!("SingleStack"))] {
            if service["spec"][field].is_null() {
                service["spec"][field] = value;
            }
        }
        let ports = if has_node_ports(&kind) {
            self.plan_ports(allocations, &before, &kind, service)?
        } else {
            BTreeSet::new()
        };
        Ok(Allocated { address, ports })
    }

    fn plan_address(
        &self,
        allocations: &Allocations,
        before: &Allocated,
        service: &Value,
    ) -> Result<Option<Ipv4Addr>, AllocationError> {
        let wanted = service["spec"]["clusterIP"].as_str().unwrap_or("");
        if wanted == "None" {
            return Ok(None);
        }
        if wanted.is_empty() {
            let full = || invalid("spec.clusterIPs", &json!([]), "failed to allocate a serviceIP: range is full");
            return self.next_address(allocations).map(Some).ok_or_else(full);
        }
        let invalid_value =
            |why: &str| invalid("spec.clusterIPs", &json!([wanted]), &format!("failed to allocate IP {wanted}: {why}"));
        let address: Option<Ipv4Addr> = wanted.parse().ok();
        // A service keeps its address when the range is reconfigured.
        if address.is_some() && address == before.address {
            return Ok(address);
        }
        let address = address.filter(|a| self.in_range(*a));
        let address = address.ok_or_else(|| invalid_value("the provided IP is not in the valid range"))?;
        if allocations.addresses.contains_key(&address) {
            return Err(invalid_value("provided IP is already allocated"));
        }
        Ok(Some(address))
    }

    fn plan_ports(
        &self,
        allocations: &Allocations,
        before: &Allocated,
        kind: &str,
        service: &mut Value,
    ) -> Result<BTreeSet<NodePort>, AllocationError> {
        let allocates = kind == "NodePort" || service["spec"]["allocateLoadBalancerNodePorts"] != false;
        let (first, last) = (self.ports.start(), self.ports.end());
        let mut own = BTreeSet::new();
        // Requested ports first, so that none of them is assigned to a port without a number.
        for (at, port) in service["spec"]["ports"].as_array().into_iter().flatten().enumerate() {
            let Some(number) = requested_port(port) else { continue };
            let invalid_value = |why: &str| invalid(&format!("spec.ports[{at}].nodePort"), &port["nodePort"], why);
            let slot = (number.unwrap_or(0), protocol_of(port));
            let kept = before.ports.contains(&slot);
            if !kept && !self.ports.contains(&slot.0) {
                let why =
                    format!("provided port is not in the valid range. The range of valid ports is {first}-{last}");
                return Err(invalid_value(&why));
            }
            let taken = allocations.ports.contains_key(&slot) || own.contains(&slot);
            if taken && !kept {
                return Err(invalid_value("provided port is already allocated"));
            }
            own.insert(slot);
        }
        let mut assigned: HashMap<i64, u16> = HashMap::new();
        for (at, port) in service["spec"]["ports"].as_array_mut().into_iter().flatten().enumerate() {
            let protocol = protocol_of(port);
            let number = match requested_port(port) {
                Some(Ok(number)) => number,
                _ if !allocates => continue,
                _ => {
                    let taken = |slot: &NodePort| allocations.ports.contains_key(slot) || own.contains(slot);
                    // The same port with two protocols gets the same node port where that is free.
                    let sibling = assigned.get(&port["port"].as_i64().unwrap_or(0)).copied();
                    let sibling = sibling.filter(|n| !taken(&(*n, protocol.clone())));
                    sibling.or_else(|| self.next_port(&protocol, taken)).ok_or_else(|| {
                        invalid(&format!("spec.ports[{at}].nodePort"), &port["nodePort"], "range is full")
                    })?
                }
            };
            assigned.insert(port["port"].as_i64().unwrap_or(0), number);
            own.insert((number, protocol));
            port["nodePort"] = json!(number);
        }
        Ok(own)
    }
}

impl Allocator for ServiceAllocator {
    fn allocate(&self, new: Option<&mut Value>, current: Option<&Object>) -> Result<Option<Rollback>, AllocationError> {
        let mut allocations = self.allocations();
        let (uid, allocated) = match (new, current) {
            (Some(service), _) => {
                let uid = uid_of(service).to_owned();
                let allocated = self.plan(&allocations, &uid, service)?;
                (uid, allocated)
            }
            (None, Some(deleted)) => (uid_of(&deleted.value()).to_owned(), Allocated::default()),
            (None, None) => return Ok(None),
        };
        let before = allocations.set(&uid, allocated);
        let shared = Arc::clone(&self.allocations);
        Ok(Some(Box::new(move || {
            shared.lock().unwrap_or_else(PoisonError::into_inner).set(&uid, before);
        })))
    }
}

fn invalid(field: &str, value: &Value, why: &str) -> AllocationError {
    AllocationError { field: field.to_owned(), detail: format!("Invalid value: {value}: {why}") }
}

fn uid_of(service: &Value) -> &str {
    service["metadata"]["uid"].as_str().unwrap_or("")
}

fn kind_of(service: &Value) -> &str {
    service["spec"]["type"].as_str().unwrap_or("ClusterIP")
}

fn has_node_ports(kind: &str) -> bool {
    matches!(kind, "NodePort" | "LoadBalancer")
}

fn protocol_of(port: &Value) -> String {
    port["protocol"].as_str().unwrap_or("TCP").to_owned()
}

/// The node port that a port requests, if any; `Err` when the number is out of range.
fn requested_port(port: &Value) -> Option<Result<u16, ()>> {
    let number = port["nodePort"].as_i64().filter(|n| *n != 0)?;
    Some(u16::try_from(number).map_err(|_| ()))
}
