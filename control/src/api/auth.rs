//! Who may do what: administrators everything, a node what a node needs, others nothing. Pure.

use super::{identity::UserInfo, target::Target};

/// Whether `user` may `verb` the target; the error is an explanation, often empty.
pub(super) fn authorize(user: &UserInfo, verb: &str, target: &Target) -> Result<(), String> {
    let attributes = Attributes {
        group: target.resource.gvk.group,
        resource: target.resource.plural,
        sub: target.sub.as_deref().unwrap_or(""),
        namespace: target.namespace.as_deref().unwrap_or(""),
        name: target.name.as_deref().unwrap_or(""),
    };
    decide(user, verb, &attributes)
}

/// What is asked for, also in access reviews.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attributes<'a> {
    pub(super) group: &'a str,
    pub(super) resource: &'a str,
    pub(super) sub: &'a str,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
}

pub(super) fn decide(user: &UserInfo, verb: &str, what: &Attributes<'_>) -> Result<(), String> {
    if user.is_in(crate::pki::MASTERS) {
        return Ok(());
    }
    let Some(node) = user.name.strip_prefix("system:node:").filter(|_| user.is_in("system:nodes")) else {
        return Err(String::new());
    };
    let reads = matches!(verb, "get" | "list" | "watch");
    let allowed = match (what.group, what.resource, what.sub) {
        // Upstream follows a graph from pods to what they refer to; here one node serves all.
        ("", "pods" | "services" | "endpoints" | "configmaps" | "secrets", "") if reads => true,
        ("discovery.k8s.io", "endpointslices", "") if reads => true,
        // What stands behind the volumes of its pods, one by one.
        ("", "persistentvolumes" | "persistentvolumeclaims", "") => verb == "get",
        ("node.k8s.io", "runtimeclasses", "") if reads => true,
        // Of the pods that it runs: the handler looks.
        ("", "serviceaccounts", "token") => verb == "create",
        ("", "nodes", "") if reads => true,
        ("", "nodes", "") if verb == "create" => what.name.is_empty() || what.name == node,
        ("", "nodes", "" | "status") => matches!(verb, "get" | "update" | "patch") && what.name == node,
        ("", "pods", "status") => matches!(verb, "get" | "update" | "patch"),
        ("", "pods", "") => matches!(verb, "create" | "delete"),
        ("", "pods", "eviction") => verb == "create",
        ("", "events", "") => matches!(verb, "create" | "update" | "patch"),
        ("coordination.k8s.io", "leases", "") => {
            what.namespace == "kube-node-lease" && (what.name == node || (what.name.is_empty() && verb == "create"))
        }
        ("authentication.k8s.io", "tokenreviews", _) | ("authorization.k8s.io", "subjectaccessreviews", _) => {
            verb == "create"
        }
        _ => false,
    };
    if allowed {
        return Ok(());
    }
    let own = matches!(what.resource, "nodes" | "leases") && !what.name.is_empty() && what.name != node;
    Err(if own { format!("node {node:?} may only write its own objects") } else { String::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_may_what_a_node_needs_and_no_more() {
        let node = UserInfo::node("n1");
        let what = |group, resource, sub, namespace, name| Attributes { group, resource, sub, namespace, name };
        for (verb, what, allowed) in [
            ("watch", what("", "pods", "", "", ""), true),
            ("patch", what("", "pods", "status", "d", "p"), true),
            ("delete", what("", "pods", "", "d", "p"), true),
            ("patch", what("", "nodes", "status", "", "n1"), true),
            ("patch", what("", "nodes", "status", "", "n2"), false),
            ("delete", what("", "nodes", "", "", "n1"), false),
            ("update", what("coordination.k8s.io", "leases", "", "kube-node-lease", "n1"), true),
            ("update", what("coordination.k8s.io", "leases", "", "kube-system", "n1"), false),
            ("delete", what("", "namespaces", "", "", "default"), false),
            ("create", what("", "secrets", "", "d", ""), false),
            ("create", what("authorization.k8s.io", "subjectaccessreviews", "", "", ""), true),
        ] {
            assert_eq!(decide(&node, verb, &what).is_ok(), allowed, "{verb} {what:?}");
            assert!(decide(&UserInfo::internal("x"), verb, &what).is_ok());
            assert!(decide(&UserInfo { name: "eve".into(), groups: vec![] }, verb, &what).is_err());
            assert!(decide(&UserInfo { name: "system:node:n1".into(), groups: vec![] }, verb, &what).is_err());
        }
    }
}
