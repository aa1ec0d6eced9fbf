//! The controllers of the embedded control plane. Each is a pure decision in its own file and a thin loop, a
//! `runtime::Controller`, over shared informers; they know a `kube::Client` and nothing of the store, the API server, the
//! agent, the proxy or each other.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::{apps::v1::ReplicaSet, core::v1::ReplicationController};
use kube::Client;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_identity::{pki::ClusterSigner, service_account_tokens::TokenIssuer};
use windlass_kit::metrics::Registry;

mod bootstrap_tokens;
mod certificates;
mod cluster_role_aggregation;
mod cron_job;
mod daemon_set;
mod deployment;
mod disruption;
mod endpoints;
mod finalizers;
mod finished_jobs;
mod gauges;
mod gc;
mod history;
mod horizontal_pod_autoscaler;
mod indexes;
mod job;
mod legacy_tokens;
mod local_path;
pub mod manifests;
mod namespaces;
mod nodes;
mod persistent_volumes;
mod pod_control;
mod pods;
mod replication;
mod resource_claims;
mod resource_quotas;
mod runtime;
mod service_account_tokens;
mod service_accounts;
mod service_addresses;
mod service_load_balancer;
mod stateful_set;
mod storage;
mod template_hash;
#[cfg(test)]
mod tests;
mod ttl_after_finished;
mod volume_attributes_classes;
mod volume_expansion;
pub use local_path::Place as LocalPath;
pub use nodes::WriteStalls;
pub use runtime::Error;
pub(crate) use runtime::rest_mapper;

use bootstrap_tokens::{BootstrapSigner, BootstrapTokenCleaner};
use certificates::{CertificateApprover, CertificateCleaner, CertificateSigner};
use cluster_role_aggregation::ClusterRoleAggregationController;
use cron_job::CronJobController;
use daemon_set::DaemonSetController;
use deployment::DeploymentController;
use disruption::{DisruptionController, StalePodDisruptionController};
use endpoints::{EndpointSliceMirroringController, EndpointsController};
use gc::GarbageCollector;
use horizontal_pod_autoscaler::HorizontalController;
use job::{JobController, OrphanPodController};
use legacy_tokens::LegacyTokenCleaner;
use local_path::LocalPathProvisioner;
use namespaces::NamespaceController;
use nodes::{
    NodeIpamController, NodeLifecycleController, PodGcController, Ranges, TaintEvictionController, Timing,
    TtlController,
};
use persistent_volumes::PersistentVolumeController;
use replication::ReplicaSetController;
use resource_claims::ResourceClaimController;
use resource_quotas::ResourceQuotaController;
use runtime::Controllers;
use service_account_tokens::{TokensConfig, TokensController};
use service_accounts::ServiceAccountsController;
use service_addresses::{ServiceAddressRepairController, ServiceCidrController};
use service_load_balancer::ServiceLoadBalancerController;
use stateful_set::StatefulSetController;
use ttl_after_finished::TtlAfterFinishedController;
use volume_attributes_classes::VolumeAttributesClassController;
use volume_expansion::ExpandController;

/// Configuration of the controllers.
#[derive(Debug, Clone)]
pub struct Config {
    /// The range of all pods; `10.244.0.0/16`, or two ranges with a comma for both families.
    pub cluster_cidr: String,
    /// Prefix length of one node's part of an IPv4 cluster range.
    pub node_mask_v4: u8,
    /// Prefix length of one node's part of an IPv6 cluster range.
    pub node_mask_v6: u8,
    /// The CA certificates (PEM) that every namespace gets as ConfigMap `kube-root-ca.crt`, also when they change; empty
    /// for none.
    pub root_ca: watch::Receiver<String>,
    /// Signs requests for certificates; `None` where the CA's key is elsewhere.
    pub signer: Option<ClusterSigner>,
    /// Signs tokens for secrets; `None` for none.
    pub tokens: Option<Arc<TokenIssuer>>,
    /// Grace period of a node's heartbeats until it counts as not ready (upstream: 50 s).
    pub node_grace: Duration,
    /// The same for a node that has never reported (upstream: 60 s).
    pub node_startup_grace: Duration,
    /// The time in which the API could write nothing, which is not counted as a node's silence.
    pub write_stalls: WriteStalls,
    /// Where volumes of the storage class `local-path` are made; `None` for nowhere.
    pub local_path: Option<LocalPath>,
    /// The ports of the node's own servers, which no load balancer gets; `None` for no load balancers.
    pub service_load_balancer: Option<Vec<u16>>,
    /// Changes whenever the API serves other types; without it, discovery is repeated every 30 s.
    pub served_types: Option<watch::Receiver<u64>>,
    /// Where metrics of work queues and informers are written.
    pub metrics: Registry,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cluster_cidr: "10.244.0.0/16".to_owned(),
            node_mask_v4: 24,
            node_mask_v6: 64,
            root_ca: watch::Sender::new(String::new()).subscribe(),
            signer: None,
            tokens: None,
            node_grace: Duration::from_secs(50),
            node_startup_grace: Duration::from_secs(60),
            write_stalls: WriteStalls::default(),
            local_path: None,
            service_load_balancer: None,
            served_types: None,
            metrics: Registry::default(),
        }
    }
}

/// Runs all controllers until `shutdown`.
///
/// Failed requests and watches are logged and retried with back-off; a controller that panics is started again.
///
/// # Errors
/// When the cluster CIDR is invalid.
pub async fn run(client: Client, config: Config, shutdown: CancellationToken) -> Result<(), Error> {
    let ranges = Ranges::parse_all(&config.cluster_cidr, config.node_mask_v4, config.node_mask_v6)?;
    let timing =
        Timing { grace: config.node_grace, startup_grace: config.node_startup_grace, stalls: config.write_stalls };
    let mut controllers = Controllers::new(client, config.served_types, &config.metrics, shutdown);
    controllers.add::<GarbageCollector>(());
    controllers.add::<NamespaceController>(());
    if let Some(issuer) = config.tokens {
        controllers.add::<TokensController>(TokensConfig { issuer, root_ca: config.root_ca.clone() });
    }
    controllers.add::<ServiceAccountsController>(config.root_ca);
    controllers.add::<LegacyTokenCleaner>(());
    controllers.add::<BootstrapSigner>(());
    controllers.add::<BootstrapTokenCleaner>(());
    controllers.add::<ReplicaSetController<ReplicationController>>(());
    controllers.add::<JobController>(());
    controllers.add::<OrphanPodController>(());
    controllers.add::<CronJobController>(());
    controllers.add::<TtlAfterFinishedController>(());
    controllers.add::<ReplicaSetController<ReplicaSet>>(());
    controllers.add::<DeploymentController>(());
    controllers.add::<StatefulSetController>(());
    controllers.add::<DaemonSetController>(());
    controllers.add::<DisruptionController>(());
    controllers.add::<StalePodDisruptionController>(());
    controllers.add::<HorizontalController>(jiff::Timestamp::now);
    controllers.add::<ClusterRoleAggregationController>(());
    controllers.add::<CertificateApprover>(());
    controllers.add::<CertificateCleaner>(());
    if let Some(signer) = config.signer {
        controllers.add::<CertificateSigner>(signer);
    }
    controllers.add::<EndpointsController>(());
    controllers.add::<EndpointSliceMirroringController>(());
    controllers.add::<PersistentVolumeController>(());
    if let Some(place) = config.local_path {
        controllers.add::<LocalPathProvisioner>(place);
    }
    controllers.add::<ExpandController>(());
    controllers.add::<VolumeAttributesClassController>(());
    controllers.add::<ResourceClaimController>(());
    controllers.add::<ResourceQuotaController>(());
    controllers.add::<ServiceCidrController>(());
    controllers.add::<ServiceAddressRepairController>(());
    if let Some(reserved) = config.service_load_balancer {
        controllers.add::<ServiceLoadBalancerController>(reserved);
    }
    if !ranges.is_empty() {
        controllers.add::<NodeIpamController>(ranges);
    }
    controllers.add::<NodeLifecycleController>(timing);
    controllers.add::<TtlController>(());
    controllers.add::<TaintEvictionController>(());
    controllers.add::<PodGcController>(());
    controllers.run().await;
    Ok(())
}
