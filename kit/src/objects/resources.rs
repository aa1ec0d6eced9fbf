//! What containers ask for and may use, and the quality of service that comes of it.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, PodSpec},
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};

use crate::quantity::Quantity;

/// Quality of service, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Every container is limited and has all of it to itself.
    Guaranteed,
    /// Something is asked for.
    Burstable,
    /// Nothing is asked for.
    BestEffort,
}

impl Class {
    /// The API's word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

/// How much of a resource a list names; nothing when that is no quantity.
#[must_use]
pub fn amount(list: Option<&BTreeMap<String, ApiQuantity>>, resource: &str) -> Option<Quantity> {
    list?.get(resource)?.0.parse().ok()
}

/// What a container may use.
#[must_use]
pub fn limit(container: &Container, resource: &str) -> Option<Quantity> {
    amount(container.resources.as_ref()?.limits.as_ref(), resource)
}

/// What a container asks for: the request, or the limit where none is given.
#[must_use]
pub fn request(container: &Container, resource: &str) -> Option<Quantity> {
    amount(container.resources.as_ref()?.requests.as_ref(), resource).or_else(|| limit(container, resource))
}

/// Guaranteed: every container limits cpu and memory, and requests just that. BestEffort: none asks
/// for anything.
#[must_use]
pub fn class(spec: &PodSpec) -> Class {
    let (mut any, mut all) = (false, true);
    for container in spec.init_containers.iter().flatten().chain(&spec.containers) {
        for resource in ["cpu", "memory"] {
            let limit = limit(container, resource).filter(|q| !q.is_zero());
            let request = request(container, resource).filter(|q| !q.is_zero());
            any |= limit.is_some() || request.is_some();
            all &= limit.is_some() && limit == request;
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
    use super::*;

    fn spec(resources: &[&str]) -> PodSpec {
        let containers: Vec<String> = resources
            .iter()
            .enumerate()
            .map(|(i, r)| format!(r#"{{"name":"c{i}","image":"i","resources":{r}}}"#))
            .collect();
        serde_json::from_str(&format!(r#"{{"containers":[{}]}}"#, containers.join(","))).unwrap()
    }

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
            assert_eq!(class(&spec(resources)), wanted, "{resources:?}");
        }
    }
}
