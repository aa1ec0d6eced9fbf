//! The built-in defaults, for this machine and for an example of one.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::{
    ClusterAccess, Handlers, KubeletSettings, LogFormat, PodNetwork, Ranges, Registration, RulesLayout, Settings,
    audit::AuditSettings, detect_local::DetectLocalSettings,
};

impl Settings {
    pub(super) fn built_in() -> anyhow::Result<Self> {
        Ok(Self::with_defaults(host_name()?, detect_node_ip()))
    }

    pub(super) fn with_defaults(node_name: String, default_route_ip: IpAddr) -> Self {
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
            cri_socket: None,
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
}

fn host_name() -> anyhow::Result<String> {
    let name = nix::unistd::gethostname()
        .map_err(|e| anyhow::anyhow!("the host's name could not be read ({e}); set nodeName"))?;
    Ok(name.to_string_lossy().trim().to_lowercase())
}

/// The source address of the default route; connecting a UDP socket sends no packet.
pub(crate) fn detect_node_ip() -> IpAddr {
    let probe = || -> std::io::Result<IpAddr> {
        let socket = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        // An address of a documentation range (TEST-NET-2).
        socket.connect((Ipv4Addr::new(198, 51, 100, 1), 9))?;
        Ok(socket.local_addr()?.ip())
    };
    probe().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}
