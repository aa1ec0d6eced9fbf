//! `windlass rbac`: the RBAC rights that nodes need in addition to those of the Node authorizer.

use std::process::ExitCode;

use super::say;

/// Nodes watch EndpointSlices, which the Node authorizer does not allow: `windlass agent` has one identity for pods and
/// services.
const MANIFEST: &str = "\
# What nodes that run `windlass agent` need beyond what the API gives every node: services are made of EndpointSlices.
# Nodes whose proxy has an identity of its own (--proxy-kubeconfig), or that leave services to another proxy (--no-proxy),
# do without.
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: windlass:node
rules:
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list, watch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: windlass:node
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: windlass:node
subjects:
- apiGroup: rbac.authorization.k8s.io
  kind: Group
  name: system:nodes
";

pub(super) fn run() -> ExitCode {
    say(MANIFEST.trim_end());
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use windlass_kit::manifests::{self, Format};

    use super::*;

    #[test]
    fn the_manifest_binds_the_role_to_all_nodes() {
        let (documents, broken) = manifests::read(MANIFEST, Format::Yaml);
        assert_eq!(broken, []);
        let [role, binding] = &documents[..] else { panic!("{documents:?}") };
        assert_eq!((role.kind.as_str(), binding.kind.as_str()), ("ClusterRole", "ClusterRoleBinding"));
        assert_eq!(binding.value["roleRef"]["name"], Value::from(role.name.as_str()));
        assert_eq!(binding.value["subjects"][0]["name"], "system:nodes");
        assert_eq!(role.value["rules"][0]["resources"][0], "endpointslices");
    }
}
