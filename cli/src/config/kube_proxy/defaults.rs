//! What a field means that the file leaves out: upstream's `SetDefaults_KubeProxyConfiguration`
//! (pkg/proxy/apis/config/v1alpha1/defaults.go) and the options' defaults (cmd/kube-proxy/app/server_linux.go) as a
//! table. Programs write the zero of a field that they do not set, kubeadm among them, so that zero means the same as
//! nothing, in a file. A flag is taken as it stands.

use serde_json::{Value, json};
use windlass_kit::{duration, net::parse_ip};

use super::types::KubeProxy;

/// What counts as not set, besides a field that is absent or null.
#[derive(Clone, Copy)]
enum Zero {
    /// Nothing else: a zero is a value.
    Null,
    /// An empty text.
    Empty,
    /// A duration of zero.
    Duration,
}

/// Its default value.
#[derive(Clone, Copy)]
enum Default {
    Text(&'static str),
    Number(i64),
    True,
    /// By the family of `bindAddress`: IPv4, else IPv6.
    OfBindAddress(&'static str, &'static str),
    /// The field stays unset: our default is not upstream's exact value (docs/decisions.md).
    Ours,
}

/// Field, its zero, its default. `bindAddress` comes first, since others depend on it.
const DEFAULTS: [(&str, Zero, Default); 17] = [
    ("/bindAddress", Zero::Empty, Default::Text("0.0.0.0")),
    ("/healthzBindAddress", Zero::Empty, Default::OfBindAddress("0.0.0.0:10256", "[::]:10256")),
    ("/metricsBindAddress", Zero::Empty, Default::OfBindAddress("127.0.0.1:10249", "[::1]:10249")),
    ("/oomScoreAdj", Zero::Null, Default::Number(super::OOM_SCORE_ADJ as i64)),
    ("/iptables/syncPeriod", Zero::Duration, Default::Text("30s")),
    ("/iptables/minSyncPeriod", Zero::Duration, Default::Text("1s")),
    ("/iptables/localhostNodePorts", Zero::Null, Default::True),
    ("/iptables/masqueradeBit", Zero::Null, Default::Number(14)),
    ("/conntrack/maxPerCore", Zero::Null, Default::Number(32 * 1024)),
    ("/conntrack/min", Zero::Null, Default::Number(128 * 1024)),
    ("/conntrack/tcpEstablishedTimeout", Zero::Null, Default::Ours),
    ("/conntrack/tcpCloseWaitTimeout", Zero::Null, Default::Ours),
    // Zero leaves the kernel's value.
    ("/conntrack/udpTimeout", Zero::Null, Default::Text("0s")),
    ("/conntrack/udpStreamTimeout", Zero::Null, Default::Text("0s")),
    ("/mode", Zero::Empty, Default::Text("iptables")),
    ("/detectLocalMode", Zero::Empty, Default::Text("ClusterCIDR")),
    // None: no traffic is known to be of pods.
    ("/clusterCIDR", Zero::Null, Default::Text("")),
];

impl Zero {
    fn is(self, value: &Value) -> bool {
        match (self, value) {
            (_, Value::Null) => true,
            (Self::Empty, Value::String(text)) => text.is_empty(),
            (Self::Duration, Value::String(text)) => duration::parse(text).is_some_and(|time| time.is_zero()),
            _ => false,
        }
    }
}

/// Fills in the defaults of a file.
pub(super) fn set_defaults(file: KubeProxy) -> KubeProxy {
    file.changed(|file| {
        for (field, zero, default) in DEFAULTS {
            let bind_address = file["bindAddress"].as_str().and_then(parse_ip);
            let Some(value) = file.pointer_mut(field).filter(|value| zero.is(value)) else { continue };
            match default {
                Default::Text(text) => *value = json!(text),
                Default::Number(number) => *value = json!(number),
                Default::True => *value = json!(true),
                Default::OfBindAddress(v4, v6) => {
                    *value = json!(if bind_address.is_some_and(|ip| ip.is_ipv4()) { v4 } else { v6 });
                }
                Default::Ours => {}
            }
        }
    })
}
