//! The agent's configuration from the settings.

use std::path::Path;

use windlass_agent::{
    self as agent, AgentConfig, PodNetworkConfig,
    images::{ImagesConfig, Plugins},
    network::{CniConfig, NetworkConfig},
    node::NodeConfig,
    server::{ServerConfig, SystemLogs},
};

use super::{PodNetwork, Settings, configz, kubelet::duration};

/// The version that the node reports; clients expect one of Kubernetes.
pub(crate) const NODE_VERSION: &str = windlass_control::apiserver::VERSION;
/// The directory of the machine's logs, as upstream's node API serves it.
const SYSTEM_LOGS: &str = "/var/log";

/// The configuration of the agent. `client_ca` is the file of the authority of the node API's clients, if any.
///
/// # Errors
/// When the configuration of image credential providers is invalid.
pub(crate) fn agent_config(settings: &Settings, client_ca: Option<&Path>) -> anyhow::Result<AgentConfig> {
    Ok(AgentConfig {
        pods: pods_config(settings),
        node: node_config(settings),
        server: ServerConfig {
            node_name: settings.node_name.clone(),
            secure: settings.node_api_bind,
            read_only: settings.stats_bind,
            health: settings.agent_health_bind,
            get_needs_create: settings.get_needs_create,
            debugging_handlers: settings.handlers.debugging,
            system_log_handler: settings.handlers.system_log,
        },
        images: images_config(settings)?,
        network: match settings.network {
            PodNetwork::Cni => PodNetworkConfig::Cni(cni_config(settings)),
            PodNetwork::Routed => PodNetworkConfig::Routed(NetworkConfig {
                dir: settings.data_dir.join("network"),
                cluster_cidrs: settings.cluster_cidr().iter().copied().collect(),
            }),
        },
        fail_swap_on: settings.kubelet.fail_swap_on,
        docker_socket: settings.docker_socket.clone(),
        cri_socket: settings.cri_socket.clone(),
        eviction_transition_period: duration(&settings.kubelet.eviction_pressure_transition_period),
        eviction_max_pod_grace_period: settings.kubelet.eviction_max_pod_grace_period,
        shutdown_grace_periods: settings.kubelet.shutdown_grace_periods(),
        system_logs: SystemLogs { root: SYSTEM_LOGS.into(), query: settings.handlers.system_log_query },
        configz: configz::kubelet_configuration(settings, client_ca),
        flagz: configz::flags(settings),
    })
}

fn pods_config(settings: &Settings) -> agent::Config {
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
        pod_pids_limit: u32::try_from(settings.kubelet.pod_pids_limit).ok().filter(|limit| *limit > 0),
        swap_behavior: settings.kubelet.memory_swap.swap_behavior,
        log_limits: settings.log_limits,
        ..agent::Config::default()
    }
}

fn node_config(settings: &Settings) -> NodeConfig {
    let (status_update_interval, status_report_interval) = settings.registration.frequencies();
    NodeConfig {
        name: settings.node_name.clone(),
        addresses: settings.node_ips(),
        node_ip_configured: settings.node_ip.is_some(),
        api_port: settings.node_api_bind.port(),
        data_dir: settings.data_dir.clone(),
        version: NODE_VERSION.to_owned(),
        max_pods: settings.max_pods,
        // Validated when the settings were read.
        reserved: settings.kubelet.reserved().unwrap_or_default(),
        thresholds: settings.kubelet.thresholds().unwrap_or_default(),
        max_images: settings.kubelet.node_status_max_images,
        enforce_node_allocatable: settings.kubelet.enforces_node_allocatable(),
        labels: settings.registration.node_labels.clone(),
        taints: settings.registration.register_with_taints.clone(),
        provider_id: settings.registration.provider_id.clone(),
        external_cloud: settings.registration.external_cloud(),
        lease_seconds: settings.registration.node_lease_duration_seconds,
        status_update_interval,
        status_report_interval,
    }
}

fn images_config(settings: &Settings) -> anyhow::Result<ImagesConfig> {
    let kubelet = &settings.kubelet;
    let plugins = match (&kubelet.image_credential_provider_config, &kubelet.image_credential_provider_bin_dir) {
        (Some(config), Some(bin_dir)) => Plugins::open(config, bin_dir).map_err(|why| anyhow::anyhow!(why))?,
        _ => Plugins::default(),
    };
    Ok(ImagesConfig {
        file: settings.data_dir.join("images.json"),
        high: kubelet.image_gc_high_threshold_percent,
        low: kubelet.image_gc_low_threshold_percent,
        minimum_age: duration(&kubelet.image_minimum_gc_age),
        maximum_age: duration(&kubelet.image_maximum_gc_age),
        foreign: kubelet.image_gc_foreign_images,
        parallel_pulls: kubelet.max_parallel_image_pulls,
        pull_progress_deadline: duration(&kubelet.image_pull_progress_deadline),
        records_dir: settings.data_dir.join("image_manager"),
        // Validated when the settings were read.
        verification: kubelet.pull_verification().unwrap_or_default(),
        plugins,
    })
}

/// The configuration of CNI plugins.
pub(crate) fn cni_config(settings: &Settings) -> CniConfig {
    CniConfig {
        conf_dir: settings.cni_conf_dir.clone(),
        bin_dirs: settings.cni_bin_dirs.clone(),
        state_dir: settings.data_dir.join("cni"),
        netns_dir: "/run/netns".into(),
    }
}
