//! Requests and limits of containers, and the QoS class of a pod.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, Pod, PodSpec},
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};

use crate::quantity::Quantity;

/// QoS class, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Every container has limits of CPU and memory, equal to its requests.
    Guaranteed,
    /// Something is requested.
    Burstable,
    /// Nothing is requested.
    BestEffort,
}

impl Class {
    /// The API's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

/// The quantity of a resource in a list; `None` when it is missing or invalid.
#[must_use]
pub fn amount(list: Option<&BTreeMap<String, ApiQuantity>>, resource: &str) -> Option<Quantity> {
    list?.get(resource)?.0.parse().ok()
}

/// A container's limit.
#[must_use]
pub fn limit(container: &Container, resource: &str) -> Option<Quantity> {
    amount(container.resources.as_ref()?.limits.as_ref(), resource)
}

/// A container's request, which defaults to its limit.
#[must_use]
pub fn request(container: &Container, resource: &str) -> Option<Quantity> {
    amount(container.resources.as_ref()?.requests.as_ref(), resource).or_else(|| limit(container, resource))
}

/// The class in the status of a pod, which never changes; otherwise the one that its spec has.
#[must_use]
pub fn class_of(pod: &Pod) -> Class {
    let given = pod.status.as_ref().and_then(|s| s.qos_class.as_deref());
    let all = [Class::Guaranteed, Class::Burstable, Class::BestEffort];
    let given = all.into_iter().find(|class| given == Some(class.name()));
    given.or_else(|| pod.spec.as_ref().map(class)).unwrap_or(Class::BestEffort)
}

/// Guaranteed: every container limits CPU and memory, and requests exactly that. BestEffort: none requests anything.
/// Pod-level resources, where there are any, decide alone.
#[must_use]
pub fn class(spec: &PodSpec) -> Class {
    let (mut any, mut all) = (false, true);
    let mut take = |limit: Option<Quantity>, request: Option<Quantity>| {
        // A request of zero counts as unset, and does not default to the limit.
        let (limit, request) = (limit.filter(|q| !q.is_zero()), request.filter(|q| !q.is_zero()));
        any |= request.is_some() || limit.is_some();
        all &= limit.is_some() && limit == request;
    };
    if let Some(whole) = &spec.resources {
        for resource in ["cpu", "memory"] {
            let limit = amount(whole.limits.as_ref(), resource);
            take(limit, amount(whole.requests.as_ref(), resource).or(limit));
        }
    } else {
        for container in spec.init_containers.iter().flatten().chain(&spec.containers) {
            for resource in ["cpu", "memory"] {
                take(limit(container, resource), request(container, resource));
            }
        }
    }
    match (any, all) {
        (false, _) => Class::BestEffort,
        (true, true) => Class::Guaranteed,
        (true, false) => Class::Burstable,
    }
}

#[cfg(test)]
mod tests {
    use windlass_fixtures::pods::with_resources;

    use super::*;

    #[test]
    fn classes() {
        let full = r#"{"limits":{"cpu":"1","memory":"1Gi"}}"#;
        let equal = r#"{"limits":{"cpu":"1","memory":"1Gi"},"requests":{"cpu":"1000m","memory":"1024Mi"}}"#;
        let partial = r#"{"requests":{"cpu":"1"}}"#;
        for (resources, wanted) in [
            (&["{}"][..], Class::BestEffort),
            (&[full], Class::Guaranteed),
            (&[equal, full], Class::Guaranteed),
            (&[full, "{}"], Class::Burstable),
            (&[partial], Class::Burstable),
            (&[r#"{"limits":{"memory":"1Gi"}}"#], Class::Burstable),
        ] {
            assert_eq!(class(&with_resources(resources)), wanted, "{resources:?}");
        }
    }

    #[test]
    fn resources_of_the_whole_pod_decide() {
        let full = r#"{"limits":{"cpu":"1","memory":"1Gi"}}"#;
        for (whole, wanted) in [
            (r#"{"requests":{"cpu":"100m"}}"#, Class::Burstable),
            (r#"{"limits":{"cpu":"1","memory":"1Gi"}}"#, Class::Guaranteed),
            (r#"{"limits":{"cpu":"1","memory":"1Gi"},"requests":{"cpu":"1","memory":"1Gi"}}"#, Class::Guaranteed),
            (r#"{"limits":{"cpu":"1","memory":"1Gi"},"requests":{"memory":"1Mi"}}"#, Class::Burstable),
            (r#"{"limits":{"memory":"1Gi"}}"#, Class::Burstable),
            (r#"{"requests":{"cpu":"0"}}"#, Class::BestEffort),
        ] {
            for containers in [&["{}"][..], &[full]] {
                let mut spec: PodSpec = with_resources(containers);
                spec.resources = serde_json::from_str(whole).ok();
                assert_eq!(class(&spec), wanted, "{whole} {containers:?}");
            }
        }
    }

    #[test]
    fn the_class_that_the_api_has_given_stays() {
        let pod = |status: &str| -> Pod {
            let text =
                r#"{"spec":{"containers":[{"name":"c","resources":{"limits":{"memory":"1Gi"}}}]},"status":STATUS}"#;
            serde_json::from_str(&text.replace("STATUS", status)).unwrap()
        };
        assert_eq!(class_of(&pod("{}")), Class::Burstable);
        assert_eq!(class_of(&pod(r#"{"qosClass":"BestEffort"}"#)), Class::BestEffort);
        assert_eq!(class_of(&pod(r#"{"qosClass":"Unheard"}"#)), Class::Burstable);
    }
}
