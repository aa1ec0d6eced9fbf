//! The Node at registration: a new object, the reconciliation of an existing one, and validation of configured labels
//! and taints. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Node, NodeSpec, NodeStatus, Taint},
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::ObjectMeta},
};
use windlass_kit::objects::node_labels;

use super::{
    NodeConfig,
    machine::Machine,
    status::{self, StatusInputs},
};
use crate::engine::Health;

const HOST_NAME: &str = "kubernetes.io/hostname";
pub(super) const OS: &str = "kubernetes.io/os";
pub(super) const ARCH: &str = "kubernetes.io/arch";
const BETA_OS: &str = "beta.kubernetes.io/os";
const BETA_ARCH: &str = "beta.kubernetes.io/arch";
/// Labels that are reconciled in an existing Node, if the node sets them at all; upstream's list.
const DEFAULT_LABELS: [&str; 11] = [
    HOST_NAME,
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    OS,
    ARCH,
    BETA_OS,
    BETA_ARCH,
];
/// Controllers attach volumes, not the node.
const ATTACH: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
/// Keeps pods away until an external cloud provider has initialized the node.
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";

/// The Node to create.
pub(super) fn new_node(config: &NodeConfig, machine: &Machine, inputs: &StatusInputs, now: Timestamp) -> Node {
    let node_values = [
        (HOST_NAME, config.name.as_str()),
        (OS, "linux"),
        (ARCH, status::architecture()),
        (BETA_OS, "linux"),
        (BETA_ARCH, status::architecture()),
    ];
    let mut labels = config.labels.clone();
    labels.extend(node_values.map(|(key, value)| (key.to_owned(), value.to_owned())));
    let mut annotations = BTreeMap::from([(ATTACH.to_owned(), "true".to_owned())]);
    status::provided_ip(config, &mut annotations);
    let mut status = status::node_status(config, machine, &Health::Unknown, inputs, &NodeStatus::default(), now);
    status.conditions = None;
    let cloud = config.external_cloud.then(|| Taint {
        key: UNINITIALIZED.to_owned(),
        value: Some("true".to_owned()),
        effect: "NoSchedule".to_owned(),
        time_added: None,
    });
    let taints: Vec<Taint> = config.taints.iter().cloned().chain(cloud).collect();
    Node {
        metadata: ObjectMeta {
            name: Some(config.name.clone()),
            labels: Some(labels),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            taints: Some(taints).filter(|taints| !taints.is_empty()),
            provider_id: Some(config.provider_id.clone()).filter(|id| !id.is_empty()),
            ..NodeSpec::default()
        }),
        status: Some(status),
    }
}

/// An existing Node, reconciled as upstream does at a start. Its spec, taints included, stays, and so do other labels.
/// A `fresh` node, which has no state of devices, resets extended resources to zero until their owner counts them
/// again.
pub(super) fn reconciled(found: &Node, new: &Node, fresh: bool) -> Node {
    let mut node = found.clone();
    let wanted = new.metadata.labels.iter().flatten().filter(|(key, _)| DEFAULT_LABELS.contains(&key.as_str()));
    let labels = node.metadata.labels.get_or_insert_default();
    for (key, value) in wanted {
        labels.insert(key.clone(), value.clone());
    }
    labels.retain(|key, value| !value.is_empty() || !DEFAULT_LABELS.contains(&key.as_str()));
    let attach = new.metadata.annotations.as_ref().and_then(|all| all.get(ATTACH)).cloned();
    node.metadata.annotations.get_or_insert_default().extend(attach.map(|value| (ATTACH.to_owned(), value)));
    let status = node.status.get_or_insert_default();
    let reported = new.status.as_ref();
    for (list, node_values) in [
        (&mut status.capacity, reported.and_then(|s| s.capacity.as_ref())),
        (&mut status.allocatable, reported.and_then(|s| s.allocatable.as_ref())),
    ] {
        let Some(list) = list else { continue };
        list.retain(|name, _| {
            !name.starts_with(status::HUGE_PAGES)
                || node_values.is_some_and(|node_values| node_values.contains_key(name))
        });
        for (name, amount) in node_values.into_iter().flatten().filter(|(name, _)| name.starts_with(status::HUGE_PAGES))
        {
            list.insert(name.clone(), amount.clone());
        }
        if fresh {
            list.iter_mut()
                .filter(|(name, _)| !status::is_own(name))
                .for_each(|(_, amount)| *amount = Quantity("0".to_owned()));
        }
    }
    node
}

/// Why a node of this name cannot set a label on itself, and what to do about it.
#[must_use]
pub fn label_problem(node: &str, key: &str, value: &str) -> Option<String> {
    if !is_qualified(key) {
        return Some(format!("nodeLabels {key:?} is not the name of a label, such as disk or example.com/disk"));
    }
    if value.len() > 63 || !(value.is_empty() || is_name(value)) {
        return Some(format!(
            "nodeLabels {key}: {value:?} is not the value of a label (63 letters, digits, '-', '_' and '.' at most)"
        ));
    }
    (!node_labels::may_set(key)).then(|| {
        format!(
            "nodeLabels {key}: the API lets no node set this label on itself; an administrator does it once, with: kubectl label node {node} {key}={value}"
        )
    })
}

/// Why a taint is not valid.
#[must_use]
pub fn taint_problem(taint: &Taint) -> Option<String> {
    let key = &taint.key;
    if !is_qualified(key) {
        return Some(format!("registerWithTaints {key:?} is not the key of a taint, such as dedicated"));
    }
    if !taint.value.as_deref().is_none_or(|value| value.is_empty() || (value.len() <= 63 && is_name(value))) {
        return Some(format!("registerWithTaints {key}: {:?} is not the value of a taint", taint.value));
    }
    (!matches!(taint.effect.as_str(), "NoSchedule" | "PreferNoSchedule" | "NoExecute")).then(|| {
        format!(
            "registerWithTaints {key}: effect {:?} is none of NoSchedule, PreferNoSchedule, NoExecute",
            taint.effect
        )
    })
}

fn is_name(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let end = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    text.bytes().all(inner) && end(text.as_bytes().first()) && end(text.as_bytes().last())
}

/// A name of at most 63 bytes, with or without a domain before it.
fn is_qualified(key: &str) -> bool {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let part = |part: &str| {
        let inner = part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        inner && !part.is_empty() && !part.starts_with('-') && !part.ends_with('-')
    };
    let domain = prefix.is_none_or(|prefix| prefix.len() <= 253 && prefix.split('.').all(part));
    domain && name.len() <= 63 && is_name(name)
}

#[cfg(test)]
mod tests;
