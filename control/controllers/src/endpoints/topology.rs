//! For which zone each endpoint of a service is, where its annotation asks for topology aware routing. Upstream's
//! `topologycache`. Pure: what upstream keeps between runs is found in the slices that there are.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use k8s_openapi::api::{
    core::v1::Service,
    discovery::v1::{Endpoint, EndpointHints, EndpointSlice, ForZone},
};
use windlass_kit::{events::Severity, quantity::Quantity};

use super::model::{self, Family};
use crate::runtime::CachedNode;

/// The annotations that ask for it; the older one takes precedence.
const ANNOTATIONS: [&str; 2] = ["service.kubernetes.io/topology-aware-hints", "service.kubernetes.io/topology-mode"];
/// By how much more than its share an endpoint may get at most.
const OVERLOAD_THRESHOLD: f64 = 0.2;
/// Nodes with one of these labels serve no workload that counts.
const EXCLUDED: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];

/// Whether a service asks for hints by topology.
pub(super) fn is_wanted(service: &Service) -> bool {
    let annotations = service.metadata.annotations.as_ref();
    let value = ANNOTATIONS.iter().find_map(|name| annotations?.get(*name));
    value.is_some_and(|value| value == "Auto" || value == "auto")
}

/// What a node adds to its zone; equal parts change no hints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Share {
    /// It is not ready, or not for workloads.
    Nothing,
    /// It does not say enough.
    Unknown,
    /// Thousandths of a CPU.
    Cpu { zone: String, milli: i64 },
}

pub(super) fn share(node: &CachedNode) -> Share {
    let labels = node.metadata.labels.as_ref();
    let is_ready = |c: &k8s_openapi::api::core::v1::NodeCondition| c.type_ == "Ready" && c.status == "True";
    let status = node.status.as_ref();
    let excluded = EXCLUDED.iter().any(|label| labels.is_some_and(|labels| labels.contains_key(*label)));
    if excluded || !status.is_some_and(|status| status.conditions.iter().flatten().any(is_ready)) {
        return Share::Nothing;
    }
    let cpu = status.and_then(|status| status.allocatable_cpu.as_ref()?.0.parse::<Quantity>().ok());
    match (model::zone(node).filter(|zone| !zone.is_empty()), cpu.map(|cpu| cpu.milli())) {
        (Some(zone), Some(milli)) if milli > 0 => Share::Cpu { zone, milli },
        _ => Share::Unknown,
    }
}

/// Parts of the whole by zone; `None` without two zones, and if a node does not say enough.
pub(super) fn ratios(shares: impl IntoIterator<Item = Share>) -> Option<BTreeMap<String, f64>> {
    let mut zones: BTreeMap<String, i64> = BTreeMap::new();
    for share in shares {
        match share {
            Share::Nothing => {}
            Share::Unknown => return None,
            Share::Cpu { zone, milli } => *zones.entry(zone).or_default() += milli,
        }
    }
    let total: i64 = zones.values().sum();
    #[allow(clippy::cast_precision_loss, reason = "a ratio")]
    let ratio = |milli: i64| milli as f64 / total as f64;
    (zones.len() > 1).then(|| zones.into_iter().map(|(zone, milli)| (zone, ratio(milli))).collect())
}

/// An event about a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) severity: Severity,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

pub(super) fn enabled(family: Family) -> Note {
    let message = format!("Topology Aware Hints has been enabled, addressType: {}", family.word());
    Note { severity: Severity::Normal, reason: "TopologyAwareHintsEnabled", message }
}

/// Why there are no hints.
pub(super) fn disabled(why: &str, family: Family) -> Note {
    let message = format!("{why}, addressType: {}", family.word());
    Note { severity: Severity::Warning, reason: "TopologyAwareHintsDisabled", message }
}

/// The annotation was removed.
pub(super) const NOT_WANTED: &str = "Topology Aware Hints has been disabled";

/// How many endpoints a zone gets.
#[derive(Debug)]
struct Allocation {
    minimum: usize,
    maximum: usize,
    desired: f64,
}

/// # Errors
/// Why no allocation keeps every endpoint from being overloaded.
fn allocate(ratios: Option<&BTreeMap<String, f64>>, count: usize) -> Result<BTreeMap<&str, Allocation>, String> {
    let Some(ratios) = ratios else {
        let why = "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes";
        return Err(why.to_owned());
    };
    let of = |why: &str| format!("{why} ({count} endpoints, {} zones)", ratios.len());
    if ratios.len() > count {
        return Err(of("Insufficient number of endpoints"));
    }
    #[allow(clippy::cast_precision_loss, reason = "far fewer endpoints than that")]
    let desired = |ratio: f64| ratio * count as f64;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most the number of endpoints")]
    let minimum = |ratio: f64| (desired(ratio) * (1.0 / (1.0 + OVERLOAD_THRESHOLD))).ceil() as usize;
    let total: usize = ratios.values().map(|ratio| minimum(*ratio)).sum();
    let Some(spare) = count.checked_sub(total) else {
        let why = "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold";
        return Err(of(why));
    };
    Ok(ratios
        .iter()
        .map(|(zone, ratio)| {
            let minimum = minimum(*ratio);
            #[allow(clippy::cast_precision_loss, reason = "far fewer endpoints than that")]
            let desired = desired(*ratio).max(minimum as f64);
            (zone.as_str(), Allocation { minimum, maximum: minimum + spare, desired })
        })
        .collect())
}

fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.conditions.as_ref().and_then(|conditions| conditions.ready) == Some(true)
}

fn address(endpoint: &Endpoint) -> &str {
    endpoint.addresses.first().map_or("", String::as_str)
}

/// For which zone each address is by now.
pub(super) fn of_slices(slices: &[Arc<EndpointSlice>]) -> HashMap<String, String> {
    let endpoints = slices.iter().flat_map(|slice| slice.endpoints.iter().flatten());
    let zone = |e: &Endpoint| e.hints.as_ref()?.for_zones.as_ref()?.first().map(|zone| zone.name.clone());
    endpoints.filter_map(|endpoint| Some((address(endpoint).to_owned(), zone(endpoint)?))).collect()
}

fn hint(endpoint: &mut Endpoint, zone: &str) {
    let for_zones = Some(vec![ForZone { name: zone.to_owned() }]);
    endpoint.hints = Some(EndpointHints { for_zones, ..EndpointHints::default() });
}

/// Gives hints to the ready endpoints of one family. `before`: the previous zone of each address, which is kept unless
/// that overloads a zone.
///
/// # Errors
/// Why there can be none; then no endpoint has one.
pub(super) fn add_hints(
    endpoints: &mut [&mut Endpoint],
    before: &HashMap<String, String>,
    ratios: Option<&BTreeMap<String, f64>>,
) -> Result<(), String> {
    endpoints.iter_mut().for_each(|endpoint| endpoint.hints = None);
    let mut ready: Vec<&mut &mut Endpoint> = endpoints.iter_mut().filter(|endpoint| is_ready(endpoint)).collect();
    let allocations = allocate(ratios, ready.len())?;
    let zone_of = |endpoint: &Endpoint| endpoint.zone.clone().filter(|zone| !zone.is_empty());
    let Some(own) = ready.iter().map(|endpoint| zone_of(endpoint)).collect::<Option<Vec<String>>>() else {
        return Err("One or more endpoints do not have a zone specified".to_owned());
    };
    let known = ready.iter().map(|endpoint| before.get(address(endpoint)).cloned()).collect::<Option<Vec<String>>>();
    let fair = |zones: &Vec<String>| {
        let count = |zone: &str| zones.iter().filter(|one| *one == zone).count();
        zones.iter().all(|zone| allocations.contains_key(zone.as_str()))
            && allocations.iter().all(|(zone, to)| (to.minimum..=to.maximum).contains(&count(zone)))
    };
    let zones = known.filter(fair).unwrap_or_else(|| {
        let addresses: Vec<&str> = ready.iter().map(|endpoint| address(endpoint)).collect();
        redistribute(own, &addresses, before, &allocations)
    });
    ready.iter_mut().zip(&zones).for_each(|(endpoint, zone)| hint(endpoint, zone));
    Ok(())
}

/// Each endpoint is for its own zone, but for those that zones with too many give to others.
fn redistribute(
    own: Vec<String>,
    addresses: &[&str],
    before: &HashMap<String, String>,
    allocations: &BTreeMap<&str, Allocation>,
) -> Vec<String> {
    let (mut giving, mut receiving) = (BTreeMap::new(), BTreeMap::new());
    for (zone, allocation) in allocations {
        #[allow(clippy::cast_precision_loss, reason = "far fewer endpoints than that")]
        let surplus = own.iter().filter(|one| one == zone).count() as f64 - allocation.desired;
        if surplus > 0.0 {
            giving.insert(*zone, surplus)
        } else {
            receiving.insert(*zone, -surplus)
        };
    }
    let most = |zones: &BTreeMap<&str, f64>| -> Option<(String, f64)> {
        // Of equal ones the first, so that the same endpoints always have the same hints.
        let most = zones.iter().rev().max_by(|one, other| one.1.total_cmp(other.1))?;
        Some(((*most.0).to_owned(), *most.1)).filter(|(_, number)| *number > 0.0)
    };
    let mut zones = own;
    let from = zones.clone();
    while let (Some((giver, give)), Some((receiver, receive))) = (most(&giving), most(&receiving)) {
        if (give < 1.0 && receive < 1.0) || give < 0.5 || receive < 0.5 {
            break;
        }
        // One that was for that zone already, if there is one.
        let free = || (0..zones.len()).filter(|i| from[*i] == giver && zones[*i] == giver);
        let was = |i: &usize| before.get(addresses[*i]) == Some(&receiver);
        let Some(moved) = free().find(was).or_else(|| free().next()) else { break };
        zones[moved].clone_from(&receiver);
        for (zones, zone) in [(&mut giving, &giver), (&mut receiving, &receiver)] {
            zones.get_mut(zone.as_str()).into_iter().for_each(|number| *number -= 1.0);
        }
    }
    zones
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::discovery::v1::EndpointConditions;
    use serde_json::json;

    use super::*;

    fn endpoints(zones: &[&str]) -> Vec<Endpoint> {
        let one = |(i, zone): (usize, &&str)| Endpoint {
            addresses: vec![format!("10.0.0.{i}")],
            zone: (!zone.is_empty()).then(|| (*zone).to_owned()),
            conditions: Some(EndpointConditions { ready: Some(true), ..EndpointConditions::default() }),
            ..Endpoint::default()
        };
        zones.iter().enumerate().map(one).collect()
    }

    /// The zones that endpoints are for, each a letter.
    fn hints(endpoints: &[Endpoint]) -> String {
        let of = |e: &Endpoint| e.hints.as_ref()?.for_zones.as_ref()?.first().map(|zone| zone.name.clone());
        endpoints.iter().map(|endpoint| of(endpoint).unwrap_or_else(|| "-".to_owned())).collect()
    }

    fn add(zones: &[&str], before: &[(usize, &str)], cpus: &[(&str, i64)]) -> Result<String, String> {
        let mut all = endpoints(zones);
        let shares = cpus.iter().map(|(zone, milli)| Share::Cpu { zone: (*zone).to_owned(), milli: *milli });
        let ratios = ratios(shares);
        let before = before.iter().map(|(i, zone)| (format!("10.0.0.{i}"), (*zone).to_owned())).collect();
        let added = add_hints(&mut all.iter_mut().collect::<Vec<_>>(), &before, ratios.as_ref());
        added.map(|()| hints(&all))
    }

    const EQUAL: [(&str, i64); 2] = [("a", 4000), ("b", 4000)];

    #[test]
    fn endpoints_are_for_their_own_zone_and_for_those_with_too_few() {
        assert_eq!(add(&["a", "b"], &[], &EQUAL), Ok("ab".into()));
        assert_eq!(add(&["a", "a", "a", "b"], &[], &EQUAL), Ok("baab".into()));
        // The one that was given before is given again.
        assert_eq!(add(&["a", "a", "a", "b"], &[(2, "b")], &EQUAL), Ok("aabb".into()));
        // What is fair stays, though the zones of the endpoints are others.
        let before = [(0, "b"), (1, "a"), (2, "b"), (3, "a")];
        assert_eq!(add(&["a", "a", "b", "b"], &before, &EQUAL), Ok("baba".into()));
    }

    #[test]
    fn without_enough_there_are_none() {
        let node = "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes";
        for (zones, cpus, why) in [
            (vec!["a", "b"], vec![("a", 1)], node),
            (vec!["a"], EQUAL.to_vec(), "Insufficient number of endpoints (1 endpoints, 2 zones)"),
            (vec!["a", ""], EQUAL.to_vec(), "One or more endpoints do not have a zone specified"),
            (
                vec!["a", "b", "a"],
                vec![("a", 1), ("b", 1), ("c", 4)],
                "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold (3 endpoints, 3 zones)",
            ),
        ] {
            assert_eq!(add(&zones, &[], &cpus), Err(why.to_owned()));
        }
        assert_eq!(ratios([Share::Cpu { zone: "a".into(), milli: 1 }, Share::Unknown]), None);
    }

    #[test]
    fn a_node_counts_with_zone_and_cpu() {
        let node = |more: serde_json::Value| -> Share {
            let mut node = json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "a"}},
                "status": {"allocatable": {"cpu": "1500m"}, "conditions": [{"type": "Ready", "status": "True"}]}});
            json_patch::merge(&mut node, &more);
            share(&serde_json::from_value(node).unwrap())
        };
        assert_eq!(node(json!({})), Share::Cpu { zone: "a".into(), milli: 1500 });
        assert_eq!(node(json!({"metadata": {"labels": null}})), Share::Unknown);
        assert_eq!(node(json!({"status": {"allocatable": null}})), Share::Unknown);
        assert_eq!(node(json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}})), Share::Nothing);
        let label = json!({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}});
        assert_eq!(node(label), Share::Nothing);
    }
}
