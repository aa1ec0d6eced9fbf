//! The labels that a node may set on its own Node: the admission plugin NodeRestriction.

/// Reserved keys that a node may set, besides those of kubelet's two domains.
const OWN: [&str; 10] = [
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
];

/// Whether a node may set, change and remove a label on itself. With others it could attract pods.
#[must_use]
pub fn may_set(key: &str) -> bool {
    let Some((prefix, _)) = key.split_once('/') else { return true };
    let within = |domain: &str| prefix == domain || prefix.strip_suffix(domain).is_some_and(|p| p.ends_with('.'));
    if within("node-restriction.kubernetes.io") {
        return false;
    }
    let reserved = within("kubernetes.io") || within("k8s.io");
    !reserved || within("kubelet.kubernetes.io") || within("node.kubernetes.io") || OWN.contains(&key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_may_set_what_is_its_own_and_what_is_nobodys() {
        for (key, may) in [
            ("disk", true),
            ("example.com/rack", true),
            ("xk8s.io/a", true),
            ("kubernetes.io/hostname", true),
            ("topology.kubernetes.io/zone", true),
            ("node.kubernetes.io/instance-type", true),
            ("x.kubelet.kubernetes.io/a", true),
            ("kubernetes.io/role", false),
            ("node-role.kubernetes.io/worker", false),
            ("node-restriction.kubernetes.io/a", false),
            ("x.node-restriction.kubernetes.io/a", false),
            ("apps.k8s.io/a", false),
        ] {
            assert_eq!(may_set(key), may, "{key}");
        }
    }
}
