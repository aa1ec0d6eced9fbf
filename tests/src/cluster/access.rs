//! What an administrator gives rights to before a Windlass node joins: objects that `kubectl apply` takes.

use serde_json::{Value, json};

/// The API server as a client of nodes, as kubeadm has it: no administrator, but whoever may use the node's API.
pub(crate) const KUBELET_CLIENT: &str = "kube-apiserver-kubelet-client";

/// All of them.
pub(crate) fn objects() -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": [
        binding("kubeadm:apiserver-kubelet-client", "system:kubelet-api-admin", "User", KUBELET_CLIENT),
        // What services and the pod network need beyond a node's rights.
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "windlass:node"}, "rules": [
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
            {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]},
            {"apiGroups": ["networking.k8s.io"], "resources": ["servicecidrs"], "verbs": ["list", "watch"]},
        ]},
        binding("windlass:node", "windlass:node", "Group", "system:nodes"),
    ]})
}

fn binding(name: &str, role: &str, kind: &str, to: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": to}],
    })
}
