//! What settings must be, alone and together. Pure.

use windlass_kit::duration;

use super::{OptionalAddress, PodNetwork, Settings, proxy};

impl Settings {
    /// All that is wrong with them.
    pub(super) fn problems(&self) -> Vec<String> {
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
        .chain(self.cri_socket.as_ref().map(|socket| ("criSocket", socket)))
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
