//! What NetworkPolicies allow, as their documentation has it, decided for one packet by looking at the API's objects
//! (staging/src/k8s.io/api/networking/v1/types.go): what the packets of compiled rules are compared with.

use std::net::IpAddr;

use serde_json::{Value, json};

use crate::model::{Cidr, parse_ip};

/// The first packet of a connection.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Connection {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) protocol: &'static str,
    pub(super) port: u16,
}

/// The API's objects.
#[derive(Debug, Clone, Default)]
pub(super) struct World {
    pub(super) policies: Vec<Value>,
    pub(super) namespaces: Vec<Value>,
    pub(super) pods: Vec<Value>,
}

impl World {
    fn pod(&self, ip: IpAddr) -> Option<&Value> {
        self.pods.iter().find(|pod| {
            let ended = ["Succeeded", "Failed"].iter().any(|phase| pod["status"]["phase"] == *phase);
            let has = pod["status"]["podIPs"]
                .as_array()
                .unwrap()
                .iter()
                .any(|of| parse_ip(of["ip"].as_str().unwrap()) == Some(ip));
            has && !ended && pod["spec"]["hostNetwork"] != true
        })
    }

    /// Whether `node` lets the packet pass, which judges for its own pods.
    pub(super) fn allows(&self, node: &str, packet: &Connection) -> bool {
        let (source, destination) = (self.pod(packet.source), self.pod(packet.destination));
        if packet.source == packet.destination {
            return true;
        }
        let here = |pod: &&Value| pod["spec"]["nodeName"] == node;
        source.filter(here).is_none_or(|pod| self.allows_pod("Egress", pod, packet))
            && destination.filter(here).is_none_or(|pod| self.allows_pod("Ingress", pod, packet))
    }

    fn allows_pod(&self, kind: &str, pod: &Value, packet: &Connection) -> bool {
        let selecting = || {
            self.policies.iter().filter(|policy| {
                policy["metadata"]["namespace"] == pod["metadata"]["namespace"]
                    && matches(&policy["spec"]["podSelector"], &pod["metadata"]["labels"])
                    && policy["spec"]["policyTypes"].as_array().unwrap().iter().any(|of| of == kind)
            })
        };
        selecting().next().is_none() || selecting().any(|policy| self.policy_allows(kind, policy, packet))
    }

    fn policy_allows(&self, kind: &str, policy: &Value, packet: &Connection) -> bool {
        let (rules, peers) = if kind == "Ingress" { ("ingress", "from") } else { ("egress", "to") };
        let other = if kind == "Ingress" { packet.source } else { packet.destination };
        let none = Vec::new();
        policy["spec"][rules].as_array().unwrap_or(&none).iter().any(|rule| {
            let peers = rule[peers].as_array().unwrap_or(&none);
            let ports = rule["ports"].as_array().unwrap_or(&none);
            (peers.is_empty() || peers.iter().any(|peer| self.is_peer(policy, peer, other)))
                && (ports.is_empty() || ports.iter().any(|port| self.is_port(port, packet)))
        })
    }

    fn is_peer(&self, policy: &Value, peer: &Value, ip: IpAddr) -> bool {
        let block = &peer["ipBlock"];
        if block.is_object() {
            let contains = |of: &Value| Cidr::parse(of.as_str().unwrap()).unwrap().contains(&ip);
            return contains(&block["cidr"]) && !block["except"].as_array().is_some_and(|all| all.iter().any(contains));
        }
        let Some(pod) = self.pod(ip) else { return false };
        let namespace = &pod["metadata"]["namespace"];
        let in_namespace = if peer["namespaceSelector"].is_null() {
            *namespace == policy["metadata"]["namespace"]
        } else {
            let known = self.namespaces.iter().find(|of| of["metadata"]["name"] == *namespace);
            known.is_some_and(|of| matches(&peer["namespaceSelector"], &of["metadata"]["labels"]))
        };
        in_namespace && matches(&peer["podSelector"], &pod["metadata"]["labels"])
    }

    fn is_port(&self, port: &Value, packet: &Connection) -> bool {
        if port["protocol"].as_str().unwrap_or("TCP").to_lowercase() != packet.protocol {
            return false;
        }
        match &port["port"] {
            Value::Null => true,
            Value::String(name) => self.pod(packet.destination).is_some_and(|pod| {
                pod["spec"]["containers"].as_array().unwrap().iter().flat_map(|c| c["ports"].as_array().unwrap()).any(
                    |of| {
                        of["name"] == **name
                            && of["protocol"].as_str().unwrap().to_lowercase() == packet.protocol
                            && of["containerPort"] == packet.port
                    },
                )
            }),
            first => {
                let first = first.as_u64().unwrap();
                (first..=port["endPort"].as_u64().unwrap_or(first)).contains(&u64::from(packet.port))
            }
        }
    }
}

/// Whether labels match a selector.
fn matches(selector: &Value, labels: &Value) -> bool {
    let empty = json!({});
    let pairs = selector["matchLabels"].as_object().unwrap_or(empty.as_object().unwrap());
    pairs.iter().all(|(key, value)| labels[key] == *value)
        && selector["matchExpressions"].as_array().into_iter().flatten().all(|expression| {
            let label = &labels[expression["key"].as_str().unwrap()];
            let is_one = expression["values"].as_array().is_some_and(|values| values.contains(label));
            match expression["operator"].as_str().unwrap() {
                "In" => is_one,
                "NotIn" => !is_one,
                "Exists" => !label.is_null(),
                "DoesNotExist" => label.is_null(),
                other => panic!("{other}"),
            }
        })
}
