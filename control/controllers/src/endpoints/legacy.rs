//! The Endpoints object of a service, for clients older than EndpointSlice. Pure.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        core::v1::{EndpointAddress, EndpointPort, EndpointSubset, Endpoints, Service},
        discovery::v1::Endpoint,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{
    model::{self, Family, Groups, Port},
    slices::HEADLESS,
};

/// Maximum number of addresses in one object (upstream's limit).
pub(crate) const MAX_ADDRESSES: usize = 1000;
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";

/// The object to write, or `None` when `existing` is up to date.
pub(crate) fn reconcile(service: &Service, groups: &Groups, existing: Option<&Endpoints>) -> Option<Endpoints> {
    let spec = service.spec.as_ref()?;
    // One family only: the service's first.
    let family = model::families(spec).into_iter().next().unwrap_or(Family::IPv4);
    let (subsets, truncated) = truncate(subsets(groups, family));
    let mut labels = model::copied_labels(service);
    labels.insert(MANAGED_BY.to_owned(), "endpoint-controller".to_owned());
    if model::is_headless(spec) {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    let subsets = (!subsets.is_empty()).then_some(subsets);
    if let Some(old) = existing {
        let over = old.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(OVER_CAPACITY));
        let old_subsets = old.subsets.clone().filter(|s| !s.is_empty());
        if old_subsets == subsets && old.metadata.labels.as_ref() == Some(&labels) && over == truncated {
            return None;
        }
    }
    let mut annotations = existing.and_then(|e| e.metadata.annotations.clone()).unwrap_or_default();
    annotations.remove(OVER_CAPACITY);
    if truncated {
        annotations.insert(OVER_CAPACITY.to_owned(), "truncated".to_owned());
    }
    let mut metadata = existing.map_or_else(
        || ObjectMeta {
            name: service.metadata.name.clone(),
            namespace: service.metadata.namespace.clone(),
            ..ObjectMeta::default()
        },
        |old| old.metadata.clone(),
    );
    metadata.labels = Some(labels);
    metadata.annotations = (!annotations.is_empty()).then_some(annotations);
    Some(Endpoints { metadata, subsets })
}

/// Whether it is somebody's lock, as old programs elect their leaders, and never a service's.
pub(crate) fn is_lock(endpoints: &Endpoints) -> bool {
    let annotations = endpoints.metadata.annotations.as_ref();
    annotations.is_some_and(|annotations| annotations.contains_key("control-plane.alpha.kubernetes.io/leader"))
}

/// Whether this controller manages the object.
pub(crate) fn is_ours(endpoints: &Endpoints) -> bool {
    endpoints.metadata.labels.as_ref().and_then(|l| l.get(MANAGED_BY)).is_some_and(|m| m == "endpoint-controller")
}

/// Addresses that share the same ports in one subset each, in upstream's canonical form.
fn subsets(groups: &Groups, family: Family) -> Vec<EndpointSubset> {
    // Each address with the ports it is ready or not ready on.
    let mut by_ports: BTreeMap<&Vec<Port>, (Vec<EndpointAddress>, Vec<EndpointAddress>)> = BTreeMap::new();
    for ((_, ports), endpoints) in groups.iter().filter(|((f, _), _)| *f == family) {
        for endpoint in endpoints {
            let condition = |f: fn(&k8s_openapi::api::discovery::v1::EndpointConditions) -> Option<bool>| {
                endpoint.conditions.as_ref().and_then(f) == Some(true)
            };
            let ready = condition(|c| c.ready);
            // A terminating pod is in neither list unless the service publishes all.
            if !ready && condition(|c| c.terminating) {
                continue;
            }
            let entry = by_ports.entry(ports).or_default();
            let list = if ready { &mut entry.0 } else { &mut entry.1 };
            list.push(address(endpoint));
        }
    }
    by_ports
        .into_iter()
        .map(|(ports, (mut ready, mut not_ready))| {
            ready.sort_by(|a, b| a.ip.cmp(&b.ip));
            not_ready.sort_by(|a, b| a.ip.cmp(&b.ip));
            EndpointSubset {
                addresses: (!ready.is_empty()).then_some(ready),
                not_ready_addresses: (!not_ready.is_empty()).then_some(not_ready),
                ports: (!ports.is_empty()).then(|| ports.iter().map(port).collect()),
            }
        })
        .collect()
}

fn address(endpoint: &Endpoint) -> EndpointAddress {
    EndpointAddress {
        ip: endpoint.addresses.first().cloned().unwrap_or_default(),
        hostname: endpoint.hostname.clone(),
        node_name: endpoint.node_name.clone(),
        target_ref: endpoint.target_ref.clone(),
    }
}

fn port(port: &Port) -> EndpointPort {
    EndpointPort {
        name: (!port.name.is_empty()).then(|| port.name.clone()),
        port: port.port,
        protocol: Some(port.protocol.clone()),
        app_protocol: port.app_protocol.clone(),
    }
}

/// Truncates to the limit, ready addresses first.
fn truncate(mut subsets: Vec<EndpointSubset>) -> (Vec<EndpointSubset>, bool) {
    let mut left = MAX_ADDRESSES;
    let mut truncated = false;
    let mut cut = |list: &mut Option<Vec<EndpointAddress>>| {
        if let Some(addresses) = list {
            truncated |= addresses.len() > left;
            addresses.truncate(left);
            left -= addresses.len();
            if addresses.is_empty() {
                *list = None;
            }
        }
    };
    subsets.iter_mut().for_each(|s| cut(&mut s.addresses));
    subsets.iter_mut().for_each(|s| cut(&mut s.not_ready_addresses));
    subsets.retain(|s| s.addresses.is_some() || s.not_ready_addresses.is_some());
    (subsets, truncated)
}
