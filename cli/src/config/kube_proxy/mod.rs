//! kube-proxy's configuration file (`kubeproxy.config.k8s.io/v1alpha1`), so that `windlass proxy` can replace
//! kube-proxy. Fields of other modes are accepted without effect; unknown ones are warned about and ignored, as
//! upstream.

mod effective;

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use windlass_kit::{
    duration,
    net::{Cidr, Family, parse_ip},
};
use windlass_proxy::{Config, DetectLocal, NodePortAddresses, Timeout};

use super::Ranges;

/// The file's version and kind.
const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
const KIND: &str = "KubeProxyConfiguration";
/// The proxy's default OOM score adjustment; upstream's.
pub(crate) const OOM_SCORE_ADJ: i32 = -999;

/// The fields with an effect; in kebab case they are flags.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct KubeProxy {
    pub(crate) mode: Option<String>,
    pub(crate) client_connection: ClientConnection,
    pub(crate) hostname_override: Option<String>,
    pub(crate) bind_address: Option<String>,
    pub(crate) healthz_bind_address: Option<String>,
    pub(crate) metrics_bind_address: Option<String>,
    pub(crate) bind_address_hard_fail: Option<bool>,
    #[serde(rename = "clusterCIDR")]
    pub(crate) cluster_cidr: Option<String>,
    pub(crate) detect_local_mode: Option<String>,
    pub(crate) detect_local: DetectLocalFile,
    pub(crate) iptables: Iptables,
    pub(crate) node_port_addresses: Option<Vec<String>>,
    pub(crate) oom_score_adj: Option<i32>,
    pub(crate) conntrack: Conntrack,
    pub(crate) feature_gates: Option<BTreeMap<String, bool>>,
    pub(crate) logging: Logging,
    /// The other fields of the file.
    #[serde(flatten)]
    pub(crate) rest: BTreeMap<String, Value>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ClientConnection {
    pub(crate) kubeconfig: Option<PathBuf>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct DetectLocalFile {
    pub(crate) bridge_interface: Option<String>,
    pub(crate) interface_name_prefix: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Iptables {
    pub(crate) masquerade_bit: Option<u8>,
    pub(crate) masquerade_all: Option<bool>,
    pub(crate) localhost_node_ports: Option<bool>,
    pub(crate) sync_period: Option<String>,
    pub(crate) min_sync_period: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Conntrack {
    pub(crate) max_per_core: Option<u32>,
    pub(crate) min: Option<u32>,
    pub(crate) tcp_established_timeout: Option<String>,
    pub(crate) tcp_close_wait_timeout: Option<String>,
    pub(crate) tcp_be_liberal: Option<bool>,
    pub(crate) udp_timeout: Option<String>,
    pub(crate) udp_stream_timeout: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Logging {
    pub(crate) format: Option<String>,
    pub(crate) verbosity: Option<u8>,
}

/// Upstream's fields without effect here, which are not reported as unknown.
const WITHOUT_EFFECT: [&str; 11] = [
    "apiVersion",
    "kind",
    "ipvs",
    "nftables",
    "winkernel",
    "windowsRunAsService",
    "portRange",
    "configSyncPeriod",
    "enableProfiling",
    "showHiddenMetricsForVersion",
    "udpIdleTimeout",
];

/// Whether a text is a KubeProxyConfiguration.
pub(crate) fn is_kube_proxy(text: &str) -> bool {
    serde_saphyr::from_str::<Value>(text).is_ok_and(|v| v["kind"] == KIND)
}

/// Parses the file; also returns the names of ignored fields.
///
/// # Errors
/// Text that is not YAML, another version, or a setting of the wrong type.
pub(crate) fn parse(text: &str) -> anyhow::Result<(KubeProxy, Vec<String>)> {
    let mut file: KubeProxy = serde_saphyr::from_str(text).map_err(|e| anyhow::anyhow!("{e}"))?;
    let rest = std::mem::take(&mut file.rest);
    let version = rest.get("apiVersion").unwrap_or(&Value::Null);
    anyhow::ensure!(version == API_VERSION, "apiVersion is {version}; this version of windlass reads {API_VERSION:?}");
    Ok((file, rest.into_keys().filter(|key| !WITHOUT_EFFECT.contains(&key.as_str())).collect()))
}

/// Parses a duration in Go's syntax: `30s`, `1m30s`, `24h0m0s`, `500ms`; a bare 0 too.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    duration::parse(text).ok_or_else(|| format!("{text:?} is not a duration such as 30s or 1h15m"))
}

/// Parses a listen address; without a port it gets `port`.
pub(crate) fn bind(text: &str, port: u16) -> Result<SocketAddr, String> {
    if let Some(ip) = parse_ip(text) {
        return Ok(SocketAddr::new(ip, port));
    }
    text.parse().map_err(|_| format!("{text:?} is not an address such as 0.0.0.0:{port}"))
}

impl KubeProxy {
    /// Merges `over` over these settings; feature gates are merged too.
    pub(crate) fn overridden_by(self, over: Self) -> Self {
        fn merge(in_data_dir: &mut Value, above: Value) {
            match (in_data_dir, above) {
                (_, Value::Null) => {}
                (Value::Object(in_data_dir), Value::Object(above)) => {
                    for (key, value) in above {
                        merge(in_data_dir.entry(key).or_insert(Value::Null), value);
                    }
                }
                (in_data_dir, above) => *in_data_dir = above,
            }
        }
        const SAME: &str = "texts, numbers and lists of them are written as JSON and read back";
        let mut both = serde_json::to_value(self).expect(SAME);
        merge(&mut both, serde_json::to_value(over).expect(SAME));
        serde_json::from_value(both).expect(SAME)
    }

    /// The log filter of upstream's verbosity; 4 and above are for debugging.
    pub(crate) fn log_filter(&self) -> Option<&'static str> {
        self.logging.verbosity.map(|v| match v {
            0..=3 => "info",
            4..=5 => "info,windlass_proxy=debug",
            6..=8 => "debug",
            _ => "trace",
        })
    }

    /// Applies the fields that are set; all problems are reported together. Long, since it is the list of them.
    ///
    /// # Errors
    /// All problems, as `field: reason`.
    pub(crate) fn apply(&self, to: &mut Config) -> Result<(), Vec<String>> {
        let mut wrong: Vec<String> = Vec::new();
        if let Some(mode) = self.mode.as_deref().filter(|m| !m.is_empty() && *m != "iptables") {
            wrong.push(format!("mode: {mode:?} is not done by windlass; it writes iptables rules: say \"iptables\""));
        }
        let mut read = |field: &str, text: Option<&str>, then: &mut dyn FnMut(&str) -> Result<(), String>| {
            if let Some(Err(problem)) = text.map(then) {
                wrong.push(format!("{field}: {problem}"));
            }
        };
        let (iptables, conntrack) = (&self.iptables, &self.conntrack);
        read("hostnameOverride", self.hostname_override.as_deref(), &mut |name| {
            let name = name.trim().to_lowercase();
            if !name.is_empty() {
                to.node_name = name;
            }
            Ok(())
        });
        read("bindAddress", self.bind_address.as_deref(), &mut |text| {
            let ip = parse_ip(text).ok_or_else(|| format!("{text:?} is not an address"))?;
            if !ip.is_unspecified() {
                to.node_ips.retain(|other| Family::of(other) != Family::of(&ip));
                to.node_ips.insert(0, ip);
            }
            Ok(())
        });
        // Empty means the default, as files written by kubeadm have it.
        let filled = |text: &Option<String>| text.clone().filter(|t| !t.is_empty());
        read("healthzBindAddress", filled(&self.healthz_bind_address).as_deref(), &mut |text| {
            bind(text, 10256).map(|at| to.healthz_bind = Some(at))
        });
        read("metricsBindAddress", filled(&self.metrics_bind_address).as_deref(), &mut |text| {
            bind(text, 10249).map(|at| to.metrics_bind = Some(at))
        });
        read("clusterCIDR", self.cluster_cidr.as_deref().filter(|t| !t.is_empty()), &mut |text| {
            text.parse::<Ranges>().map(|ranges| to.cluster_cidrs = ranges.iter().copied().collect())
        });
        read("iptables.syncPeriod", iptables.sync_period.as_deref(), &mut |text| {
            duration(text).map(|d| to.sync_period = d)
        });
        read("iptables.minSyncPeriod", iptables.min_sync_period.as_deref(), &mut |text| {
            duration(text).map(|d| to.min_sync_period = d)
        });
        for (field, text, timeout) in [
            ("tcpEstablishedTimeout", &conntrack.tcp_established_timeout, &mut to.conntrack.tcp_established),
            ("tcpCloseWaitTimeout", &conntrack.tcp_close_wait_timeout, &mut to.conntrack.tcp_close_wait),
            ("udpTimeout", &conntrack.udp_timeout, &mut to.conntrack.udp),
            ("udpStreamTimeout", &conntrack.udp_stream_timeout, &mut to.conntrack.udp_stream),
        ] {
            read(&format!("conntrack.{field}"), text.as_deref(), &mut |text| {
                let time = duration(text)?;
                *timeout = if time.is_zero() { Timeout::Keep } else { Timeout::Exactly(time) };
                Ok(())
            });
        }
        let (bridge, prefix) = (&self.detect_local.bridge_interface, &self.detect_local.interface_name_prefix);
        read("detectLocalMode", self.detect_local_mode.as_deref(), &mut |mode| {
            to.detect_local = match mode {
                "" | "ClusterCIDR" => DetectLocal::ClusterCidr,
                "NodeCIDR" => DetectLocal::NodeCidr,
                "BridgeInterface" => DetectLocal::BridgeInterface(bridge.clone().unwrap_or_default()),
                "InterfaceNamePrefix" => DetectLocal::InterfaceNamePrefix(prefix.clone().unwrap_or_default()),
                other => {
                    return Err(format!(
                        "{other:?} is none of ClusterCIDR, NodeCIDR, BridgeInterface, InterfaceNamePrefix"
                    ));
                }
            };
            Ok(())
        });
        if let Some(list) = &self.node_port_addresses {
            match list.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
                [] => to.node_port_addresses = NodePortAddresses::All,
                ["primary"] => to.node_port_addresses = NodePortAddresses::Primary,
                many => match many.iter().map(|c| Cidr::parse(c).ok_or(*c)).collect::<Result<Vec<_>, _>>() {
                    Ok(ranges) => to.node_port_addresses = NodePortAddresses::Ranges(ranges),
                    Err(bad) => {
                        wrong.push(format!("nodePortAddresses: {bad:?} is not a range; or say \"primary\" alone"))
                    }
                },
            }
        }
        if let Some(score) = self.oom_score_adj.filter(|s| !(-1000..=1000).contains(s)) {
            wrong.push(format!("oomScoreAdj: {score} is not between -1000 and 1000"));
        }
        fn set<T: Copy>(value: Option<T>, to: &mut T) {
            if let Some(value) = value {
                *to = value;
            }
        }
        set(self.bind_address_hard_fail, &mut to.bind_hard_fail);
        set(iptables.masquerade_bit, &mut to.masquerade_bit);
        set(iptables.masquerade_all, &mut to.masquerade_all);
        set(iptables.localhost_node_ports, &mut to.localhost_node_ports);
        set(conntrack.max_per_core, &mut to.conntrack.max_per_core);
        set(conntrack.min, &mut to.conntrack.min);
        set(conntrack.tcp_be_liberal, &mut to.conntrack.tcp_be_liberal);
        set(
            self.feature_gates.iter().flatten().find(|(gate, _)| *gate == "AllowServiceExternalIPs").map(|(_, on)| *on),
            &mut to.external_ips,
        );
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_writes_them() {
        for (text, seconds) in [
            ("30s", 30.0),
            ("1m30s", 90.0),
            ("24h0m0s", 86_400.0),
            ("500ms", 0.5),
            ("1.5h", 5400.0),
            ("0", 0.0),
            ("0s", 0.0),
        ] {
            assert_eq!(duration(text).map(|d| d.as_secs_f64()), Ok(seconds), "{text}");
        }
        for wrong in ["", "30", "s", "30x", "-1s", "1h 30m"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_file_as_kubeadm_writes_it_is_understood() {
        // The shape of a usual cluster's ConfigMap: many settings empty or null.
        let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nbindAddress: 0.0.0.0\n\
            bindAddressHardFail: false\nclientConnection:\n  acceptContentTypes: ''\n  burst: 0\n  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf\n  qps: 0\n\
            clusterCIDR: 10.180.0.0/16,fd00:1::/48\nconfigSyncPeriod: 0s\nconntrack:\n  maxPerCore: null\n  min: null\n  tcpCloseWaitTimeout: null\n  tcpEstablishedTimeout: 2h0m0s\n\
            detectLocal:\n  bridgeInterface: ''\n  interfaceNamePrefix: ''\ndetectLocalMode: ''\nenableProfiling: false\nhealthzBindAddress: ''\nhostnameOverride: N1\n\
            iptables:\n  localhostNodePorts: null\n  masqueradeAll: true\n  masqueradeBit: 15\n  minSyncPeriod: 0s\n  syncPeriod: 20s\nipvs:\n  scheduler: ''\n\
            logging:\n  flushFrequency: 0\n  verbosity: 5\nmetricsBindAddress: 0.0.0.0\nmode: ''\nnodePortAddresses: null\noomScoreAdj: null\nportRange: ''\nsurprise: 1\n";
        assert!(is_kube_proxy(text));
        let (file, unknown) = parse(text).unwrap();
        assert_eq!(unknown, ["surprise"]);
        let mut config = Config::default();
        file.apply(&mut config).unwrap();
        assert_eq!(config.node_name, "n1");
        assert_eq!(config.cluster_cidrs.len(), 2);
        assert_eq!((config.masquerade_bit, config.masquerade_all), (15, true));
        assert_eq!(config.metrics_bind, Some("0.0.0.0:10249".parse().unwrap()));
        assert_eq!(config.healthz_bind, Config::default().healthz_bind);
        assert_eq!(config.sync_period, Duration::from_secs(20));
        assert_eq!(config.conntrack.tcp_established, Timeout::Exactly(Duration::from_hours(2)));
        assert_eq!(config.conntrack.max_per_core, 32768);
        assert_eq!(file.log_filter(), Some("info,windlass_proxy=debug"));
        assert_eq!(file.client_connection.kubeconfig, Some("/var/lib/kube-proxy/kubeconfig.conf".into()));
    }

    #[test]
    fn what_is_wrong_is_named_all_at_once() {
        let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: ipvs\n\
            iptables: {syncPeriod: soon}\nnodePortAddresses: [primary, 10.0.0.0/8]\nclusterCIDR: 10.0.0.0/8,11.0.0.0/8\noomScoreAdj: 5000\n";
        let wrong = parse(text).unwrap().0.apply(&mut Config::default()).unwrap_err().join("\n");
        for field in ["mode", "iptables.syncPeriod", "nodePortAddresses", "clusterCIDR", "oomScoreAdj"] {
            assert!(wrong.contains(&format!("{field}: ")), "{field}: {wrong}");
        }
        assert!(parse("apiVersion: kubeproxy.config.k8s.io/v9\nkind: KubeProxyConfiguration\n").is_err());
        assert!(!is_kube_proxy("kind: WindlassConfiguration\n"));
    }

    #[test]
    fn flags_lie_over_the_file() {
        let in_data_dir =
            KubeProxy { mode: Some("iptables".into()), bind_address: Some("10.0.0.1".into()), ..KubeProxy::default() };
        let above = KubeProxy { bind_address: Some("10.0.0.2".into()), ..KubeProxy::default() };
        let both = in_data_dir.overridden_by(above);
        assert_eq!((both.mode.as_deref(), both.bind_address.as_deref()), (Some("iptables"), Some("10.0.0.2")));
    }
}
