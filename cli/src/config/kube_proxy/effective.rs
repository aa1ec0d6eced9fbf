//! The effective settings as a KubeProxyConfiguration, for `--write-config-to` and `/configz`.

use serde_json::Value;
use windlass_kit::duration;
use windlass_proxy::{Config, DetectLocal, NodePortAddresses, Timeout};

use super::{API_VERSION, Conntrack, DetectLocalFile, Iptables, KIND, KubeProxy, OOM_SCORE_ADJ};

/// A minimum is our default only; a file can only set an exact time.
fn timeout(timeout: Timeout) -> Option<String> {
    match timeout {
        Timeout::Keep => Some("0s".to_owned()),
        Timeout::AtLeast(_) => None,
        Timeout::Exactly(time) => Some(duration::format(time)),
    }
}

/// The fields as values.
pub(super) fn value_of(settings: &KubeProxy) -> Value {
    // Texts, numbers and lists of them can always be written as JSON.
    serde_json::to_value(settings).unwrap_or_default()
}

fn texts<T: ToString>(list: &[T]) -> Vec<String> {
    list.iter().map(ToString::to_string).collect()
}

impl KubeProxy {
    /// All effective settings; fields that are not the proxy's are preserved.
    pub(crate) fn effective(&self, config: &Config) -> Self {
        let (mode, bridge, prefix) = match &config.detect_local {
            DetectLocal::ClusterCidr => ("ClusterCIDR", "", ""),
            DetectLocal::NodeCidr => ("NodeCIDR", "", ""),
            DetectLocal::BridgeInterface(name) => ("BridgeInterface", name.as_str(), ""),
            DetectLocal::InterfaceNamePrefix(prefix) => ("InterfaceNamePrefix", "", prefix.as_str()),
        };
        let mut gates = self.feature_gates.clone().unwrap_or_default();
        gates.insert("AllowServiceExternalIPs".to_owned(), config.external_ips);
        // That of one family alone decides nothing more: the addresses that depend on it are given.
        let unspecified = self.bind_address.clone().unwrap_or_else(|| "0.0.0.0".to_owned());
        Self {
            api_version: Some(API_VERSION.to_owned()),
            kind: Some(KIND.to_owned()),
            mode: Some("iptables".to_owned()),
            hostname_override: Some(config.node_name.clone()),
            bind_address: Some(config.bind_address.map_or(unspecified, |ip| ip.to_string())),
            healthz_bind_address: config.healthz_bind.map(|at| at.to_string()),
            metrics_bind_address: config.metrics_bind.map(|at| at.to_string()),
            bind_address_hard_fail: Some(config.bind_hard_fail),
            cluster_cidr: Some(texts(&config.cluster_cidrs).join(",")),
            detect_local_mode: Some(mode.to_owned()),
            detect_local: DetectLocalFile {
                bridge_interface: Some(bridge.to_owned()),
                interface_name_prefix: Some(prefix.to_owned()),
            },
            iptables: Iptables {
                masquerade_bit: Some(config.masquerade_bit.into()),
                masquerade_all: Some(config.masquerade_all),
                localhost_node_ports: Some(config.localhost_node_ports),
                sync_period: Some(duration::format(config.sync_period)),
                min_sync_period: Some(duration::format(config.min_sync_period)),
            },
            node_port_addresses: Some(match &config.node_port_addresses {
                NodePortAddresses::All => Vec::new(),
                NodePortAddresses::Primary => vec!["primary".to_owned()],
                NodePortAddresses::Ranges(ranges) => texts(ranges),
            }),
            oom_score_adj: Some(self.oom_score_adj.unwrap_or(OOM_SCORE_ADJ)),
            conntrack: Conntrack {
                max_per_core: Some(config.conntrack.max_per_core.into()),
                min: Some(config.conntrack.min.into()),
                tcp_established_timeout: timeout(config.conntrack.tcp_established),
                tcp_close_wait_timeout: timeout(config.conntrack.tcp_close_wait),
                tcp_be_liberal: Some(config.conntrack.tcp_be_liberal),
                udp_timeout: timeout(config.conntrack.udp),
                udp_stream_timeout: timeout(config.conntrack.udp_stream),
            },
            feature_gates: Some(gates),
            ..self.clone()
        }
    }

    /// The text of the file.
    pub(crate) fn yaml(&self) -> anyhow::Result<String> {
        Ok(serde_saphyr::to_string(self)?)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Overrides, *};

    #[test]
    fn what_is_written_reads_back_as_the_same_settings() {
        let text = format!(
            "apiVersion: {API_VERSION}\nkind: {KIND}\nclusterCIDR: 10.180.0.0/16,fd00:1::/48\nnodePortAddresses: [10.0.0.0/8]\n\
             detectLocalMode: InterfaceNamePrefix\ndetectLocal: {{interfaceNamePrefix: veth}}\niptables: {{syncPeriod: 2m, minSyncPeriod: 1m1.5s}}\n\
             conntrack: {{udpTimeout: 5s, tcpEstablishedTimeout: 2h0m0s, tcpCloseWaitTimeout: 90s}}\n"
        );
        let own = Config { node_name: "n1".to_owned(), ..Config::default() };
        let (file, _) = super::super::parse(&text).unwrap();
        let (config, given) = super::super::config(own, Some(&file), &Overrides::default()).unwrap();
        let written = given.effective(&config).yaml().unwrap();
        let (again, unknown) = super::super::parse(&written).unwrap();
        assert_eq!(unknown, [] as [String; 0]);
        let (read, _) = super::super::config(Config::default(), Some(&again), &Overrides::default()).unwrap();
        assert_eq!(read, config, "{written}");
    }
}
