//! What the requests and limits of a pod become on this node: the limits of its cgroup, huge pages, OOM scores. Pure.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, Pod, PodSpec},
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};
use windlass_kit::{
    objects::{
        requests::{pod_amounts, requests_of},
        resources::{Class, amount, class_of, limit, request},
    },
    quantity::Quantity,
};

use crate::{
    SwapBehavior,
    cgroup::limits::HugePages,
    pods::lifecycle::{pod_limits::total, spec},
};

/// The prefix of huge page resources; the page size follows.
const HUGE_PAGES_PREFIX: &str = "hugepages-";

/// The kernel's name of the page size of a resource such as `hugepages-2Mi`.
fn page_size(resource: &str) -> Option<String> {
    let bytes = resource.strip_prefix(HUGE_PAGES_PREFIX)?.parse::<Quantity>().ok()?.units();
    let units = [(30, "GB"), (20, "MB"), (10, "KB")];
    let (shift, unit) = units.into_iter().find(|(shift, _)| bytes >> shift > 0)?;
    Some(format!("{}{unit}", bytes >> shift))
}

fn pages_in(list: Option<&BTreeMap<String, ApiQuantity>>) -> HugePages {
    let sizes = list.into_iter().flat_map(BTreeMap::keys);
    sizes.filter_map(|r| Some((page_size(r)?, amount(list, r)?.units()))).collect()
}

/// The huge pages that a container may use.
pub(crate) fn huge_pages(container: &Container) -> HugePages {
    pages_in(container.resources.as_ref().and_then(|r| r.limits.as_ref()))
}

/// The huge pages that a container of a pod may use: where it names none, those of the pod as a whole.
pub(crate) fn huge_pages_within(spec: &PodSpec, container: &Container) -> HugePages {
    let mut pages = pages_in(spec.resources.as_ref().and_then(|r| r.limits.as_ref()));
    pages.extend(huge_pages(container));
    pages
}

/// The huge pages that all of a pod may use.
pub(crate) fn pod_huge_pages(spec: &PodSpec) -> HugePages {
    let containers = spec::all_containers(spec).flat_map(|(c, _)| huge_pages(c).into_keys());
    let mut all: HugePages = containers
        .map(|size| (total(spec, &|c| Some(huge_pages(c).get(&size).copied().unwrap_or(0))), size))
        .filter_map(|(bytes, size)| Some((size, bytes?)))
        .collect();
    all.extend(pages_in(spec.resources.as_ref().and_then(|r| r.limits.as_ref())));
    all
}

/// What the node has for its pods' swap.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct NodeSwap {
    pub(crate) behavior: SwapBehavior,
    /// Bytes of memory of the machine.
    pub(crate) memory: i64,
    /// Bytes of swap of the machine.
    pub(crate) swap: i64,
}

/// Bytes of swap that a container may use besides its memory: none, or with LimitedSwap its memory request's share of
/// the machine's. Upstream's `GetContainerSwapBehavior` and `calcSwapForBurstablePods`
/// (pkg/kubelet/kuberuntime/kuberuntime_container_linux.go).
pub(crate) fn swap_limit(pod: &Pod, container: &Container, node: NodeSwap) -> i64 {
    let requested = request(container, "memory").map_or(0, Quantity::units);
    let limited = limit(container, "memory").map_or(0, Quantity::units);
    let without = node.behavior == SwapBehavior::NoSwap
        || spec::is_critical(pod)
        || class_of(pod) != Class::Burstable
        || requested == limited
        || requested > node.memory;
    if without || node.memory <= 0 {
        return 0;
    }
    let share = i128::from(requested) * i128::from(node.swap) / i128::from(node.memory);
    i64::try_from(share).unwrap_or(0)
}

/// Bytes of swap of all of a pod.
pub(crate) fn pod_swap_limit(pod: &Pod, spec: &PodSpec, node: NodeSwap) -> i64 {
    spec::all_containers(spec).map(|(c, _)| swap_limit(pod, c, node)).fold(0, i64::saturating_add)
}

/// The priority class of pods that a node does not work without.
const NODE_CRITICAL: &str = "system-node-critical";

/// The OOM score adjustment of a container; upstream's values.
pub(crate) fn oom_score_adj(pod: &Pod, spec: &PodSpec, container: &Container, node_memory: i64) -> i64 {
    if spec::is_critical(pod) && spec.priority_class_name.as_deref() == Some(NODE_CRITICAL) {
        return -997;
    }
    match class_of(pod) {
        Class::Guaranteed => -997,
        Class::BestEffort => 1000,
        Class::Burstable => {
            let requested = |c: &Container| request(c, "memory").map_or(0, Quantity::units);
            let mut own = requested(container);
            let is_sidecar = |c: &Container| c.name == container.name && spec::role_of_init(c) == spec::Role::Sidecar;
            if spec::init_containers(spec).iter().any(is_sidecar) {
                // A sidecar is not killed before the containers that use it.
                own = own.max(spec.containers.iter().map(requested).min().unwrap_or(0));
            }
            let share = i128::from(own.saturating_add(unshared(spec))) * 1000 / i128::from(node_memory.max(1));
            i64::try_from(1000 - share).unwrap_or(3).clamp(3, 999)
        }
    }
}

/// Each container's share of the memory that the pod-level request exceeds the sum of its containers by.
fn unshared(spec: &PodSpec) -> i64 {
    let whole = amount(spec.resources.as_ref().and_then(|r| r.requests.as_ref()), "memory").map_or(0, Quantity::units);
    let inits = spec::init_containers(spec);
    let among = i64::try_from(spec.containers.len() + inits.len()).unwrap_or(i64::MAX).max(1);
    whole.saturating_sub(pod_amounts(&spec.containers, inits, requests_of).memory).max(0) / among
}

#[cfg(test)]
mod tests {
    use windlass_fixtures::pods::with_resources;

    use super::*;

    /// On a machine of 4 GiB.
    fn score(spec: &PodSpec, name: &str) -> i64 {
        let pod = Pod { spec: Some(spec.clone()), ..Pod::default() };
        let container = spec::all_containers(spec).map(|(c, _)| c).find(|c| c.name == name).unwrap();
        oom_score_adj(&pod, spec, container, 4 << 30)
    }

    #[test]
    fn who_is_killed_first() {
        let burstable = r#"{"requests":{"memory":"1Gi"}}"#;
        // kube-proxy, or a CNI plugin.
        let mut critical: PodSpec = with_resources(&[burstable, "{}"]);
        critical.priority = Some(2_000_001_000);
        critical.priority_class_name = Some("system-node-critical".to_owned());
        assert_eq!((score(&critical, "c0"), score(&critical, "c1")), (-997, -997));
        critical.priority_class_name = Some("system-cluster-critical".to_owned());
        assert_eq!((score(&critical, "c0"), score(&critical, "c1")), (750, 999));
        // The name alone does not make a pod critical.
        critical.priority_class_name = Some("system-node-critical".to_owned());
        critical.priority = Some(1);
        assert_eq!(score(&critical, "c0"), 750);

        let mut sidecar: PodSpec = with_resources(&[burstable, r#"{"requests":{"memory":"2Gi"}}"#]);
        sidecar.init_containers = serde_json::from_str(
            r#"[{"name":"s","restartPolicy":"Always","resources":{"requests":{"memory":"4Mi"}}},
                {"name":"i","resources":{"requests":{"memory":"4Mi"}}},
                {"name":"large","restartPolicy":"Always","resources":{"requests":{"memory":"3Gi"}}}]"#,
        )
        .ok();
        assert_eq!(score(&sidecar, "s"), 750, "as the regular container that asks for least");
        assert_eq!((score(&sidecar, "i"), score(&sidecar, "large")), (999, 250));

        let mut whole: PodSpec = with_resources(&["{}", burstable]);
        whole.resources = serde_json::from_str(r#"{"requests":{"memory":"2Gi"}}"#).ok();
        assert_eq!((score(&whole, "c0"), score(&whole, "c1")), (875, 625), "half a GiB more for each");
    }

    #[test]
    fn only_burstable_containers_swap_and_only_where_the_node_lets_them() {
        let pod = |resources: &[&str]| Pod { spec: Some(with_resources(resources)), ..Pod::default() };
        let node = NodeSwap { behavior: SwapBehavior::LimitedSwap, memory: 8 << 30, swap: 4 << 30 };
        let swaps = |pod: &Pod, node: NodeSwap| -> Vec<i64> {
            let spec = pod.spec.as_ref().unwrap();
            spec.containers.iter().map(|c| swap_limit(pod, c, node)).collect()
        };
        let burstable = pod(&[
            r#"{"requests":{"memory":"1Gi"}}"#,
            r#"{"requests":{"memory":"1Gi"},"limits":{"memory":"2Gi"}}"#,
            r#"{"requests":{"memory":"1Gi"},"limits":{"memory":"1Gi"}}"#,
            "{}",
            r#"{"requests":{"memory":"9Gi"}}"#,
        ]);
        assert_eq!(swaps(&burstable, node), [512 << 20, 512 << 20, 0, 0, 0]);
        assert_eq!(pod_swap_limit(&burstable, burstable.spec.as_ref().unwrap(), node), 1 << 30);
        let none = NodeSwap { behavior: SwapBehavior::NoSwap, ..node };
        assert_eq!(swaps(&burstable, none), [0; 5]);
        assert_eq!(swaps(&pod(&["{}"]), node), [0]);
        assert_eq!(
            swaps(&pod(&[r#"{"limits":{"memory":"1Gi","cpu":"1"},"requests":{"memory":"1Gi","cpu":"1"}}"#]), node),
            [0]
        );
        let mut critical = burstable.clone();
        critical.spec.as_mut().unwrap().priority = Some(2_000_001_000);
        assert_eq!(swaps(&critical, node), [0; 5]);
    }

    #[test]
    fn oom_scores_by_class() {
        let one: PodSpec = with_resources(&[r#"{"limits":{"cpu":"500m"},"requests":{"cpu":"250m","memory":"1Gi"}}"#]);
        assert_eq!(score(&one, "c0"), 750);
        let none: PodSpec = with_resources(&["{}"]);
        assert_eq!(score(&none, "c0"), 1000);
    }

    #[test]
    fn huge_pages_by_the_kernels_names() {
        for (resource, name) in [("hugepages-2Mi", "2MB"), ("hugepages-1Gi", "1GB"), ("hugepages-64Ki", "64KB")] {
            assert_eq!(page_size(resource).as_deref(), Some(name));
        }
        assert_eq!((page_size("memory"), page_size("hugepages-x")), (None, None));
        let both = r#"{"limits":{"hugepages-2Mi":"4Mi","hugepages-1Gi":"1Gi","cpu":"1"}}"#;
        let mut pod: PodSpec = with_resources(&[both, r#"{"limits":{"hugepages-2Mi":"2Mi"}}"#, "{}"]);
        assert!(huge_pages(&pod.containers[2]).is_empty());
        let sizes = |small: i64| HugePages::from([("2MB".to_owned(), small), ("1GB".to_owned(), 1 << 30)]);
        assert_eq!((huge_pages(&pod.containers[0]), pod_huge_pages(&pod)), (sizes(4 << 20), sizes(6 << 20)));
        pod.resources = serde_json::from_str(r#"{"limits":{"hugepages-2Mi":"16Mi"}}"#).ok();
        assert_eq!(pod_huge_pages(&pod), sizes(16 << 20), "the pod's own amount counts");
    }
}
