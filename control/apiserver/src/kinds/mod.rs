//! The built-in kinds: `<group>/<kind>.rs` is all that the API server knows of one kind besides its fields, which are in
//! `types`. `shared` is what several have in common.
//!
//! Imports `apiserver`, never the other way round.

mod admissionregistration;
pub(crate) mod apiextensions;
mod apiregistration;
mod apps;
mod authentication;
mod authorization;
mod autoscaling;
mod batch;
mod certificates;
pub(crate) mod coordination;
pub(crate) mod core;
pub mod descriptions;
mod discovery;
mod effects;
mod events;
mod flowcontrol;
mod metrics;
mod networking;
mod node;
mod policy;
pub(crate) mod priorities;
mod rbac;
mod resource;
pub(crate) mod scheduling;
pub(crate) mod shared;
mod storage;
pub mod types;

#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

use windlass_identity::service_account_tokens::TokenIssuer;

use crate::{
    apiserver::{KubeletClient, types::Definition},
    metrics::Usage,
    store::{self, Engine, Index, ResourceOptions, Store},
};
use core::service::ServiceAllocator;

/// What kinds need besides their objects.
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
    /// The node of this process enforces NetworkPolicies.
    pub(crate) network_policies: bool,
    /// Usage is served as `metrics.k8s.io`.
    pub(crate) metrics_api: bool,
}

/// Each node watches its own pods, so that a written pod must not be decoded for each node.
const POD_NODE: &str = "spec.nodeName";

/// The indexed field of namespaces: every new object in one asks for it.
pub(crate) const NAMESPACE_PHASE: &str = "status.phase";

/// Opens a store with the resources whose writes may reach the disk later, and with indexes; others are registered when
/// they are served.
///
/// # Errors
/// When the engine cannot be read.
pub(crate) fn open_store(engine: Box<dyn Engine>) -> Result<Store, store::Error> {
    let of = |name, relaxed_durability| (name, ResourceOptions { relaxed_durability, ..ResourceOptions::default() });
    let pods = ResourceOptions { indexes: vec![Index::new(POD_NODE)], ..ResourceOptions::default() };
    let namespaces = ResourceOptions { indexes: vec![Index::new(NAMESPACE_PHASE)], ..ResourceOptions::default() };
    let resources = [
        of("events", core::event::DURABILITY),
        of("leases.coordination.k8s.io", coordination::lease::DURABILITY),
        ("pods", pods),
        ("namespaces", namespaces),
    ];
    Store::open(engine, &resources)
}

/// The stored resources of the groups from `autoscaling` on.
fn of_groups(allocator: &ServiceAllocator) -> Vec<Definition> {
    vec![
        autoscaling::horizontal_pod_autoscaler::definition(),
        batch::cron_job::definition(),
        batch::job::definition(),
        certificates::certificate_signing_request::definition(),
        networking::ingress_class::definition(),
        networking::ingress::definition(),
        networking::ip_address::definition(allocator.ip_addresses()),
        networking::network_policy::definition(),
        networking::service_cidr::definition(allocator.service_cidrs()),
        policy::pod_disruption_budget::definition(),
        rbac::bindings::cluster_role_binding(),
        rbac::roles::cluster_role(),
        rbac::bindings::role_binding(),
        rbac::roles::role(),
        storage::csi_driver::definition(),
        storage::csi_node::definition(),
        storage::csi_storage_capacity::definition(),
        storage::storage_class::definition(),
        storage::volume_attachment::definition(),
        storage::volume_attributes_class::definition(),
        admissionregistration::policies::mutating(),
        admissionregistration::bindings::mutating(),
        admissionregistration::webhooks::mutating(),
        admissionregistration::policies::validating(),
        admissionregistration::bindings::validating(),
        admissionregistration::webhooks::validating(),
        apiextensions::custom_resource_definition::definition(),
        scheduling::priority_class::definition(),
        coordination::lease::definition(),
        node::runtime_class::definition(),
        discovery::endpoint_slice::definition(),
        resource::device_class::definition(),
        resource::claims::claim(),
        resource::claims::template(),
        resource::resource_slice::definition(),
        flowcontrol::flow_schema::definition(),
        flowcontrol::priority_level_configuration::definition(),
    ]
}

/// The built-in resources, in the order of discovery.
pub(crate) fn definitions(environment: &Environment) -> Vec<Definition> {
    let Environment { store, allocator, kubelet, tokens, max_token_seconds, usage, network_policies, metrics_api } =
        environment;
    let mut all = vec![
        core::pod::binding::definition(),
        core::component_status::definition(),
        core::config_map::definition(),
        core::endpoints::definition(),
        core::event::definition(),
        core::limit_range::definition(),
        core::namespace::definition(),
        core::node::definition(kubelet.clone()),
        core::persistent_volume_claim::definition(),
        core::persistent_volume::definition(),
        core::pod::definition(kubelet.clone()),
        core::pod_template::definition(),
        core::replication_controller::definition(),
        core::resource_quota::definition(),
        core::secret::definition(),
        core::service_account::definition(tokens.clone(), *max_token_seconds),
        core::service::definition(Arc::clone(allocator)),
    ];
    all.extend([
        apiregistration::api_service::definition(),
        apps::controller_revision::definition(),
        apps::daemon_set::definition(),
        apps::deployment::definition(),
        apps::replica_set::definition(),
        apps::stateful_set::definition(),
        events::event::definition(),
    ]);
    all.extend(authentication::definitions());
    all.extend(authorization::definitions());
    all.extend(of_groups(allocator));
    if *metrics_api {
        all.extend(metrics::definitions(store, usage));
    }
    effects::declare(&mut all, *network_policies);
    all
}
