//! Whether a pod can run on a node, and if not, why: upstream's filter texts. Pure.

use k8s_openapi::api::core::v1::Taint;
use windlass_kit::objects::{node_selector, requests::Amounts, tolerations};

use super::{
    messages::Refusal,
    model::{NodeInfo, PodInfo, Wants},
};

const UNSCHEDULABLE_TAINT: &str = "node.kubernetes.io/unschedulable";

/// Why `pod` cannot run on `node`; `None` when it can. As upstream, the first filter that refuses
/// speaks alone, and resources name each that is short.
pub(crate) fn refusal(pod: &PodInfo, wants: &Wants, node: &NodeInfo) -> Option<Refusal> {
    let one = |text: &str| Some(Refusal { reasons: vec![text.to_owned()], removable: false });
    if node.unschedulable {
        let taint = Taint { key: UNSCHEDULABLE_TAINT.to_owned(), effect: "NoSchedule".to_owned(), ..Taint::default() };
        if !wants.tolerations.iter().any(|t| tolerations::tolerates(t, &taint)) {
            return one("node(s) were unschedulable");
        }
    }
    if tolerations::untolerated(&node.taints, &wants.tolerations, &["NoSchedule", "NoExecute"]).is_some() {
        return one("node(s) had untolerated taint(s)");
    }
    let selected = wants.selector.iter().all(|(k, v)| node.labels.get(k) == Some(v))
        && wants.required.as_ref().is_none_or(|required| node_selector::matches(required, &node.name, &node.labels));
    if !selected {
        return one("node(s) didn't match Pod's node affinity/selector");
    }
    if pod.ports.iter().any(|port| node.ports.values().flatten().any(|taken| taken.clashes(port))) {
        let refusal = one("node(s) didn't have free ports for the requested pod ports");
        return refusal.map(|r| Refusal { removable: true, ..r });
    }
    resources(pod, node)
}

fn resources(pod: &PodInfo, node: &NodeInfo) -> Option<Refusal> {
    let (mut reasons, mut removable) = (Vec::new(), true);
    if node.pods + 1 > node.max_pods {
        reasons.push("Too many pods".to_owned());
    }
    let mut check = |name: &str, wanted: i64, used: i64, allocatable: i64| {
        if wanted > 0 && wanted > allocatable - used {
            reasons.push(format!("Insufficient {name}"));
            removable &= wanted <= allocatable;
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
    (!reasons.is_empty()).then_some(Refusal { reasons, removable })
}
