//! Names of resources (`k8s.io/kubernetes/pkg/apis/core/v1/helper`). Pure.

use windlass_apimachinery::names;

/// What a quota writes before the name of a resource of whose requests it is.
pub const REQUESTS: &str = "requests.";

/// Whether the name has no domain, or one of Kubernetes.
#[must_use]
pub fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Whether the name is that of an extended resource, of which quotas name requests.
#[must_use]
pub fn is_extended(name: &str) -> bool {
    !is_native(name) && !name.starts_with(REQUESTS) && names::qualified(&format!("{REQUESTS}{name}")).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extended_resources_have_a_domain_and_a_good_name() {
        let extended = ["nvidia.com/gpu", "example.com/a_b.c"];
        assert!(extended.into_iter().all(is_extended));
        let long = format!("{}.example/x", "a".repeat(250));
        let others = ["cpu", "hugepages-2Mi", "kubernetes.io/x", "a.kubernetes.io/x", "requests.nvidia.com/gpu"];
        assert!(!others.into_iter().chain(["a.b/c d", "a.b/c/d", "A_b/c", "/x", long.as_str()]).any(is_extended));
    }
}
