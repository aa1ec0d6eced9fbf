//! From the file, the flags and our own settings to the proxy's configuration: the only way there, which validates.

use std::net::SocketAddr;

use windlass_kit::{
    duration,
    net::{Cidr, parse_ip},
};
use windlass_proxy::{Config, NodePortAddresses, Timeout, ValidConfig};

use super::types::KubeProxy;
use crate::config::{Ranges, detect_local::DetectLocalSettings};

/// What flags set, over the file.
#[derive(Debug, Clone, Default)]
pub(crate) struct Overrides {
    /// As fields of the file.
    pub(crate) fields: KubeProxy,
    /// The deprecated flags for ports; 0 for no server.
    pub(crate) healthz_port: Option<u16>,
    pub(crate) metrics_port: Option<u16>,
}

/// The proxy's configuration by kube-proxy's file, if there is one, the flags above it, and our own settings below
/// both; also returns file and flags together.
///
/// # Errors
/// All problems, as `field: reason`.
pub(crate) fn config(
    own: Config,
    file: Option<&KubeProxy>,
    over: &Overrides,
) -> Result<(ValidConfig, KubeProxy), Vec<String>> {
    let given = file.cloned().unwrap_or_default().overridden_by(over.fields.clone());
    let mut config = own;
    let mut problems = Vec::new();
    given.apply(&mut config, &mut problems);
    for (port, bind) in [(over.healthz_port, &mut config.healthz_bind), (over.metrics_port, &mut config.metrics_bind)] {
        match (port, &mut *bind) {
            (Some(0), _) => *bind = None,
            (Some(port), Some(bind)) => bind.set_port(port),
            _ => {}
        }
    }
    match config.validated() {
        Ok(valid) if problems.is_empty() => Ok((valid, given)),
        Ok(_) => Err(problems),
        Err(more) => {
            problems.extend(more);
            Err(problems)
        }
    }
}

/// Parses a listen address; without a port it gets `port`.
pub(crate) fn bind(text: &str, port: u16) -> Result<SocketAddr, String> {
    if let Some(ip) = parse_ip(text) {
        return Ok(SocketAddr::new(ip, port));
    }
    text.parse().map_err(|_| format!("{text:?} is not an address such as 0.0.0.0:{port}"))
}

/// The ranges of a foreign file, at most one of each family: bits beyond the length are cleared, as Go's parser does.
pub(crate) fn foreign_ranges(text: &str) -> Result<Ranges, String> {
    let range = |part: &str| Cidr::parse(part).ok_or_else(|| format!("{part:?} is not a range such as 10.244.0.0/16"));
    let parts = text.split(',').filter(|_| !text.is_empty());
    Ranges::new(parts.map(range).collect::<Result<_, _>>()?)
}

/// The problems of the fields by name.
struct Problems<'a>(&'a mut Vec<String>);

impl Problems<'_> {
    fn read(&mut self, field: &str, text: Option<&str>, then: &mut dyn FnMut(&str) -> Result<(), String>) {
        if let Some(Err(problem)) = text.map(then) {
            self.0.push(format!("{field}: {problem}"));
        }
    }
}

fn set<T: Copy>(value: Option<T>, to: &mut T) {
    if let Some(value) = value {
        *to = value;
    }
}

impl KubeProxy {
    /// Applies the fields that are set.
    fn apply(&self, to: &mut Config, problems: &mut Vec<String>) {
        let mut problems = Problems(problems);
        if let Some(mode) = self.mode.as_deref().filter(|m| !m.is_empty() && *m != "iptables") {
            problems
                .0
                .push(format!("mode: {mode:?} is not done by windlass; it writes iptables rules: say \"iptables\""));
        }
        problems.read("hostnameOverride", self.hostname_override.as_deref(), &mut |name| {
            let name = name.trim().to_lowercase();
            if !name.is_empty() {
                to.node_name = name;
            }
            Ok(())
        });
        if let Some(score) = self.oom_score_adj.filter(|s| !(-1000..=1000).contains(s)) {
            problems.0.push(format!("oomScoreAdj: {score} is not between -1000 and 1000"));
        }
        if let Some(format) = self.logging.format.as_deref().filter(|f| !matches!(*f, "" | "text" | "json")) {
            problems.0.push(format!("logging.format: {format:?} is neither text nor json"));
        }
        let gates = self.feature_gates.iter().flatten();
        set(
            gates.filter(|(gate, _)| *gate == "AllowServiceExternalIPs").map(|(_, on)| *on).next(),
            &mut to.external_ips,
        );
        self.apply_addresses(to, &mut problems);
        self.apply_iptables(to, &mut problems);
        self.apply_conntrack(to, &mut problems);
    }

    fn apply_addresses(&self, to: &mut Config, problems: &mut Problems<'_>) {
        problems.read("bindAddress", self.bind_address.as_deref(), &mut |text| {
            let ip = parse_ip(text).ok_or_else(|| format!("{text:?} is not an address"))?;
            to.bind_address = (!ip.is_unspecified()).then_some(ip);
            Ok(())
        });
        problems.read("healthzBindAddress", self.healthz_bind_address.as_deref(), &mut |text| {
            bind(text, 10256).map(|at| to.healthz_bind = Some(at))
        });
        problems.read("metricsBindAddress", self.metrics_bind_address.as_deref(), &mut |text| {
            bind(text, 10249).map(|at| to.metrics_bind = Some(at))
        });
        set(self.bind_address_hard_fail, &mut to.bind_hard_fail);
        let Some(list) = &self.node_port_addresses else { return };
        match list.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
            [] => to.node_port_addresses = NodePortAddresses::All,
            ["primary"] => to.node_port_addresses = NodePortAddresses::Primary,
            many => match many.iter().map(|c| Cidr::parse(c).ok_or(*c)).collect::<Result<Vec<_>, _>>() {
                Ok(ranges) => to.node_port_addresses = NodePortAddresses::Ranges(ranges),
                Err(bad) => {
                    problems.0.push(format!("nodePortAddresses: {bad:?} is not a range; or say \"primary\" alone"))
                }
            },
        }
    }

    fn apply_iptables(&self, to: &mut Config, problems: &mut Problems<'_>) {
        let iptables = &self.iptables;
        // Other modes do not use the range, and may have any.
        let by_range = self.detect_local_mode.as_deref().is_none_or(|mode| matches!(mode, "" | "ClusterCIDR"));
        problems.read("clusterCIDR", self.cluster_cidr.as_deref().filter(|_| by_range), &mut |text| {
            foreign_ranges(text).map(|ranges| to.cluster_cidrs = ranges.iter().copied().collect())
        });
        let names = (&self.detect_local.bridge_interface, &self.detect_local.interface_name_prefix);
        problems.read("detectLocalMode", self.detect_local_mode.as_deref(), &mut |mode| {
            let bridge_interface = names.0.clone().unwrap_or_default();
            let interface_name_prefix = names.1.clone().unwrap_or_default();
            let local = DetectLocalSettings { mode: mode.parse()?, bridge_interface, interface_name_prefix };
            to.detect_local = local.config();
            Ok(())
        });
        problems.read("iptables.syncPeriod", iptables.sync_period.as_deref(), &mut |text| {
            time(text).map(|d| to.sync_period = d)
        });
        problems.read("iptables.minSyncPeriod", iptables.min_sync_period.as_deref(), &mut |text| {
            time(text).map(|d| to.min_sync_period = d)
        });
        if let Some(bit) = iptables.masquerade_bit {
            // What does not fit is beyond the range in any case.
            to.masquerade_bit = u8::try_from(bit).unwrap_or(u8::MAX);
        }
        set(iptables.masquerade_all, &mut to.masquerade_all);
        set(iptables.localhost_node_ports, &mut to.localhost_node_ports);
    }

    fn apply_conntrack(&self, to: &mut Config, problems: &mut Problems<'_>) {
        let conntrack = &self.conntrack;
        for (field, text, timeout) in [
            ("tcpEstablishedTimeout", &conntrack.tcp_established_timeout, &mut to.conntrack.tcp_established),
            ("tcpCloseWaitTimeout", &conntrack.tcp_close_wait_timeout, &mut to.conntrack.tcp_close_wait),
            ("udpTimeout", &conntrack.udp_timeout, &mut to.conntrack.udp),
            ("udpStreamTimeout", &conntrack.udp_stream_timeout, &mut to.conntrack.udp_stream),
        ] {
            problems.read(&format!("conntrack.{field}"), text.as_deref(), &mut |text| {
                let time = time(text)?;
                *timeout = if time.is_zero() { Timeout::Keep } else { Timeout::Exactly(time) };
                Ok(())
            });
        }
        for (field, value, number) in [
            ("maxPerCore", conntrack.max_per_core, &mut to.conntrack.max_per_core),
            ("min", conntrack.min, &mut to.conntrack.min),
        ] {
            match value.map(u32::try_from) {
                None => {}
                Some(Ok(value)) => *number = value,
                Some(Err(_)) => {
                    problems.0.push(format!("conntrack.{field}: must be 0 or more, and a number of 32 bits"))
                }
            }
        }
        set(conntrack.tcp_be_liberal, &mut to.conntrack.tcp_be_liberal);
    }
}

/// Parses a duration in Go's syntax: `30s`, `1m30s`, `24h0m0s`, `500ms`; a bare 0 too.
fn time(text: &str) -> Result<std::time::Duration, String> {
    duration::parse(text).ok_or_else(|| format!("{text:?} is not a duration such as 30s or 1h15m, or is negative"))
}
