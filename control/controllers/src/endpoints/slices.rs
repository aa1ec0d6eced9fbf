//! Packs a service's endpoints into EndpointSlices with as few writes as possible. Pure.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use k8s_openapi::{
    api::{
        core::v1::Service,
        discovery::v1::{Endpoint, EndpointSlice},
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};

use super::model::{self, Family, Groups, Port};
pub(crate) use crate::indexes::SERVICE_NAME;

/// Maximum number of endpoints in one slice (upstream's default).
pub(crate) const MAX_ENDPOINTS: usize = 100;
pub(crate) const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
pub(crate) const MANAGER: &str = "endpointslice-controller.k8s.io";
pub(crate) const HEADLESS: &str = "service.kubernetes.io/headless";
/// Annotation with the time of the change behind a write; clients measure their latency with it.
pub(crate) const TRIGGER: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// The writes that reconcile the slices.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) create: Vec<EndpointSlice>,
    /// Whole objects with the resourceVersion they are based on.
    pub(crate) update: Vec<EndpointSlice>,
    pub(crate) delete: Vec<Arc<EndpointSlice>>,
    pub(crate) sums: Sums,
}

/// What is counted of a plan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Endpoints that come, and those that go.
    pub(crate) added: usize,
    pub(crate) removed: usize,
    /// Endpoints and slices, when all is written.
    pub(crate) endpoints: usize,
    pub(crate) slices: usize,
    /// Slices, if all but one of each family and ports were full.
    pub(crate) fewest_slices: usize,
}

impl Plan {
    pub(crate) fn is_empty(&self) -> bool {
        self.create.is_empty() && self.update.is_empty() && self.delete.is_empty()
    }
}

/// Compares `existing` slices (of this service and manager) with `groups`.
pub(crate) fn reconcile(service: &Service, mut groups: Groups, existing: &[Arc<EndpointSlice>]) -> Plan {
    let Some(spec) = &service.spec else { return Plan::default() };
    let labels = labels(service, model::is_headless(spec));
    // A family without endpoints keeps one empty slice as a placeholder.
    for family in model::families(spec) {
        if !groups.keys().any(|(f, _)| *f == family) {
            groups.insert((family, Vec::new()), Vec::new());
        }
    }
    let mut by_group: BTreeMap<(Family, Vec<Port>), Vec<&Arc<EndpointSlice>>> = BTreeMap::new();
    let mut plan = Plan::default();
    for slice in existing.iter().filter(|slice| slice.metadata.deletion_timestamp.is_none()) {
        let key = group_of(slice);
        // Those of a service of this name that is gone go with it.
        if groups.contains_key(&key) && is_of(slice, service) {
            by_group.entry(key).or_default().push(slice);
        } else {
            plan.delete.push(Arc::clone(slice));
        }
    }
    for (key, endpoints) in groups {
        let slices = by_group.remove(&key).unwrap_or_default();
        plan.sums.endpoints += endpoints.len();
        plan.sums.fewest_slices += endpoints.len().div_ceil(MAX_ENDPOINTS);
        pack(service, &labels, &key, endpoints, &slices, &mut plan);
    }
    plan.sums.fewest_slices = plan.sums.fewest_slices.max(1);
    let left = existing.len() + plan.create.len();
    plan.sums.slices = left.saturating_sub(plan.delete.len());
    rewrite(service, &mut plan);
    plan
}

/// Slices that are not needed become those that are: names stay, and watchers hear of one change instead of two. A slice keeps
/// its family, which is immutable.
fn rewrite(service: &Service, plan: &mut Plan) {
    plan.delete.retain(|old| {
        let fits = |new: &EndpointSlice| new.address_type == old.address_type && is_of(old, service);
        let Some(at) = plan.create.iter().rposition(fits) else { return true };
        let mut new = plan.create.remove(at);
        let (labels, owners) = (new.metadata.labels.take(), new.metadata.owner_references.take());
        new.metadata = ObjectMeta { labels, owner_references: owners, ..old.metadata.clone() };
        plan.update.push(new);
        false
    });
}

fn is_of(slice: &EndpointSlice, service: &Service) -> bool {
    slice.metadata.owner_references.iter().flatten().any(|owner| Some(&owner.uid) == service.metadata.uid.as_ref())
}

/// The address family and ports of a slice.
pub(crate) fn group_of(slice: &EndpointSlice) -> (Family, Vec<Port>) {
    let family = if slice.address_type == "IPv6" { Family::IPv6 } else { Family::IPv4 };
    let mut ports: Vec<Port> = slice.ports.iter().flatten().map(Port::of).collect();
    ports.sort();
    (family, ports)
}

/// The identity of an endpoint, regardless of its conditions.
fn identity(endpoint: &Endpoint) -> (String, String) {
    let uid = endpoint.target_ref.as_ref().and_then(|t| t.uid.clone()).unwrap_or_default();
    (endpoint.addresses.first().cloned().unwrap_or_default(), uid)
}

struct Bin<'a> {
    slice: &'a Arc<EndpointSlice>,
    endpoints: Vec<Endpoint>,
    changed: bool,
}

fn pack(
    service: &Service,
    labels: &BTreeMap<String, String>,
    (family, ports): &(Family, Vec<Port>),
    endpoints: Vec<Endpoint>,
    slices: &[&Arc<EndpointSlice>],
    plan: &mut Plan,
) {
    let mut wanted: BTreeMap<(String, String), Endpoint> = endpoints.into_iter().map(|e| (identity(&e), e)).collect();

    // Each existing slice keeps those of its endpoints that are still wanted.
    let mut bins: Vec<Bin<'_>> = Vec::new();
    let mut seen = HashSet::new();
    for slice in slices {
        let mut bin = Bin { slice, endpoints: Vec::new(), changed: !has_labels(slice, labels) };
        for old in slice.endpoints.iter().flatten() {
            let id = identity(old);
            match wanted.get(&id) {
                Some(new) if seen.insert(id) => {
                    bin.changed |= new != old;
                    bin.endpoints.push(new.clone());
                }
                _ => {
                    bin.changed = true;
                    plan.sums.removed += 1;
                }
            }
        }
        bins.push(bin);
    }
    wanted.retain(|id, _| !seen.contains(id));
    let mut left: Vec<Endpoint> = wanted.into_values().collect();
    plan.sums.added += left.len();

    // New endpoints go first into slices that are written anyway, then into the fullest that holds
    // them all, then into new slices.
    bins.sort_by_key(|bin| (!bin.changed, std::cmp::Reverse(bin.endpoints.len())));
    for bin in bins.iter_mut().filter(|bin| bin.changed) {
        fill(bin, &mut left);
    }
    if !left.is_empty() {
        let last = left.len() % MAX_ENDPOINTS;
        let fits = |bin: &&mut Bin<'_>| !bin.changed && last > 0 && bin.endpoints.len() + last <= MAX_ENDPOINTS;
        if let Some(bin) = bins.iter_mut().find(fits) {
            let mut part = left.split_off(left.len() - last);
            bin.changed = true;
            fill(bin, &mut part);
        }
    }

    // Empty slices are deleted, except for one placeholder.
    let mut any = !left.is_empty() || bins.iter().any(|bin| !bin.endpoints.is_empty());
    for bin in bins {
        if bin.endpoints.is_empty() && any {
            plan.delete.push(Arc::clone(bin.slice));
            continue;
        }
        any = true;
        if bin.changed {
            let mut slice = EndpointSlice::clone(bin.slice);
            slice.metadata.labels = Some(labels.clone());
            slice.metadata.owner_references = Some(vec![owner(service)]);
            slice.endpoints = Some(bin.endpoints);
            plan.update.push(slice);
        }
    }
    while !left.is_empty() || !any {
        let rest = left.split_off(left.len().min(MAX_ENDPOINTS));
        let part = std::mem::replace(&mut left, rest);
        plan.create.push(new_slice(service, labels, *family, ports, part));
        any = true;
    }
}

fn fill(bin: &mut Bin<'_>, left: &mut Vec<Endpoint>) {
    let room = MAX_ENDPOINTS.saturating_sub(bin.endpoints.len()).min(left.len());
    bin.endpoints.extend(left.drain(..room));
}

fn has_labels(slice: &EndpointSlice, labels: &BTreeMap<String, String>) -> bool {
    slice.metadata.labels.as_ref() == Some(labels)
}

fn labels(service: &Service, headless: bool) -> BTreeMap<String, String> {
    let mut labels = model::copied_labels(service);
    labels.insert(SERVICE_NAME.to_owned(), service.metadata.name.clone().unwrap_or_default());
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    if headless {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    labels
}

fn owner(service: &Service) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Service".to_owned(),
        name: service.metadata.name.clone().unwrap_or_default(),
        uid: service.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

fn new_slice(
    service: &Service,
    labels: &BTreeMap<String, String>,
    family: Family,
    ports: &[Port],
    endpoints: Vec<Endpoint>,
) -> EndpointSlice {
    EndpointSlice {
        metadata: ObjectMeta {
            generate_name: service.metadata.name.as_ref().map(|name| format!("{name}-")),
            namespace: service.metadata.namespace.clone(),
            labels: Some(labels.clone()),
            owner_references: Some(vec![owner(service)]),
            ..ObjectMeta::default()
        },
        address_type: family.word().to_owned(),
        ports: Some(ports.iter().map(Port::to_slice).collect()),
        endpoints: Some(endpoints),
    }
}
