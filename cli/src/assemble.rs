//! The only file that joins the parts: control plane, agent, proxy and cadvisor, each given a client of the
//! Kubernetes API and nothing of the others.

mod access;
mod api_servers;
mod credentials;
mod member;
mod teardown;
mod usage;

use std::{
    net::Ipv4Addr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_agent::{
    self as agent, Pressure,
    engine::{Engine, strangers},
    images::{Images, ImagesConfig, Plugins},
    metrics::Metrics,
    network::{CniConfig, Network, NetworkConfig},
    node::{
        NodeConfig,
        eviction::{self, EvictionConfig},
        shutdown,
    },
    pods::{NodeHandles, Pods},
    probe_metrics::ProbeMetrics,
    server::{About, ServerConfig, ServerState, Streaming, SystemLogs},
    volumes::placed::Placed,
};
use windlass_cadvisor::Usage;
use windlass_control::{ControlPlane, api::UserInfo, controllers, manifests, scheduler};
use windlass_kit::{
    client::{Access, Limits},
    serve::{InProcessListener, Tls},
    supervise::Supervisor,
};
use windlass_proxy as proxy;

use access::access_of;
pub(crate) use access::{client_of, install_crypto};
pub(crate) use credentials::kubeconfig as node_kubeconfig;
pub(crate) use member::member;
pub(crate) use teardown::{has_control_plane, is_data_dir, remove_rules, tear_down};

use crate::{
    config::{PodNetwork, Ranges, RulesLayout, Settings, keeping::duration, told},
    systemd::Vitals,
};

/// The version that the node tells; clients expect one of Kubernetes'.
pub(crate) const NODE_VERSION: &str = windlass_control::api::VERSION;
/// How long tasks have to end.
const DRAIN: Duration = Duration::from_secs(10);
/// How long a loop may be silent before the process hangs; requests to an API that is far away end long before.
const SILENT: Duration = Duration::from_secs(300);
/// The folder of the machine's logs, as upstream's node API serves it.
const SYSTEM_LOGS: &str = "/var/log";

/// What runs.
pub(crate) struct Node {
    tasks: Supervisor,
    client: Client,
    vitals: Option<Vitals>,
    /// The control plane of this process, whose store outlives the tasks.
    plane: Option<ControlPlane>,
}

impl Node {
    /// Waits until a task ends that must not, and says which and why.
    pub(crate) async fn failed(&mut self) -> anyhow::Error {
        match self.tasks.next_ended().await {
            Some(ended) => match ended.result {
                Ok(()) => anyhow::anyhow!("the {} has ended, which it must not", ended.name),
                Err(why) => anyhow::anyhow!("the {} has failed: {why}", ended.name),
            },
            None => anyhow::anyhow!("nothing runs"),
        }
    }

    /// What shows whether it lives; once.
    pub(crate) fn vitals(&mut self) -> Option<Vitals> {
        self.vitals.take()
    }

    /// What waits for the node to be Ready, apart from the tasks.
    pub(crate) fn waiter(&self) -> Waiter {
        Waiter { client: self.client.clone() }
    }

    /// Ends all tasks; containers and rules stay.
    pub(crate) async fn shutdown(&mut self) {
        if !self.tasks.shutdown(DRAIN).await {
            tracing::warn!(seconds = DRAIN.as_secs(), "some parts did not end in time");
        }
        if let Some(plane) = &self.plane
            && let Err(error) = plane.close().await
        {
            tracing::error!(%error, "the latest heartbeats and events are not on disk");
        }
    }
}

/// Waits for the node to be Ready.
pub(crate) struct Waiter {
    client: Client,
}

impl Waiter {
    /// Waits until the API says that the node is Ready.
    pub(crate) async fn ready(&self, name: &str) {
        let api: Api<NodeObject> = Api::all(self.client.clone());
        let mut wait = Duration::from_millis(10);
        loop {
            let node = api.get_opt(name).await.ok().flatten();
            let conditions = node.and_then(|n| n.status?.conditions).unwrap_or_default();
            if conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True") {
                return;
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(Duration::from_millis(200));
        }
    }
}

fn ipv4(ranges: &Ranges, setting: &str) -> anyhow::Result<(Ipv4Addr, u8)> {
    ranges.ipv4().with_context(|| format!("{setting} {ranges} has no range of IPv4"))
}

/// The control plane and, unless `node` is false, a node of it, in this process.
pub(crate) async fn standalone(settings: &Settings, node: bool) -> anyhow::Result<Node> {
    install_crypto();
    let plane = ControlPlane::open(windlass_control::Config {
        data_dir: settings.data_dir.clone(),
        listen: settings.api_listens().iter().collect(),
        advertise: settings.api_advertises(),
        cluster_domain: settings.cluster_domain.clone(),
        service_cidr: ipv4(&settings.service_cidr, "serviceCIDR")?,
        node_ports: settings.node_ports.clone(),
        max_token_seconds: settings.max_token_seconds(),
        node_name: settings.node_name.clone(),
        node_addresses: settings.node_ips().iter().collect(),
        admin_kubeconfig: settings.admin_kubeconfig.clone(),
        lifetimes: windlass_control::pki::Lifetimes::default(),
    })
    .await?;
    let listeners = plane.listen().await?;
    if !settings.api_listens().leave_the_machine() {
        tracing::warn!(
            address = %settings.api_listens(),
            "the API listens for this machine alone: pods cannot reach it; add the node's address to apiBindAddress if they shall"
        );
    }
    plane.write_kubeconfigs()?;

    let mut tasks = Supervisor::new(CancellationToken::new());
    let token = tasks.token();
    let client = plane.client(UserInfo::internal("system:windlass"));
    let mut vitals = Vitals::new(SILENT);
    vitals.api = Some(plane.loopback_probe()?);
    if node {
        // The node acts with a node's rights here too, so that it works the same against any API server.
        let as_node = plane.client(UserInfo::node(&settings.node_name));
        let as_proxy = plane.client(UserInfo::proxy());
        let inside = Some(plane.in_process_node_listener());
        let tls = ServingTls {
            tls: plane.node_tls(),
            client_ca: Some(settings.data_dir.join("pki/ca.crt")),
            metrics: Arc::default(),
            node: watch::Sender::new(None),
        };
        let usage = spawn_node(settings, as_node.clone(), as_node, tls, inside, &mut vitals, &mut tasks).await?;
        let rounds = usage::readings(&usage, &settings.node_name, token.clone());
        tasks.spawn("metrics API", plane.clone().follow_usage(rounds, token.clone()));
        spawn_proxy(proxy_config(settings), as_proxy, &vitals, &mut tasks);
    }
    let (server, stop) = (plane.clone(), token.clone());
    tasks.spawn("API server", async move { server.serve(listeners, stop).await });
    tasks.spawn("renewal of certificates", plane.clone().renew(token.clone()));
    tasks.spawn("store", plane.clone().watch_store(token.clone()));
    tasks.spawn("event sweeper", plane.clone().expire_events(token.clone()));
    let config = controllers::Config {
        cluster_cidr: settings.cluster_cidr.to_string(),
        root_ca: plane.root_ca(),
        ..controllers::Config::default()
    };
    let as_controllers = plane.client(UserInfo::internal("system:kube-controller-manager"));
    tasks.spawn("controllers", controllers::run(as_controllers, config, token.clone()));
    let as_scheduler = plane.client(UserInfo::internal("system:kube-scheduler"));
    tasks.spawn("scheduler", scheduler::run(as_scheduler, token.clone()));
    let as_manifests = plane.client(UserInfo::internal("system:manifests"));
    tasks.spawn("manifests folder", manifests::run(as_manifests, settings.manifests_dir.clone(), token));
    Ok(Node { tasks, client, vitals: Some(vitals), plane: Some(plane) })
}

/// The service proxy alone.
pub(crate) async fn proxy_alone(
    config: proxy::Config,
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
    // A pod's own credentials are files that the client reads again by itself.
    if let (Some(file), None) = (kubeconfig, master) {
        tasks.forever("credentials", access::follow(access, file.to_owned(), tasks.token()));
    }
    let vitals = Vitals::new(SILENT);
    spawn_proxy(config, client.clone(), &vitals, &mut tasks);
    Ok(Node { tasks, client, vitals: Some(vitals), plane: None })
}

fn spawn_proxy(config: proxy::Config, client: Client, vitals: &Vitals, tasks: &mut Supervisor) {
    tasks.spawn("service proxy", proxy::run(client, config, vitals.heartbeats.clone(), tasks.token()));
}

/// What the node's API shows, and what its certificates have to do with.
struct ServingTls {
    tls: Tls,
    /// The file of the authorities whose clients it knows, where there is one.
    client_ca: Option<PathBuf>,
    metrics: Arc<Metrics>,
    /// Is told the node's object as the API has it, whose addresses certificates name.
    node: watch::Sender<Option<Arc<NodeObject>>>,
}

/// The agent's tasks. The ports are taken before anything is begun. Gives the usage that it reads; what shows whether
/// it lives comes into `vitals`.
async fn spawn_node(
    settings: &Settings,
    client: Client,
    heartbeat: Client,
    ServingTls { tls, client_ca, metrics, node: tell_node }: ServingTls,
    inside: Option<InProcessListener>,
    vitals: &mut Vitals,
    tasks: &mut Supervisor,
) -> anyhow::Result<Usage> {
    let token = tasks.token();
    let server = ServerConfig {
        node_name: settings.node_name.clone(),
        secure: settings.node_api_bind,
        read_only: settings.stats_bind,
        health: settings.agent_health_bind,
        tls,
        get_needs_create: settings.get_needs_create,
        debugging_handlers: settings.handlers.debugging,
        system_log_handler: settings.handlers.system_log,
    };
    if let Some(address) = settings.stats_bind.filter(|address| !address.ip().is_loopback()) {
        tracing::warn!(
            %address,
            "the read-only port is open to other machines: whoever reaches it reads usage, pods and images without credentials; set statsBindAddress to 127.0.0.1:10255, or to nothing"
        );
    }
    let mut listeners = agent::server::listen(&server).await?;
    if let Some(inside) = inside {
        listeners = listeners.with_inside(inside);
    }
    let engine = Engine::new(&settings.docker_socket.to_string_lossy(), Arc::clone(&metrics))?;
    let data_root = engine.data_root().await.unwrap_or_else(|error| {
        tracing::warn!(%error, "Docker's data is taken to be at its usual place until Windlass is started again");
        "/var/lib/docker".into()
    });
    let heartbeats = vitals.heartbeats.clone();
    let (probe_metrics, placed) = (ProbeMetrics::default(), Placed::default());
    let (images, keeper) =
        Images::new(engine.clone(), images_config(settings, data_root.clone())?, Arc::clone(&metrics));
    let node_config = node_config(settings);
    let network = pod_network(settings)?;
    let (tell_pressure, pressure) = watch::channel(Pressure::default());
    let (tell_going_down, going_down) = watch::channel(false);
    let node = tell_node.subscribe();
    let (pods_part, feeds) = Pods::build(NodeHandles {
        config: pods_config(settings, &node_config),
        client: client.clone(),
        engine: engine.clone(),
        network: network.clone(),
        images: images.clone(),
        node: node.clone(),
        pressure: pressure.clone(),
        shutting_down: going_down.clone(),
        heartbeats: heartbeats.clone(),
        metrics: Arc::clone(&metrics),
        probe_metrics: probe_metrics.clone(),
        volumes: placed.clone(),
    });
    let (docker, pods, containers) = (feeds.engine_health, feeds.pods, feeds.containers);
    vitals.node = Some((docker.clone(), pods.clone()));
    let watching = agent::node_watch::watch_node(client.clone(), settings.node_name.clone(), tell_node, token.clone());
    tasks.forever("node watch", watching);

    let (tell_strangers, strangers) = watch::channel(Arc::default());
    let following = strangers::follow(engine.clone(), tell_strangers, token.clone());
    tasks.forever("containers outside pods", following);
    let usage = Usage::start(
        windlass_cadvisor::Config {
            node_name: settings.node_name.clone(),
            data_dir: settings.data_dir.clone(),
            docker_root: data_root.clone(),
            ..windlass_cadvisor::Config::default()
        },
        usage::subjects(containers.clone(), strangers, token.clone()),
        usage::volumes(placed.subscribe(), token.clone()),
        token.clone(),
    );
    tokio::spawn(usage::tell_image_bytes(images.list(), usage.clone(), token.clone()));
    let state = ServerState {
        client: client.clone(),
        engine: engine.clone(),
        pods: pods.clone(),
        containers,
        docker: docker.clone(),
        pulls: images.progress(),
        usage: usage.clone(),
        probes: probe_metrics,
        streaming: Streaming::new(token.clone()),
        heartbeats: heartbeats.clone(),
        metrics: Arc::clone(&metrics),
        system_logs: SystemLogs { root: SYSTEM_LOGS.into(), query: settings.handlers.system_log_query },
        about: Arc::new(About {
            node_name: settings.node_name.clone(),
            certificate: server.tls.clone(),
            version: NODE_VERSION.to_owned(),
            started: Instant::now(),
            settings: told::kubelet_configuration(settings, client_ca.as_deref()),
            flags: told::flags(settings),
        }),
    };
    tasks.spawn("node API", agent::server::run(server, listeners, state, token.clone()));

    let given = node.clone();
    let news = agent::node::News {
        docker,
        pressure,
        going_down,
        images: images.list(),
        runtimes: feeds.runtimes,
        node,
        network: network.readiness(),
    };
    let recorder = metrics.recorder(client.clone(), &settings.node_name);
    let object = windlass_kit::object_ref::node(&settings.node_name);
    let keeping = keeper.run(object, recorder.clone(), pods.clone(), token.clone());
    tasks.forever("images", keeping);
    let ending = shutdown::Parts {
        node_name: settings.node_name.clone(),
        shares: settings.keeping.shutdown_shares(),
        recorder: recorder.clone(),
        pods: pods.clone(),
        killer: feeds.killer.clone(),
        going_down: tell_going_down,
        metrics: Arc::clone(&metrics),
    };
    let stop = token.clone();
    let duties_metrics = Arc::clone(&metrics);
    tasks.forever("machine's end", shutdown::run(ending, stop));
    let defence = eviction_config(settings, &node_config, data_root);
    let parts = eviction::Parts {
        recorder,
        usage: usage.clone(),
        pods,
        metrics,
        killer: feeds.killer,
        images,
        pressure: tell_pressure,
    };
    let defending = eviction::run(defence, parts, token.clone());
    tasks.forever("eviction", defending);
    // What the tables were like before the first rule of ours, so that clean-up can make them so again.
    let rules = proxy_config(settings);
    tokio::task::spawn_blocking(move || proxy::snapshot_tables(&rules)).await??;
    // Waits for the API, which static pods do not: so it is a task of its own.
    let (duties_client, duties_token, duties_config) = (client.clone(), token.clone(), node_config);
    tasks.spawn("node's duties", async move {
        if let Some(node) = agent::node::register(&duties_client, &duties_config, &duties_token).await {
            let clients = (duties_client, heartbeat);
            agent::node::run(clients, duties_config, node, news, (heartbeats, duties_metrics), duties_token).await;
        }
        anyhow::Ok(())
    });
    let range_file = pod_cidr_file(settings);
    // What runs already is connected by what was used before.
    let routed = settings.network == PodNetwork::Routed;
    if routed {
        agent::node::use_kept_ranges(&network, &range_file).await;
    }
    let (pods_network, stop) = (network.clone(), token.clone());
    tasks.spawn("network of pods", async move {
        match routed {
            true => agent::node::keep_ranges(pods_network, &range_file, given, stop).await,
            false => pods_network.follow_plugins(stop).await,
        }
        anyhow::Ok(())
    });
    tasks.spawn("agent", async move {
        pods_part.run(token).await;
        anyhow::Ok(())
    });
    Ok(usage)
}

fn node_config(settings: &Settings) -> NodeConfig {
    let (status_every, status_age) = settings.registration.frequencies();
    NodeConfig {
        name: settings.node_name.clone(),
        addresses: settings.node_ips(),
        given_address: settings.node_ip.is_some(),
        api_port: settings.node_api_bind.port(),
        data_dir: settings.data_dir.clone(),
        version: NODE_VERSION.to_owned(),
        max_pods: settings.max_pods,
        // Judged when the settings were read.
        reserved: settings.keeping.reserved().unwrap_or_default(),
        thresholds: settings.keeping.thresholds().unwrap_or_default(),
        max_images: settings.keeping.node_status_max_images,
        hold_pods: settings.keeping.holds_pods(),
        labels: settings.registration.node_labels.clone(),
        taints: settings.registration.register_with_taints.clone(),
        provider_id: settings.registration.provider_id.clone(),
        external_cloud: settings.registration.external_cloud(),
        lease_seconds: settings.registration.node_lease_duration_seconds,
        status_every,
        status_age,
    }
}

fn pod_network(settings: &Settings) -> anyhow::Result<Network> {
    Ok(match settings.network {
        PodNetwork::Cni => Network::cni(cni_config(settings))?,
        PodNetwork::Routed => Network::routed(NetworkConfig {
            dir: settings.data_dir.join("network"),
            cluster_cidrs: settings.cluster_cidr.iter().copied().collect(),
        }),
    })
}

fn pods_config(settings: &Settings, node: &NodeConfig) -> agent::Config {
    agent::Config {
        node_name: settings.node_name.clone(),
        node_ips: settings.node_ips(),
        data_dir: settings.data_dir.clone(),
        cluster_dns: settings.cluster_dns.clone(),
        cluster_domain: settings.cluster_domain.clone(),
        resolv_conf: settings.resolv_conf.clone(),
        single_process_oom_kill: settings.single_process_oom_kill,
        allowed_unsafe_sysctls: settings.allowed_unsafe_sysctls.clone(),
        pod_logs_dir: settings.pod_logs_dir.clone(),
        container_logs_dir: settings.container_logs_dir.clone(),
        static_pods_dir: settings.static_pods_dir.clone(),
        max_pods: usize::try_from(settings.max_pods).unwrap_or(usize::MAX),
        pod_pids_limit: u32::try_from(settings.keeping.pod_pids_limit).ok().filter(|most| *most > 0),
        allocatable: agent::node::allocatable(node),
        log_limits: settings.log_limits,
    }
}

fn images_config(settings: &Settings, data_root: PathBuf) -> anyhow::Result<ImagesConfig> {
    let keeping = &settings.keeping;
    let plugins = match (&keeping.image_credential_provider_config, &keeping.image_credential_provider_bin_dir) {
        (Some(config), Some(bin_dir)) => Plugins::open(config, bin_dir).map_err(|why| anyhow::anyhow!(why))?,
        _ => Plugins::default(),
    };
    Ok(ImagesConfig {
        data_root,
        file: settings.data_dir.join("images.json"),
        high: keeping.image_gc_high_threshold_percent,
        low: keeping.image_gc_low_threshold_percent,
        minimum_age: duration(&keeping.image_minimum_gc_age),
        maximum_age: duration(&keeping.image_maximum_gc_age),
        parallel_pulls: keeping.max_parallel_image_pulls,
        records_dir: settings.data_dir.join("image_manager"),
        // Judged when the settings were read.
        verification: keeping.verification().unwrap_or_default(),
        plugins,
    })
}

fn eviction_config(settings: &Settings, node: &NodeConfig, data_root: PathBuf) -> EvictionConfig {
    EvictionConfig {
        node_name: settings.node_name.clone(),
        thresholds: node.thresholds.clone(),
        transition: duration(&settings.keeping.eviction_pressure_transition_period),
        max_pod_grace: settings.keeping.eviction_max_pod_grace_period,
        pods_memory: agent::node::held_to(node).get("memory").map_or(i64::MAX, |memory| memory.units()),
        pods_dir: settings.data_dir.join("pods"),
        image_dir: data_root,
    }
}

fn pod_cidr_file(settings: &Settings) -> PathBuf {
    settings.data_dir.join("pod-cidr")
}

fn cni_config(settings: &Settings) -> CniConfig {
    CniConfig {
        conf_dir: settings.cni_conf_dir.clone(),
        bin_dirs: settings.cni_bin_dirs.clone(),
        state_dir: settings.data_dir.join("cni"),
    }
}

/// The proxy's settings; also what its rules are judged by.
pub(crate) fn proxy_config(settings: &Settings) -> proxy::Config {
    proxy::Config {
        node_name: settings.node_name.clone(),
        node_ips: settings.node_ips().iter().collect(),
        cluster_cidrs: settings.cluster_cidr.iter().copied().collect(),
        healthz_bind: Some(settings.proxy_health_bind),
        metrics_bind: Some(settings.proxy_metrics_bind),
        layout: match settings.rules_layout {
            RulesLayout::Auto => proxy::rules::Layout::Auto,
            RulesLayout::Flat => proxy::rules::Layout::Flat,
            RulesLayout::Tree => proxy::rules::Layout::Tree,
        },
        table_snapshot: settings.run_dir.join("proxy-before.json"),
        ..proxy::Config::default()
    }
}
