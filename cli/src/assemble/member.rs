//! A node of an existing cluster: its API client, its certificates, its agent and proxy.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::Context as _;
use kube::Client;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_agent::{
    certificates::{CertificateManager, CertificateTemplate, Purpose},
    metrics::Metrics,
};
use windlass_kit::{
    announced_pod::{self, Announcements},
    client::{Access, Limits},
    serve::Tls,
    supervise::Supervisor,
};
use windlass_proxy::NetworkPolicies;

use super::{
    AgentAccess, Node, STUCK_AFTER, api_servers, build_agent,
    credentials::{self, Source},
    kubeconfig_watch,
    serving::ServingCertificate,
    start_agent, start_proxy,
};
use crate::{
    config::{
        PodNetwork, Settings,
        connect::{access_of, install_crypto, unusable},
        proxy::valid_proxy_config,
    },
    join::cluster::missing_policy_rights,
    systemd::Liveness,
};

/// The interval at which certificate files are reread.
const POLL_INTERVAL: Duration = Duration::from_secs(10);
/// In the data directory: the addresses of API servers, certificates, and the node's kubeconfig unless configured.
const API_SERVERS: &str = "api-servers";
const PKI: &str = "pki";
const KUBECONFIG: &str = "kubelet.conf";

/// Starts a node of the cluster of a kubeconfig or a bootstrap kubeconfig.
pub(crate) async fn member(settings: &Settings) -> anyhow::Result<Node> {
    install_crypto();
    std::fs::create_dir_all(&settings.data_dir)
        .with_context(|| format!("the directory {} could not be created", settings.data_dir.display()))?;
    let cluster_access = &settings.cluster_access;
    let kubeconfig = cluster_access.kubeconfig.clone().unwrap_or_else(|| settings.data_dir.join(KUBECONFIG));
    let source = Source { kubeconfig, bootstrap: cluster_access.bootstrap_kubeconfig.clone() };
    let config = source.cluster().await?;
    let no_certificate = "this node has no certificate of the cluster yet";
    let access = Access::without_credentials(&config, no_certificate, &cluster_access.server_urls())?;
    let client = access.client(Limits::DEFAULT);
    let pki = settings.data_dir.join(PKI);
    let metrics: Arc<Metrics> = Arc::default();
    let mut tasks = Supervisor::new(CancellationToken::new());
    start_credentials(settings, config, &source, &access, &pki, &metrics, &mut tasks)?;

    let mut serving = ServingCertificate::open(settings, &source, &access, pki, &metrics)?;
    let pems = serving.pems()?;
    log_client_authority(cluster_access.client_ca_file.as_deref(), pems.client_ca.is_some(), &source.present());
    let tls = Tls::new(pems)?;
    let mut liveness = Liveness::new(STUCK_AFTER);
    let announcements = if enforces_policies(settings)? { Some(announced_pod::channel()) } else { None };
    let (announcer, announcements) = announcements.unzip();
    let agent_access = AgentAccess {
        client: client.clone(),
        heartbeat: access.client(Limits::HEARTBEAT),
        tls: tls.clone(),
        client_ca: cluster_access.client_ca_file.as_deref(),
        in_process: None,
        announcer,
        metrics,
    };
    let agent = build_agent(settings, agent_access, &mut liveness, &tasks).await?;
    serving.start(agent.node.clone(), &mut tasks);
    start_agent(settings, agent, &mut tasks).await?;
    let reread = tls.follow(move || serving.pems().map_err(|e| format!("{e:#}")), POLL_INTERVAL, tasks.token());
    tasks.spawn("certificates", reread);
    let file = settings.data_dir.join(API_SERVERS);
    tasks.forever("API servers", api_servers::watch(access, client.clone(), file, tasks.token()));
    if settings.network == PodNetwork::Routed && announcements.is_none() {
        tracing::warn!(
            "NetworkPolicies have no effect on this node: a node of a cluster enforces them on the built-in pod network with enforceNetworkPolicies alone, whose rights docs/operations.md has; use that or CNI plugins where you rely on them"
        );
    }
    if !cluster_access.no_proxy {
        let as_proxy = proxy_client(settings, &client, &mut tasks).await?;
        let policies = announcements.map(|announcements| network_policies(&as_proxy, announcements));
        start_proxy(valid_proxy_config(settings)?, as_proxy, policies, &liveness, &mut tasks);
    }
    Ok(Node { tasks, liveness: Some(liveness), plane: None, dns_ready: None })
}

/// Starts what maintains the node's client credentials: the certificate manager, or a watch of the kubeconfig.
fn start_credentials(
    settings: &Settings,
    config: kube::Config,
    source: &Source,
    access: &Access,
    pki: &Path,
    metrics: &Arc<Metrics>,
    tasks: &mut Supervisor,
) -> anyhow::Result<()> {
    if !source.is_managed(&config, &settings.node_name)? {
        access.replace(config).with_context(|| unusable(&source.kubeconfig))?;
        let watching = kubeconfig_watch::watch(access.clone(), source.kubeconfig.clone(), tasks.token());
        tasks.forever("credentials", watching);
        return Ok(());
    }
    let clients = credentials::client_provider(access.clone(), source.bootstrap.clone());
    let rotate = settings.cluster_access.rotate_certificates;
    let manager = CertificateManager::open(pki, Purpose::Client, clients, rotate, Arc::clone(metrics));
    let manager = manager.with_context(|| format!("the certificates in {} cannot be used", pki.display()))?;
    // Set before the manager starts, so that it requests no certificate that exists.
    let existing = watch::Sender::new(credentials::client_certificate(&config).ok().flatten());
    let template = watch::Sender::new(Some(CertificateTemplate::client(&settings.node_name)));
    let (pairs, file) = (manager.pairs(), manager.current_path());
    let managing = manager.run(template.subscribe(), existing.subscribe(), tasks.token());
    tasks.forever("client certificate", async move {
        managing.await;
        drop(template);
    });
    let syncing = credentials::sync(access.clone(), source.clone(), pairs, existing, file, tasks.token());
    tasks.forever("credentials", syncing);
    Ok(())
}

/// Logs how the clients of the node's API are authenticated.
fn log_client_authority(client_ca_file: Option<&Path>, has_authority: bool, kubeconfig: &Path) {
    match client_ca_file {
        Some(file) => {
            tracing::info!(file = %file.display(), "node API authenticates clients by certificates of this CA file, or by tokens");
        }
        None if has_authority => {
            tracing::info!(file = %kubeconfig.display(), "node API authenticates clients by certificates of this kubeconfig's CA, or by tokens");
        }
        None => {
            tracing::warn!(file = %kubeconfig.display(), "node API authenticates clients by tokens only, since the kubeconfig has no CA and --client-ca-file is not set: requests of kube-apiserver for kubectl logs and exec are rejected");
        }
    }
}

/// Whether this node enforces NetworkPolicies.
///
/// # Errors
/// When it is to and cannot: pods would run without what they rely on.
fn enforces_policies(settings: &Settings) -> anyhow::Result<bool> {
    let access = &settings.cluster_access;
    if access.enforce_network_policies {
        anyhow::ensure!(
            settings.network == PodNetwork::Routed,
            "enforceNetworkPolicies is for the built-in pod network (network: routed); CNI plugins enforce NetworkPolicies themselves"
        );
        anyhow::ensure!(
            !access.no_proxy,
            "enforceNetworkPolicies needs the service proxy of this process, which noProxy turns off"
        );
    }
    Ok(access.enforce_network_policies)
}

/// What enforcing NetworkPolicies needs; logs whether these credentials suffice for it. If they do not, pods with a network
/// of their own do not start before the rights are granted.
fn network_policies(client: &Client, announcements: Announcements) -> NetworkPolicies {
    let reviewed = client.clone();
    tokio::spawn(async move {
        match missing_policy_rights(&reviewed).await {
            Ok(missing) if missing.is_empty() => tracing::info!("NetworkPolicies are enforced on this node"),
            Ok(missing) => tracing::error!(
                missing = missing.join(", "),
                "no pod with a network of its own starts on this node: its credentials do not allow to read what NetworkPolicies depend on; grant the ClusterRole of docs/operations.md, or turn enforceNetworkPolicies off"
            ),
            Err(error) => tracing::warn!(
                error = windlass_kit::client::message(&error),
                "failed to review the rights that enforcing NetworkPolicies needs; pods start once policies, namespaces and pods can be listed"
            ),
        }
    });
    NetworkPolicies { client: client.clone(), announcements }
}

/// The proxy's client. A node's rights do not suffice for services, which need EndpointSlices.
async fn proxy_client(settings: &Settings, node: &Client, tasks: &mut Supervisor) -> anyhow::Result<Client> {
    let Some(file) = &settings.registration.proxy_kubeconfig else { return Ok(node.clone()) };
    let access = Access::new(access_of(file).await?).with_context(|| unusable(file))?;
    let watching = kubeconfig_watch::watch(access.clone(), file.clone(), tasks.token());
    tasks.forever("credentials of the proxy", watching);
    Ok(access.client(Limits::DEFAULT))
}
