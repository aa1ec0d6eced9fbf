//! The flags that override the configuration file; every command takes them.

use std::{net::SocketAddr, ops::RangeInclusive, path::PathBuf};

use windlass_kit::net::NodeIps;

use super::{
    Addresses, ClusterAccessFlags, IdentityFlags, LogFormat, OptionalAddress, PodNetwork, Ranges, RulesLayout,
    Settings,
    detect_local::DetectLocalMode,
    kube_proxy::{DetectLocalFile, KubeProxy, bind},
    kubelet::KubeletFlags,
    registration::RegistrationFlags,
};

/// The settings on the command line or in the environment.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Settings (they override the configuration file)")]
pub(crate) struct Flags {
    /// Configuration file [default: /etc/windlass/config.yaml if it exists]
    #[arg(long, env = "WINDLASS_CONFIG", global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Directory of files (*.conf) that change the configuration file, in the order of their names [default:
    /// /etc/windlass/config.d if it exists]
    #[arg(long, env = "WINDLASS_CONFIG_DIR", global = true, value_name = "DIR")]
    pub(crate) config_dir: Option<PathBuf>,
    /// Name of this node [default: the host's name]
    #[arg(long, global = true, value_name = "NAME")]
    node_name: Option<String>,
    /// Address of this node, or one per family: IP,IP [default: the source address of the default route]
    #[arg(long, global = true, value_name = "IP")]
    node_ip: Option<NodeIps>,
    /// Directory of objects, certificates and volumes [default: /var/lib/windlass]
    #[arg(long, global = true, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Directory of run-time files [default: /run/windlass]
    #[arg(long, global = true, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// The administrator's kubeconfig, written at start [default: /etc/windlass/admin.kubeconfig]
    #[arg(long, global = true, value_name = "FILE")]
    admin_kubeconfig: Option<PathBuf>,
    /// Directory of manifests that are applied to the API [default: /etc/windlass/manifests]
    #[arg(long, global = true, value_name = "DIR")]
    manifests_dir: Option<PathBuf>,
    /// Directory of static pod manifests [default: none]
    #[arg(long, global = true, value_name = "DIR", alias = "pod-manifest-path")]
    static_pod_path: Option<PathBuf>,
    /// Directory of container logs, by pod [default: /var/log/pods]
    #[arg(long, global = true, value_name = "DIR")]
    pod_logs_dir: Option<PathBuf>,
    /// Directory of symlinks to container logs [default: /var/log/containers]
    #[arg(long, global = true, value_name = "DIR")]
    container_logs_dir: Option<PathBuf>,
    /// Size at which a container's log is rotated [default: 10Mi]
    #[arg(long, global = true, value_name = "SIZE", value_parser = parse_bytes)]
    container_log_max_size: Option<u64>,
    /// Number of log files of a container, rotated ones included [default: 5]
    #[arg(long, global = true, value_name = "NUMBER")]
    container_log_max_files: Option<u32>,
    /// Docker's socket [default: /var/run/docker.sock]
    #[arg(long, global = true, value_name = "SOCKET")]
    docker_socket: Option<PathBuf>,
    /// Listen addresses of the Kubernetes API; pods reach it at the node's address [default: port 6443 of 127.0.0.1 and of the node's address]
    #[arg(long, global = true, value_name = "ADDR,…")]
    api_bind_address: Option<Addresses>,
    /// Maximum lifetime of service account tokens, at least 1h; 0s is no limit [default: 0s]
    #[arg(long, global = true, value_name = "DURATION")]
    service_account_max_token_expiration: Option<String>,
    /// File of static tokens, read at start: lines of token,user,uid,"group1,group2" [default: none]
    #[arg(long, global = true, value_name = "FILE")]
    token_auth_file: Option<PathBuf>,
    /// Configuration of admission plugins, of apiserver.config.k8s.io/v1, such as that of PodSecurity [default: none]
    #[arg(long, global = true, value_name = "FILE")]
    admission_control_config_file: Option<PathBuf>,
    /// File to which the API server writes what was requested of it, a line of JSON for each event [default: none]
    #[arg(long, global = true, value_name = "FILE")]
    audit_log_path: Option<PathBuf>,
    /// Policy of the audit log, of audit.k8s.io/v1; without one it has no bodies [default: none]
    #[arg(long, global = true, value_name = "FILE")]
    audit_policy_file: Option<PathBuf>,
    /// Size in MiB at which another file of the audit log is begun [default: 100]
    #[arg(long = "audit-log-maxsize", global = true, value_name = "MIB")]
    audit_log_max_size: Option<u64>,
    /// Older files of the audit log that are kept [default: 10]
    #[arg(long = "audit-log-maxbackup", global = true, value_name = "NUMBER")]
    audit_log_max_backup: Option<usize>,
    /// Listen address of the node's API, with TLS [default: 0.0.0.0:10250]
    #[arg(long, global = true, value_name = "ADDR")]
    node_api_bind_address: Option<SocketAddr>,
    /// Listen address of the read-only port, which serves usage without authentication; empty turns it off [default: 127.0.0.1:10255]
    #[arg(long, global = true, value_name = "ADDR")]
    stats_bind_address: Option<OptionalAddress>,
    /// Whether a GET of the node's API that upgrades to a stream needs the verb create [default: true]
    #[arg(long, global = true, value_name = "BOOL", action = clap::ArgAction::Set)]
    authorize_pod_websocket_upgrade_create_permission: Option<bool>,
    /// Listen address of the agent's healthz [default: 127.0.0.1:10248]
    #[arg(long, global = true, value_name = "ADDR")]
    agent_healthz_bind_address: Option<SocketAddr>,
    /// Listen address of the proxy's healthz [default: 0.0.0.0:10256]
    #[arg(long, global = true, value_name = "ADDR", value_parser = |t: &str| bind(t, 10256))]
    healthz_bind_address: Option<SocketAddr>,
    /// Listen address of the proxy's metrics [default: 127.0.0.1:10249]
    #[arg(long, global = true, value_name = "ADDR", value_parser = |t: &str| bind(t, 10249))]
    metrics_bind_address: Option<SocketAddr>,
    /// CIDR of pods; one, or one per family separated by a comma; empty for none [default: 10.244.0.0/16; none for CNI plugins in another cluster]
    #[arg(long, global = true, value_name = "CIDR[,CIDR]")]
    cluster_cidr: Option<Ranges>,
    /// How traffic of this node's pods is detected: by ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix [default: ClusterCIDR]
    #[arg(long, global = true, value_name = "MODE")]
    detect_local_mode: Option<DetectLocalMode>,
    /// The bridge of the pods, for BridgeInterface
    #[arg(long, global = true, value_name = "NAME")]
    pod_bridge_interface: Option<String>,
    /// Prefix of the names of the pods' interfaces, for InterfaceNamePrefix
    #[arg(long, global = true, value_name = "PREFIX")]
    pod_interface_name_prefix: Option<String>,
    /// Whether cluster IPs reject ports that they do not serve, and addresses of ServiceCIDRs without a service drop what is sent to them, as in kube-proxy's nftables mode [default: true with windlass up, else false]
    #[arg(long, global = true, value_name = "BOOL", action = clap::ArgAction::Set)]
    cluster_ips_check: Option<bool>,
    /// CIDR of services [default: 10.96.0.0/16]
    #[arg(long, global = true, value_name = "CIDR")]
    service_cidr: Option<Ranges>,
    /// Port range of NodePort services [default: 30000-32767]
    #[arg(long, global = true, value_name = "FROM-TO", value_parser = parse_ports)]
    node_port_range: Option<RangeInclusive<u16>>,
    /// Whether services of type LoadBalancer get the addresses of nodes [default: true]
    #[arg(long, global = true, value_name = "BOOL", action = clap::ArgAction::Set)]
    service_load_balancer: Option<bool>,
    /// Whether volumes of the storage class local-path are provisioned [default: true]
    #[arg(long, global = true, value_name = "BOOL", action = clap::ArgAction::Set)]
    local_path_provisioner: Option<bool>,
    /// Directory of volumes of the storage class local-path [default: storage in the data directory]
    #[arg(long, global = true, value_name = "DIR")]
    local_path_dir: Option<PathBuf>,
    /// Maximum number of pods on this node [default: 110]
    #[arg(long, global = true, value_name = "NUMBER")]
    max_pods: Option<u32>,
    /// Pod network: the built-in one, or the CNI plugins of this node [default: routed]
    #[arg(long, global = true, value_name = "WAY")]
    network: Option<PodNetwork>,
    /// Directory of CNI configurations [default: /etc/cni/net.d]
    #[arg(long, global = true, value_name = "DIR")]
    cni_conf_dir: Option<PathBuf>,
    /// Directory of CNI plugins; may be given more than once [default: /opt/cni/bin, /usr/lib/cni]
    #[arg(long = "cni-bin-dir", global = true, value_name = "DIR")]
    cni_bin_dirs: Option<Vec<PathBuf>>,
    /// Whether long chains of service rules are split into trees [default: auto]
    #[arg(long, global = true, value_name = "LAYOUT")]
    rules_layout: Option<RulesLayout>,
    /// DNS domain of the cluster [default: cluster.local]
    #[arg(long, global = true, value_name = "DOMAIN")]
    cluster_domain: Option<String>,
    /// Listen address of the cluster's DNS with windlass up; empty turns it off [default: port 10053 of the node's address]
    #[arg(long, global = true, value_name = "ADDR")]
    cluster_dns_bind_address: Option<OptionalAddress>,
    /// The resolv.conf with the host's name servers for pods; empty for none [default: /etc/resolv.conf, or
    /// systemd-resolved's own if that is its stub]
    #[arg(long, global = true, value_name = "FILE", value_parser = any_path)]
    resolv_conf: Option<PathBuf>,
    /// Unsafe sysctls that pods may set, such as kernel.msg* [default: none]
    #[arg(long, global = true, value_name = "SYSCTL,…", value_delimiter = ',')]
    allowed_unsafe_sysctls: Option<Vec<String>>,
    /// Log filter: a level, or module=level pairs [default: info]
    #[arg(long, env = "WINDLASS_LOG", global = true, value_name = "FILTER")]
    log: Option<String>,
    /// Format of log lines [default: text]
    #[arg(long, global = true, value_name = "FORMAT")]
    log_format: Option<LogFormat>,
    #[command(flatten)]
    kubelet: KubeletFlags,
    #[command(flatten)]
    registration: RegistrationFlags,
    /// Set by the commands that have them.
    #[arg(skip)]
    pub(crate) cluster_access: ClusterAccessFlags,
    #[arg(skip)]
    pub(crate) identity: IdentityFlags,
}

impl Flags {
    /// The ones that kube-proxy has too, as its file.
    pub(crate) fn kube_proxy(&self) -> KubeProxy {
        KubeProxy {
            hostname_override: self.node_name.clone(),
            bind_address: self.node_ip.map(|ips| ips.first().to_string()),
            healthz_bind_address: self.healthz_bind_address.map(|at| at.to_string()),
            metrics_bind_address: self.metrics_bind_address.map(|at| at.to_string()),
            cluster_cidr: self.cluster_cidr.as_ref().map(ToString::to_string),
            detect_local_mode: self.detect_local_mode.map(|mode| mode.to_string()),
            detect_local: DetectLocalFile {
                bridge_interface: self.pod_bridge_interface.clone(),
                interface_name_prefix: self.pod_interface_name_prefix.clone(),
            },
            ..KubeProxy::default()
        }
    }

    pub(super) fn apply(&self, to: &mut Settings) {
        fn set<T: Clone>(value: Option<&T>, to: &mut T) {
            if let Some(value) = value {
                to.clone_from(value);
            }
        }
        set(self.node_name.as_ref(), &mut to.node_name);
        to.node_ip = self.node_ip.or(to.node_ip);
        set(self.data_dir.as_ref(), &mut to.data_dir);
        set(self.run_dir.as_ref(), &mut to.run_dir);
        set(self.admin_kubeconfig.as_ref(), &mut to.admin_kubeconfig);
        set(self.manifests_dir.as_ref(), &mut to.manifests_dir);
        to.static_pods_dir = self.static_pod_path.clone().or(to.static_pods_dir.take());
        set(self.pod_logs_dir.as_ref(), &mut to.pod_logs_dir);
        set(self.container_logs_dir.as_ref(), &mut to.container_logs_dir);
        set(self.container_log_max_size.as_ref(), &mut to.log_limits.file_bytes);
        set(self.container_log_max_files.as_ref(), &mut to.log_limits.files);
        set(self.docker_socket.as_ref(), &mut to.docker_socket);
        to.api_bind = self.api_bind_address.clone().or(to.api_bind.take());
        set(self.service_account_max_token_expiration.as_ref(), &mut to.max_token_expiration);
        to.token_auth_file = self.token_auth_file.clone().or(to.token_auth_file.take());
        to.admission_control_config_file =
            self.admission_control_config_file.clone().or(to.admission_control_config_file.take());
        to.audit.log_path = self.audit_log_path.clone().or(to.audit.log_path.take());
        to.audit.policy_file = self.audit_policy_file.clone().or(to.audit.policy_file.take());
        set(self.audit_log_max_size.as_ref(), &mut to.audit.log_max_size);
        set(self.audit_log_max_backup.as_ref(), &mut to.audit.log_max_backup);
        set(self.node_api_bind_address.as_ref(), &mut to.node_api_bind);
        set(self.stats_bind_address.map(|OptionalAddress(address)| address).as_ref(), &mut to.stats_bind);
        set(self.authorize_pod_websocket_upgrade_create_permission.as_ref(), &mut to.get_needs_create);
        set(self.agent_healthz_bind_address.as_ref(), &mut to.agent_health_bind);
        set(self.healthz_bind_address.as_ref(), &mut to.proxy_health_bind);
        set(self.metrics_bind_address.as_ref(), &mut to.proxy_metrics_bind);
        to.cluster_cidr = self.cluster_cidr.clone().or(to.cluster_cidr.take());
        to.cluster_ips_check = self.cluster_ips_check.or(to.cluster_ips_check);
        set(self.detect_local_mode.as_ref(), &mut to.detect_local.mode);
        set(self.pod_bridge_interface.as_ref(), &mut to.detect_local.bridge_interface);
        set(self.pod_interface_name_prefix.as_ref(), &mut to.detect_local.interface_name_prefix);
        set(self.service_cidr.as_ref(), &mut to.service_cidr);
        set(self.node_port_range.as_ref(), &mut to.node_ports);
        set(self.service_load_balancer.as_ref(), &mut to.service_load_balancer);
        set(self.local_path_provisioner.as_ref(), &mut to.local_path_provisioner);
        to.local_path_dir = self.local_path_dir.clone().or(to.local_path_dir.take());
        set(self.max_pods.as_ref(), &mut to.max_pods);
        set(self.network.as_ref(), &mut to.network);
        set(self.cni_conf_dir.as_ref(), &mut to.cni_conf_dir);
        set(self.cni_bin_dirs.as_ref(), &mut to.cni_bin_dirs);
        set(self.rules_layout.as_ref(), &mut to.rules_layout);
        set(self.cluster_domain.as_ref(), &mut to.cluster_domain);
        to.cluster_dns_bind = self.cluster_dns_bind_address.or(to.cluster_dns_bind);
        to.resolv_conf = self.resolv_conf.clone().or(to.resolv_conf.take());
        set(self.allowed_unsafe_sysctls.as_ref(), &mut to.allowed_unsafe_sysctls);
        set(self.log.as_ref(), &mut to.log);
        set(self.log_format.as_ref(), &mut to.log_format);
        self.kubelet.apply(&mut to.kubelet);
        self.registration.apply(&mut to.registration);
        self.cluster_access.apply(&mut to.cluster_access);
        self.identity.apply(&mut to.cluster_access);
    }
}

/// Parses a path; an empty one means none.
#[allow(clippy::unnecessary_wraps, reason = "the signature of a value parser")]
fn any_path(text: &str) -> Result<PathBuf, String> {
    Ok(text.into())
}

/// Parses `10Mi`.
pub(super) fn parse_bytes(text: &str) -> Result<u64, String> {
    let size = text.parse::<windlass_kit::quantity::Quantity>().ok().and_then(|q| u64::try_from(q.units()).ok());
    size.ok_or_else(|| format!("{text:?} is not a size such as 10Mi"))
}

/// Parses `30000-32767`.
pub(super) fn parse_ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let wrong = || format!("{text:?} is not a range of ports such as 30000-32767");
    let (from, to) = text.split_once('-').ok_or_else(wrong)?;
    let from: u16 = from.trim().parse().map_err(|_| wrong())?;
    let to: u16 = to.trim().parse().map_err(|_| wrong())?;
    if from == 0 || from > to {
        return Err(wrong());
    }
    Ok(from..=to)
}
