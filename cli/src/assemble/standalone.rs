//! A control plane and, by default, a node of it in one process.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use windlass_control::{Component, Config, ControlPlane};
use windlass_controllers::manifests;
use windlass_dns::ClusterDns;
use windlass_kit::{announced_pod, supervise::Supervisor};
use windlass_proxy::NetworkPolicies;

use super::{AgentAccess, Node, STUCK_AFTER, build_agent, start_agent, start_proxy, usage};
use crate::{
    config::{
        PodNetwork, Settings,
        connect::install_crypto,
        control::{control_config, controllers_config, dns_config},
        proxy::valid_proxy_config,
    },
    systemd::Liveness,
};

/// Starts the control plane and, unless `node` is false, a node of it.
pub(crate) async fn standalone(settings: &Settings, node: bool) -> anyhow::Result<Node> {
    install_crypto();
    let settings = &settings.of_standalone();
    let network_policies = node && settings.network == PodNetwork::Routed;
    let plane = ControlPlane::open(Config { network_policies, ..control_config(settings)? }).await?;
    let listeners = plane.listen().await?;
    if !settings.api_bind_addresses().any_beyond_loopback() {
        tracing::warn!(
            address = %settings.api_bind_addresses(),
            "the API listens on loopback only, so pods cannot reach it; add the node's address to apiBindAddress to change that"
        );
    }
    let dns = match dns_config(settings)? {
        Some(config) => Some(ClusterDns::bind(config).await?),
        None => None,
    };
    plane.write_kubeconfigs()?;

    let mut tasks = Supervisor::new(CancellationToken::new());
    let token = tasks.token();
    let mut liveness = Liveness::new(STUCK_AFTER);
    liveness.api = Some(plane.loopback_probe()?);
    let dns_ready = dns.as_ref().map(ClusterDns::ready);
    if let Some(dns) = dns {
        dns.register_metrics(&plane.metrics());
        let as_dns = plane.client_of(Component::Dns);
        tasks.forever("cluster DNS", dns.run(as_dns, liveness.heartbeats.clone(), token.clone()));
    }
    if node {
        start_node(settings, &plane, &mut liveness, &mut tasks).await?;
    }
    plane.start(listeners, &mut tasks);
    let as_controllers = plane.client_of(Component::Controllers);
    let own = controllers_config(settings, plane.root_ca());
    let stalled = {
        let plane = plane.clone();
        move || plane.stalled()
    };
    let config = windlass_controllers::Config {
        // Volumes of this machine are for pods of this machine.
        local_path: own.local_path.clone().filter(|_| node),
        served_types: Some(plane.served_types()),
        metrics: plane.metrics(),
        signer: plane.signer(),
        tokens: Some(Arc::new(plane.token_issuer()?)),
        write_stalls: windlass_controllers::WriteStalls::new(stalled),
        ..own
    };
    tasks.spawn("controllers", windlass_controllers::run(as_controllers, config, token.clone()));
    let as_scheduler = plane.client_of(Component::Scheduler);
    tasks.spawn("scheduler", windlass_scheduler::run(as_scheduler, plane.metrics(), token.clone()));
    let as_manifests = plane.client_of(Component::Manifests);
    tasks.spawn("manifests directory", manifests::run(as_manifests, settings.manifests_dir.clone(), token));
    Ok(Node { tasks, liveness: Some(liveness), plane: Some(plane), dns_ready })
}

/// Starts agent and proxy. The agent has a node's rights only, as it would against any API server.
async fn start_node(
    settings: &Settings,
    plane: &ControlPlane,
    liveness: &mut Liveness,
    tasks: &mut Supervisor,
) -> anyhow::Result<()> {
    let as_node = plane.client_of_node(&settings.node_name);
    let client_ca = settings.data_dir.join("pki/ca.crt");
    // CNI plugins enforce NetworkPolicies themselves.
    let (announcer, policies) = match settings.network {
        PodNetwork::Routed => {
            let (announcer, announcements) = announced_pod::channel();
            let client = plane.client_of(Component::NetworkPolicies);
            (Some(announcer), Some(NetworkPolicies { client, announcements }))
        }
        PodNetwork::Cni => (None, None),
    };
    let access = AgentAccess {
        client: as_node.clone(),
        heartbeat: as_node,
        tls: plane.node_tls(),
        client_ca: Some(&client_ca),
        in_process: Some(plane.in_process_node_listener()),
        announcer,
        metrics: Arc::default(),
    };
    let agent = build_agent(settings, access, liveness, tasks).await?;
    let usage = usage::follow(agent.usage.clone(), settings.node_name.clone(), plane.clone(), tasks.token());
    start_agent(settings, agent, tasks).await?;
    tasks.spawn("usage of this node", usage);
    start_proxy(valid_proxy_config(settings)?, plane.client_of(Component::Proxy), policies, liveness, tasks);
    Ok(())
}
