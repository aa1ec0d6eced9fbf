//! Addresses and node ports of services: none is given twice.

use std::{collections::HashMap, net::Ipv4Addr, ops::RangeInclusive, sync::PoisonError};

use serde_json::{Value, json};

use super::{Api, Settings, error::ApiError, prepare::random_u32};
use crate::{
    registry::ResourceType,
    schema::{Cause, FieldError},
    store::{Key, Store},
};

/// What is taken, and by whom.
#[derive(Debug)]
pub(super) struct Allocator {
    first: u32,
    size: u32,
    ports: RangeInclusive<u16>,
    addresses_taken: HashMap<Ipv4Addr, Key>,
    ports_taken: HashMap<(u16, String), Key>,
}

/// What one write has newly taken; given back if it does not happen.
#[derive(Debug, Default)]
pub(super) struct Reserved {
    addresses: Vec<Ipv4Addr>,
    ports: Vec<(u16, String)>,
}

impl Allocator {
    /// Reads what the stored services have.
    pub(super) fn new(settings: &Settings, store: &Store) -> Self {
        let (first, length) = settings.service_cidr;
        let mut allocator = Self {
            first: first.to_bits(),
            size: 1u32.checked_shl(32 - u32::from(length)).unwrap_or(u32::MAX),
            ports: settings.node_ports.clone(),
            addresses_taken: HashMap::new(),
            ports_taken: HashMap::new(),
        };
        for (key, object) in store.list("services", None).0 {
            allocator.settle(&key, &object.value());
        }
        allocator
    }

    /// Makes what is taken by a service exactly what it says.
    fn settle(&mut self, key: &Key, service: &Value) {
        self.free(key);
        if let Some(address) = address_of(service) {
            self.addresses_taken.insert(address, key.clone());
        }
        for port in ports_of(service) {
            self.ports_taken.insert(port, key.clone());
        }
    }

    fn free(&mut self, key: &Key) {
        self.addresses_taken.retain(|_, holder| holder != key);
        self.ports_taken.retain(|_, holder| holder != key);
    }

    fn holds(&self, address: Ipv4Addr) -> bool {
        // Neither the network's own address nor the last one.
        let offset = address.to_bits().wrapping_sub(self.first);
        offset > 0 && offset < self.size - 1
    }

    /// The low addresses are for those who ask for one by name.
    fn reserved_for_static(&self) -> u32 {
        (self.size / 16).clamp(16, 256).min(self.size / 2)
    }

    fn free_address(&self) -> Option<Ipv4Addr> {
        let low = self.reserved_for_static();
        let upper = self.size.saturating_sub(low + 1).max(1);
        let start = random_u32() % upper;
        let candidates = (0..upper).map(|i| low + (start + i) % upper).chain(1..low);
        candidates
            .map(|offset| Ipv4Addr::from_bits(self.first.wrapping_add(offset)))
            .find(|a| self.holds(*a) && !self.addresses_taken.contains_key(a))
    }

    fn free_port(&self, protocol: &str) -> Option<u16> {
        let size = u32::from(self.ports.end() - self.ports.start()) + 1;
        let low = (size / 32).min(86);
        let upper = size.saturating_sub(low).max(1);
        let start = random_u32() % upper;
        let offsets = (0..upper).map(|i| low + (start + i) % upper).chain(0..low);
        offsets
            .filter_map(|o| u16::try_from(o).ok()?.checked_add(*self.ports.start()))
            .find(|p| !self.ports_taken.contains_key(&(*p, protocol.to_owned())))
    }

    fn reserve(&mut self, key: &Key, service: &mut Value) -> Result<Reserved, FieldError> {
        let mut reserved = Reserved::default();
        match self.reserve_all(key, service, &mut reserved) {
            Ok(()) => Ok(reserved),
            Err(error) => {
                self.release(&reserved);
                Err(error)
            }
        }
    }

    fn reserve_all(&mut self, key: &Key, service: &mut Value, reserved: &mut Reserved) -> Result<(), FieldError> {
        let kind = service["spec"]["type"].as_str().unwrap_or("ClusterIP").to_owned();
        if kind == "ExternalName" {
            return Ok(());
        }
        let wanted = service["spec"]["clusterIP"].as_str().unwrap_or("").to_owned();
        if wanted != "None" {
            let address = if wanted.is_empty() {
                self.free_address().ok_or_else(|| {
                    invalid("spec.clusterIPs", &json!([]), "failed to allocate a serviceIP: range is full")
                })?
            } else {
                let why = format!("failed to allocate IP {wanted}: the provided IP is not in the valid range");
                wanted
                    .parse()
                    .ok()
                    .filter(|a| self.holds(*a))
                    .ok_or_else(|| invalid("spec.clusterIPs", &json!([wanted]), &why))?
            };
            match self.addresses_taken.get(&address) {
                Some(holder) if holder != key => {
                    let why = format!("failed to allocate IP {address}: provided IP is already allocated");
                    return Err(invalid("spec.clusterIPs", &json!([address.to_string()]), &why));
                }
                Some(_) => {}
                None => {
                    self.addresses_taken.insert(address, key.clone());
                    reserved.addresses.push(address);
                }
            }
            service["spec"]["clusterIP"] = json!(address.to_string());
        }
        let shown = service["spec"]["clusterIP"].clone();
        service["spec"]["clusterIPs"] = json!([shown]);
        for (field, value) in [("ipFamilies", json!(["IPv4"])), ("ipFamilyPolicy", json!("SingleStack"))] {
            if service["spec"][field].is_null() {
                service["spec"][field] = value;
            }
        }
        let gives_ports =
            kind == "NodePort" || (kind == "LoadBalancer" && service["spec"]["allocateLoadBalancerNodePorts"] != false);
        if !gives_ports {
            return Ok(());
        }
        let range = format!("{}-{}", self.ports.start(), self.ports.end());
        let mut given: HashMap<i64, u16> = HashMap::new();
        for (at, port) in service["spec"]["ports"].as_array_mut().into_iter().flatten().enumerate() {
            let protocol = port["protocol"].as_str().unwrap_or("TCP").to_owned();
            let field = format!("spec.ports[{at}].nodePort");
            let wanted = port["nodePort"].as_i64().unwrap_or(0);
            let number = if wanted == 0 {
                // The same port under two protocols gets the same number where that is free.
                let twin = given
                    .get(&port["port"].as_i64().unwrap_or(0))
                    .copied()
                    .filter(|n| !self.ports_taken.contains_key(&(*n, protocol.clone())));
                twin.or_else(|| self.free_port(&protocol))
                    .ok_or_else(|| invalid(&field, &port["nodePort"], "range is full"))?
            } else {
                let why = format!("provided port is not in the valid range. The range of valid ports is {range}");
                u16::try_from(wanted)
                    .ok()
                    .filter(|p| self.ports.contains(p))
                    .ok_or_else(|| invalid(&field, &port["nodePort"], &why))?
            };
            let slot = (number, protocol);
            match self.ports_taken.get(&slot) {
                Some(holder) if holder != key => {
                    return Err(invalid(&field, &json!(number), "provided port is already allocated"));
                }
                Some(_) => {}
                None => {
                    self.ports_taken.insert(slot.clone(), key.clone());
                    reserved.ports.push(slot);
                }
            }
            given.insert(port["port"].as_i64().unwrap_or(0), number);
            port["nodePort"] = json!(number);
        }
        Ok(())
    }

    fn release(&mut self, reserved: &Reserved) {
        for address in &reserved.addresses {
            self.addresses_taken.remove(address);
        }
        for port in &reserved.ports {
            self.ports_taken.remove(port);
        }
    }
}

fn invalid(field: &str, value: &Value, why: &str) -> FieldError {
    FieldError { field: field.to_owned(), cause: Cause::Invalid, detail: format!("Invalid value: {value}: {why}") }
}

fn address_of(service: &Value) -> Option<Ipv4Addr> {
    service["spec"]["clusterIP"].as_str()?.parse().ok()
}

fn ports_of(service: &Value) -> impl Iterator<Item = (u16, String)> + '_ {
    service["spec"]["ports"].as_array().into_iter().flatten().filter_map(|port| {
        let number = u16::try_from(port["nodePort"].as_i64()?).ok().filter(|n| *n > 0)?;
        Some((number, port["protocol"].as_str().unwrap_or("TCP").to_owned()))
    })
}

impl Api {
    fn allocator(&self) -> std::sync::MutexGuard<'_, Allocator> {
        self.inner.allocator.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a service what it lacks, before it is written.
    pub(super) fn reserve(
        &self,
        resource: &ResourceType,
        key: &Key,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<Reserved, ApiError> {
        if resource.gvk.kind != "Service" || old.is_some_and(|old| old["spec"] == object["spec"]) {
            return Ok(Reserved::default());
        }
        self.allocator().reserve(key, object).map_err(|e| ApiError::invalid(resource, &key.name, &[e]))
    }

    /// Takes back what a write that did not happen had reserved.
    pub(super) fn release(&self, reserved: Reserved) {
        self.allocator().release(&reserved);
    }

    /// After an update: what the service no longer has is free.
    pub(super) fn settle(&self, resource: &ResourceType, key: &Key, object: &Value) {
        if resource.gvk.kind == "Service" {
            self.allocator().settle(key, object);
        }
    }

    /// After a deletion.
    pub(super) fn free(&self, resource: &ResourceType, key: &Key) {
        if resource.gvk.kind == "Service" {
            self.allocator().free(key);
        }
    }
}
