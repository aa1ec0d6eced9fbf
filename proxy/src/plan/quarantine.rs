//! Service ports whose rules the kernel refuses: one of them must not keep out those of all others. Pure.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use crate::model::{Service, ServiceId};

/// What is written of a service port instead of its rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Treatment {
    /// What a service port without endpoints has: connections are refused.
    Refuse,
    /// Nothing: the kernel refuses those rules as well.
    Omit,
}

#[derive(Debug, Clone)]
struct QuarantinedService {
    /// As it was when its rules were refused: another form may be taken.
    service: Arc<Service>,
    /// By full name of the port.
    ports: BTreeMap<Arc<str>, Treatment>,
}

/// The service ports that are quarantined back.
#[derive(Debug, Clone, Default)]
pub(super) struct Quarantine(HashMap<ServiceId, QuarantinedService>);

impl Quarantine {
    /// Holds a service port back, or further back; whether that changes anything.
    pub(super) fn add(&mut self, id: &ServiceId, service: &Arc<Service>, full_name: &str) -> bool {
        let Some(port) = service.ports.iter().find(|p| *p.full_name == *full_name) else { return false };
        let fresh = || QuarantinedService { service: service.clone(), ports: BTreeMap::new() };
        let quarantined = self.0.entry(id.clone()).or_insert_with(fresh);
        let next = match quarantined.ports.get(full_name) {
            None => Treatment::Refuse,
            Some(Treatment::Refuse) => Treatment::Omit,
            Some(Treatment::Omit) => return false,
        };
        quarantined.ports.insert(port.full_name.clone(), next);
        true
    }

    /// A Service that changed since is retried.
    pub(super) fn release_changed(&mut self, id: &ServiceId, service: &Arc<Service>) {
        if self
            .0
            .get(id)
            .is_some_and(|quarantined| !Arc::ptr_eq(&quarantined.service, service) && quarantined.service != *service)
        {
            self.0.remove(id);
        }
    }

    pub(super) fn remove(&mut self, id: &ServiceId) {
        self.0.remove(id);
    }

    pub(super) fn treatment(&self, id: &ServiceId, full_name: &str) -> Option<Treatment> {
        self.0.get(id)?.ports.get(full_name).copied()
    }

    /// How many service ports are quarantined back.
    pub(super) fn len(&self) -> usize {
        self.0.values().map(|quarantined| quarantined.ports.len()).sum()
    }

    /// Lets all go; which Services they were of.
    pub(super) fn release(&mut self) -> Vec<ServiceId> {
        self.0.drain().map(|(id, _)| id).collect()
    }
}
