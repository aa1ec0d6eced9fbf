//! Reads NetworkPolicies. What cannot be read allows nobody.

use std::{cmp::Ordering, collections::BTreeMap, fmt, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::Value;
use windlass_kit::{json, net::Cidr, objects::label_selector::Selector};

use super::objects;
use crate::model::Protocol;

/// A label selector, ordered by its text.
#[derive(Debug, Clone)]
pub(super) struct Labels {
    selector: Arc<LabelSelector>,
    text: Arc<str>,
}

impl PartialEq for Labels {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Labels {}

impl PartialOrd for Labels {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Labels {
    fn cmp(&self, other: &Self) -> Ordering {
        self.text.cmp(&other.text)
    }
}

impl fmt::Display for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Labels {
    /// The selector that everything matches.
    pub(super) fn all() -> Self {
        Self { selector: Arc::default(), text: "{}".into() }
    }

    /// Reads a selector; an absent one is empty. `None` if it, or one of its requirements, cannot be read.
    fn read(value: &Value) -> Option<Self> {
        if value.is_null() {
            return Some(Self::all());
        }
        let selector: LabelSelector = json::from_value(value).ok()?;
        let is_valid = selector.match_expressions.iter().flatten().all(|requirement| {
            let has_values = requirement.values.as_ref().is_some_and(|values| !values.is_empty());
            match requirement.operator.as_str() {
                "In" | "NotIn" => has_values,
                "Exists" | "DoesNotExist" => !has_values,
                _ => false,
            }
        });
        let text = serde_json::to_string(&selector).ok()?;
        is_valid.then(|| Self { selector: Arc::new(selector), text: text.into() })
    }

    pub(super) fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        Selector::from(&*self.selector).matches(Some(labels))
    }
}

/// Whose pods a peer selects.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Namespaces {
    /// Those of this namespace.
    One(Arc<str>),
    /// Those of all namespaces with these labels.
    Matching(Labels),
    /// Those of all, whether their namespaces are known or not.
    Any,
}

/// Pods by the labels of their namespaces and their own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pods {
    pub(super) namespaces: Namespaces,
    pub(super) labels: Labels,
}

impl fmt::Display for Pods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespaces {
            Namespaces::One(name) => write!(f, "namespace {name}, pods {}", self.labels),
            Namespaces::Matching(labels) => write!(f, "namespaces {labels}, pods {}", self.labels),
            Namespaces::Any => write!(f, "any namespace, pods {}", self.labels),
        }
    }
}

/// One of `from` or `to`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Peer {
    Pods(Pods),
    /// A range without parts of it.
    Block {
        range: Cidr,
        except: Vec<Cidr>,
    },
}

/// Which ports of a protocol.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ports {
    All,
    /// First and last.
    Range(u16, u16),
    /// What the destination pod calls so.
    Named(Arc<str>),
}

/// One of `ports`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PortMatch {
    pub(super) protocol: Protocol,
    pub(super) ports: Ports,
}

/// A rule of `ingress` or `egress`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Rule {
    /// `None`: anybody. An empty list: nobody, for none could be read.
    pub(super) peers: Option<Vec<Peer>>,
    /// `None`: any protocol and port.
    pub(super) ports: Option<Vec<PortMatch>>,
}

/// A NetworkPolicy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Policy {
    /// The pods of its namespace that it selects.
    pub(super) selects: Labels,
    /// What it allows to them; `None` if it does not isolate them for ingress.
    pub(super) ingress: Option<Vec<Rule>>,
    /// What it allows from them.
    pub(super) egress: Option<Vec<Rule>>,
    /// Something of it could not be read.
    pub(super) unreadable: bool,
}

impl Policy {
    pub(super) fn of(object: &objects::NetworkPolicy) -> Self {
        let mut reader = Reader {
            namespace: object.metadata.namespace.as_deref().unwrap_or_default().into(),
            unreadable: !object.spec.is_object(),
        };
        let spec = &object.spec;
        let selects = Labels::read(&spec["podSelector"]).filter(|_| spec.is_object());
        let (is_ingress, is_egress) = reader.types(spec);
        let mut ingress = is_ingress.then(|| reader.rules(&spec["ingress"], "from"));
        let mut egress = is_egress.then(|| reader.rules(&spec["egress"], "to"));
        if selects.is_none() {
            reader.unreadable = true;
            (ingress, egress) = (is_ingress.then(Vec::new), is_egress.then(Vec::new));
        }
        Self { selects: selects.unwrap_or_else(Labels::all), ingress, egress, unreadable: reader.unreadable }
    }
}

struct Reader {
    namespace: Arc<str>,
    unreadable: bool,
}

impl Reader {
    /// Whether it is of ingress and of egress. As `SetDefaults_NetworkPolicy` of pkg/apis/networking/v1 has it, without
    /// types it is of ingress, and with rules of egress of egress, too.
    fn types(&mut self, spec: &Value) -> (bool, bool) {
        if !spec.is_object() {
            return (true, true);
        }
        let has_egress =
            !matches!(&spec["egress"], Value::Null) && spec["egress"].as_array().is_none_or(|e| !e.is_empty());
        match &spec["policyTypes"] {
            Value::Null => (true, has_egress),
            Value::Array(types) if types.is_empty() => (true, has_egress),
            Value::Array(types) => {
                let has = |name: &str| types.iter().any(|of| of == name);
                if types.iter().all(|of| of == "Ingress" || of == "Egress") {
                    return (has("Ingress"), has("Egress"));
                }
                self.unreadable = true;
                (true, true)
            }
            _ => {
                self.unreadable = true;
                (true, true)
            }
        }
    }

    /// The elements of a list that can be read; `None` if it is absent or empty, which restricts nothing.
    fn list<T>(&mut self, value: &Value, mut read: impl FnMut(&mut Self, &Value) -> Option<T>) -> Option<Vec<T>> {
        match value {
            Value::Null => None,
            Value::Array(items) if items.is_empty() => None,
            Value::Array(items) => {
                let all: Vec<T> = items.iter().filter_map(|item| read(self, item)).collect();
                self.unreadable |= all.len() < items.len();
                Some(all)
            }
            _ => {
                self.unreadable = true;
                Some(Vec::new())
            }
        }
    }

    fn rules(&mut self, value: &Value, peers: &str) -> Vec<Rule> {
        let rule = |this: &mut Self, value: &Value| {
            // Null is a rule that restricts nothing, as Go reads it.
            (value.is_object() || value.is_null()).then(|| Rule {
                peers: this.list(&value[peers], Self::peer),
                ports: this.list(&value["ports"], |_, port| Self::port(port)),
            })
        };
        self.list(value, rule).unwrap_or_default()
    }

    fn peer(&mut self, value: &Value) -> Option<Peer> {
        let [pods, namespaces, block] = ["podSelector", "namespaceSelector", "ipBlock"].map(|field| &value[field]);
        match (pods.is_null(), namespaces.is_null(), block.is_null()) {
            (true, true, false) => {
                let range = Cidr::parse(block["cidr"].as_str()?)?;
                let written: &[Value] = match &block["except"] {
                    Value::Null => &[],
                    Value::Array(list) => list,
                    _ => return None,
                };
                let except: Vec<Cidr> = written.iter().map(|of| Cidr::parse(of.as_str()?)).collect::<Option<_>>()?;
                // What excepts everything leaves nobody.
                let leaves_some = |of: &Cidr| of.length() > range.length() && range.contains(&of.base());
                except.iter().all(leaves_some).then_some(Peer::Block { range, except })
            }
            (true, true, true) | (_, _, false) => None,
            _ => {
                let namespaces = match namespaces {
                    Value::Null => Namespaces::One(self.namespace.clone()),
                    labels => Namespaces::Matching(Labels::read(labels)?),
                };
                Some(Peer::Pods(Pods { namespaces, labels: Labels::read(pods)? }))
            }
        }
    }

    fn port(value: &Value) -> Option<PortMatch> {
        let protocol = match &value["protocol"] {
            Value::Null => Protocol::Tcp,
            Value::String(name) if !name.is_empty() => Protocol::parse(Some(name))?,
            _ => return None,
        };
        let number = |value: &Value| value.as_u64().and_then(|n| u16::try_from(n).ok()).filter(|n| *n > 0);
        let ports = match (&value["port"], &value["endPort"]) {
            (Value::Null, Value::Null) if value.is_object() => Ports::All,
            (Value::String(name), Value::Null) if !name.is_empty() => Ports::Named(name.as_str().into()),
            (first @ Value::Number(_), Value::Null) => number(first).map(|n| Ports::Range(n, n))?,
            (first @ Value::Number(_), last) => {
                let (first, last) = (number(first)?, number(last)?);
                (first <= last).then_some(Ports::Range(first, last))?
            }
            _ => return None,
        };
        Some(PortMatch { protocol, ports })
    }
}
