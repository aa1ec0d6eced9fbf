//! The slices that mirror an Endpoints object. Upstream's pkg/controller/endpointslicemirroring/reconciler.go. Pure.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use k8s_openapi::{
    api::{
        core::v1::{EndpointAddress, EndpointPort as SubsetPort, Endpoints, Service},
        discovery::v1::{Endpoint, EndpointConditions, EndpointSlice},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use crate::{
    endpoints::{
        model::{Family, Groups, Port},
        slices::{MANAGED_BY, Plan, SERVICE_NAME, TRIGGER, group_of},
    },
    pod_control::owner_reference,
};

/// The value of the label `managed-by` of mirrored slices.
pub(super) const MANAGER: &str = "endpointslicemirroring-controller.k8s.io";
/// The most addresses of a subset that are mirrored, all of them in one slice.
pub(super) const MAX_ADDRESSES: usize = 1000;
const SKIP_MIRROR: &str = "endpointslice.kubernetes.io/skip-mirror";
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";

/// What is written, and what is not mirrored.
#[derive(Debug, Default)]
pub(super) struct Mirror {
    pub(super) plan: Plan,
    /// Invalid addresses.
    pub(super) invalid: usize,
    /// These, and those that are too many.
    pub(super) skipped: usize,
}

/// Whether an Endpoints object may be mirrored. Upstream's `shouldMirror`.
pub(super) fn may_be_mirrored(endpoints: &Endpoints) -> bool {
    let meta = &endpoints.metadata;
    let skipped = meta.labels.as_ref().and_then(|labels| labels.get(SKIP_MIRROR)).is_some_and(|skip| skip == "true");
    let elects = meta.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(LEADER));
    !skipped && !elects
}

/// Whether the endpoints of a service are made by somebody else than the controllers of services with selectors.
pub(super) fn has_no_selector(service: &Service) -> bool {
    let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    selector.is_none_or(BTreeMap::is_empty)
}

/// Compares the mirrored slices with the Endpoints: one slice for each address family and set of ports.
/// Upstream's `reconciler.reconcile` of `endpointslicemirroring`.
pub(super) fn reconcile(endpoints: &Endpoints, existing: &[Arc<EndpointSlice>]) -> Mirror {
    let mut mirror = Mirror::default();
    let groups = groups(endpoints, &mut mirror);
    let mut by_group: BTreeMap<(Family, Vec<Port>), Vec<&Arc<EndpointSlice>>> = BTreeMap::new();
    for slice in existing.iter().filter(|slice| slice.metadata.deletion_timestamp.is_none()) {
        by_group.entry(group_of(slice)).or_default().push(slice);
    }
    let (mut new, mut spare) = (Vec::new(), Vec::new());
    for (group, mut wanted) in groups {
        wanted.truncate(MAX_ADDRESSES);
        let mut slices = by_group.remove(&group).unwrap_or_default().into_iter();
        let made = slice(endpoints, &group, wanted);
        match slices.next() {
            Some(known) if same(known, &made) => {}
            Some(known) => mirror.plan.update.push(in_place_of(known, made)),
            None => new.push(made),
        }
        spare.extend(slices);
    }
    spare.extend(by_group.into_values().flatten());
    // What would be deleted becomes what would be created: clients never see neither of them.
    for made in new {
        match spare.iter().position(|known| known.address_type == made.address_type) {
            Some(at) => mirror.plan.update.push(in_place_of(spare.swap_remove(at), made)),
            None if endpoints.metadata.deletion_timestamp.is_none() => mirror.plan.create.push(made),
            None => {}
        }
    }
    mirror.plan.delete = spare.into_iter().cloned().collect();
    mirror
}

/// The endpoints of all subsets, without duplicates; within a subset, ready addresses take precedence.
fn groups(endpoints: &Endpoints, mirror: &mut Mirror) -> Groups {
    let mut groups = Groups::new();
    for subset in endpoints.subsets.iter().flatten() {
        let mut ports: Vec<Port> = subset.ports.iter().flatten().map(port).collect();
        ports.sort();
        let ready = subset.addresses.iter().flatten().map(|address| (address, true));
        let unready = subset.not_ready_addresses.iter().flatten().map(|address| (address, false));
        let mut added = 0;
        for (address, ready) in ready.chain(unready) {
            if added >= MAX_ADDRESSES {
                mirror.skipped += 1;
                continue;
            }
            let Some((family, endpoint)) = endpoint(address, ready) else {
                mirror.invalid += 1;
                mirror.skipped += 1;
                continue;
            };
            added += 1;
            let group = groups.entry((family, ports.clone())).or_default();
            if !group.iter().any(|known| is_same(known, &endpoint)) {
                group.push(endpoint);
            }
        }
    }
    groups
}

/// Upstream's `epPortToEpsPort`.
fn port(port: &SubsetPort) -> Port {
    Port {
        name: port.name.clone().unwrap_or_default(),
        protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
        port: port.port,
        app_protocol: port.app_protocol.clone(),
    }
}

/// Upstream's `addressToEndpoint`.
fn endpoint(address: &EndpointAddress, ready: bool) -> Option<(Family, Endpoint)> {
    let ip: IpAddr = address.ip.parse().ok()?;
    // An IPv4 address in IPv6's form is one.
    let ip = ip.to_canonical();
    let family = if ip.is_ipv4() { Family::IPv4 } else { Family::IPv6 };
    let endpoint = Endpoint {
        addresses: vec![ip.to_string()],
        conditions: Some(EndpointConditions { ready: Some(ready), ..EndpointConditions::default() }),
        hostname: address.hostname.clone().filter(|hostname| !hostname.is_empty()),
        node_name: address.node_name.clone(),
        target_ref: address.target_ref.clone(),
        ..Endpoint::default()
    };
    Some((family, endpoint))
}

/// The identity of an endpoint, whatever its conditions.
fn is_same(one: &Endpoint, other: &Endpoint) -> bool {
    one.addresses == other.addresses
        && one.target_ref == other.target_ref
        && one.node_name == other.node_name
        && one.hostname == other.hostname
}

/// Upstream's `newEndpointSlice`.
fn slice(endpoints: &Endpoints, (family, ports): &(Family, Vec<Port>), mirrored: Vec<Endpoint>) -> EndpointSlice {
    let meta = &endpoints.metadata;
    let name = meta.name.clone().unwrap_or_default();
    let mut labels = meta.labels.clone().unwrap_or_default();
    labels.insert(SERVICE_NAME.to_owned(), name.clone());
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    let mut annotations = meta.annotations.clone().unwrap_or_default();
    annotations.remove(TRIGGER);
    EndpointSlice {
        metadata: ObjectMeta {
            generate_name: Some(format!("{name}-")),
            namespace: meta.namespace.clone(),
            labels: Some(labels),
            annotations: Some(annotations).filter(|annotations| !annotations.is_empty()),
            owner_references: Some(vec![owner_reference(endpoints)]),
            ..ObjectMeta::default()
        },
        address_type: family.word().to_owned(),
        ports: Some(ports.iter().map(Port::to_slice).collect()),
        endpoints: Some(mirrored),
    }
}

fn same(known: &EndpointSlice, made: &EndpointSlice) -> bool {
    let (is, wanted) = (&known.metadata, &made.metadata);
    let (have, want) = (known.endpoints.as_deref().unwrap_or_default(), made.endpoints.as_deref().unwrap_or_default());
    is.labels == wanted.labels
        && is.annotations.clone().filter(|annotations| !annotations.is_empty()) == wanted.annotations
        && is.owner_references == wanted.owner_references
        && have.len() == want.len()
        && want.iter().all(|endpoint| have.contains(endpoint))
}

fn in_place_of(known: &Arc<EndpointSlice>, made: EndpointSlice) -> EndpointSlice {
    let mut slice = EndpointSlice::clone(known);
    slice.metadata.labels = made.metadata.labels;
    slice.metadata.annotations = made.metadata.annotations;
    slice.metadata.owner_references = made.metadata.owner_references;
    EndpointSlice { metadata: slice.metadata, ..made }
}
