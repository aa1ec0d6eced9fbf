//! The records of the cluster: what Services, EndpointSlices and Namespaces say, found by name and by address. Pure.
//!
//! A change costs what the object holds, not what else there is.

mod objects;

#[cfg(test)]
pub(super) mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::IpAddr,
};

use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{Namespace, Service as ServiceObject},
    discovery::v1::EndpointSlice,
};
use kube::runtime::watcher::Event;

pub(super) use objects::{Key, Leads, Node, Port, Service, Slice};

/// What is known of a Service's name.
#[derive(Debug, Default)]
struct Entry {
    service: Option<Service>,
    /// By their names.
    slices: BTreeMap<Box<str>, Slice>,
}

/// An endpoint's host name, by which its address is found: Service, slice, host name.
type HostKey = (Key, Box<str>, Box<str>);

/// All records.
#[derive(Debug, Default)]
pub(super) struct Records {
    namespaces: HashSet<Box<str>>,
    entries: HashMap<Key, Entry>,
    cluster_ips: HashMap<IpAddr, BTreeSet<Key>>,
    hosts: HashMap<IpAddr, BTreeSet<HostKey>>,
    listing: Listing,
    complete: Complete,
}

/// The objects of lists in progress.
#[derive(Debug, Default)]
struct Listing {
    namespaces: HashSet<Box<str>>,
    services: HashSet<Key>,
    slices: HashSet<(Key, Box<str>)>,
}

/// Which first lists are complete.
#[derive(Debug, Default)]
struct Complete {
    namespaces: bool,
    services: bool,
    slices: bool,
}

impl Records {
    /// Whether all objects are known, so that a name that is not found does not exist.
    pub(super) const fn complete(&self) -> bool {
        self.complete.namespaces && self.complete.services && self.complete.slices
    }

    pub(super) fn has_namespace(&self, name: &str) -> bool {
        self.namespaces.contains(name)
    }

    pub(super) fn service(&self, key: &Key) -> Option<&Service> {
        self.entries.get(key)?.service.as_ref()
    }

    pub(super) fn slices(&self, key: &Key) -> impl Iterator<Item = &Slice> {
        self.entries.get(key).into_iter().flat_map(|entry| entry.slices.values())
    }

    /// The Service with a cluster IP.
    pub(super) fn service_at(&self, address: IpAddr) -> Option<&Key> {
        self.cluster_ips.get(&address)?.first()
    }

    /// The host names of endpoints with an address, each with its Service.
    pub(super) fn hosts_at(&self, address: IpAddr) -> impl Iterator<Item = (&Key, &str)> {
        self.hosts.get(&address).into_iter().flatten().map(|(service, _, host)| (service, &**host))
    }

    /// Applies an event of the watch of Namespaces.
    pub(super) fn namespace(&mut self, event: Event<Namespace>) {
        let name = |object: Namespace| object.metadata.name.unwrap_or_default().into_boxed_str();
        match event {
            Event::Init => self.listing.namespaces.clear(),
            Event::InitApply(object) => {
                let name = name(object);
                self.listing.namespaces.insert(name.clone());
                self.namespaces.insert(name);
            }
            Event::Apply(object) => {
                self.namespaces.insert(name(object));
            }
            Event::Delete(object) => {
                self.namespaces.remove(&name(object));
            }
            Event::InitDone => {
                self.namespaces = std::mem::take(&mut self.listing.namespaces);
                self.complete.namespaces = true;
            }
        }
    }

    /// Applies an event of the watch of Services.
    pub(super) fn service_event(&mut self, event: Event<ServiceObject>) {
        match event {
            Event::Init => self.listing.services.clear(),
            Event::InitApply(object) => {
                let (key, service) = Service::of(&object);
                self.listing.services.insert(key.clone());
                self.set_service(key, Some(service));
            }
            Event::Apply(object) => {
                let (key, service) = Service::of(&object);
                self.set_service(key, Some(service));
            }
            Event::Delete(object) => self.set_service(Service::of(&object).0, None),
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listing.services);
                let known = self.entries.iter().filter(|(_, entry)| entry.service.is_some());
                let gone: Vec<Key> = known.map(|(key, _)| key).filter(|key| !listed.contains(*key)).cloned().collect();
                gone.into_iter().for_each(|key| self.set_service(key, None));
                self.complete.services = true;
            }
        }
    }

    /// Applies an event of the watch of EndpointSlices. When the endpoints changed that are new since, if they are of a
    /// headless Service with a selector.
    pub(super) fn slice_event(&mut self, event: Event<EndpointSlice>) -> Option<Timestamp> {
        match event {
            Event::Init => self.listing.slices.clear(),
            Event::InitApply(object) => {
                let (key, name, slice) = Slice::of(&object)?;
                self.listing.slices.insert((key.clone(), name.clone()));
                self.set_slice(key, name, Some(slice));
            }
            Event::Apply(object) => {
                let (key, name, slice) = Slice::of(&object)?;
                let service = self.service(&key);
                let is_measured = service.is_some_and(|s| s.leads == Leads::Headless && s.has_selector);
                let is_new = self.set_slice(key, name, Some(slice));
                return Slice::changed_at(&object).filter(|_| is_measured && is_new);
            }
            Event::Delete(object) => {
                let (key, name) = Slice::names(&object)?;
                self.set_slice(key, name, None);
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listing.slices);
                let known = self.entries.iter();
                let known = known.flat_map(|(key, entry)| entry.slices.keys().map(|name| (key.clone(), name.clone())));
                let gone: Vec<(Key, Box<str>)> = known.filter(|slice| !listed.contains(slice)).collect();
                for (key, name) in gone {
                    self.set_slice(key, name, None);
                }
                self.complete.slices = true;
            }
        }
        None
    }

    fn set_service(&mut self, key: Key, service: Option<Service>) {
        let entry = self.entries.entry(key.clone()).or_default();
        let old = std::mem::replace(&mut entry.service, service);
        for ip in old.iter().flat_map(Service::cluster_ips) {
            remove(&mut self.cluster_ips, *ip, &key);
        }
        for ip in entry.service.iter().flat_map(Service::cluster_ips) {
            self.cluster_ips.entry(*ip).or_default().insert(key.clone());
        }
        self.drop_if_empty(&key);
    }

    /// Sets a slice; whether it is another one than before.
    fn set_slice(&mut self, key: Key, name: Box<str>, slice: Option<Slice>) -> bool {
        let entry = self.entries.entry(key.clone()).or_default();
        let old = entry.slices.remove(&name);
        let is_new = old != slice;
        let named = |slice: &Option<Slice>| {
            let endpoints = slice.iter().flat_map(|slice| slice.endpoints.clone());
            endpoints.filter_map(|e| Some((e.address, e.hostname?))).collect::<Vec<_>>()
        };
        for (address, host) in named(&old) {
            remove(&mut self.hosts, address, &(key.clone(), name.clone(), host));
        }
        for (address, host) in named(&slice) {
            self.hosts.entry(address).or_default().insert((key.clone(), name.clone(), host));
        }
        entry.slices.extend(slice.map(|slice| (name, slice)));
        self.drop_if_empty(&key);
        is_new
    }

    fn drop_if_empty(&mut self, key: &Key) {
        if self.entries.get(key).is_some_and(|entry| entry.service.is_none() && entry.slices.is_empty()) {
            self.entries.remove(key);
        }
    }
}

/// Removes a value from those of an address.
fn remove<T: Ord>(all: &mut HashMap<IpAddr, BTreeSet<T>>, address: IpAddr, value: &T) {
    if let Some(values) = all.get_mut(&address) {
        values.remove(value);
        if values.is_empty() {
            all.remove(&address);
        }
    }
}
