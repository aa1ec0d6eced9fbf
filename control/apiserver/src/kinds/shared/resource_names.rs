//! Names of resources that are limited and counted (`k8s.io/kubernetes/pkg/apis/core/helper`). Pure.

use windlass_kit::objects::resource_names::{REQUESTS, is_extended, is_native};

const HUGE_PAGES: &str = "hugepages-";

/// Resources of containers.
const OF_CONTAINERS: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
/// Resources of quotas, besides those of containers.
const OF_QUOTAS: [&str; 16] = [
    "requests.cpu",
    "requests.memory",
    "requests.storage",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "persistentvolumeclaims",
    "configmaps",
    "services.nodeports",
    "services.loadbalancers",
];
/// Resources that are counted in whole numbers.
const WHOLE: [&str; 9] = [
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];

/// Whether the name is one of the standard resources of containers.
pub(crate) fn is_of_containers(name: &str) -> bool {
    OF_CONTAINERS.contains(&name) || name.starts_with(HUGE_PAGES)
}

/// Whether the name is one of the standard resources of quotas.
pub(crate) fn is_of_quotas(name: &str) -> bool {
    OF_CONTAINERS.contains(&name)
        || OF_QUOTAS.contains(&name)
        || name.starts_with(HUGE_PAGES)
        || name.strip_prefix(REQUESTS).is_some_and(|rest| rest.starts_with(HUGE_PAGES))
}

/// Whether the name is a standard resource at all.
pub(crate) fn is_standard(name: &str) -> bool {
    is_of_quotas(name) || name == "storage"
}

/// Whether more may be promised than there is.
pub(crate) fn is_overcommittable(name: &str) -> bool {
    is_native(name) && !name.starts_with(HUGE_PAGES)
}

/// Whether amounts are whole numbers.
pub(crate) fn is_whole(name: &str) -> bool {
    WHOLE.contains(&name) || is_extended(name)
}
