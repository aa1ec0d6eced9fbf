//! Node controllers: IPAM, lifecycle and taints, taint eviction, pod garbage collection. `ranges` and `health` are pure
//! and may not import tokio or kube's client.

mod health;
mod ipam;
mod lifecycle;
mod pod_gc;
mod ranges;
mod taint_eviction;

pub(crate) use ipam::NodeIpam;
pub(crate) use lifecycle::{NodeLifecycle, Timing};
pub(crate) use pod_gc::PodGc;
pub(crate) use ranges::Ranges;
pub(crate) use taint_eviction::TaintEviction;

use k8s_openapi::api::core::v1::{Node, ObjectReference};

/// A reference to a node for events: its name is the UID too, as upstream writes it.
pub(crate) fn reference(node: &Node) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: node.metadata.name.clone(),
        uid: node.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}
