//! The types that Rust clients decode, for tests: whatever is stored and served can be read as its own type.

use k8s_openapi::{
    api::{
        coordination::v1 as coordination, core::v1 as core, discovery::v1 as discovery, events::v1 as events,
        node::v1 as node, storage::v1 as storage,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1 as extensions,
};

type Decode = fn(&[u8]) -> Result<(), serde_json::Error>;

fn of<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<(), serde_json::Error> {
    windlass_kit::json::from_slice::<T>(bytes).map(drop)
}

/// `apiVersion` and kind of every stored type, and its decoder.
const TYPES: &[(&str, &str, Decode)] = &[
    ("v1", "ConfigMap", of::<core::ConfigMap>),
    ("v1", "Endpoints", of::<core::Endpoints>),
    ("v1", "Event", of::<core::Event>),
    ("v1", "Namespace", of::<core::Namespace>),
    ("v1", "Node", of::<core::Node>),
    ("v1", "PersistentVolumeClaim", of::<core::PersistentVolumeClaim>),
    ("v1", "PersistentVolume", of::<core::PersistentVolume>),
    ("v1", "Pod", of::<core::Pod>),
    ("v1", "ReplicationController", of::<core::ReplicationController>),
    ("v1", "Secret", of::<core::Secret>),
    ("v1", "ServiceAccount", of::<core::ServiceAccount>),
    ("v1", "Service", of::<core::Service>),
    ("coordination.k8s.io/v1", "Lease", of::<coordination::Lease>),
    ("discovery.k8s.io/v1", "EndpointSlice", of::<discovery::EndpointSlice>),
    ("node.k8s.io/v1", "RuntimeClass", of::<node::RuntimeClass>),
    ("storage.k8s.io/v1", "StorageClass", of::<storage::StorageClass>),
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition", of::<extensions::CustomResourceDefinition>),
    ("events.k8s.io/v1", "Event", of::<events::Event>),
];

/// Decodes an object of a built-in kind as a client does.
///
/// # Errors
/// Why it cannot be decoded; also of a kind that has no decoder here.
pub(crate) fn decode(api_version: &str, kind: &str, bytes: &[u8]) -> Result<(), String> {
    let of = TYPES.iter().find(|(of, known, _)| (*of, *known) == (api_version, kind));
    let (_, _, decode) = of.ok_or_else(|| format!("{api_version} {kind} has no decoder"))?;
    decode(bytes).map_err(|error| error.to_string())
}
