//! The built-in kinds: `<group>/<kind>.rs` is all that the API server knows of one kind beside its fields, which are in
//! `types`. `shared` is what several have in common.
//!
//! Imports `apiserver`, never the other way round.

pub(crate) mod apiextensions;
mod authentication;
mod authorization;
pub(crate) mod coordination;
pub(crate) mod core;
pub mod descriptions;
mod discovery;
mod events;
mod metrics;
mod node;
pub(crate) mod shared;
mod storage;
pub mod types;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::{
    apiserver::{KubeletClient, types::Definition},
    metrics::Usage,
    service_account_tokens::TokenIssuer,
    store::{self, Engine, Index, ResourceOptions, Store},
};
use core::service::ServiceAllocator;

/// What kinds need beside their objects.
#[derive(Debug)]
pub(crate) struct Environment {
    /// The store, for objects that are computed of others.
    pub(crate) store: Store,
    /// Allocates cluster IPs and node ports.
    pub(crate) allocator: Arc<ServiceAllocator>,
    /// The client of nodes; without one there are no logs and no connections to containers.
    pub(crate) kubelet: Option<KubeletClient>,
    /// The issuer of tokens.
    pub(crate) tokens: Option<Arc<TokenIssuer>>,
    /// Maximum lifetime of tokens, in seconds.
    pub(crate) max_token_seconds: Option<i64>,
    /// Samples of usage.
    pub(crate) usage: Usage,
}

/// Each node watches its own pods, so that a written pod must not be decoded for each node.
fn pods_by_node() -> Index {
    #[derive(serde::Deserialize)]
    struct Pod {
        spec: Option<Spec>,
    }
    #[derive(serde::Deserialize)]
    struct Spec {
        #[serde(rename = "nodeName")]
        node_name: Option<String>,
    }
    let extract = |object: &[u8]| {
        let pod = serde_json::from_slice::<Pod>(object).ok();
        pod.and_then(|pod| pod.spec?.node_name).unwrap_or_default()
    };
    Index { field: "spec.nodeName".into(), extract: Arc::new(extract) }
}

/// Opens a store with the resources whose writes may reach the disk later, and with indexes; others are registered when
/// they are served.
///
/// # Errors
/// When the engine cannot be read.
pub(crate) fn open_store(engine: Box<dyn Engine>) -> Result<Store, store::Error> {
    let of = |name, relaxed_durability| (name, ResourceOptions { relaxed_durability, ..ResourceOptions::default() });
    let pods = ResourceOptions { indexes: vec![pods_by_node()], ..ResourceOptions::default() };
    let resources = [
        of("events", core::event::DURABILITY),
        of("leases.coordination.k8s.io", coordination::lease::DURABILITY),
        ("pods", pods),
    ];
    Store::open(engine, &resources)
}

/// The built-in resources, in the order of discovery.
pub(crate) fn definitions(environment: &Environment) -> Vec<Definition> {
    let Environment { store, allocator, kubelet, tokens, max_token_seconds, usage } = environment;
    let mut all = vec![
        core::config_map::definition(),
        core::endpoints::definition(),
        core::event::definition(),
        core::namespace::definition(),
        core::node::definition(),
        core::persistent_volume_claim::definition(),
        core::persistent_volume::definition(),
        core::pod::definition(kubelet.clone()),
        core::replication_controller::definition(),
        core::secret::definition(),
        core::service_account::definition(tokens.clone(), *max_token_seconds),
        core::service::definition(Arc::clone(allocator)),
        coordination::lease::definition(),
        discovery::endpoint_slice::definition(),
        events::event::definition(),
        node::runtime_class::definition(),
        storage::storage_class::definition(),
        apiextensions::custom_resource_definition::definition(),
    ];
    all.extend(authentication::definitions());
    all.extend(authorization::definitions());
    all.extend(metrics::definitions(store, usage));
    all
}
