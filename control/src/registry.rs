//! The table of resource types that the API serves: a new type is one entry here.
//!
//! What depends on the kind beyond this table (columns, defaults, validation, schema) is looked up by kind
//! in `table` and `schema`; handlers in `api` know no kind by name, except where upstream's own API has a
//! subresource of one kind only.

use schemars::{Schema, SchemaGenerator};

use crate::{
    metrics::{NodeMetrics, PodMetrics},
    store::{Deferred, StoredType},
};

/// What an object is: its API group (empty for core), version and kind.
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
    /// The name in paths.
    pub plural: &'static str,
    /// The name for one.
    pub singular: &'static str,
    /// What people type instead.
    pub short_names: &'static [&'static str],
    /// Lives in a namespace.
    pub namespaced: bool,
    /// `all` for what `kubectl get all` shows.
    pub categories: &'static [&'static str],
    /// Beside the object itself.
    pub subresources: &'static [&'static str],
    /// A PUT to a name that is free makes the object.
    pub create_on_update: bool,
    /// A PUT without a resource version is refused.
    pub conditional_update: bool,
    /// What becomes of dependents when a deletion does not say.
    pub gc: GcPolicy,
    /// A deletion that is over at once is answered with the object, and not with a Success.
    pub returns_deleted: bool,
    /// Counts changes of its spec.
    pub generation: bool,
    /// Which writes may reach the disk a few seconds later: those that nobody decides by, and that come again anyway.
    pub deferred: Deferred,
    /// What can be done with the type.
    pub verbs: &'static [&'static str],
    /// The schema, from the published API description.
    pub schema: fn(&mut SchemaGenerator) -> Schema,
    /// Whether bytes can be read as the type that clients read them as.
    pub readable: fn(&[u8]) -> Result<(), serde_json::Error>,
}

/// The garbage collection policy of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GcPolicy {
    /// Dependents are deleted in the background.
    Background,
    /// Dependents are left behind.
    Orphan,
    /// The type has no dependents, whatever a deletion says.
    Unsupported,
}

impl ResourceType {
    /// The name that the store keeps it under, and that errors show: `leases.coordination.k8s.io`.
    #[must_use]
    pub fn qualified(&self) -> &'static str {
        // One string for each type for the life of the process.
        static NAMES: std::sync::OnceLock<Vec<(Gvk, String)>> = std::sync::OnceLock::new();
        let names = NAMES.get_or_init(|| {
            let name = |t: &ResourceType| {
                if t.gvk.group.is_empty() { t.plural.to_owned() } else { format!("{}.{}", t.plural, t.gvk.group) }
            };
            all().map(|t| (t.gvk, name(t))).collect()
        });
        names.iter().find(|(gvk, _)| *gvk == self.gvk).map_or("", |(_, name)| name)
    }

    /// The kind with its group, as validation errors name it: `Deployment.apps`.
    #[must_use]
    pub fn qualified_kind(&self) -> String {
        if self.gvk.group.is_empty() {
            self.gvk.kind.to_owned()
        } else {
            format!("{}.{}", self.gvk.kind, self.gvk.group)
        }
    }

    /// Has a status that only `/status` writes.
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

macro_rules! readable {
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

/// What most types have in common.
const BASE: ResourceType = ResourceType {
    gvk: core(""),
    plural: "",
    singular: "",
    short_names: &[],
    namespaced: true,
    categories: &[],
    subresources: &[],
    create_on_update: false,
    conditional_update: false,
    gc: GcPolicy::Background,
    returns_deleted: false,
    generation: false,
    deferred: Deferred::Never,
    verbs: &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
    schema: schema!(core::Pod),
    readable: readable!(core::Pod),
};

/// The types that are stored, in the order in which discovery tells them.
pub static TYPES: &[ResourceType] = &[
    ResourceType {
        gvk: core("ConfigMap"),
        plural: "configmaps",
        singular: "configmap",
        short_names: &["cm"],
        schema: schema!(core::ConfigMap),
        readable: readable!(core::ConfigMap),
        ..BASE
    },
    ResourceType {
        gvk: core("Endpoints"),
        plural: "endpoints",
        singular: "endpoints",
        short_names: &["ep"],
        create_on_update: true,
        schema: schema!(core::Endpoints),
        readable: readable!(core::Endpoints),
        ..BASE
    },
    ResourceType {
        gvk: core("Event"),
        plural: "events",
        singular: "event",
        short_names: &["ev"],
        create_on_update: true,
        deferred: Deferred::Always,
        gc: GcPolicy::Unsupported,
        schema: schema!(core::Event),
        readable: readable!(core::Event),
        ..BASE
    },
    ResourceType {
        gvk: core("Namespace"),
        plural: "namespaces",
        singular: "namespace",
        short_names: &["ns"],
        namespaced: false,
        subresources: &["finalize", "status"],
        // Not all at once: with them goes everything that the cluster holds.
        verbs: &["create", "delete", "get", "list", "patch", "update", "watch"],
        schema: schema!(core::Namespace),
        readable: readable!(core::Namespace),
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
        readable: readable!(core::Node),
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
        readable: readable!(core::PersistentVolumeClaim),
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
        readable: readable!(core::PersistentVolume),
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
        readable: readable!(core::Pod),
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
        readable: readable!(core::ReplicationController),
        ..BASE
    },
    ResourceType {
        gvk: core("Secret"),
        plural: "secrets",
        singular: "secret",
        schema: schema!(core::Secret),
        readable: readable!(core::Secret),
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
        readable: readable!(core::ServiceAccount),
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
        readable: readable!(core::Service),
        ..BASE
    },
    ResourceType {
        gvk: Gvk { group: "coordination.k8s.io", version: "v1", kind: "Lease" },
        plural: "leases",
        singular: "lease",
        create_on_update: true,
        conditional_update: true,
        // Heartbeats of nodes; a lease elsewhere says who leads, and must not be given back by a crash.
        deferred: Deferred::In("kube-node-lease"),
        schema: schema!(coordination::Lease),
        readable: readable!(coordination::Lease),
        ..BASE
    },
    ResourceType {
        gvk: Gvk { group: "discovery.k8s.io", version: "v1", kind: "EndpointSlice" },
        plural: "endpointslices",
        singular: "endpointslice",
        generation: true,
        schema: schema!(discovery::EndpointSlice),
        readable: readable!(discovery::EndpointSlice),
        ..BASE
    },
    ResourceType {
        gvk: Gvk { group: "node.k8s.io", version: "v1", kind: "RuntimeClass" },
        plural: "runtimeclasses",
        singular: "runtimeclass",
        namespaced: false,
        create_on_update: true,
        conditional_update: true,
        schema: schema!(node::RuntimeClass),
        readable: readable!(node::RuntimeClass),
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
        readable: readable!(storage::StorageClass),
        ..BASE
    },
];

/// The group of [`COMPUTED`].
pub const METRICS: &str = "metrics.k8s.io";

/// The types whose objects are made as they are asked for.
pub static COMPUTED: &[ResourceType] = &[
    ResourceType {
        gvk: Gvk { group: METRICS, version: "v1beta1", kind: "NodeMetrics" },
        plural: "nodes",
        namespaced: false,
        verbs: &["get", "list"],
        schema: schema!(NodeMetrics),
        // Never stored.
        readable: |_| Ok(()),
        ..BASE
    },
    ResourceType {
        gvk: Gvk { group: METRICS, version: "v1beta1", kind: "PodMetrics" },
        plural: "pods",
        verbs: &["get", "list"],
        schema: schema!(PodMetrics),
        // Never stored.
        readable: |_| Ok(()),
        ..BASE
    },
];

/// The types as the store takes them.
#[must_use]
pub fn stored() -> Vec<StoredType> {
    TYPES.iter().map(|t| StoredType { name: t.qualified(), deferred: t.deferred }).collect()
}

/// All types, stored and computed.
pub fn all() -> impl Iterator<Item = &'static ResourceType> {
    TYPES.iter().chain(COMPUTED)
}

/// The type of a path's group, version and plural name.
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
