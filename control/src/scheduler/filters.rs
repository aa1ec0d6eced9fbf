//! Filters: whether a pod fits a node, with upstream's messages. Pure.

use k8s_openapi::api::core::v1::Taint;
use windlass_kit::objects::{node_selector, requests::Amounts, tolerations};

use super::{
    messages::FilterFailure,
    model::{Constraints, NodeInfo, PodInfo},
};

const UNSCHEDULABLE_TAINT: &str = "node.kubernetes.io/unschedulable";

/// Why `pod` does not fit `node`; `None` when it does. As upstream, the first failing filter is reported alone, and the
/// resource filter names every insufficient resource.
pub(crate) fn filter_failure(pod: &PodInfo, constraints: &Constraints, node: &NodeInfo) -> Option<FilterFailure> {
    let one = |text: &str| Some(FilterFailure { reasons: vec![text.to_owned()], preemptible: false });
    if node.unschedulable {
        let taint = Taint { key: UNSCHEDULABLE_TAINT.to_owned(), effect: "NoSchedule".to_owned(), ..Taint::default() };
        if !constraints.tolerations.iter().any(|t| tolerations::tolerates(t, &taint)) {
            return one("node(s) were unschedulable");
        }
    }
    if tolerations::untolerated(&node.taints, &constraints.tolerations, &["NoSchedule", "NoExecute"]).is_some() {
        return one("node(s) had untolerated taint(s)");
    }
    let selected = constraints.selector.iter().all(|(k, v)| node.labels.get(k) == Some(v))
        && constraints
            .required
            .as_ref()
            .is_none_or(|required| node_selector::matches(required, &node.name, &node.labels));
    if !selected {
        return one("node(s) didn't match Pod's node affinity/selector");
    }
    if pod.ports.iter().any(|port| node.ports.values().flatten().any(|taken| taken.clashes(port))) {
        let failure = one("node(s) didn't have free ports for the requested pod ports");
        return failure.map(|r| FilterFailure { preemptible: true, ..r });
    }
    resources(pod, node)
}

fn resources(pod: &PodInfo, node: &NodeInfo) -> Option<FilterFailure> {
    let (mut reasons, mut preemptible) = (Vec::new(), true);
    if node.pods + 1 > node.max_pods {
        reasons.push("Too many pods".to_owned());
    }
    let mut check = |name: &str, wanted: i64, used: i64, allocatable: i64| {
        if wanted > 0 && wanted > allocatable - used {
            reasons.push(format!("Insufficient {name}"));
            preemptible &= wanted <= allocatable;
        }
    };
    let (want, used, all) = (&pod.requests, &node.used, &node.allocatable);
    check("cpu", want.milli_cpu, used.milli_cpu, all.milli_cpu);
    check("memory", want.memory, used.memory, all.memory);
    check("ephemeral-storage", want.ephemeral, used.ephemeral, all.ephemeral);
    for (name, wanted) in &want.other {
        let of = |amounts: &Amounts| amounts.other.get(name).copied().unwrap_or(0);
        check(name, *wanted, of(used), of(all));
    }
    (!reasons.is_empty()).then_some(FilterFailure { reasons, preemptible })
}
