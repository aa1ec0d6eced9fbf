//! Node health: conditions of an unreachable node, taints. Pure.

use crate::runtime::CachedNode;
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{NodeCondition, Taint},
    apimachinery::pkg::apis::meta::v1::Time,
};

pub(crate) const NOT_READY: &str = "node.kubernetes.io/not-ready";
pub(crate) const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
/// Condition, the status at which its taint applies, the taint.
const PRESSURE: [(&str, &str); 4] = [
    ("MemoryPressure", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "node.kubernetes.io/pid-pressure"),
    ("NetworkUnavailable", "node.kubernetes.io/network-unavailable"),
];
/// Conditions that become Unknown without heartbeats.
const HEARTBEAT_CONDITIONS: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

pub(crate) fn condition<'a>(node: &'a CachedNode, kind: &str) -> Option<&'a NodeCondition> {
    node.status.as_ref()?.conditions.as_ref()?.iter().find(|c| c.type_ == kind)
}

/// The status of Ready: `True`, `False` or `Unknown`.
pub(crate) fn ready(node: &CachedNode) -> &str {
    condition(node, "Ready").map_or("Unknown", |c| c.status.as_str())
}

/// The conditions of a node without heartbeats, or `None` when they are set already.
pub(crate) fn heartbeat_expired(node: &CachedNode, now: Timestamp) -> Option<Vec<NodeCondition>> {
    let mut conditions = node.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
    let mut changed = false;
    for kind in HEARTBEAT_CONDITIONS {
        match conditions.iter_mut().find(|c| c.type_ == kind) {
            Some(condition) if condition.status == "Unknown" => {}
            Some(condition) => {
                changed = true;
                condition.status = "Unknown".to_owned();
                condition.reason = Some("NodeStatusUnknown".to_owned());
                condition.message = Some("Kubelet stopped posting node status.".to_owned());
                condition.last_transition_time = Some(Time(now));
            }
            None => {
                changed = true;
                conditions.push(NodeCondition {
                    type_: kind.to_owned(),
                    status: "Unknown".to_owned(),
                    reason: Some("NodeStatusNeverUpdated".to_owned()),
                    message: Some("Kubelet never posted node status.".to_owned()),
                    last_heartbeat_time: node.metadata.creation_timestamp.clone(),
                    last_transition_time: Some(Time(now)),
                });
            }
        }
    }
    changed.then_some(conditions)
}

/// Whether the node's pods are evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Eviction {
    /// Add the NoExecute taint that fits the node's state.
    Allowed,
    /// Leave NoExecute taints as they are, but change their kind with the node's state.
    NotYet,
    /// Remove them: all zones are down, so the fault is likely on this side.
    Stopped,
}

/// The node's taints as they should be, or `None` when they are so.
pub(crate) fn taints(node: &CachedNode, eviction: Eviction, now: Timestamp) -> Option<Vec<Taint>> {
    let current = node.spec.as_ref().and_then(|s| s.taints.clone()).unwrap_or_default();
    let state_key = match ready(node) {
        "True" => None,
        "False" => Some(NOT_READY),
        // A node that never reported has its taint from admission.
        _ if condition(node, "Ready").is_none() => Some(NOT_READY),
        _ => Some(UNREACHABLE),
    };
    let mut wanted: Vec<(&str, &str)> = Vec::new();
    wanted.extend(state_key.map(|key| (key, "NoSchedule")));
    for (kind, key) in PRESSURE {
        if condition(node, kind).is_some_and(|c| c.status == "True") {
            wanted.push((key, "NoSchedule"));
        }
    }
    if node.spec.as_ref().and_then(|s| s.unschedulable) == Some(true) {
        wanted.push((UNSCHEDULABLE, "NoSchedule"));
    }
    let evicted = current.iter().any(|t| t.effect == "NoExecute" && (t.key == NOT_READY || t.key == UNREACHABLE));
    let drive = match eviction {
        Eviction::Allowed => true,
        Eviction::NotYet => evicted,
        Eviction::Stopped => false,
    };
    if drive && condition(node, "Ready").is_some() {
        wanted.extend(state_key.map(|key| (key, "NoExecute")));
    }
    let is_wanted = |t: &Taint| wanted.iter().any(|(key, effect)| t.key == *key && t.effect == *effect);
    let mut taints: Vec<Taint> = current.iter().filter(|t| !is_managed(t) || is_wanted(t)).cloned().collect();
    for (key, effect) in wanted {
        if !taints.iter().any(|t| t.key == key && t.effect == effect) {
            taints.push(Taint {
                key: key.to_owned(),
                effect: effect.to_owned(),
                time_added: Some(Time(now)),
                value: None,
            });
        }
    }
    (taints != current).then_some(taints)
}

fn is_managed(taint: &Taint) -> bool {
    let state = taint.key == NOT_READY || taint.key == UNREACHABLE;
    match taint.effect.as_str() {
        "NoExecute" => state,
        "NoSchedule" => state || taint.key == UNSCHEDULABLE || PRESSURE.iter().any(|(_, key)| taint.key == *key),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::NodeSpec;

    use super::*;
    use crate::runtime::cached_node::CachedNodeStatus;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn node(conditions: &[(&str, &str)], taints: &[(&str, &str)]) -> CachedNode {
        let conditions = conditions
            .iter()
            .map(|(kind, status)| NodeCondition {
                type_: (*kind).into(),
                status: (*status).into(),
                ..NodeCondition::default()
            })
            .collect();
        let taints = taints
            .iter()
            .map(|(key, effect)| Taint { key: (*key).into(), effect: (*effect).into(), ..Taint::default() })
            .collect();
        CachedNode {
            spec: Some(NodeSpec { taints: Some(taints), ..NodeSpec::default() }),
            status: Some(CachedNodeStatus { conditions: Some(conditions), ..CachedNodeStatus::default() }),
            ..CachedNode::default()
        }
    }

    fn keys(taints: Option<Vec<Taint>>) -> Option<Vec<(String, String)>> {
        taints.map(|t| t.into_iter().map(|t| (t.key, t.effect)).collect())
    }

    #[test]
    fn a_node_without_heartbeats_is_unknown() {
        let expired =
            heartbeat_expired(&node(&[("Ready", "True"), ("DiskPressure", "False"), ("Custom", "True")], &[]), NOW);
        let mut expired = expired.unwrap();
        expired.sort_by(|a, b| a.type_.cmp(&b.type_));
        let got: Vec<_> = expired.iter().map(|c| (c.type_.as_str(), c.status.as_str(), c.reason.as_deref())).collect();
        assert_eq!(
            got,
            [
                ("Custom", "True", None),
                ("DiskPressure", "Unknown", Some("NodeStatusUnknown")),
                ("MemoryPressure", "Unknown", Some("NodeStatusNeverUpdated")),
                ("PIDPressure", "Unknown", Some("NodeStatusNeverUpdated")),
                ("Ready", "Unknown", Some("NodeStatusUnknown")),
            ]
        );
        let mut again = node(&[], &[]);
        again.status.as_mut().unwrap().conditions = Some(expired);
        assert_eq!(heartbeat_expired(&again, NOW), None);
    }

    #[test]
    fn taints_follow_conditions() {
        use Eviction::{Allowed, NotYet, Stopped};
        let (ns, ne) = ("NoSchedule", "NoExecute");
        type Pairs<'a> = &'a [(&'a str, &'a str)];
        let cases: [(Pairs<'_>, Pairs<'_>, Eviction, Option<Pairs<'_>>); 11] = [
            (&[("Ready", "True")], &[], Allowed, None),
            (&[("Ready", "True")], &[("mine", ne), (NOT_READY, ns), (NOT_READY, ne)], NotYet, Some(&[("mine", ne)])),
            (&[("Ready", "False")], &[], NotYet, Some(&[(NOT_READY, ns)])),
            (&[("Ready", "False")], &[], Allowed, Some(&[(NOT_READY, ns), (NOT_READY, ne)])),
            (&[("Ready", "Unknown")], &[(NOT_READY, ns)], NotYet, Some(&[(UNREACHABLE, ns)])),
            (&[("Ready", "Unknown")], &[(NOT_READY, ne)], NotYet, Some(&[(UNREACHABLE, ns), (UNREACHABLE, ne)])),
            (&[("Ready", "Unknown")], &[(UNREACHABLE, ns), (UNREACHABLE, ne)], Stopped, Some(&[(UNREACHABLE, ns)])),
            (&[("Ready", "Unknown")], &[(UNREACHABLE, ns), (UNREACHABLE, ne)], Allowed, None),
            (&[], &[(NOT_READY, ns)], Allowed, None),
            (&[("Ready", "True"), ("DiskPressure", "True")], &[], Allowed, Some(&[(PRESSURE[1].1, ns)])),
            (&[("Ready", "True")], &[(PRESSURE[0].1, ns)], Allowed, Some(&[])),
        ];
        for (conditions, before, eviction, after) in cases {
            let got = keys(taints(&node(conditions, before), eviction, NOW));
            let want = after.map(|a| a.iter().map(|(k, e)| ((*k).to_owned(), (*e).to_owned())).collect::<Vec<_>>());
            assert_eq!(got, want, "{conditions:?} {before:?} {eviction:?}");
        }
        let mut cordoned = node(&[("Ready", "True")], &[]);
        cordoned.spec.as_mut().unwrap().unschedulable = Some(true);
        assert_eq!(keys(taints(&cordoned, Allowed, NOW)).unwrap()[0].0, UNSCHEDULABLE);
    }
}
