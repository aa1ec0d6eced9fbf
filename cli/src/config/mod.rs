//! The settings: built-in defaults, then those of a joined cluster, then the configuration file, then flags. All are
//! read before anything is opened, and all problems are reported together.

mod addresses;
pub(crate) mod agent;
mod audit;
mod cluster_access;
pub(crate) mod configz;
pub(crate) mod connect;
pub(crate) mod control;
pub(crate) mod detect_local;
mod drop_in;
pub(crate) mod field_names;
pub(crate) mod file;
mod flags;
pub(crate) mod kube_proxy;
pub(crate) mod kubelet;
pub(crate) mod list;
mod problem;
mod problems;
pub(crate) mod proxy;
mod ranges;
pub(crate) mod registration;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    ops::RangeInclusive,
    path::PathBuf,
};

use anyhow::Context as _;

pub(crate) use addresses::Addresses;
use audit::AuditSettings;
pub(crate) use cluster_access::{ClusterAccess, ClusterAccessFlags, IdentityFlags};
use detect_local::DetectLocalSettings;
pub(crate) use flags::Flags;
pub(crate) use kubelet::KubeletSettings;
pub(crate) use problem::Problem;
pub(crate) use ranges::Ranges;
pub(crate) use registration::Registration;
use windlass_kit::{duration, net::NodeIps};

use crate::join::join_dir::JoinDir;

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Whether long chains of service rules are split into trees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RulesLayout {
    /// Above 64 services and 16 endpoints.
    Auto,
    /// Never: as kube-proxy writes them.
    Flat,
    /// Always.
    Tree,
}

/// The pod network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PodNetwork {
    /// By Windlass: a routed pair of interfaces for each pod.
    Routed,
    /// By CNI plugins.
    Cni,
}

/// A listen address; empty for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct OptionalAddress(pub(crate) Option<SocketAddr>);

impl std::str::FromStr for OptionalAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self(None));
        }
        let address =
            text.parse().map_err(|_| format!("{text:?} is not an address such as 127.0.0.1:10255, nor empty"))?;
        Ok(Self(Some(address)))
    }
}

impl TryFrom<String> for OptionalAddress {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl std::fmt::Display for OptionalAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.map_or(Ok(()), |address| write!(f, "{address}"))
    }
}

/// All settings, with all defaults filled in.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) node_name: String,
    /// If configured; else see [`Self::node_ip`].
    pub(crate) node_ip: Option<NodeIps>,
    default_route_ip: IpAddr,
    pub(crate) data_dir: PathBuf,
    pub(crate) run_dir: PathBuf,
    pub(crate) admin_kubeconfig: PathBuf,
    pub(crate) manifests_dir: PathBuf,
    /// The directory of static pod manifests.
    pub(crate) static_pods_dir: Option<PathBuf>,
    pub(crate) pod_logs_dir: PathBuf,
    pub(crate) container_logs_dir: PathBuf,
    pub(crate) log_limits: windlass_agent::LogLimits,
    pub(crate) docker_socket: PathBuf,
    /// If configured; else see [`Self::api_bind_addresses`].
    pub(crate) api_bind: Option<Addresses>,
    /// The maximum lifetime of service account tokens; zero for no limit.
    pub(crate) max_token_expiration: String,
    /// The file of static tokens.
    pub(crate) token_auth_file: Option<PathBuf>,
    /// The configuration of admission plugins.
    pub(crate) admission_control_config_file: Option<PathBuf>,
    pub(crate) audit: AuditSettings,
    pub(crate) node_api_bind: SocketAddr,
    /// `None` if it is off.
    pub(crate) stats_bind: Option<SocketAddr>,
    /// A `GET` that upgrades to a stream needs the verb `create`.
    pub(crate) get_needs_create: bool,
    pub(crate) handlers: Handlers,
    pub(crate) agent_health_bind: SocketAddr,
    pub(crate) proxy_health_bind: SocketAddr,
    pub(crate) proxy_metrics_bind: SocketAddr,
    /// If configured; else see [`Self::cluster_cidr`].
    pub(crate) cluster_cidr: Option<Ranges>,
    pub(crate) detect_local: DetectLocalSettings,
    /// If configured; else with a control plane in the same process.
    pub(crate) cluster_ips_check: Option<bool>,
    pub(crate) service_cidr: Ranges,
    pub(crate) node_ports: RangeInclusive<u16>,
    /// Services of type LoadBalancer get the addresses of nodes.
    pub(crate) service_load_balancer: bool,
    /// Volumes of the storage class local-path are provisioned.
    pub(crate) local_path_provisioner: bool,
    /// If configured; else see [`Self::local_path_dir`].
    pub(crate) local_path_dir: Option<PathBuf>,
    pub(crate) max_pods: u32,
    pub(crate) kubelet: KubeletSettings,
    pub(crate) registration: Registration,
    pub(crate) cluster_access: ClusterAccess,
    pub(crate) network: PodNetwork,
    pub(crate) cni_conf_dir: PathBuf,
    pub(crate) cni_bin_dirs: Vec<PathBuf>,
    pub(crate) rules_layout: RulesLayout,
    pub(crate) cluster_domain: String,
    pub(crate) cluster_dns: Vec<IpAddr>,
    /// If configured; else see [`Self::cluster_dns_bind_address`].
    pub(crate) cluster_dns_bind: Option<OptionalAddress>,
    /// If configured; else the agent detects it. An empty path means none.
    pub(crate) resolv_conf: Option<PathBuf>,
    pub(crate) single_process_oom_kill: bool,
    pub(crate) allowed_unsafe_sysctls: Vec<String>,
    pub(crate) log: String,
    pub(crate) log_format: LogFormat,
}

/// The handlers of the node's API, by the fields of KubeletConfiguration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Handlers {
    /// `enableDebuggingHandlers`
    pub(crate) debugging: bool,
    /// `enableSystemLogHandler`
    pub(crate) system_log: bool,
    /// `enableSystemLogQuery`
    pub(crate) system_log_query: bool,
}

/// The API's default port.
const API_PORT: u16 = 6443;
/// The default port of the cluster's DNS, which others than this machine reach by its Service.
const CLUSTER_DNS_PORT: u16 = 10053;

/// The directory of files that change it, when no flag names one.
pub(crate) const DEFAULT_DIR: &str = "/etc/windlass/config.d";
/// The configuration file when no flag names one.
pub(crate) const DEFAULT_FILE: &str = "/etc/windlass/config.yaml";

impl Settings {
    fn built_in() -> anyhow::Result<Self> {
        Ok(Self::with_defaults(host_name()?, detect_node_ip()))
    }

    fn with_defaults(node_name: String, default_route_ip: IpAddr) -> Self {
        let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let all = |port| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
        Self {
            node_name,
            node_ip: None,
            default_route_ip,
            data_dir: "/var/lib/windlass".into(),
            run_dir: "/run/windlass".into(),
            admin_kubeconfig: "/etc/windlass/admin.kubeconfig".into(),
            manifests_dir: "/etc/windlass/manifests".into(),
            static_pods_dir: None,
            pod_logs_dir: "/var/log/pods".into(),
            container_logs_dir: "/var/log/containers".into(),
            log_limits: windlass_agent::LogLimits::default(),
            docker_socket: "/var/run/docker.sock".into(),
            api_bind: None,
            max_token_expiration: "0s".to_owned(),
            token_auth_file: None,
            admission_control_config_file: None,
            audit: AuditSettings::default(),
            node_api_bind: all(10250),
            stats_bind: Some(local(10255)),
            get_needs_create: true,
            handlers: Handlers { debugging: true, system_log: true, system_log_query: false },
            agent_health_bind: local(10248),
            proxy_health_bind: all(10256),
            proxy_metrics_bind: local(10249),
            cluster_cidr: None,
            detect_local: DetectLocalSettings::default(),
            cluster_ips_check: None,
            service_cidr: Ranges::v4(Ipv4Addr::new(10, 96, 0, 0), 16),
            node_ports: 30000..=32767,
            service_load_balancer: true,
            local_path_provisioner: true,
            local_path_dir: None,
            max_pods: 110,
            kubelet: KubeletSettings::default(),
            registration: Registration::default(),
            cluster_access: ClusterAccess::default(),
            network: PodNetwork::Routed,
            cni_conf_dir: "/etc/cni/net.d".into(),
            // Upstream's directory, and Debian's.
            cni_bin_dirs: vec!["/opt/cni/bin".into(), "/usr/lib/cni".into()],
            rules_layout: RulesLayout::Auto,
            cluster_domain: "cluster.local".to_owned(),
            cluster_dns: Vec::new(),
            cluster_dns_bind: None,
            resolv_conf: None,
            single_process_oom_kill: false,
            allowed_unsafe_sysctls: Vec::new(),
            log: "info".to_owned(),
            log_format: LogFormat::Text,
        }
    }

    /// The defaults of an example machine.
    pub(crate) fn example() -> Self {
        let mut settings = Self::with_defaults("my-node".to_owned(), IpAddr::V4(Ipv4Addr::new(192, 0, 2, 10)));
        settings.node_ip = Some(settings.default_route_ip.into());
        settings
    }

    /// All problems of a file with this text.
    ///
    /// # Errors
    /// When the host's name is needed and cannot be read.
    pub(crate) fn check(text: &str) -> anyhow::Result<Vec<Problem>> {
        let unreadable = file::problems(text);
        if !unreadable.is_empty() {
            return Ok(unreadable);
        }
        let mut settings = Self::built_in()?;
        file::parse(text)?.apply(&mut settings);
        Ok(settings.problems().into_iter().map(|p| problems::with_line(text, p)).collect())
    }

    /// Reads defaults, the joined cluster's settings, the file and flags; `with_file` is false if `--config` names a
    /// file of kube-proxy.
    ///
    /// # Errors
    /// Names the file, the line and the invalid setting.
    pub(crate) fn read(flags: &Flags, with_file: bool) -> anyhow::Result<Self> {
        let settings = Self::merged(flags, with_file, None)?;
        // The cluster's settings are in the data directory, which the file or a flag may set.
        let of_cluster = JoinDir::in_data_dir(&settings.data_dir).settings();
        let read = windlass_kit::atomic_file::read(&of_cluster)
            .with_context(|| format!("the cluster's settings {} could not be read", of_cluster.display()))?;
        let settings = match read {
            Some(text) => Self::merged(flags, with_file, Some(&text))
                .with_context(|| format!("with the cluster's settings in {}", of_cluster.display()))?,
            None => settings,
        };
        settings.validated()
    }

    /// The same with these settings of a cluster, which file and flags override.
    ///
    /// # Errors
    /// As for [`Self::read`].
    pub(crate) fn with_cluster(flags: &Flags, of_cluster: &str) -> anyhow::Result<Self> {
        Self::merged(flags, true, Some(of_cluster))?.validated()
    }

    fn merged(flags: &Flags, with_file: bool, of_cluster: Option<&str>) -> anyhow::Result<Self> {
        let mut settings = Self::built_in()?;
        if let Some(text) = of_cluster {
            file::parse(text)?.apply(&mut settings);
        }
        if let Some(file) =
            if with_file { file::read(flags.config.as_deref(), flags.config_dir.as_deref())? } else { None }
        {
            file.apply(&mut settings);
        }
        flags.apply(&mut settings);
        Ok(settings)
    }

    fn validated(self) -> anyhow::Result<Self> {
        let problems = self.problems();
        anyhow::ensure!(problems.is_empty(), "the settings are invalid: {}", problems.join("; "));
        Ok(self)
    }

    /// The node's primary address: configured, or the source address of the default route.
    pub(crate) fn node_ip(&self) -> IpAddr {
        self.node_ips().first()
    }

    /// The node's addresses.
    pub(crate) fn node_ips(&self) -> NodeIps {
        self.node_ip.unwrap_or_else(|| self.default_route_ip.into())
    }

    /// The ranges of pods: configured, or what nodes of the built-in network usually get. CNI plugins have ranges of
    /// their own, which are not known here: none, as for kube-proxy.
    pub(crate) fn cluster_cidr(&self) -> Ranges {
        self.cluster_cidr.clone().unwrap_or_else(|| match self.network {
            PodNetwork::Routed => Self::default_cluster_cidr(),
            PodNetwork::Cni => Ranges::none(),
        })
    }

    fn default_cluster_cidr() -> Ranges {
        Ranges::v4(Ipv4Addr::new(10, 244, 0, 0), 16)
    }

    /// The API's listen addresses: configured, or loopback and the node's address, where pods reach it.
    pub(crate) fn api_bind_addresses(&self) -> Addresses {
        let at = |ip: IpAddr| SocketAddr::new(ip, API_PORT);
        self.api_bind.clone().unwrap_or_else(|| Addresses::both(at(Ipv4Addr::LOCALHOST.into()), at(self.node_ip())))
    }

    /// The address of the API for pods and other nodes.
    pub(crate) fn api_advertise_address(&self) -> IpAddr {
        let listens = self.api_bind_addresses();
        let mut reached = listens.iter().map(|at| at.ip()).filter(|ip| !ip.is_loopback() && !ip.is_unspecified());
        reached.next().unwrap_or_else(|| self.node_ip())
    }

    /// The directory of volumes of the storage class local-path: configured, or a part of the data directory.
    pub(crate) fn local_path_dir(&self) -> PathBuf {
        self.local_path_dir.clone().unwrap_or_else(|| self.data_dir.join("storage"))
    }

    /// The listen address of the cluster's DNS: configured, or the node's address, where pods and nodes reach it. None if
    /// it is off, or the node has no address of IPv4, which cluster IPs have.
    pub(crate) fn cluster_dns_bind_address(&self) -> Option<SocketAddr> {
        let own = || self.node_ips().iter().find(IpAddr::is_ipv4).map(|ip| SocketAddr::new(ip, CLUSTER_DNS_PORT));
        self.cluster_dns_bind.map_or_else(own, |OptionalAddress(address)| address)
    }

    /// The settings of a node whose control plane is in the same process: unless configured, pods use its DNS.
    pub(crate) fn of_standalone(&self) -> Self {
        let mut settings = self.clone();
        // Its controllers give nodes their ranges.
        settings.cluster_cidr.get_or_insert_with(Self::default_cluster_cidr);
        // Its range of Services is known, and no kube-proxy writes the same rules beside.
        settings.cluster_ips_check.get_or_insert(true);
        if settings.cluster_dns.is_empty() && self.cluster_dns_bind_address().is_some() {
            let range = self.service_cidr.ipv4();
            settings.cluster_dns.extend(range.map(|range| IpAddr::V4(windlass_control::dns::service_ip(range))));
        }
        settings
    }

    /// The maximum lifetime of service account tokens in seconds.
    pub(crate) fn max_token_seconds(&self) -> Option<i64> {
        let most = kubelet::duration(&self.max_token_expiration).as_secs();
        i64::try_from(most).ok().filter(|most| *most > 0)
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = self.kubelet.problems();
        problems.extend(self.registration.problems(&self.node_name));
        problems.extend(self.cluster_access.problems());
        if !is_dns_label(&self.node_name) {
            problems.push(format!(
                "nodeName {:?} is not a DNS name (lower case letters, digits, '-' and '.')",
                self.node_name
            ));
        }
        for (name, path) in [
            ("dataDir", &self.data_dir),
            ("runDir", &self.run_dir),
            ("adminKubeconfig", &self.admin_kubeconfig),
            ("manifestsDir", &self.manifests_dir),
            ("dockerSocket", &self.docker_socket),
        ]
        .into_iter()
        .chain(self.static_pods_dir.as_ref().map(|dir| ("staticPodPath", dir)))
        .chain(self.local_path_dir.as_ref().map(|dir| ("localPathDir", dir)))
        .chain(self.token_auth_file.as_ref().map(|file| ("tokenAuthFile", file)))
        .chain(self.admission_control_config_file.as_ref().map(|file| ("admissionControlConfigFile", file)))
        .chain(self.audit.log_path.as_ref().map(|file| ("auditLogPath", file)))
        .chain(self.audit.policy_file.as_ref().map(|file| ("auditPolicyFile", file)))
        {
            if !path.is_absolute() || path.parent().is_none() {
                problems.push(format!("{name} {} must be an absolute path below /", path.display()));
            }
        }
        let cluster_cidr = self.cluster_cidr();
        if cluster_cidr.overlap(&self.service_cidr) {
            problems.push(format!("clusterCIDR {cluster_cidr} and serviceCIDR {} overlap", self.service_cidr));
        }
        match cluster_cidr.ipv4() {
            None if self.network == PodNetwork::Routed && !cluster_cidr.is_none() => {
                problems.push(format!("clusterCIDR {cluster_cidr} has no range of IPv4"));
            }
            Some((_, 25..)) => {
                problems.push(format!("clusterCIDR {cluster_cidr} is too small: each node gets a /24 of it"));
            }
            _ => {}
        }
        problems.extend(proxy::proxy_config(self).validated().err().into_iter().flatten());
        if !self.service_cidr.ipv4().is_some_and(|(_, length)| (12..=28).contains(&length)) {
            problems.push(format!("serviceCIDR {} must have a range of IPv4 between /12 and /28", self.service_cidr));
        }
        if let Some(OptionalAddress(Some(address))) =
            self.cluster_dns_bind.filter(|OptionalAddress(at)| at.is_some_and(|at| at.is_ipv6()))
        {
            problems.push(format!("clusterDNSBindAddress {address} must be an address of IPv4, as cluster IPs are"));
        }
        if self.log_limits.file_bytes == 0 {
            problems.push("containerLogMaxSize must be more than nothing".to_owned());
        }
        problems.extend(windlass_agent::pods::unsafe_sysctl_problems(&self.allowed_unsafe_sysctls));
        if self.log_limits.files < 2 {
            problems.push(format!("containerLogMaxFiles {} must be greater than 1", self.log_limits.files));
        }
        // Upstream's limits.
        match duration::parse(self.max_token_expiration.trim()).map(|most| most.as_secs()) {
            Some(0 | 3600..=0x1_0000_0000) => {}
            _ => problems.push(format!(
                "serviceAccountMaxTokenExpiration {:?} must be between 1h and 2^32 seconds, or 0s for no limit",
                self.max_token_expiration
            )),
        }
        problems.extend(self.audit.problems());
        if self.node_ports.is_empty() || *self.node_ports.start() == 0 {
            problems.push(format!("nodePortRange {}-{} is empty", self.node_ports.start(), self.node_ports.end()));
        }
        problems
    }
}

fn is_dns_label(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 253
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.')
        && !name.starts_with(['-', '.'])
        && !name.ends_with(['-', '.'])
}

fn host_name() -> anyhow::Result<String> {
    let name = nix::unistd::gethostname()
        .map_err(|e| anyhow::anyhow!("the host's name could not be read ({e}); set nodeName"))?;
    Ok(name.to_string_lossy().trim().to_lowercase())
}

/// The source address of the default route; connecting a UDP socket sends no packet.
fn detect_node_ip() -> IpAddr {
    let probe = || -> std::io::Result<IpAddr> {
        let socket = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        // An address of a documentation range (TEST-NET-2).
        socket.connect((Ipv4Addr::new(198, 51, 100, 1), 9))?;
        Ok(socket.local_addr()?.ip())
    };
    probe().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

#[cfg(test)]
mod tests;
