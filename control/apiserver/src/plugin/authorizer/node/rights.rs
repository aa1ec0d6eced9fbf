//! The rights of nodes, as one table: the Node authorizer allows nothing without a row, and NodeRestriction checks a
//! write by the row of its right. Upstream keeps the two apart, so that a check may be missing from both.
//!
//! Upstream: `plugin/pkg/auth/authorizer/node`, `plugin/pkg/admission/noderestriction`.

use crate::apiserver::{Attributes, Operation};

/// What NodeRestriction looks at when a node writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// The pod is a mirror pod of the node, or for a deletion one on it.
    Pod,
    /// The pod is on the node, and of its status what kubelets own changes.
    PodStatus,
    /// The evicted pod is on the node.
    Eviction,
    /// It is the node's own Node, without the marks that others give.
    OwnNode,
    /// Of the claim's status what kubelets own changes.
    ClaimStatus,
    /// The token is for a pod on the node.
    Token,
    /// It has the node's name, in the namespace of leases.
    Lease,
    /// It has the node's name.
    CsiNode,
    /// It is of the node.
    Slice,
    /// It asks for a certificate of the node itself, where it asks for one of a node.
    CertificateRequest,
    /// Whatever it is: the object is an answer, or says nothing about other nodes.
    Anything,
}

/// A right to verbs on a resource.
#[derive(Debug)]
pub(crate) struct Right {
    pub(crate) group: &'static str,
    pub(crate) resource: &'static str,
    /// Empty for the object itself.
    pub(crate) subresource: &'static str,
    pub(crate) verbs: &'static [&'static str],
    /// `None` for reads alone.
    admission: Option<Admission>,
}

/// A resource of a group, with its subresource behind a slash.
const fn right(
    group: &'static str,
    (resource, subresource): (&'static str, &'static str),
    verbs: &'static [&'static str],
    admission: Option<Admission>,
) -> Right {
    Right { group, resource, subresource, verbs, admission }
}

const READS: &[&str] = &["get", "list", "watch"];
const CHANGES: &[&str] = &["update", "patch"];

/// Each right stands here once. A right to write names what is looked at; there is no other way to have one.
pub(crate) const RIGHTS: &[Right] = &[
    right("", ("secrets", ""), READS, None),
    right("", ("configmaps", ""), READS, None),
    right("", ("persistentvolumeclaims", ""), &["get"], None),
    right("", ("persistentvolumeclaims", "status"), CHANGES, Some(Admission::ClaimStatus)),
    right("", ("persistentvolumes", ""), &["get"], None),
    right("", ("serviceaccounts", ""), &["get"], None),
    right("", ("serviceaccounts", "token"), &["create"], Some(Admission::Token)),
    right("", ("nodes", ""), READS, None),
    right("", ("nodes", ""), &["create", "update", "patch"], Some(Admission::OwnNode)),
    right("", ("nodes", "status"), CHANGES, Some(Admission::OwnNode)),
    right("", ("pods", ""), READS, None),
    right("", ("pods", ""), &["create", "delete"], Some(Admission::Pod)),
    right("", ("pods", "status"), CHANGES, Some(Admission::PodStatus)),
    right("", ("pods", "eviction"), &["create"], Some(Admission::Eviction)),
    right("", ("services", ""), READS, None),
    right("", ("endpoints", ""), &["get"], None),
    right("", ("events", ""), &["create", "update", "patch"], Some(Admission::Anything)),
    right("events.k8s.io", ("events", ""), &["create", "update", "patch"], Some(Admission::Anything)),
    right("node.k8s.io", ("runtimeclasses", ""), READS, None),
    right("storage.k8s.io", ("csidrivers", ""), READS, None),
    right("storage.k8s.io", ("volumeattachments", ""), &["get"], None),
    right("storage.k8s.io", ("csinodes", ""), &["get"], None),
    right("storage.k8s.io", ("csinodes", ""), &["create", "update", "patch", "delete"], Some(Admission::CsiNode)),
    right("coordination.k8s.io", ("leases", ""), &["get"], None),
    right("coordination.k8s.io", ("leases", ""), &["create", "update", "patch", "delete"], Some(Admission::Lease)),
    right("resource.k8s.io", ("resourceclaims", ""), &["get"], None),
    right("resource.k8s.io", ("resourceslices", ""), READS, None),
    right(
        "resource.k8s.io",
        ("resourceslices", ""),
        &["create", "update", "patch", "delete", "deletecollection"],
        Some(Admission::Slice),
    ),
    right("certificates.k8s.io", ("certificatesigningrequests", ""), READS, None),
    right("certificates.k8s.io", ("certificatesigningrequests", ""), &["create"], Some(Admission::CertificateRequest)),
    right("authentication.k8s.io", ("tokenreviews", ""), &["create"], Some(Admission::Anything)),
    right("authorization.k8s.io", ("subjectaccessreviews", ""), &["create"], Some(Admission::Anything)),
    right("authorization.k8s.io", ("localsubjectaccessreviews", ""), &["create"], Some(Admission::Anything)),
    // Beyond upstream's: `windlass agent` has one identity for the agent and the proxy.
    right("discovery.k8s.io", ("endpointslices", ""), &["list", "watch"], None),
];

fn about(group: &str, resource: &str, subresource: &str, verbs: &[&str]) -> impl Iterator<Item = &'static Right> {
    RIGHTS.iter().filter(move |right| {
        (right.group, right.resource, right.subresource) == (group, resource, subresource)
            && right.verbs.iter().any(|verb| verbs.contains(verb))
    })
}

/// Whether the table has a right, whatever else it depends on.
pub(super) fn has(what: &Attributes<'_>) -> bool {
    about(what.group, what.resource, what.subresource, &[what.verb]).next().is_some()
}

/// What is looked at when a node writes; `None` where nodes have no right to this by themselves.
pub(crate) fn admission(group: &str, resource: &str, subresource: &str, operation: Operation) -> Option<Admission> {
    let verbs: &[&str] = match operation {
        Operation::Create => &["create"],
        Operation::Update => CHANGES,
        Operation::Delete => &["delete", "deletecollection"],
        Operation::Connect => &[],
    };
    about(group, resource, subresource, verbs).find_map(|right| right.admission)
}

/// Whether nodes write a resource at all.
pub(crate) fn is_written_by_nodes(group: &str, resource: &str) -> bool {
    RIGHTS.iter().any(|right| (right.group, right.resource) == (group, resource) && right.admission.is_some())
}
