//! The resource types that the API serves.
//!
//! Behaviour of kinds beyond this table is looked up by kind: columns in `table`, defaults, schema and validation in
//! `schema`, and what upstream's API does for one kind alone in `api/admission`, `api/strategy` and `api/subresources`.

use schemars::{Schema, SchemaGenerator};

use crate::{
    metrics::{NodeMetrics, PodMetrics},
    store::{self, Engine, RelaxedDurability, ResourceOptions, Store},
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

/// One type of object.
#[derive(Debug)]
pub struct ResourceType {
    /// Group, version and kind.
    pub gvk: Gvk,
    /// The plural name, as in paths.
    pub plural: &'static str,
    /// The singular name.
    pub singular: &'static str,
    /// Short names for kubectl.
    pub short_names: &'static [&'static str],
    /// Whether the type is namespaced.
    pub namespaced: bool,
    /// Categories, such as `all` of `kubectl get all`.
    pub categories: &'static [&'static str],
    /// The subresources.
    pub subresources: &'static [&'static str],
    /// Whether a PUT creates a missing object.
    pub create_on_update: bool,
    /// Whether a PUT without a resource version is allowed.
    pub allow_unconditional_update: bool,
    /// The garbage collection policy of a deletion without one.
    pub gc: GcPolicy,
    /// Whether an immediate deletion returns the object instead of a `Status`.
    pub returns_deleted: bool,
    /// Whether `metadata.generation` counts changes of the spec.
    pub generation: bool,
    /// Which writes may reach the disk a few seconds later: those that nothing depends on and that recur anyway.
    pub relaxed_durability: RelaxedDurability,
    /// The supported verbs.
    pub verbs: &'static [&'static str],
    /// Generates the schema.
    pub schema: fn(&mut SchemaGenerator) -> Schema,
    /// Decodes bytes as the type that clients use.
    pub try_decode: fn(&[u8]) -> Result<(), serde_json::Error>,
}

/// The garbage collection policy of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GcPolicy {
    /// Dependents are deleted in the background.
    Background,
    /// Dependents are orphaned.
    Orphan,
    /// The type never has dependents.
    Unsupported,
}

impl ResourceType {
    /// The group resource, the name in the store and in errors: `leases.coordination.k8s.io`.
    #[must_use]
    pub fn group_resource(&self) -> &'static str {
        // One string per type for the lifetime of the process.
        static NAMES: std::sync::OnceLock<Vec<(Gvk, String)>> = std::sync::OnceLock::new();
        let names = NAMES.get_or_init(|| {
            let name = |t: &ResourceType| {
                if t.gvk.group.is_empty() { t.plural.to_owned() } else { format!("{}.{}", t.plural, t.gvk.group) }
            };
            all().map(|t| (t.gvk, name(t))).collect()
        });
        names.iter().find(|(gvk, _)| *gvk == self.gvk).map_or("", |(_, name)| name)
    }

    /// The group kind, as in validation errors: `Deployment.apps`.
    #[must_use]
    pub fn group_kind(&self) -> String {
        if self.gvk.group.is_empty() {
            self.gvk.kind.to_owned()
        } else {
            format!("{}.{}", self.gvk.kind, self.gvk.group)
        }
    }

    /// Whether the status is written by `/status` alone.
    #[must_use]
    pub fn has_status(&self) -> bool {
        self.subresources.contains(&"status")
    }
}

macro_rules! schema {
    ($type:ty) => {
        |generator| generator.subschema_for::<$type>()
    };
}

macro_rules! try_decode {
    ($type:ty) => {
        |bytes| windlass_kit::json::from_slice::<$type>(bytes).map(drop)
    };
}

use k8s_openapi::api::{
    coordination::v1 as coordination, core::v1 as core, discovery::v1 as discovery, node::v1 as node,
    storage::v1 as storage,
};

const fn core(kind: &'static str) -> Gvk {
    Gvk { group: "", version: "v1", kind }
}

/// Defaults of the entries.
const BASE: ResourceType = ResourceType {
    gvk: core(""),
    plural: "",
    singular: "",
    short_names: &[],
    namespaced: true,
    categories: &[],
    subresources: &[],
    create_on_update: false,
    allow_unconditional_update: true,
    gc: GcPolicy::Background,
    returns_deleted: false,
    generation: false,
    relaxed_durability: RelaxedDurability::Never,
    verbs: &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
    schema: schema!(core::Pod),
    try_decode: try_decode!(core::Pod),
};

/// The stored types, in the order of discovery.
pub static TYPES: &[ResourceType] = &[
    ResourceType {
        gvk: core("ConfigMap"),
        plural: "configmaps",
        singular: "configmap",
        short_names: &["cm"],
        schema: schema!(core::ConfigMap),
        try_decode: try_decode!(core::ConfigMap),
        ..BASE
    },
    ResourceType {
        gvk: core("Endpoints"),
        plural: "endpoints",
        singular: "endpoints",
        short_names: &["ep"],
        create_on_update: true,
        schema: schema!(core::Endpoints),
        try_decode: try_decode!(core::Endpoints),
        ..BASE
    },
    ResourceType {
        gvk: core("Event"),
        plural: "events",
        singular: "event",
        short_names: &["ev"],
        create_on_update: true,
        relaxed_durability: RelaxedDurability::Always,
        gc: GcPolicy::Unsupported,
        schema: schema!(core::Event),
        try_decode: try_decode!(core::Event),
        ..BASE
    },
    ResourceType {
        gvk: core("Namespace"),
        plural: "namespaces",
        singular: "namespace",
        short_names: &["ns"],
        namespaced: false,
        subresources: &["finalize", "status"],
        // No deletecollection, as upstream: it would empty the cluster.
        verbs: &["create", "delete", "get", "list", "patch", "update", "watch"],
        schema: schema!(core::Namespace),
        try_decode: try_decode!(core::Namespace),
        ..BASE
    },
    ResourceType {
        gvk: core("Node"),
        plural: "nodes",
        singular: "node",
        short_names: &["no"],
        namespaced: false,
        subresources: &["status"],
        schema: schema!(core::Node),
        try_decode: try_decode!(core::Node),
        ..BASE
    },
    ResourceType {
        gvk: core("PersistentVolumeClaim"),
        returns_deleted: true,
        plural: "persistentvolumeclaims",
        singular: "persistentvolumeclaim",
        short_names: &["pvc"],
        subresources: &["status"],
        schema: schema!(core::PersistentVolumeClaim),
        try_decode: try_decode!(core::PersistentVolumeClaim),
        ..BASE
    },
    ResourceType {
        gvk: core("PersistentVolume"),
        returns_deleted: true,
        plural: "persistentvolumes",
        singular: "persistentvolume",
        short_names: &["pv"],
        namespaced: false,
        subresources: &["status"],
        schema: schema!(core::PersistentVolume),
        try_decode: try_decode!(core::PersistentVolume),
        ..BASE
    },
    ResourceType {
        gvk: core("Pod"),
        returns_deleted: true,
        plural: "pods",
        singular: "pod",
        short_names: &["po"],
        categories: &["all"],
        subresources: &[
            "attach",
            "binding",
            "ephemeralcontainers",
            "eviction",
            "exec",
            "log",
            "portforward",
            "resize",
            "status",
        ],
        generation: true,
        schema: schema!(core::Pod),
        try_decode: try_decode!(core::Pod),
        ..BASE
    },
    ResourceType {
        gvk: core("ReplicationController"),
        plural: "replicationcontrollers",
        singular: "replicationcontroller",
        short_names: &["rc"],
        categories: &["all"],
        subresources: &["scale", "status"],
        gc: GcPolicy::Orphan,
        generation: true,
        schema: schema!(core::ReplicationController),
        try_decode: try_decode!(core::ReplicationController),
        ..BASE
    },
    ResourceType {
        gvk: core("Secret"),
        plural: "secrets",
        singular: "secret",
        schema: schema!(core::Secret),
        try_decode: try_decode!(core::Secret),
        ..BASE
    },
    ResourceType {
        gvk: core("ServiceAccount"),
        returns_deleted: true,
        plural: "serviceaccounts",
        singular: "serviceaccount",
        short_names: &["sa"],
        subresources: &["token"],
        schema: schema!(core::ServiceAccount),
        try_decode: try_decode!(core::ServiceAccount),
        ..BASE
    },
    ResourceType {
        gvk: core("Service"),
        plural: "services",
        singular: "service",
        short_names: &["svc"],
        categories: &["all"],
        subresources: &["status"],
        create_on_update: true,
        schema: schema!(core::Service),
        try_decode: try_decode!(core::Service),
        ..BASE
    },
    ResourceType {
        gvk: Gvk { group: "coordination.k8s.io", version: "v1", kind: "Lease" },
        plural: "leases",
        singular: "lease",
        create_on_update: true,
        allow_unconditional_update: false,
        // Node heartbeats alone: other leases elect leaders, and a crash must not undo an acknowledged one.
        relaxed_durability: RelaxedDurability::InNamespace("kube-node-lease"),
        schema: schema!(coordination::Lease),
        try_decode: try_decode!(coordination::Lease),
        ..BASE
    },
    ResourceType {
        gvk: Gvk { group: "discovery.k8s.io", version: "v1", kind: "EndpointSlice" },
        plural: "endpointslices",
        singular: "endpointslice",
        generation: true,
        schema: schema!(discovery::EndpointSlice),
        try_decode: try_decode!(discovery::EndpointSlice),
        ..BASE
    },
    ResourceType {
        gvk: Gvk { group: "node.k8s.io", version: "v1", kind: "RuntimeClass" },
        plural: "runtimeclasses",
        singular: "runtimeclass",
        namespaced: false,
        create_on_update: true,
        allow_unconditional_update: false,
        schema: schema!(node::RuntimeClass),
        try_decode: try_decode!(node::RuntimeClass),
        ..BASE
    },
    ResourceType {
        gvk: Gvk { group: "storage.k8s.io", version: "v1", kind: "StorageClass" },
        returns_deleted: true,
        plural: "storageclasses",
        singular: "storageclass",
        short_names: &["sc"],
        namespaced: false,
        schema: schema!(storage::StorageClass),
        try_decode: try_decode!(storage::StorageClass),
        ..BASE
    },
];

/// The group of [`VIRTUAL_TYPES`].
pub const METRICS_GROUP: &str = "metrics.k8s.io";

/// Types whose objects are computed on request.
pub static VIRTUAL_TYPES: &[ResourceType] = &[
    ResourceType {
        gvk: Gvk { group: METRICS_GROUP, version: "v1beta1", kind: "NodeMetrics" },
        plural: "nodes",
        namespaced: false,
        verbs: &["get", "list"],
        schema: schema!(NodeMetrics),
        // Never stored.
        try_decode: |_| Ok(()),
        ..BASE
    },
    ResourceType {
        gvk: Gvk { group: METRICS_GROUP, version: "v1beta1", kind: "PodMetrics" },
        plural: "pods",
        verbs: &["get", "list"],
        schema: schema!(PodMetrics),
        // Never stored.
        try_decode: |_| Ok(()),
        ..BASE
    },
];

/// Opens a store with all stored types.
///
/// # Errors
/// When the engine cannot be read.
pub fn open_store(engine: Box<dyn Engine>) -> Result<Store, store::Error> {
    let options = |t: &ResourceType| ResourceOptions { relaxed_durability: t.relaxed_durability };
    let resources: Vec<_> = TYPES.iter().map(|t| (t.group_resource(), options(t))).collect();
    Store::open(engine, &resources)
}

/// All types, stored and virtual.
pub fn all() -> impl Iterator<Item = &'static ResourceType> {
    TYPES.iter().chain(VIRTUAL_TYPES)
}

/// The type of a group, version and plural name.
#[must_use]
pub fn find(group: &str, version: &str, plural: &str) -> Option<&'static ResourceType> {
    all().find(|t| t.gvk.group == group && t.gvk.version == version && t.plural == plural)
}

/// The type of a kind.
#[must_use]
pub fn of_kind(kind: &str) -> Option<&'static ResourceType> {
    all().find(|t| t.gvk.kind == kind)
}

/// The groups with their versions, core first.
#[must_use]
pub fn group_versions() -> Vec<(&'static str, &'static str)> {
    let mut all: Vec<(&str, &str)> = all().map(|t| (t.gvk.group, t.gvk.version)).collect();
    all.sort_unstable();
    all.dedup();
    all
}
