//! Topology spread constraints. Pure.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::TopologySpreadConstraint, apimachinery::pkg::apis::meta::v1::LabelSelector};

use super::{Selector, selector::equals};

/// The label of a node's name.
pub(crate) const HOSTNAME: &str = "kubernetes.io/hostname";
const ZONE: &str = "topology.kubernetes.io/zone";

/// What happens to a pod that a constraint is not satisfied for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WhenUnsatisfiable {
    DoNotSchedule,
    ScheduleAnyway,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SpreadConstraint {
    pub(crate) max_skew: i64,
    pub(crate) topology_key: String,
    pub(crate) when: WhenUnsatisfiable,
    pub(crate) selector: Selector,
    pub(crate) min_domains: usize,
    /// `nodeAffinityPolicy: Honor`: only nodes that the pod's node affinity allows count.
    pub(crate) honors_affinity: bool,
    /// `nodeTaintsPolicy: Honor`: only nodes whose taints the pod tolerates count.
    pub(crate) honors_taints: bool,
}

impl SpreadConstraint {
    pub(crate) fn of(constraint: &TopologySpreadConstraint, labels: &BTreeMap<String, String>) -> Self {
        let keys = constraint.match_label_keys.iter().flatten();
        // Keys that the pod does not have are ignored.
        let same: Vec<_> = keys.filter_map(|key| Some(equals(key, labels.get(key)?))).collect();
        let own = Selector::of(constraint.label_selector.as_ref());
        let selector = match &constraint.label_selector {
            Some(_) if !same.is_empty() => {
                own.and(&LabelSelector { match_labels: None, match_expressions: Some(same) })
            }
            _ => own,
        };
        Self {
            max_skew: i64::from(constraint.max_skew),
            topology_key: constraint.topology_key.clone(),
            when: match constraint.when_unsatisfiable.as_str() {
                "ScheduleAnyway" => WhenUnsatisfiable::ScheduleAnyway,
                _ => WhenUnsatisfiable::DoNotSchedule,
            },
            selector,
            min_domains: constraint.min_domains.and_then(|n| usize::try_from(n).ok()).unwrap_or(1),
            honors_affinity: constraint.node_affinity_policy.as_deref() != Some("Ignore"),
            honors_taints: constraint.node_taints_policy.as_deref() == Some("Honor"),
        }
    }

    /// Upstream's `systemDefaultConstraints`, for the pods that `selector` selects.
    pub(crate) fn system_defaults(selector: &Selector) -> Vec<Self> {
        let make = |max_skew, topology_key: &str| Self {
            max_skew,
            topology_key: topology_key.to_owned(),
            when: WhenUnsatisfiable::ScheduleAnyway,
            selector: selector.clone(),
            min_domains: 1,
            honors_affinity: true,
            honors_taints: false,
        };
        vec![make(3, HOSTNAME), make(5, ZONE)]
    }

    /// The same for constraints that mean the same.
    pub(crate) fn text(&self) -> String {
        let Self { max_skew, topology_key, when, selector, min_domains, honors_affinity, honors_taints } = self;
        format!("{:?}", (max_skew, topology_key, when, selector.text(), min_domains, honors_affinity, honors_taints))
    }
}
