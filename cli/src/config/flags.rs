//! The flags that override the configuration file; every command takes them.

use std::{net::SocketAddr, ops::RangeInclusive, path::PathBuf};

use windlass_kit::net::NodeIps;

use super::{
    Addresses, IdentityFlags, LogFormat, MembershipFlags, OptionalAddress, PodNetwork, Ranges, RulesLayout, Settings,
    keeping::KeepingFlags,
    kube_proxy::{KubeProxy, bind},
    registration::RegistrationFlags,
};

/// Settings given on the command line or in the environment.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Settings (they override the configuration file)")]
pub(crate) struct Flags {
    /// Configuration file [default: /etc/windlass/config.yaml if it exists]
    #[arg(long, env = "WINDLASS_CONFIG", global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Name of this node [default: the host's name]
    #[arg(long, global = true, value_name = "NAME")]
    node_name: Option<String>,
    /// Address of this node, or one of each family: IP,IP [default: the one the default route uses]
    #[arg(long, global = true, value_name = "IP")]
    node_ip: Option<NodeIps>,
    /// Where objects, certificates and volumes live [default: /var/lib/windlass]
    #[arg(long, global = true, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Where run-time files live [default: /run/windlass]
    #[arg(long, global = true, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Where the administrator's kubeconfig is written [default: /etc/windlass/admin.kubeconfig]
    #[arg(long, global = true, value_name = "FILE")]
    admin_kubeconfig: Option<PathBuf>,
    /// Folder of manifests that are kept applied [default: /etc/windlass/manifests]
    #[arg(long, global = true, value_name = "DIR")]
    manifests_dir: Option<PathBuf>,
    /// Folder of pods that this node runs whatever the API says, also without it [default: none]
    #[arg(long, global = true, value_name = "DIR", alias = "pod-manifest-path")]
    static_pod_path: Option<PathBuf>,
    /// Folder of container logs, by pod [default: /var/log/pods]
    #[arg(long, global = true, value_name = "DIR")]
    pod_logs_dir: Option<PathBuf>,
    /// Folder of links to container logs [default: /var/log/containers]
    #[arg(long, global = true, value_name = "DIR")]
    container_logs_dir: Option<PathBuf>,
    /// How large a container's log gets before it is rotated [default: 10Mi]
    #[arg(long, global = true, value_name = "SIZE", value_parser = parse_bytes)]
    container_log_max_size: Option<u64>,
    /// How many files of a container's log are kept [default: 5]
    #[arg(long, global = true, value_name = "NUMBER")]
    container_log_max_files: Option<u32>,
    /// Docker's socket [default: /var/run/docker.sock]
    #[arg(long, global = true, value_name = "SOCKET")]
    docker_socket: Option<PathBuf>,
    /// Where the Kubernetes API listens; pods reach it at the node's address [default: port 6443 of 127.0.0.1 and of the node's address]
    #[arg(long, global = true, value_name = "ADDR,…")]
    api_bind_address: Option<Addresses>,
    /// Longest life of a service account's token, at least 1h, whatever is asked for; 0s is no limit [default: 0s]
    #[arg(long, global = true, value_name = "DURATION")]
    service_account_max_token_expiration: Option<String>,
    /// Where the node's own API listens, with TLS [default: 0.0.0.0:10250]
    #[arg(long, global = true, value_name = "ADDR")]
    node_api_bind_address: Option<SocketAddr>,
    /// Where usage can be read without credentials; nowhere when empty [default: 127.0.0.1:10255]
    #[arg(long, global = true, value_name = "ADDR")]
    stats_bind_address: Option<OptionalAddress>,
    /// Whether a GET that opens a connection to a pod at the node's API needs the right to create [default: true]
    #[arg(long, global = true, value_name = "BOOL", action = clap::ArgAction::Set)]
    authorize_pod_websocket_upgrade_create_permission: Option<bool>,
    /// Where the agent tells its health [default: 127.0.0.1:10248]
    #[arg(long, global = true, value_name = "ADDR")]
    agent_healthz_bind_address: Option<SocketAddr>,
    /// Where the proxy tells its health [default: 0.0.0.0:10256]
    #[arg(long, global = true, value_name = "ADDR", value_parser = |t: &str| bind(t, 10256))]
    healthz_bind_address: Option<SocketAddr>,
    /// Where the proxy's metrics are [default: 127.0.0.1:10249]
    #[arg(long, global = true, value_name = "ADDR", value_parser = |t: &str| bind(t, 10249))]
    metrics_bind_address: Option<SocketAddr>,
    /// Addresses of pods; one range, or one of each family with a comma between [default: 10.244.0.0/16]
    #[arg(long, global = true, value_name = "CIDR[,CIDR]")]
    cluster_cidr: Option<Ranges>,
    /// Addresses of services [default: 10.96.0.0/16]
    #[arg(long, global = true, value_name = "CIDR")]
    service_cidr: Option<Ranges>,
    /// Ports of NodePort services [default: 30000-32767]
    #[arg(long, global = true, value_name = "FROM-TO", value_parser = parse_ports)]
    node_port_range: Option<RangeInclusive<u16>>,
    /// How many pods this node takes [default: 110]
    #[arg(long, global = true, value_name = "NUMBER")]
    max_pods: Option<u32>,
    /// How pods are connected: by Windlass itself, or by the CNI plugins of this node [default: routed]
    #[arg(long, global = true, value_name = "WAY")]
    network: Option<PodNetwork>,
    /// Where CNI configurations are [default: /etc/cni/net.d]
    #[arg(long, global = true, value_name = "DIR")]
    cni_conf_dir: Option<PathBuf>,
    /// Where CNI plugins are; may be given more than once [default: /opt/cni/bin, /usr/lib/cni]
    #[arg(long = "cni-bin-dir", global = true, value_name = "DIR")]
    cni_bin_dirs: Option<Vec<PathBuf>>,
    /// Whether long chains of service rules become trees [default: auto]
    #[arg(long, global = true, value_name = "LAYOUT")]
    rules_layout: Option<RulesLayout>,
    /// Domain of the cluster's names [default: cluster.local]
    #[arg(long, global = true, value_name = "DOMAIN")]
    cluster_domain: Option<String>,
    /// The resolv.conf that pods get the host's name servers from; empty for none [default: /etc/resolv.conf, or
    /// systemd-resolved's own where that is its stub]
    #[arg(long, global = true, value_name = "FILE", value_parser = any_path)]
    resolv_conf: Option<PathBuf>,
    /// Kernel settings beyond the safe ones that pods may ask for, such as kernel.msg* [default: none]
    #[arg(long, global = true, value_name = "SYSCTL,…", value_delimiter = ',')]
    allowed_unsafe_sysctls: Option<Vec<String>>,
    /// What is logged: a level, or module=level pairs [default: info]
    #[arg(long, env = "WINDLASS_LOG", global = true, value_name = "FILTER")]
    log: Option<String>,
    /// How log lines look [default: text]
    #[arg(long, global = true, value_name = "FORMAT")]
    log_format: Option<LogFormat>,
    #[command(flatten)]
    keeping: KeepingFlags,
    #[command(flatten)]
    registration: RegistrationFlags,
    /// Of the commands that have them: those run or make a node of another cluster.
    #[arg(skip)]
    pub(crate) membership: MembershipFlags,
    #[arg(skip)]
    pub(crate) identity: IdentityFlags,
}

impl Flags {
    /// Those that kube-proxy has too, as its file would hold them.
    pub(crate) fn kube_proxy(&self) -> KubeProxy {
        KubeProxy {
            hostname_override: self.node_name.clone(),
            bind_address: self.node_ip.map(|ips| ips.first().to_string()),
            healthz_bind_address: self.healthz_bind_address.map(|at| at.to_string()),
            metrics_bind_address: self.metrics_bind_address.map(|at| at.to_string()),
            cluster_cidr: self.cluster_cidr.as_ref().map(ToString::to_string),
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
        set(self.node_api_bind_address.as_ref(), &mut to.node_api_bind);
        set(self.stats_bind_address.map(|OptionalAddress(address)| address).as_ref(), &mut to.stats_bind);
        set(self.authorize_pod_websocket_upgrade_create_permission.as_ref(), &mut to.get_needs_create);
        set(self.agent_healthz_bind_address.as_ref(), &mut to.agent_health_bind);
        set(self.healthz_bind_address.as_ref(), &mut to.proxy_health_bind);
        set(self.metrics_bind_address.as_ref(), &mut to.proxy_metrics_bind);
        set(self.cluster_cidr.as_ref(), &mut to.cluster_cidr);
        set(self.service_cidr.as_ref(), &mut to.service_cidr);
        set(self.node_port_range.as_ref(), &mut to.node_ports);
        set(self.max_pods.as_ref(), &mut to.max_pods);
        set(self.network.as_ref(), &mut to.network);
        set(self.cni_conf_dir.as_ref(), &mut to.cni_conf_dir);
        set(self.cni_bin_dirs.as_ref(), &mut to.cni_bin_dirs);
        set(self.rules_layout.as_ref(), &mut to.rules_layout);
        set(self.cluster_domain.as_ref(), &mut to.cluster_domain);
        to.resolv_conf = self.resolv_conf.clone().or(to.resolv_conf.take());
        set(self.allowed_unsafe_sysctls.as_ref(), &mut to.allowed_unsafe_sysctls);
        set(self.log.as_ref(), &mut to.log);
        set(self.log_format.as_ref(), &mut to.log_format);
        self.keeping.apply(&mut to.keeping);
        self.registration.apply(&mut to.registration);
        self.membership.apply(&mut to.membership);
        self.identity.apply(&mut to.membership);
    }
}

/// Reads a path that may be empty, which stands for none.
#[allow(clippy::unnecessary_wraps, reason = "what a parser of values must give")]
fn any_path(text: &str) -> Result<PathBuf, String> {
    Ok(text.into())
}

/// Reads `10Mi`.
pub(super) fn parse_bytes(text: &str) -> Result<u64, String> {
    let size = text.parse::<windlass_kit::quantity::Quantity>().ok().and_then(|q| u64::try_from(q.units()).ok());
    size.ok_or_else(|| format!("{text:?} is not a size such as 10Mi"))
}

/// Reads `30000-32767`.
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
