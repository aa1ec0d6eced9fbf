//! The RBAC objects that an administrator creates before a Windlass node joins.

use serde_json::{Value, json};

use crate::windlass;

/// The API server as a client of nodes, as kubeadm has it: no administrator, but whoever may use the node's API.
pub(crate) const KUBELET_CLIENT: &str = "kube-apiserver-kubelet-client";

/// What kubeadm's clusters have beyond what kube-apiserver makes by itself.
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

/// What nodes of Windlass need beyond a node's rights, as the program itself prints it.
///
/// # Panics
/// When it prints nothing.
pub(crate) fn of_nodes() -> String {
    let printed = windlass::program().arg("rbac").output().expect("windlass runs");
    assert!(printed.status.success(), "windlass rbac: {}", String::from_utf8_lossy(&printed.stderr));
    String::from_utf8(printed.stdout).expect("a manifest is text")
}
