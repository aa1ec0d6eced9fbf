//! The RBAC objects that an administrator creates before a Windlass node joins.

use serde_json::{Value, json};

use crate::windlass;

/// The API server's user as a client of nodes, as in kubeadm: not an administrator, but allowed to use the node's API.
pub(crate) const KUBELET_CLIENT: &str = "kube-apiserver-kubelet-client";

/// The objects of kubeadm's clusters that kube-apiserver does not create by itself.
pub(crate) fn of_kubeadm() -> Value {
    binding("kubeadm:apiserver-kubelet-client", "system:kubelet-api-admin", "User", KUBELET_CLIENT)
}

pub(super) fn binding(name: &str, role: &str, kind: &str, to: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": to}],
    })
}

/// The rights that Windlass nodes need beyond system:node, as `windlass` prints them.
///
/// # Panics
/// When it prints nothing.
pub(crate) fn of_nodes() -> String {
    let printed = windlass::program().arg("rbac").output().expect("windlass runs");
    assert!(printed.status.success(), "windlass rbac: {}", String::from_utf8_lossy(&printed.stderr));
    String::from_utf8(printed.stdout).expect("a manifest is text")
}
