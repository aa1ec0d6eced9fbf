//! The limits of a pod's own cgroup. Pure.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, PodSpec},
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};
use windlass_kit::{
    objects::resources::{amount, limit, request},
    quantity::Quantity,
};

use super::spec;
use crate::{
    cgroup::limits::{milli_cpu_to_quota, milli_cpu_to_shares},
    engine::inspect::Limits,
};

/// The sum over a pod's containers; `None` where one of them has no value. An init container runs alone but for the
/// sidecars before it.
pub(crate) fn total(spec: &PodSpec, of: &dyn Fn(&Container) -> Option<i64>) -> Option<i64> {
    let (mut lasting, mut peak) = (0i64, 0i64);
    for (container, role) in spec::all_containers(spec) {
        let value = of(container)?;
        match role {
            spec::Role::Init => peak = peak.max(lasting.saturating_add(value)),
            _ => lasting = lasting.saturating_add(value),
        }
    }
    Some(lasting.max(peak))
}

/// The limits of a pod's cgroup: the sum of its containers, and a limit only where each container has one. Pod-level
/// resources win over the sum and overhead is added, as upstream has it.
pub(crate) fn pod_limits(spec: &PodSpec) -> Limits {
    let own = |kind: Option<&BTreeMap<String, ApiQuantity>>, resource: &str| amount(kind, resource);
    let resources = spec.resources.as_ref();
    let overhead = |resource: &str| amount(spec.overhead.as_ref(), resource);
    let milli =
        |kind: &dyn Fn(&Container, &str) -> Option<Quantity>, c: &Container| kind(c, "cpu").map(Quantity::milli);
    let requested = own(resources.and_then(|r| r.requests.as_ref()), "cpu").map(Quantity::milli);
    let requested = requested.or_else(|| total(spec, &|c| Some(milli(&request, c).unwrap_or(0)))).unwrap_or(0);
    let cpu_limit = own(resources.and_then(|r| r.limits.as_ref()), "cpu").map(Quantity::milli);
    let cpu_limit = cpu_limit.or_else(|| total(spec, &|c| milli(&limit, c).filter(|m| *m > 0)));
    let memory = own(resources.and_then(|r| r.limits.as_ref()), "memory").map(Quantity::units);
    let memory = memory.or_else(|| total(spec, &|c| limit(c, "memory").map(Quantity::units).filter(|b| *b > 0)));
    let (extra_cpu, extra_memory) =
        (overhead("cpu").map_or(0, Quantity::milli), overhead("memory").map_or(0, Quantity::units));
    Limits {
        memory: memory.map_or(0, |m| m.saturating_add(extra_memory)),
        cpu_shares: milli_cpu_to_shares(requested.saturating_add(extra_cpu)),
        cpu_quota: cpu_limit.map_or(0, |m| milli_cpu_to_quota(m.saturating_add(extra_cpu))),
    }
}

#[cfg(test)]
mod tests {
    use windlass_fixtures::pods::with_resources;

    use super::*;

    #[test]
    fn a_pods_limits_are_the_sum_of_its_containers() {
        let full = r#"{"limits":{"cpu":"500m","memory":"1Mi"}}"#;
        let both = pod_limits(&with_resources(&[full, full]));
        assert_eq!(both, Limits { memory: 2 << 20, cpu_shares: 1024, cpu_quota: 100_000 });
        let half = pod_limits(&with_resources(&[full, r#"{"requests":{"cpu":"1"}}"#]));
        assert_eq!((half.memory, half.cpu_quota, half.cpu_shares), (0, 0, 1536));
        let mut own: PodSpec = with_resources(&[full, "{}"]);
        own.resources = serde_json::from_str(r#"{"limits":{"cpu":"1","memory":"8Mi"},"requests":{"cpu":"250m"}}"#).ok();
        own.overhead = serde_json::from_str(r#"{"memory":"1Mi"}"#).ok();
        assert_eq!(pod_limits(&own), Limits { memory: 9 << 20, cpu_shares: 256, cpu_quota: 100_000 });
        let mut init: PodSpec = with_resources(&[full]);
        init.init_containers =
            serde_json::from_str(r#"[{"name":"i","resources":{"limits":{"cpu":"2","memory":"4Mi"}}}]"#).ok();
        assert_eq!(pod_limits(&init), Limits { memory: 4 << 20, cpu_shares: 2048, cpu_quota: 200_000 });
    }
}
