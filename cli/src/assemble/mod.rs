//! Joins the parts of a process: control plane, agent, proxy and cadvisor. Each builds itself from its own
//! configuration and a client of the Kubernetes API, and knows nothing of the others; only this module imports several.

mod api_servers;
mod credentials;
mod envtest;
mod kubeconfig_watch;
mod member;
mod readiness;
mod serving;
mod standalone;
mod teardown;
mod usage;

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::Context as _;
use kube::Client;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_agent::{Agent, AgentInputs, metrics::Metrics};
use windlass_control::ControlPlane;
use windlass_kit::{
    announced_pod::Announcer,
    blocking::RULES,
    client::{Access, Limits},
    serve::{InProcessListener, Tls},
    supervise::Supervisor,
};
use windlass_proxy as proxy;

pub(crate) use envtest::api_server;
pub(crate) use member::member;
pub(crate) use readiness::{NodeReadiness, Started, Waiter, WatchedNode};
pub(crate) use standalone::standalone;
pub(crate) use teardown::{PURGE_MARK, has_control_plane, is_being_purged, is_data_dir, remove_rules, tear_down};

use crate::{
    config::{
        Settings,
        agent::agent_config,
        connect::{access_of, install_crypto},
        proxy::proxy_config,
    },
    systemd::{Liveness, NodeParts},
};

/// How long tasks have to end.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
/// A loop without a heartbeat for longer is stuck; requests to a remote API time out long before.
const STUCK_AFTER: Duration = Duration::from_secs(300);

/// The running parts of this process.
pub(crate) struct Node {
    tasks: Supervisor,
    liveness: Option<Liveness>,
    /// The control plane of this process, whose store outlives the tasks.
    plane: Option<ControlPlane>,
    /// Whether the cluster's DNS of this process has its records.
    dns_ready: Option<watch::Receiver<bool>>,
}

impl Node {
    /// Waits until a task fails or ends, which none may, and returns why.
    pub(crate) async fn failed(&mut self) -> anyhow::Error {
        match self.tasks.next_ended().await {
            Some(ended) => match ended.result {
                Ok(()) => anyhow::anyhow!("the {} task ended unexpectedly", ended.name),
                Err(why) => anyhow::anyhow!("the {} task failed: {why}", ended.name),
            },
            None => anyhow::anyhow!("no task is running"),
        }
    }

    /// That all parts run, which they do since this exists; once.
    pub(crate) fn started(&mut self) -> Option<Started> {
        self.liveness.take().map(Started::new)
    }

    /// A waiter for the node's readiness, independent of the tasks.
    pub(crate) fn waiter(&self) -> Waiter {
        let node = self.liveness.as_ref().and_then(|liveness| liveness.node.as_ref());
        Waiter { node: node.map(|parts| parts.object.clone()), dns_ready: self.dns_ready.clone() }
    }

    /// Ends all tasks; containers and rules stay.
    pub(crate) async fn shutdown(&mut self) {
        if !self.tasks.shutdown(SHUTDOWN_TIMEOUT).await {
            tracing::warn!(seconds = SHUTDOWN_TIMEOUT.as_secs(), "some tasks did not end in time");
        }
        if let Some(plane) = &self.plane
            && let Err(error) = plane.close().await
        {
            tracing::error!(%error, "failed to write the latest leases and events to disk");
        }
    }
}

/// The service proxy alone.
pub(crate) async fn proxy_alone(
    config: proxy::ValidConfig,
    kubeconfig: Option<&Path>,
    master: Option<&str>,
) -> anyhow::Result<Node> {
    install_crypto();
    let mut api = match kubeconfig {
        Some(file) => access_of(file).await?,
        None => kube::Config::incluster().context("no --kubeconfig was given, and this is no pod with credentials")?,
    };
    if let Some(url) = master {
        api.cluster_url = url.parse().with_context(|| format!("--master {url:?} is not a URL"))?;
    }
    let access = Access::new(api)?;
    let client = access.client(Limits::DEFAULT);
    let mut tasks = Supervisor::new(CancellationToken::new());
    // The client itself rereads a pod's credentials.
    if let (Some(file), None) = (kubeconfig, master) {
        tasks.forever("credentials", kubeconfig_watch::watch(access, file.to_owned(), tasks.token()));
    }
    let liveness = Liveness::new(STUCK_AFTER);
    start_proxy(config, client, None, &liveness, &mut tasks);
    Ok(Node { tasks, liveness: Some(liveness), plane: None, dns_ready: None })
}

/// Starts the service proxy, which with `policies` enforces NetworkPolicies, too.
fn start_proxy(
    config: proxy::ValidConfig,
    client: Client,
    policies: Option<proxy::NetworkPolicies>,
    liveness: &Liveness,
    tasks: &mut Supervisor,
) {
    tasks.spawn("service proxy", proxy::run(client, config, policies, liveness.heartbeats.clone(), tasks.token()));
}

/// The agent's connections to the API and of its clients.
struct AgentAccess<'a> {
    client: Client,
    /// For the lease and the status.
    heartbeat: Client,
    tls: Tls,
    /// The file of the authority of the node API's clients, if any.
    client_ca: Option<&'a Path>,
    /// Connections from this process.
    in_process: Option<InProcessListener>,
    /// Whom pods are announced to, where NetworkPolicies are enforced.
    announcer: Option<Announcer>,
    metrics: Arc<Metrics>,
}

/// Builds the agent; its ports are bound before anything is changed on the machine.
async fn build_agent(
    settings: &Settings,
    access: AgentAccess<'_>,
    liveness: &mut Liveness,
    tasks: &Supervisor,
) -> anyhow::Result<Agent> {
    if let Some(address) = settings.stats_bind.filter(|address| !address.ip().is_loopback()) {
        tracing::warn!(
            %address,
            "the read-only port is reachable from other machines and serves usage, pods and images without authentication; set statsBindAddress to 127.0.0.1:10255, or to nothing"
        );
    }
    let inputs = AgentInputs {
        client: access.client,
        heartbeat: access.heartbeat,
        tls: access.tls,
        in_process: access.in_process,
        heartbeats: liveness.heartbeats.clone(),
        announcer: access.announcer,
        metrics: access.metrics,
    };
    let agent = Agent::build(agent_config(settings, access.client_ca)?, inputs, &tasks.token()).await?;
    liveness.node = Some(NodeParts {
        docker: agent.engine_health.clone(),
        pods: agent.pods.clone(),
        object: agent.reported_node.clone(),
    });
    Ok(agent)
}

/// Starts the agent, after the tables have been recorded as they were before the first rule, for cleanup.
async fn start_agent(settings: &Settings, agent: Agent, tasks: &mut Supervisor) -> anyhow::Result<()> {
    let config = proxy_config(settings);
    RULES.call(move || proxy::snapshot_tables(&config)).await??;
    agent.start(tasks).await;
    Ok(())
}
