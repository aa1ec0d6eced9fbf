//! The Go types of built-in kinds, by which their objects are described and decoded.

use k8s_openapi::{
    api::{
        authentication::v1 as authentication, authorization::v1 as authorization, autoscaling::v1 as autoscaling,
        coordination::v1 as coordination, core::v1 as core, discovery::v1 as discovery, events::v1 as events,
        node::v1 as node, policy::v1 as policy, storage::v1 as storage,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1 as extensions,
    apimachinery::pkg::apis::meta::v1 as meta,
};

/// Group (empty for core), version and kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gvk {
    /// The API group, empty for the core group.
    pub group: &'static str,
    /// The version, such as `v1`.
    pub version: &'static str,
    /// The kind, such as `Pod`.
    pub kind: &'static str,
}

impl Gvk {
    /// `v1`, or `group/version`.
    #[must_use]
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }
}

/// A built-in type.
#[derive(Debug)]
pub struct BuiltInType {
    /// Group, version and kind.
    pub gvk: Gvk,
    /// Decodes bytes as the type that clients use.
    pub try_decode: fn(&[u8]) -> Result<(), serde_json::Error>,
    /// Whether objects of it are stored.
    pub stored: bool,
}

macro_rules! built_in {
    ($group:literal, $version:literal, $kind:ident, $type:ty, $stored:literal) => {
        BuiltInType {
            gvk: Gvk { group: $group, version: $version, kind: stringify!($kind) },
            try_decode: |bytes| windlass_kit::json::from_slice::<$type>(bytes).map(drop),
            stored: $stored,
        }
    };
}

/// The types of stored objects, and those that are only sent and answered.
pub static TYPES: &[BuiltInType] = &[
    built_in!("", "v1", ConfigMap, core::ConfigMap, true),
    built_in!("", "v1", Endpoints, core::Endpoints, true),
    built_in!("", "v1", Event, core::Event, true),
    built_in!("", "v1", Namespace, core::Namespace, true),
    built_in!("", "v1", Node, core::Node, true),
    built_in!("", "v1", PersistentVolumeClaim, core::PersistentVolumeClaim, true),
    built_in!("", "v1", PersistentVolume, core::PersistentVolume, true),
    built_in!("", "v1", Pod, core::Pod, true),
    built_in!("", "v1", ReplicationController, core::ReplicationController, true),
    built_in!("", "v1", Secret, core::Secret, true),
    built_in!("", "v1", ServiceAccount, core::ServiceAccount, true),
    built_in!("", "v1", Service, core::Service, true),
    built_in!("coordination.k8s.io", "v1", Lease, coordination::Lease, true),
    built_in!("discovery.k8s.io", "v1", EndpointSlice, discovery::EndpointSlice, true),
    built_in!("node.k8s.io", "v1", RuntimeClass, node::RuntimeClass, true),
    built_in!("storage.k8s.io", "v1", StorageClass, storage::StorageClass, true),
    built_in!("apiextensions.k8s.io", "v1", CustomResourceDefinition, extensions::CustomResourceDefinition, true),
    built_in!("events.k8s.io", "v1", Event, events::Event, false),
    built_in!("", "v1", Binding, core::Binding, false),
    built_in!("meta.k8s.io", "v1", DeleteOptions, meta::DeleteOptions, false),
    built_in!("policy", "v1", Eviction, policy::Eviction, false),
    built_in!("autoscaling", "v1", Scale, autoscaling::Scale, false),
    built_in!("authorization.k8s.io", "v1", SelfSubjectAccessReview, authorization::SelfSubjectAccessReview, false),
    built_in!("authentication.k8s.io", "v1", SelfSubjectReview, authentication::SelfSubjectReview, false),
    built_in!("authorization.k8s.io", "v1", SubjectAccessReview, authorization::SubjectAccessReview, false),
    built_in!("authentication.k8s.io", "v1", TokenReview, authentication::TokenReview, false),
    BuiltInType {
        gvk: Gvk { group: "metrics.k8s.io", version: "v1beta1", kind: "NodeMetrics" },
        // Computed, never decoded.
        try_decode: |_| Ok(()),
        stored: false,
    },
    BuiltInType {
        gvk: Gvk { group: "metrics.k8s.io", version: "v1beta1", kind: "PodMetrics" },
        try_decode: |_| Ok(()),
        stored: false,
    },
];

/// The types of stored objects.
pub fn stored() -> impl Iterator<Item = &'static BuiltInType> {
    TYPES.iter().filter(|t| t.stored)
}

/// A type by its `apiVersion` and kind.
#[must_use]
pub fn of_kind(api_version: &str, kind: &str) -> Option<&'static BuiltInType> {
    TYPES.iter().find(|t| t.gvk.kind == kind && t.gvk.api_version() == api_version)
}
