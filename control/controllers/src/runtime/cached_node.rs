//! Nodes as informers cache them: what controllers read of them. A status has a list of all images of its node, which is most of
//! it and changes often.

use k8s_openapi::{
    api::core::v1::{Node, NodeAddress, NodeCondition, NodeSpec},
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::ObjectMeta},
};
use serde::{Deserialize, Deserializer};

use super::cached::Cached;

/// A node; fields have the names and types of k8s-openapi's.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub(crate) struct CachedNode {
    #[serde(default)]
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: Option<NodeSpec>,
    pub(crate) status: Option<CachedNodeStatus>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub(crate) struct CachedNodeStatus {
    pub(crate) addresses: Option<Vec<NodeAddress>>,
    pub(crate) conditions: Option<Vec<NodeCondition>>,
    /// By which zones are weighed.
    #[serde(rename = "allocatable", default, deserialize_with = "cpu")]
    pub(crate) allocatable_cpu: Option<Quantity>,
}

windlass_kit::decoded_form!(CachedNode, Node);

impl Cached for CachedNode {}

fn cpu<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Quantity>, D::Error> {
    #[derive(Deserialize)]
    struct Cpu {
        cpu: Option<Quantity>,
    }
    Ok(Option::<Cpu>::deserialize(deserializer)?.and_then(|allocatable| allocatable.cpu))
}
