//! What is served, as the documents need to know it.

use std::sync::Arc;

use serde_json::Value;

use crate::schema::NamedType;

/// Group, version and kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Gvk {
    /// Empty for the core group.
    pub group: String,
    /// The version.
    pub version: String,
    /// The kind.
    pub kind: String,
}

/// The resources of one group version.
#[derive(Debug, Clone, Default)]
pub struct GroupVersionResources {
    /// Empty for the core group.
    pub group: String,
    /// The version.
    pub version: String,
    /// The resources, in any order.
    pub resources: Vec<Resource>,
}

/// A resource in one version.
#[derive(Debug, Clone)]
pub struct Resource {
    /// The plural name in paths.
    pub plural: String,
    /// Whether objects are in namespaces.
    pub namespaced: bool,
    /// The kind of the objects.
    pub kind: String,
    /// As in discovery: `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verbs: Vec<String>,
    /// The type of the objects.
    pub model: Model,
    /// Whether a deletion answers with the object, and not with a `Status`.
    pub returns_deleted: bool,
    /// What is served below an object.
    pub subresources: Vec<Subresource>,
}

/// The type of a body.
#[derive(Debug, Clone)]
pub enum Model {
    /// A type of the tables.
    BuiltIn(Arc<NamedType>),
    /// A version of a CustomResourceDefinition.
    Custom {
        /// `spec.names.listKind`.
        list_kind: String,
        /// The version's `openAPIV3Schema`; `null` if it has none.
        schema: Arc<Value>,
        /// The JSON paths of `selectableFields`, as `.spec.color`.
        selectable: Vec<String>,
    },
}

/// A subresource.
#[derive(Debug, Clone)]
pub struct Subresource {
    /// `status`, `scale` and so on.
    pub name: String,
    /// As in discovery.
    pub verbs: Vec<String>,
    /// The kind that discovery and the documents name for it.
    pub gvk: Gvk,
    /// What requests and answers hold.
    pub kind: SubresourceKind,
}

/// What requests to a subresource and its answers hold.
#[derive(Debug, Clone)]
pub enum SubresourceKind {
    /// The object itself.
    Own,
    /// Another type.
    Other(Arc<NamedType>),
    /// Text, with the fields of this type as parameters: the log of a pod.
    Text(Arc<NamedType>),
    /// A connection, with the fields of this type as parameters.
    Connect {
        /// The options.
        options: Arc<NamedType>,
        /// Whether a path may follow, as of a proxy.
        has_path: bool,
    },
}
