//! The type of the file, with upstream's names. A field is absent or null where it was not given.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::field_names::names;

/// KubeProxyConfiguration. The fields that are values as they stand have no effect here, and are written as they were
/// read.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct KubeProxy {
    pub(crate) api_version: Option<String>,
    pub(crate) kind: Option<String>,
    pub(crate) feature_gates: Option<BTreeMap<String, bool>>,
    pub(crate) client_connection: ClientConnection,
    pub(crate) logging: Logging,
    pub(crate) hostname_override: Option<String>,
    pub(crate) bind_address: Option<String>,
    pub(crate) healthz_bind_address: Option<String>,
    pub(crate) metrics_bind_address: Option<String>,
    pub(crate) bind_address_hard_fail: Option<bool>,
    pub(crate) enable_profiling: Option<Value>,
    pub(crate) show_hidden_metrics_for_version: Option<Value>,
    pub(crate) mode: Option<String>,
    pub(crate) iptables: Iptables,
    pub(crate) ipvs: Option<Value>,
    pub(crate) nftables: Option<Value>,
    pub(crate) winkernel: Option<Value>,
    pub(crate) detect_local_mode: Option<String>,
    pub(crate) detect_local: DetectLocalFile,
    #[serde(rename = "clusterCIDR")]
    pub(crate) cluster_cidr: Option<String>,
    pub(crate) node_port_addresses: Option<Vec<String>>,
    pub(crate) oom_score_adj: Option<i32>,
    pub(crate) conntrack: Conntrack,
    pub(crate) config_sync_period: Option<Value>,
    pub(crate) port_range: Option<Value>,
    pub(crate) windows_run_as_service: Option<Value>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ClientConnection {
    pub(crate) kubeconfig: Option<PathBuf>,
    pub(crate) accept_content_types: Option<Value>,
    pub(crate) content_type: Option<Value>,
    pub(crate) qps: Option<Value>,
    pub(crate) burst: Option<Value>,
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
    pub(crate) masquerade_bit: Option<i64>,
    pub(crate) masquerade_all: Option<bool>,
    pub(crate) localhost_node_ports: Option<bool>,
    pub(crate) sync_period: Option<String>,
    pub(crate) min_sync_period: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Conntrack {
    pub(crate) max_per_core: Option<i64>,
    pub(crate) min: Option<i64>,
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
    pub(crate) flush_frequency: Option<Value>,
    pub(crate) verbosity: Option<u8>,
    pub(crate) vmodule: Option<Value>,
    pub(crate) options: Option<Value>,
}

/// The fields of the sections without effect.
const IPVS: [&str; 8] = [
    "syncPeriod",
    "minSyncPeriod",
    "scheduler",
    "excludeCIDRs",
    "strictARP",
    "tcpTimeout",
    "tcpFinTimeout",
    "udpTimeout",
];
const NFTABLES: [&str; 4] = ["masqueradeBit", "masqueradeAll", "syncPeriod", "minSyncPeriod"];
const WINKERNEL: [&str; 5] = ["networkName", "sourceVip", "enableDSR", "rootHnsEndpointName", "forwardHealthCheckVip"];
const LOG_OPTIONS: [&str; 2] = ["text", "json"];

/// The paths of the fields that upstream's type does not have, at any depth: an option that was misspelt.
pub(super) fn unknown_fields(file: &Value) -> Vec<String> {
    let sections: [(&str, &[&str]); 9] = [
        ("", names::<KubeProxy>()),
        ("clientConnection", names::<ClientConnection>()),
        ("logging", names::<Logging>()),
        ("logging/options", &LOG_OPTIONS),
        ("iptables", names::<Iptables>()),
        ("ipvs", &IPVS),
        ("nftables", &NFTABLES),
        ("winkernel", &WINKERNEL),
        ("detectLocal", names::<DetectLocalFile>()),
    ];
    let conntrack = ("conntrack", names::<Conntrack>());
    let mut unknown = Vec::new();
    for (section, known) in sections.into_iter().chain([conntrack]) {
        let pointer = if section.is_empty() { String::new() } else { format!("/{section}") };
        let fields = file.pointer(&pointer).and_then(Value::as_object).into_iter().flatten();
        for (name, _) in fields.filter(|(name, _)| !known.contains(&name.as_str())) {
            unknown.push(format!("{section}/{name}").trim_start_matches('/').replace('/', "."));
        }
    }
    unknown
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
        self.changed(|both| merge(both, super::effective::value_of(&over)))
    }

    /// The same after a change of its fields as values.
    pub(super) fn changed(self, change: impl FnOnce(&mut Value)) -> Self {
        let mut value = super::effective::value_of(&self);
        change(&mut value);
        serde_json::from_value(value).unwrap_or(self)
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
}
