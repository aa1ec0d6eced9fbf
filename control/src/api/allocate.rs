//! Addresses and node ports of services: none is given twice. The store's writer settles them in the order of the writes, for each
//! service by its uid: another one under the same name is another holder.

use std::{
    collections::{BTreeSet, HashMap},
    net::Ipv4Addr,
    ops::RangeInclusive,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde_json::{Value, json};

use super::{Api, Settings, error::ApiError, prepare::random_u32};
use crate::{
    registry::ResourceType,
    store::{Claims, Error, Object, Refusal, Store, Undo},
};

const SERVICES: &str = "services";

type NodePort = (u16, String);

/// What one service has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Claimed {
    address: Option<Ipv4Addr>,
    ports: BTreeSet<NodePort>,
}

impl Claimed {
    /// What a stored service says that it has.
    fn by(service: &Value) -> Self {
        let kind = kind_of(service);
        let address = service["spec"]["clusterIP"].as_str().filter(|_| kind != "ExternalName");
        let ports = service["spec"]["ports"].as_array().filter(|_| has_node_ports(kind));
        Self {
            address: address.and_then(|a| a.parse().ok()),
            ports: ports
                .into_iter()
                .flatten()
                .filter_map(|port| Some((asked_port(port)?.ok()?, protocol_of(port))))
                .collect(),
        }
    }
}

/// Who has what, by uid, both ways.
#[derive(Debug, Default, PartialEq, Eq)]
struct Held {
    addresses: HashMap<Ipv4Addr, String>,
    ports: HashMap<NodePort, String>,
    claims: HashMap<String, Claimed>,
}

impl Held {
    /// Makes what a service has exactly this; gives what it had.
    fn set(&mut self, uid: &str, claimed: Claimed) -> Claimed {
        let before = self.claims.remove(uid).unwrap_or_default();
        if let Some(address) = &before.address {
            self.addresses.remove(address);
        }
        for port in &before.ports {
            self.ports.remove(port);
        }
        if claimed != Claimed::default() {
            self.addresses.extend(claimed.address.map(|address| (address, uid.to_owned())));
            self.ports.extend(claimed.ports.iter().map(|port| (port.clone(), uid.to_owned())));
            self.claims.insert(uid.to_owned(), claimed);
        }
        before
    }
}

/// The ranges, and what of them is taken.
#[derive(Debug)]
pub(super) struct Allocator {
    first: u32,
    size: u32,
    ports: RangeInclusive<u16>,
    held: Arc<Mutex<Held>>,
}

impl Allocator {
    /// Reads what the stored services have.
    pub(super) fn new(settings: &Settings, store: &Store) -> Self {
        let (first, length) = settings.service_cidr;
        let mut held = Held::default();
        for (key, object) in store.list(SERVICES, None).0 {
            let service = object.value();
            let mut claimed = Claimed::by(&service);
            let twice = claimed.address.is_some_and(|a| held.addresses.contains_key(&a))
                || claimed.ports.iter().any(|p| held.ports.contains_key(p));
            if twice {
                tracing::warn!(
                    namespace = key.namespace,
                    service = key.name,
                    "an address or a node port of this service is another one's too; make the service anew"
                );
                claimed.address = claimed.address.filter(|a| !held.addresses.contains_key(a));
                claimed.ports.retain(|p| !held.ports.contains_key(p));
            }
            held.set(uid_of(&service), claimed);
        }
        Self {
            first: first.to_bits(),
            size: 1u32.checked_shl(32 - u32::from(length)).unwrap_or(u32::MAX),
            ports: settings.node_ports.clone(),
            held: Arc::new(Mutex::new(held)),
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn in_range(&self, address: Ipv4Addr) -> bool {
        // Neither the network's own address nor the last one.
        let offset = address.to_bits().wrapping_sub(self.first);
        offset > 0 && offset < self.size - 1
    }

    /// The low addresses are for those who ask for one by name.
    fn reserved_for_static(&self) -> u32 {
        (self.size / 16).clamp(16, 256).min(self.size / 2)
    }

    fn free_address(&self, held: &Held) -> Option<Ipv4Addr> {
        let low = self.reserved_for_static();
        let upper = self.size.saturating_sub(low + 1).max(1);
        let start = random_u32() % upper;
        let candidates = (0..upper).map(|i| low + (start + i) % upper).chain(1..low);
        candidates
            .map(|offset| Ipv4Addr::from_bits(self.first.wrapping_add(offset)))
            .find(|a| self.in_range(*a) && !held.addresses.contains_key(a))
    }

    fn free_port(&self, protocol: &str, taken: impl Fn(&NodePort) -> bool) -> Option<u16> {
        let size = u32::from(self.ports.end() - self.ports.start()) + 1;
        let low = (size / 32).min(86);
        let upper = size.saturating_sub(low).max(1);
        let start = random_u32() % upper;
        let offsets = (0..upper).map(|i| low + (start + i) % upper).chain(0..low);
        offsets
            .filter_map(|o| u16::try_from(o).ok()?.checked_add(*self.ports.start()))
            .find(|p| !taken(&(*p, protocol.to_owned())))
    }

    /// Gives a service what it lacks, and says what it has then.
    fn plan(&self, held: &Held, uid: &str, service: &mut Value) -> Result<Claimed, Refusal> {
        let kind = kind_of(service).to_owned();
        if kind == "ExternalName" {
            return Ok(Claimed::default());
        }
        let before = held.claims.get(uid).cloned().unwrap_or_default();
        let address = self.plan_address(held, &before, service)?;
        let shown = address.map_or_else(|| "None".to_owned(), |a| a.to_string());
        service["spec"]["clusterIP"] = json!(shown);
        service["spec"]["clusterIPs"] = json!([shown]);
        for (field, value) in [("ipFamilies", json!(["IPv4"])), ("ipFamilyPolicy", json!("SingleStack"))] {
            if service["spec"][field].is_null() {
                service["spec"][field] = value;
            }
        }
        let ports =
            if has_node_ports(&kind) { self.plan_ports(held, &before, &kind, service)? } else { BTreeSet::new() };
        Ok(Claimed { address, ports })
    }

    fn plan_address(&self, held: &Held, before: &Claimed, service: &Value) -> Result<Option<Ipv4Addr>, Refusal> {
        let wanted = service["spec"]["clusterIP"].as_str().unwrap_or("");
        if wanted == "None" {
            return Ok(None);
        }
        if wanted.is_empty() {
            let full = || invalid("spec.clusterIPs", &json!([]), "failed to allocate a serviceIP: range is full");
            return self.free_address(held).map(Some).ok_or_else(full);
        }
        let refused =
            |why: &str| invalid("spec.clusterIPs", &json!([wanted]), &format!("failed to allocate IP {wanted}: {why}"));
        let address: Option<Ipv4Addr> = wanted.parse().ok();
        // What it has it keeps, also when the range is another one by now.
        if address.is_some() && address == before.address {
            return Ok(address);
        }
        let address = address.filter(|a| self.in_range(*a));
        let address = address.ok_or_else(|| refused("the provided IP is not in the valid range"))?;
        if held.addresses.contains_key(&address) {
            return Err(refused("provided IP is already allocated"));
        }
        Ok(Some(address))
    }

    fn plan_ports(
        &self,
        held: &Held,
        before: &Claimed,
        kind: &str,
        service: &mut Value,
    ) -> Result<BTreeSet<NodePort>, Refusal> {
        let gives = kind == "NodePort" || service["spec"]["allocateLoadBalancerNodePorts"] != false;
        let (first, last) = (self.ports.start(), self.ports.end());
        let mut mine = BTreeSet::new();
        // Those that are asked for first, so that none of them is given to a port that takes any.
        for (at, port) in service["spec"]["ports"].as_array().into_iter().flatten().enumerate() {
            let Some(number) = asked_port(port) else { continue };
            let refused = |why: &str| invalid(&format!("spec.ports[{at}].nodePort"), &port["nodePort"], why);
            let slot = (number.unwrap_or(0), protocol_of(port));
            let kept = before.ports.contains(&slot);
            if !kept && !self.ports.contains(&slot.0) {
                let why =
                    format!("provided port is not in the valid range. The range of valid ports is {first}-{last}");
                return Err(refused(&why));
            }
            let taken = held.ports.contains_key(&slot) || mine.contains(&slot);
            if taken && !kept {
                return Err(refused("provided port is already allocated"));
            }
            mine.insert(slot);
        }
        let mut given: HashMap<i64, u16> = HashMap::new();
        for (at, port) in service["spec"]["ports"].as_array_mut().into_iter().flatten().enumerate() {
            let protocol = protocol_of(port);
            let number = match asked_port(port) {
                Some(Ok(number)) => number,
                _ if !gives => continue,
                _ => {
                    let taken = |slot: &NodePort| held.ports.contains_key(slot) || mine.contains(slot);
                    // The same port under two protocols gets the same number where that is free.
                    let twin = given.get(&port["port"].as_i64().unwrap_or(0)).copied();
                    let twin = twin.filter(|n| !taken(&(*n, protocol.clone())));
                    twin.or_else(|| self.free_port(&protocol, taken)).ok_or_else(|| {
                        invalid(&format!("spec.ports[{at}].nodePort"), &port["nodePort"], "range is full")
                    })?
                }
            };
            given.insert(port["port"].as_i64().unwrap_or(0), number);
            mine.insert((number, protocol));
            port["nodePort"] = json!(number);
        }
        Ok(mine)
    }
}

impl Claims for Allocator {
    fn settle(
        &self,
        resource: &str,
        new: Option<&mut Value>,
        current: Option<&Object>,
    ) -> Result<Option<Undo>, Refusal> {
        if resource != SERVICES {
            return Ok(None);
        }
        let mut held = self.held();
        let (uid, claimed) = match (new, current) {
            (Some(service), _) => {
                let uid = uid_of(service).to_owned();
                let claimed = self.plan(&held, &uid, service)?;
                (uid, claimed)
            }
            (None, Some(gone)) => (uid_of(&gone.value()).to_owned(), Claimed::default()),
            (None, None) => return Ok(None),
        };
        let before = held.set(&uid, claimed);
        let shared = Arc::clone(&self.held);
        Ok(Some(Box::new(move || {
            shared.lock().unwrap_or_else(PoisonError::into_inner).set(&uid, before);
        })))
    }
}

fn invalid(field: &str, value: &Value, why: &str) -> Refusal {
    Refusal { field: field.to_owned(), detail: format!("Invalid value: {value}: {why}") }
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

/// The node port that a port asks for, if it does; an error when that is no port.
fn asked_port(port: &Value) -> Option<Result<u16, ()>> {
    let number = port["nodePort"].as_i64().filter(|n| *n != 0)?;
    Some(u16::try_from(number).map_err(|_| ()))
}

impl Api {
    /// Gives a service what it lacks without keeping it for it: for writes that are only tried.
    pub(super) fn rehearse(&self, resource: &ResourceType, object: &mut Value) -> Result<(), ApiError> {
        if resource.qualified() != SERVICES {
            return Ok(());
        }
        let (uid, name) = (uid_of(object).to_owned(), object["metadata"]["name"].as_str().unwrap_or("").to_owned());
        let allocator = &self.inner.allocator;
        let planned = allocator.plan(&allocator.held(), &uid, object);
        planned.map(drop).map_err(|refusal| ApiError::write(resource, &name, &Error::Claim(refusal)))
    }
}

#[cfg(test)]
impl Api {
    /// Whether exactly what the stored services say is taken, and the address and node ports that are.
    pub(super) fn taken(&self) -> (bool, BTreeSet<Ipv4Addr>, BTreeSet<NodePort>) {
        let held = self.inner.allocator.held();
        let mut wanted = Held::default();
        for (_, object) in self.store().list(SERVICES, None).0 {
            let service = object.value();
            wanted.set(uid_of(&service), Claimed::by(&service));
        }
        (*held == wanted, held.addresses.keys().copied().collect(), held.ports.keys().cloned().collect())
    }
}
