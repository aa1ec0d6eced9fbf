//! The Node authorizer: what the identity of a node (`system:node:NAME` in the group `system:nodes`) may do.
//!
//! `rights.rs` is the table of what nodes have rights to at all, `mod.rs` decides about one request, `references.rs` finds the objects that a pod or volume refers to, `graph.rs` stores which nodes
//! these lead to, fed from the store by `plugin/store_view.rs`. What a node may change in an object is decided by
//! NodeRestriction (`plugin/admission/node_restriction`), by the rows of the same table. Nothing here may import handlers.

mod graph;
pub(crate) mod references;
pub(crate) mod rights;

#[cfg(test)]
mod tests;

use graph::Graph;
pub(crate) use graph::{Kind, Vertex};

use crate::{
    apiserver::{Attributes, Authorizer, Decision, Rules, User},
    plugin::store_view::StoreView,
};

/// Which objects are reachable from which node.
pub(crate) trait Relations {
    /// Whether the object is related to the node: through a pod on it, or through a claim of such a pod.
    fn related(&self, node: &str, object: &Vertex) -> bool;
}

impl Relations for StoreView<Graph> {
    fn related(&self, node: &str, object: &Vertex) -> bool {
        // Without an up-to-date graph access is denied.
        self.read(|graph| graph.related(node, object)).unwrap_or(false)
    }
}

/// The namespace of nodes' leases.
pub(crate) const LEASES: &str = "kube-node-lease";

/// The authorizer of nodes.
#[derive(Debug)]
pub(crate) struct NodeAuthorizer {
    graph: StoreView<Graph>,
}

impl NodeAuthorizer {
    /// An authorizer that follows the pods of the store.
    pub(crate) fn new(store: crate::store::Store) -> Self {
        Self { graph: StoreView::new(store) }
    }
}

impl Authorizer for NodeAuthorizer {
    fn decide(&self, user: &User, what: &Attributes<'_>) -> Decision {
        decide_for(user, what, &self.graph)
    }

    fn rules(&self, user: &User, _: &str) -> Rules {
        let unresolved = user.as_node().map(|_| "node authorizer does not support user rule resolution".to_owned());
        Rules { unresolved: unresolved.into_iter().collect(), ..Rules::default() }
    }
}

/// Decides for any user.
fn decide_for(user: &User, what: &Attributes<'_>, relations: &dyn Relations) -> Decision {
    let Some(node) = user.as_node().filter(|_| what.is_resource) else { return Decision::NoOpinion(String::new()) };
    if node.is_empty() {
        return Decision::NoOpinion(format!("unknown node for user {:?}", user.name));
    }
    decide(node, what, relations).map_or_else(Decision::NoOpinion, |()| Decision::Allow)
}

/// Decides for a node; the error is upstream's explanation, often empty.
fn decide(node: &str, what: &Attributes<'_>, relations: &dyn Relations) -> Result<(), String> {
    depends(node, what, relations)?;
    refuse_unless(rights::has(what), "")
}

/// What a right depends on, if there is one.
fn depends(node: &str, what: &Attributes<'_>, relations: &dyn Relations) -> Result<(), String> {
    let request = Request { node, what, relations };
    match (what.group, what.resource) {
        ("", "secrets") => request.read(Kind::Secret),
        ("", "configmaps") => request.read(Kind::ConfigMap),
        ("", "persistentvolumeclaims") if what.subresource == "status" => {
            request.write_status(Kind::PersistentVolumeClaim)
        }
        ("", "persistentvolumeclaims") => request.get(Kind::PersistentVolumeClaim),
        ("", "persistentvolumes") => request.get(Kind::PersistentVolume),
        // No object of these kinds leads to a node here: none is served.
        ("storage.k8s.io", "volumeattachments") | ("resource.k8s.io", "resourceclaims") => request.get(Kind::Unserved),
        ("resource.k8s.io", "resourceslices") => request.slice(),
        ("", "serviceaccounts") => request.account(),
        ("coordination.k8s.io", "leases") => request.lease(),
        ("storage.k8s.io", "csinodes") => request.csi_node(),
        ("", "nodes") => request.own_node(),
        ("", "pods") => request.pod(),
        // The same for all nodes.
        _ => Ok(()),
    }
}

fn refuse_unless(allowed: bool, why: &str) -> Result<(), String> {
    if allowed { Ok(()) } else { Err(why.to_owned()) }
}

struct Request<'a> {
    node: &'a str,
    what: &'a Attributes<'a>,
    relations: &'a dyn Relations,
}

impl Request<'_> {
    fn related(&self, kind: Kind) -> Result<(), String> {
        let Attributes { namespace, name, .. } = self.what;
        if name.is_empty() {
            return Err("No Object name found".to_owned());
        }
        let there = self.relations.related(self.node, &Vertex::new(kind, namespace, name));
        refuse_unless(there, &format!("no relationship found between node '{}' and this object", self.node))
    }

    /// Secrets and config maps, one by one.
    fn read(&self, kind: Kind) -> Result<(), String> {
        if !matches!(self.what.verb, "get" | "list" | "watch") {
            return Err("can only read resources of this type".to_owned());
        }
        if !self.what.subresource.is_empty() {
            return Err("cannot read subresource".to_owned());
        }
        if self.what.namespace.is_empty() {
            return Err("can only read namespaced object of this type".to_owned());
        }
        self.related(kind)
    }

    fn get(&self, kind: Kind) -> Result<(), String> {
        if self.what.verb != "get" {
            return Err("can only get individual resources of this type".to_owned());
        }
        if !self.what.subresource.is_empty() {
            return Err("cannot get subresource".to_owned());
        }
        self.related(kind)
    }

    fn write_status(&self, kind: Kind) -> Result<(), String> {
        if !matches!(self.what.verb, "update" | "patch") {
            return Err("can only get/update/patch this type".to_owned());
        }
        self.related(kind)
    }

    fn account(&self) -> Result<(), String> {
        match (self.what.verb, self.what.subresource) {
            ("get", "") => self.related(Kind::ServiceAccount),
            ("create", "token") if !self.what.name.is_empty() => self.related(Kind::ServiceAccount),
            ("create", subresource) if subresource != "token" && !self.what.name.is_empty() => {
                Err("can only create token subresource of serviceaccount".to_owned())
            }
            _ => Err("can only create tokens for individual service accounts".to_owned()),
        }
    }

    fn lease(&self) -> Result<(), String> {
        let verb = self.what.verb;
        if !matches!(verb, "get" | "create" | "update" | "patch" | "delete") {
            return Err("can only get, create, update, patch, or delete a node lease".to_owned());
        }
        if self.what.namespace != LEASES {
            return Err(format!("can only access leases in the {LEASES:?} system namespace"));
        }
        // The name of a new object is checked by NodeRestriction, which has the object: `Admission::Lease`.
        let own = verb == "create" || self.what.name == self.node;
        refuse_unless(own, "can only access node lease with the same name as the requesting node")
    }

    fn csi_node(&self) -> Result<(), String> {
        let verb = self.what.verb;
        if !matches!(verb, "get" | "create" | "update" | "patch" | "delete") {
            return Err("can only get, create, update, patch, or delete a CSINode".to_owned());
        }
        if !self.what.subresource.is_empty() {
            return Err("cannot authorize CSINode subresources".to_owned());
        }
        // As of leases: `Admission::CsiNode`.
        let own = verb == "create" || self.what.name == self.node;
        refuse_unless(own, "can only access CSINode with the same name as the requesting node")
    }

    fn slice(&self) -> Result<(), String> {
        if !self.what.subresource.is_empty() {
            return Err("cannot access subresource".to_owned());
        }
        match self.what.verb {
            // `Admission::Slice`.
            "create" => Ok(()),
            "get" | "update" | "patch" | "delete" => self.related(Kind::Unserved),
            "list" | "watch" | "deletecollection" => refuse_unless(
                self.what.selected("spec.nodeName") == Some(self.node),
                "can only list/watch/deletecollection resourceslices with nodeName field selector",
            ),
            _ => Err("only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, deletecollection".to_owned()),
        }
    }

    /// NodeRestriction checks which Node is written.
    fn own_node(&self) -> Result<(), String> {
        let Self { node, what, .. } = self;
        match (what.subresource, what.verb) {
            ("", "create" | "update" | "patch") | ("status", "update" | "patch") => Ok(()),
            ("", "get" | "list" | "watch") => match what.name {
                "" => Err(format!("node '{node}' cannot read all nodes, only its own Node object")),
                name if name == *node => Ok(()),
                name => Err(format!("node '{node}' cannot read '{name}', only its own Node object")),
            },
            _ => Err(String::new()),
        }
    }

    /// NodeRestriction checks which pod is written.
    fn pod(&self) -> Result<(), String> {
        match (self.what.subresource, self.what.verb) {
            ("", "get") => self.related(Kind::Pod),
            ("", "list" | "watch") if !self.what.name.is_empty() => self.related(Kind::Pod),
            ("", "list" | "watch") => refuse_unless(
                self.what.selected("spec.nodeName") == Some(self.node),
                "can only list/watch pods with spec.nodeName field selector",
            ),
            ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => Ok(()),
            _ => Err(String::new()),
        }
    }
}
