//! The settings: built-in defaults, then those of a joined cluster, then the configuration file, then flags. All are
//! read before anything is opened, and all problems are reported together.

mod addresses;
pub(crate) mod agent;
mod audit;
mod cluster_access;
pub(crate) mod configz;
pub(crate) mod connect;
pub(crate) mod control;
mod defaults;
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
mod setting;
mod settings_table;
mod validation;
mod values;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    ops::RangeInclusive,
    path::PathBuf,
};

use anyhow::Context as _;

pub(crate) use addresses::Addresses;
use audit::AuditSettings;
pub(crate) use cluster_access::ClusterAccess;
pub(crate) use defaults::detect_node_ip;
use detect_local::DetectLocalSettings;
pub(crate) use flags::{ClusterAccessFlags, Flags, IdentityFlags};
pub(crate) use kubelet::KubeletSettings;
pub(crate) use problem::Problem;
pub(crate) use ranges::Ranges;
pub(crate) use registration::Registration;
#[cfg(test)]
pub(crate) use settings_table::SETTINGS;
pub(crate) use values::{LogFormat, OptionalAddress, PodNetwork, RulesLayout};
use windlass_kit::net::NodeIps;

use crate::join::join_dir::JoinDir;

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
    /// The socket of the façade of CRI.
    pub(crate) cri_socket: Option<PathBuf>,
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
        flags.apply(&mut settings)?;
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
        // Its range of Services is known, and no kube-proxy writes the same rules as well.
        settings.cluster_ips_check.get_or_insert(true);
        if settings.cluster_dns.is_empty() && self.cluster_dns_bind_address().is_some() {
            let range = self.service_cidr.ipv4();
            settings.cluster_dns.extend(range.map(|range| IpAddr::V4(windlass_kit::cluster_dns::service_ip(range))));
        }
        settings
    }

    /// The maximum lifetime of service account tokens in seconds.
    pub(crate) fn max_token_seconds(&self) -> Option<i64> {
        let most = kubelet::duration(&self.max_token_expiration).as_secs();
        i64::try_from(most).ok().filter(|most| *most > 0)
    }
}

#[cfg(test)]
mod tests;
