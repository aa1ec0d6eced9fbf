//! Who is answered: pods, nodes of the cluster and this machine. To everybody else the server is silent, so that it is no
//! open resolver. Pure; the addresses of this machine are given.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    net::IpAddr,
    time::Duration,
};

use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::{ResourceExt as _, runtime::watcher::Event};
use tokio::time::Instant;
use windlass_kit::net::Cidr;

use super::records::Node;

/// The addresses of this machine are read again at most so often, for a source that is unknown.
const REREAD_AFTER: Duration = Duration::from_secs(1);

/// Whose packets are answered.
#[derive(Debug)]
pub(super) struct Sources {
    /// The configured ranges of pods.
    pods: Vec<Cidr>,
    nodes: HashMap<String, Node>,
    listed: HashSet<String>,
    machine: BTreeSet<IpAddr>,
    machine_read_at: Option<Instant>,
}

impl Sources {
    pub(super) fn new(pods: Vec<Cidr>) -> Self {
        Self { pods, nodes: HashMap::new(), listed: HashSet::new(), machine: BTreeSet::new(), machine_read_at: None }
    }

    /// Whether a source is answered, as far as is known.
    pub(super) fn allows(&self, source: IpAddr) -> bool {
        let source = source.to_canonical();
        source.is_loopback()
            || self.pods.iter().any(|range| range.contains(&source))
            || self.machine.contains(&source)
            || self.nodes.values().any(|node| {
                node.addresses.contains(&source) || node.pod_cidrs.iter().any(|range| range.contains(&source))
            })
    }

    /// Whether the addresses of this machine should be read again before a source is refused.
    pub(super) fn wants_machine(&mut self, now: Instant) -> bool {
        let is_due = self.machine_read_at.is_none_or(|at| now.saturating_duration_since(at) >= REREAD_AFTER);
        if is_due {
            self.machine_read_at = Some(now);
        }
        is_due
    }

    pub(super) fn set_machine(&mut self, addresses: BTreeSet<IpAddr>) {
        self.machine = addresses;
    }

    /// Applies an event of the watch of Nodes.
    pub(super) fn node(&mut self, event: Event<NodeObject>) {
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(object) => {
                self.listed.insert(object.name_any());
                self.nodes.insert(object.name_any(), Node::of(&object));
            }
            Event::Apply(object) => {
                self.nodes.insert(object.name_any(), Node::of(&object));
            }
            Event::Delete(object) => {
                self.nodes.remove(&object.name_any());
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listed);
                self.nodes.retain(|name, _| listed.contains(name));
            }
        }
    }
}
