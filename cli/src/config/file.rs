//! The configuration file. Names are those of KubeletConfiguration and KubeProxyConfiguration where they mean the same.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Taint;
use windlass_agent::node::eviction::thresholds::ThresholdMap;
use windlass_kit::net::NodeIps;

use super::{
    Addresses, DEFAULT_DIR, DEFAULT_FILE, LogFormat, OptionalAddress, PodNetwork, Problem, Ranges, RulesLayout,
    Settings,
    detect_local::DetectLocalMode,
    flags::{parse_bytes, parse_ports},
    kubelet::{MemorySwap, ShutdownGracePeriodByPodPriority},
};

/// The fields of a file; absent ones keep their defaults, unknown ones are errors.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct File {
    api_version: Option<String>,
    kind: Option<String>,
    node_name: Option<String>,
    #[serde(rename = "nodeIP")]
    #[serde(deserialize_with = "node_ips")]
    node_ip: Option<NodeIps>,
    data_dir: Option<PathBuf>,
    run_dir: Option<PathBuf>,
    admin_kubeconfig: Option<PathBuf>,
    manifests_dir: Option<PathBuf>,
    static_pod_path: Option<PathBuf>,
    pod_logs_dir: Option<PathBuf>,
    container_logs_dir: Option<PathBuf>,
    container_log_max_size: Option<String>,
    container_log_max_files: Option<u32>,
    docker_socket: Option<PathBuf>,
    api_bind_address: Option<Addresses>,
    service_account_max_token_expiration: Option<String>,
    token_auth_file: Option<PathBuf>,
    admission_control_config_file: Option<PathBuf>,
    audit_log_path: Option<PathBuf>,
    audit_policy_file: Option<PathBuf>,
    audit_log_max_size: Option<u64>,
    audit_log_max_backup: Option<usize>,
    #[serde(rename = "nodeAPIBindAddress")]
    node_api_bind_address: Option<SocketAddr>,
    stats_bind_address: Option<OptionalAddress>,
    authorize_pod_websocket_upgrade_create_permission: Option<bool>,
    agent_healthz_bind_address: Option<SocketAddr>,
    healthz_bind_address: Option<SocketAddr>,
    metrics_bind_address: Option<SocketAddr>,
    #[serde(rename = "clusterCIDR")]
    cluster_cidr: Option<Ranges>,
    detect_local_mode: Option<DetectLocalMode>,
    detect_local: Option<DetectLocalFields>,
    #[serde(rename = "clusterIPsCheck")]
    cluster_ips_check: Option<bool>,
    #[serde(rename = "serviceCIDR")]
    service_cidr: Option<Ranges>,
    node_port_range: Option<String>,
    service_load_balancer: Option<bool>,
    local_path_provisioner: Option<bool>,
    local_path_dir: Option<PathBuf>,
    max_pods: Option<u32>,
    network: Option<PodNetwork>,
    cni_conf_dir: Option<PathBuf>,
    cni_bin_dirs: Option<Vec<PathBuf>>,
    rules_layout: Option<RulesLayout>,
    cluster_domain: Option<String>,
    #[serde(rename = "clusterDNS")]
    cluster_dns: Option<Vec<IpAddr>>,
    #[serde(rename = "clusterDNSBindAddress")]
    cluster_dns_bind_address: Option<OptionalAddress>,
    resolv_conf: Option<PathBuf>,
    enable_debugging_handlers: Option<bool>,
    enable_system_log_handler: Option<bool>,
    enable_system_log_query: Option<bool>,
    #[serde(rename = "singleProcessOOMKill")]
    single_process_oom_kill: Option<bool>,
    allowed_unsafe_sysctls: Option<Vec<String>>,
    log: Option<String>,
    log_format: Option<LogFormat>,
    eviction_hard: Option<ThresholdMap>,
    eviction_soft: Option<ThresholdMap>,
    eviction_soft_grace_period: Option<ThresholdMap>,
    eviction_minimum_reclaim: Option<ThresholdMap>,
    eviction_pressure_transition_period: Option<String>,
    eviction_max_pod_grace_period: Option<i64>,
    #[serde(rename = "imageGCHighThresholdPercent")]
    image_gc_high_threshold_percent: Option<u8>,
    #[serde(rename = "imageGCLowThresholdPercent")]
    image_gc_low_threshold_percent: Option<u8>,
    #[serde(rename = "imageMinimumGCAge")]
    image_minimum_gc_age: Option<String>,
    #[serde(rename = "imageMaximumGCAge")]
    image_maximum_gc_age: Option<String>,
    #[serde(rename = "imageGCForeignImages")]
    image_gc_foreign_images: Option<bool>,
    kube_reserved: Option<ThresholdMap>,
    system_reserved: Option<ThresholdMap>,
    enforce_node_allocatable: Option<Vec<String>>,
    node_status_max_images: Option<i32>,
    pod_pids_limit: Option<i64>,
    memory_swap: Option<MemorySwap>,
    fail_swap_on: Option<bool>,
    max_parallel_image_pulls: Option<usize>,
    image_pull_progress_deadline: Option<String>,
    image_pull_credentials_verification_policy: Option<String>,
    preloaded_images_verification_allowlist: Option<Vec<String>>,
    image_credential_provider_config: Option<PathBuf>,
    image_credential_provider_bin_dir: Option<PathBuf>,
    node_labels: Option<BTreeMap<String, String>>,
    register_with_taints: Option<Vec<Taint>>,
    #[serde(rename = "providerID")]
    provider_id: Option<String>,
    cloud_provider: Option<String>,
    node_lease_duration_seconds: Option<i32>,
    node_status_update_frequency: Option<String>,
    node_status_report_frequency: Option<String>,
    proxy_kubeconfig: Option<PathBuf>,
    kubeconfig: Option<PathBuf>,
    bootstrap_kubeconfig: Option<PathBuf>,
    servers: Option<Vec<String>>,
    rotate_certificates: Option<bool>,
    #[serde(rename = "serverTLSBootstrap")]
    server_tls_bootstrap: Option<bool>,
    tls_cert_file: Option<PathBuf>,
    tls_private_key_file: Option<PathBuf>,
    #[serde(rename = "clientCAFile")]
    client_ca_file: Option<PathBuf>,
    no_proxy: Option<bool>,
    shutdown_grace_period: Option<String>,
    shutdown_grace_period_critical_pods: Option<String>,
    shutdown_grace_period_by_pod_priority: Option<Vec<ShutdownGracePeriodByPodPriority>>,
}

/// As in a KubeProxyConfiguration.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct DetectLocalFields {
    bridge_interface: Option<String>,
    interface_name_prefix: Option<String>,
}

pub(crate) const API_VERSION: &str = "windlass.io/v1alpha1";
pub(crate) const KIND: &str = "WindlassConfiguration";

/// Reads the named file, or the default one if it exists, and the files of a directory that change it.
pub(super) fn read(named: Option<&Path>, dir: Option<&Path>) -> anyhow::Result<Option<File>> {
    let path = named.unwrap_or_else(|| Path::new(DEFAULT_FILE));
    let dir = dir.map(Path::to_owned).or_else(|| Some(DEFAULT_DIR.into()).filter(|dir: &PathBuf| dir.is_dir()));
    let of_dir = dir.map_or_else(|| Ok(Vec::new()), |dir| super::drop_in::files(&dir))?;
    let mut files = Vec::new();
    for (file, optional) in
        std::iter::once((path.to_owned(), named.is_none())).chain(of_dir.into_iter().map(|f| (f, false)))
    {
        let name = file.display();
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if optional && error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error).with_context(|| format!("the configuration {name} could not be read")),
        };
        parse(&text).with_context(|| format!("the configuration {name} cannot be used"))?;
        files.push(text);
    }
    match &files[..] {
        [] => Ok(None),
        [one] => parse(one).map(Some),
        all => {
            let merged = super::drop_in::merged(all).and_then(|merged| Ok(serde_json::from_value(merged)?));
            merged.map(Some).context("the configuration and the files that change it cannot be used together")
        }
    }
}

/// Parses a file.
pub(crate) fn parse(text: &str) -> anyhow::Result<File> {
    let problems: Vec<String> = problems(text).iter().map(ToString::to_string).collect();
    anyhow::ensure!(problems.is_empty(), "{}", problems.join("; "));
    read_text(text).map_err(|reason| anyhow::anyhow!(reason))
}

/// All problems of a file, except those of its settings' combination.
pub(super) fn problems(text: &str) -> Vec<Problem> {
    if is_empty(text) {
        return Vec::new();
    }
    let unreadable = super::problems::problems(text);
    if !unreadable.is_empty() {
        return unreadable;
    }
    let Ok(file) = read_text(text) else { return Vec::new() };
    let version = file.api_version.as_deref().filter(|v| *v != API_VERSION);
    let kind = file.kind.as_deref().filter(|k| *k != KIND);
    // As upstream: a file that does not say what it is might be meant for another version, or another program.
    let missing = |name: &str, wanted: &str| Problem {
        line: Some(1),
        reason: format!("{name} is missing; write {name}: {wanted}"),
    };
    let absent = [
        file.api_version.is_none().then(|| missing("apiVersion", API_VERSION)),
        file.kind.is_none().then(|| missing("kind", KIND)),
    ];
    let all = [
        version.map(|v| format!("apiVersion is {v:?}; this version of windlass reads {API_VERSION:?}")),
        kind.map(|k| format!("kind is {k:?}; did you mean {KIND:?}?")),
        file.node_port_range.as_ref().and_then(|r| parse_ports(r).err()).map(|e| format!("nodePortRange {e}")),
        file.container_log_max_size
            .as_ref()
            .and_then(|s| parse_bytes(s).err())
            .map(|e| format!("containerLogMaxSize {e}")),
    ];
    let invalid = all.into_iter().flatten().map(|reason| super::problems::with_line(text, reason));
    absent.into_iter().flatten().chain(invalid).collect()
}

/// A file of comments only is an empty document.
fn is_empty(text: &str) -> bool {
    text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#'))
}

fn read_text(text: &str) -> Result<File, String> {
    if is_empty(text) { Ok(File::default()) } else { serde_saphyr::from_str(text).map_err(|e| e.to_string()) }
}

impl File {
    /// Applies the fields that are set. Long, since it is the list of them.
    pub(crate) fn apply(self, to: &mut Settings) {
        fn set<T>(value: Option<T>, to: &mut T) {
            if let Some(value) = value {
                *to = value;
            }
        }
        set(self.node_name, &mut to.node_name);
        to.node_ip = self.node_ip.or(to.node_ip);
        set(self.data_dir, &mut to.data_dir);
        set(self.run_dir, &mut to.run_dir);
        set(self.admin_kubeconfig, &mut to.admin_kubeconfig);
        set(self.manifests_dir, &mut to.manifests_dir);
        to.static_pods_dir = self.static_pod_path.or(to.static_pods_dir.take());
        set(self.pod_logs_dir, &mut to.pod_logs_dir);
        set(self.container_logs_dir, &mut to.container_logs_dir);
        set(self.container_log_max_size.and_then(|s| parse_bytes(&s).ok()), &mut to.log_limits.file_bytes);
        set(self.container_log_max_files, &mut to.log_limits.files);
        set(self.docker_socket, &mut to.docker_socket);
        to.api_bind = self.api_bind_address.or(to.api_bind.take());
        set(self.service_account_max_token_expiration, &mut to.max_token_expiration);
        to.token_auth_file = self.token_auth_file.or(to.token_auth_file.take());
        to.admission_control_config_file =
            self.admission_control_config_file.or(to.admission_control_config_file.take());
        to.audit.log_path = self.audit_log_path.or(to.audit.log_path.take());
        to.audit.policy_file = self.audit_policy_file.or(to.audit.policy_file.take());
        set(self.audit_log_max_size, &mut to.audit.log_max_size);
        set(self.audit_log_max_backup, &mut to.audit.log_max_backup);
        set(self.node_api_bind_address, &mut to.node_api_bind);
        set(self.stats_bind_address.map(|OptionalAddress(address)| address), &mut to.stats_bind);
        set(self.authorize_pod_websocket_upgrade_create_permission, &mut to.get_needs_create);
        set(self.agent_healthz_bind_address, &mut to.agent_health_bind);
        set(self.healthz_bind_address, &mut to.proxy_health_bind);
        set(self.metrics_bind_address, &mut to.proxy_metrics_bind);
        to.cluster_cidr = self.cluster_cidr.or(to.cluster_cidr.take());
        set(self.detect_local_mode, &mut to.detect_local.mode);
        to.cluster_ips_check = self.cluster_ips_check.or(to.cluster_ips_check);
        let detect_local = self.detect_local.unwrap_or_default();
        set(detect_local.bridge_interface, &mut to.detect_local.bridge_interface);
        set(detect_local.interface_name_prefix, &mut to.detect_local.interface_name_prefix);
        set(self.service_cidr, &mut to.service_cidr);
        set(self.node_port_range.and_then(|r| parse_ports(&r).ok()), &mut to.node_ports);
        set(self.service_load_balancer, &mut to.service_load_balancer);
        set(self.local_path_provisioner, &mut to.local_path_provisioner);
        to.local_path_dir = self.local_path_dir.or(to.local_path_dir.take());
        set(self.max_pods, &mut to.max_pods);
        set(self.network, &mut to.network);
        set(self.cni_conf_dir, &mut to.cni_conf_dir);
        set(self.cni_bin_dirs, &mut to.cni_bin_dirs);
        set(self.rules_layout, &mut to.rules_layout);
        set(self.cluster_domain, &mut to.cluster_domain);
        set(self.cluster_dns, &mut to.cluster_dns);
        to.cluster_dns_bind = self.cluster_dns_bind_address.or(to.cluster_dns_bind);
        to.resolv_conf = self.resolv_conf.or(to.resolv_conf.take());
        set(self.enable_debugging_handlers, &mut to.handlers.debugging);
        set(self.enable_system_log_handler, &mut to.handlers.system_log);
        set(self.enable_system_log_query, &mut to.handlers.system_log_query);
        set(self.single_process_oom_kill, &mut to.single_process_oom_kill);
        set(self.allowed_unsafe_sysctls, &mut to.allowed_unsafe_sysctls);
        set(self.log, &mut to.log);
        set(self.log_format, &mut to.log_format);
        set(self.eviction_hard, &mut to.kubelet.eviction_hard);
        set(self.eviction_soft, &mut to.kubelet.eviction_soft);
        set(self.eviction_soft_grace_period, &mut to.kubelet.eviction_soft_grace_period);
        set(self.eviction_minimum_reclaim, &mut to.kubelet.eviction_minimum_reclaim);
        set(self.eviction_pressure_transition_period, &mut to.kubelet.eviction_pressure_transition_period);
        set(self.eviction_max_pod_grace_period, &mut to.kubelet.eviction_max_pod_grace_period);
        set(self.image_gc_high_threshold_percent, &mut to.kubelet.image_gc_high_threshold_percent);
        set(self.image_gc_low_threshold_percent, &mut to.kubelet.image_gc_low_threshold_percent);
        set(self.image_minimum_gc_age, &mut to.kubelet.image_minimum_gc_age);
        set(self.image_maximum_gc_age, &mut to.kubelet.image_maximum_gc_age);
        set(self.image_pull_progress_deadline, &mut to.kubelet.image_pull_progress_deadline);
        set(self.image_gc_foreign_images, &mut to.kubelet.image_gc_foreign_images);
        set(self.kube_reserved, &mut to.kubelet.kube_reserved);
        set(self.system_reserved, &mut to.kubelet.system_reserved);
        set(self.enforce_node_allocatable, &mut to.kubelet.enforce_node_allocatable);
        set(self.pod_pids_limit, &mut to.kubelet.pod_pids_limit);
        set(self.memory_swap, &mut to.kubelet.memory_swap);
        set(self.fail_swap_on, &mut to.kubelet.fail_swap_on);
        let kubelet = &mut to.kubelet;
        set(self.image_pull_credentials_verification_policy, &mut kubelet.image_pull_credentials_verification_policy);
        set(self.preloaded_images_verification_allowlist, &mut kubelet.preloaded_images_verification_allowlist);
        let (config, bin) =
            (&mut kubelet.image_credential_provider_config, &mut kubelet.image_credential_provider_bin_dir);
        *config = self.image_credential_provider_config.or(config.take());
        *bin = self.image_credential_provider_bin_dir.or(bin.take());
        let registration = &mut to.registration;
        set(self.node_labels, &mut registration.node_labels);
        set(self.register_with_taints, &mut registration.register_with_taints);
        set(self.provider_id, &mut registration.provider_id);
        set(self.cloud_provider, &mut registration.cloud_provider);
        set(self.node_lease_duration_seconds, &mut registration.node_lease_duration_seconds);
        set(self.node_status_update_frequency, &mut registration.node_status_update_frequency);
        set(self.node_status_report_frequency, &mut registration.node_status_report_frequency);
        registration.proxy_kubeconfig = self.proxy_kubeconfig.or(registration.proxy_kubeconfig.take());
        let cluster_access = &mut to.cluster_access;
        cluster_access.kubeconfig = self.kubeconfig.or(cluster_access.kubeconfig.take());
        cluster_access.bootstrap_kubeconfig = self.bootstrap_kubeconfig.or(cluster_access.bootstrap_kubeconfig.take());
        set(self.servers, &mut cluster_access.servers);
        set(self.rotate_certificates, &mut cluster_access.rotate_certificates);
        set(self.server_tls_bootstrap, &mut cluster_access.server_tls_bootstrap);
        cluster_access.tls_cert_file = self.tls_cert_file.or(cluster_access.tls_cert_file.take());
        cluster_access.tls_private_key_file = self.tls_private_key_file.or(cluster_access.tls_private_key_file.take());
        cluster_access.client_ca_file = self.client_ca_file.or(cluster_access.client_ca_file.take());
        set(self.no_proxy, &mut cluster_access.no_proxy);
        set(self.node_status_max_images, &mut to.kubelet.node_status_max_images);
        set(self.shutdown_grace_period, &mut to.kubelet.shutdown_grace_period);
        set(self.shutdown_grace_period_critical_pods, &mut to.kubelet.shutdown_grace_period_critical_pods);
        set(self.shutdown_grace_period_by_pod_priority, &mut to.kubelet.shutdown_grace_period_by_pod_priority);
        to.kubelet.max_parallel_image_pulls = self.max_parallel_image_pulls.or(to.kubelet.max_parallel_image_pulls);
    }
}

fn node_ips<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<NodeIps>, D::Error> {
    use serde::Deserialize as _;
    let text = Option::<String>::deserialize(from)?;
    text.map(|text| text.parse().map_err(serde::de::Error::custom)).transpose()
}
