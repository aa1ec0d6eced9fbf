//! The resources of a pod as a whole in its status: what is allocated to it, and what it has. Pure.
//!
//! Upstream: `convertToAPIPodLevelResourcesStatus` in `pkg/kubelet/kubelet_pods.go`, and `PodRequests` and `PodLimits` of
//! component-helpers.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, PodSpec, PodStatus, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};
use windlass_kit::quantity::Quantity;

use super::super::{
    resize::{in_units, milli_of_shares},
    spec::{self, Role},
    view::PodView,
};
use crate::cgroup::limits::CPU_PERIOD;

type Amounts = BTreeMap<String, Quantity>;
type ApiAmounts = BTreeMap<String, ApiQuantity>;

/// What a list of the API says; what cannot be read counts as nothing.
fn amounts(list: Option<&ApiAmounts>) -> Amounts {
    list.into_iter().flatten().filter_map(|(name, amount)| Some((name.clone(), amount.0.parse().ok()?))).collect()
}

fn add(all: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        all.entry(name.clone()).and_modify(|sum| *sum = sum.plus(*amount)).or_insert(*amount);
    }
}

fn at_least(all: &mut Amounts, others: &Amounts) {
    for (name, amount) in others {
        let most = all.entry(name.clone()).or_insert(*amount);
        *most = (*most).max(*amount);
    }
}

/// Requests or limits, as `of` picks them, of a pod: of its containers that run together or its most demanding init
/// container, in place of these those of the pod as a whole, and its overhead.
fn sums(spec: &PodSpec, of: fn(&ResourceRequirements) -> Option<&ApiAmounts>) -> Amounts {
    let own = |container: &Container| amounts(container.resources.as_ref().and_then(of));
    let (mut running, mut sidecars, mut peak) = (Amounts::new(), Amounts::new(), Amounts::new());
    for (container, role) in spec::all_containers(spec) {
        let own = own(container);
        match role {
            Role::Init => {
                let mut with = own;
                add(&mut with, &sidecars);
                at_least(&mut peak, &with);
            }
            Role::Sidecar => {
                add(&mut running, &own);
                add(&mut sidecars, &own);
                at_least(&mut peak, &sidecars);
            }
            _ => add(&mut running, &own),
        }
    }
    at_least(&mut running, &peak);
    running.extend(amounts(spec.resources.as_ref().and_then(of)));
    running
}

/// The requests of a pod, with its overhead.
fn requests(spec: &PodSpec) -> Amounts {
    let mut all = sums(spec, |r| r.requests.as_ref());
    add(&mut all, &amounts(spec.overhead.as_ref()));
    all
}

/// The limits of a pod, with its overhead where there are some.
fn limits(spec: &PodSpec) -> Amounts {
    let mut all = sums(spec, |r| r.limits.as_ref());
    for (name, amount) in amounts(spec.overhead.as_ref()) {
        if let Some(limit) = all.get_mut(&name).filter(|limit| !limit.is_zero()) {
            *limit = limit.plus(amount);
        }
    }
    all
}

fn written(amounts: Amounts) -> ApiAmounts {
    amounts.into_iter().map(|(name, amount)| (name, ApiQuantity(amount.to_string()))).collect()
}

/// Shares and quotas up to these are what the kernel has for less: the allocated value is shown.
const MIN_SHARES: i64 = 2;
const MIN_MILLI_CPU_LIMIT: i64 = 10;

impl PodView<'_> {
    /// `resources` and `allocatedResources` of the status. `spec` has the resources that are allocated to the pod.
    pub(super) fn pod_resources(
        &self,
        spec: &PodSpec,
        before: &PodStatus,
    ) -> (ResourceRequirements, Option<ApiAmounts>) {
        let requested = requests(spec);
        let allocated = written(requested.clone());
        let own = spec.resources.clone().unwrap_or_default();
        let resources = if before.phase.as_deref() == Some("Running") {
            self.actual_pod_resources(own, &requested, before)
        } else {
            ResourceRequirements { requests: Some(allocated.clone()), limits: Some(written(limits(spec))), ..own }
        };
        (resources, Some(allocated).filter(|all| !all.is_empty()))
    }

    /// What the pod's own cgroup has; its memory request is the allocated one, since the kernel does not know it.
    fn actual_pod_resources(
        &self,
        own: ResourceRequirements,
        requested: &Amounts,
        before: &PodStatus,
    ) -> ResourceRequirements {
        let Some(is) = self.observed.pod_limits else {
            return before.resources.clone().unwrap_or(own);
        };
        let mut requests = own.requests.unwrap_or_default();
        let mut limits = own.limits.unwrap_or_default();
        let milli = |list: &ApiAmounts| {
            list.get("cpu").and_then(|cpu| cpu.0.parse::<Quantity>().ok()).map_or(0, Quantity::milli)
        };
        let cpu = milli_of_shares(is.cpu_shares);
        if cpu > MIN_SHARES || milli(&requests) > MIN_SHARES {
            requests.insert("cpu".to_owned(), ApiQuantity(format!("{cpu}m")));
        }
        if let Some(memory) = requested.get("memory") {
            requests.entry("memory".to_owned()).or_insert_with(|| ApiQuantity(memory.to_string()));
        }
        let cpu = is.cpu_quota * 1000 / CPU_PERIOD;
        if is.cpu_quota > 0 && (cpu > MIN_MILLI_CPU_LIMIT || milli(&limits) > MIN_MILLI_CPU_LIMIT) {
            limits.insert("cpu".to_owned(), ApiQuantity(format!("{cpu}m")));
        }
        if is.memory > 0 {
            limits.insert("memory".to_owned(), ApiQuantity(in_units(is.memory)));
        }
        ResourceRequirements { requests: Some(requests), limits: Some(limits), ..own }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        engine::inspect::Limits,
        pods::lifecycle::{allocated::Allocated, observed::Observed, pod_limits::pod_limits, status::canonical},
    };

    fn shown(spec: Value, phase: &str, limits: Option<Limits>, allocated: Option<&PodSpec>) -> Value {
        let status = json!({"phase": phase});
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec, "status": status})).unwrap();
        let own = pod.spec.as_ref().unwrap();
        let observed = Observed {
            pod_limits: limits.or_else(|| Some(pod_limits(own))),
            allocated: Some(Allocated::of(allocated.unwrap_or(own))),
            ..Observed::default()
        };
        let view = PodView::new(&pod, &observed, Timestamp::UNIX_EPOCH).unwrap();
        let status = view.status("192.0.2.1".parse().unwrap());
        let status = canonical(PodStatus {
            resources: status.resources,
            allocated_resources: status.allocated_resources,
            ..PodStatus::default()
        });
        serde_json::to_value(status).unwrap()
    }

    #[test]
    fn a_pod_shows_what_it_has_as_a_whole() {
        let spec = json!({"overhead": {"cpu": "50m"}, "containers": [
            {"name": "a", "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}}},
            {"name": "b", "resources": {"requests": {"cpu": "150m"}, "limits": {"memory": "64Mi"}}}],
            "initContainers": [{"name": "i", "resources": {"requests": {"memory": "96Mi"}}}]});
        let requests = json!({"cpu": "300m", "memory": "96Mi"});
        assert_eq!(
            shown(spec.clone(), "Pending", None, None),
            json!({"allocatedResources": requests, "resources": {"limits": {"memory": "192Mi"}, "requests": requests}})
        );
        // The init container has no limit: none holds for all of the pod.
        assert_eq!(
            shown(spec, "Running", None, None),
            json!({"allocatedResources": requests, "resources": {"requests": requests}})
        );
        let nothing = json!({"containers": [{"name": "a"}]});
        for phase in ["Pending", "Running"] {
            assert_eq!(shown(nothing.clone(), phase, None, None), json!({"resources": {}}), "{phase}");
        }
    }

    #[test]
    fn a_resize_of_the_whole_is_shown_when_it_has_come_true() {
        let spec = |memory: &str, cpu: &str| {
            json!({"resources": {"requests": {"cpu": cpu, "memory": "32Mi"}, "limits": {"cpu": cpu, "memory": memory}},
                "containers": [{"name": "a"}, {"name": "b"}]})
        };
        let parsed = |spec: Value| -> PodSpec { serde_json::from_value(spec).unwrap() };
        let (small, large) = (parsed(spec("64Mi", "1")), parsed(spec("128Mi", "2")));
        let requests = |cpu: &str| json!({"cpu": cpu, "memory": "32Mi"});
        // Deferred: nothing is allocated yet.
        assert_eq!(
            shown(spec("128Mi", "2"), "Running", Some(pod_limits(&small)), Some(&small)),
            json!({"allocatedResources": requests("1"),
                "resources": {"limits": {"cpu": "1", "memory": "64Mi"}, "requests": requests("1")}})
        );
        // Granted, and not done.
        assert_eq!(
            shown(spec("128Mi", "2"), "Running", Some(pod_limits(&small)), Some(&large)),
            json!({"allocatedResources": requests("2"),
                "resources": {"limits": {"cpu": "1", "memory": "64Mi"}, "requests": requests("1")}})
        );
        assert_eq!(
            shown(spec("128Mi", "2"), "Running", None, None),
            json!({"allocatedResources": requests("2"),
                "resources": {"limits": {"cpu": "2", "memory": "128Mi"}, "requests": requests("2")}})
        );
    }
}
