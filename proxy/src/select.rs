//! Which endpoints a service port's traffic may go to. Pure; imports only the model.

use crate::model::Endpoint;

#[cfg(test)]
mod tests;

/// What decides beside the endpoints themselves.
#[derive(Debug, Clone, Copy)]
pub struct Policy<'a> {
    /// internalTrafficPolicy is Local.
    pub internal_local: bool,
    /// externalTrafficPolicy is Local.
    pub external_local: bool,
    /// Has a node port, load balancer address or external IP.
    pub externally_accessible: bool,
    /// Our node's zone; empty when unknown.
    pub zone: &'a str,
}

impl Policy<'_> {
    /// Whether any traffic is balanced over the whole cluster. Even with externalTrafficPolicy
    /// Local, traffic from pods to an external address is.
    #[must_use]
    pub const fn uses_cluster(&self) -> bool {
        !self.internal_local || self.externally_accessible
    }

    /// Whether any traffic stays on this node.
    #[must_use]
    pub const fn uses_local(&self) -> bool {
        self.internal_local || (self.external_local && self.externally_accessible)
    }
}

/// Indices into the endpoint list, rising.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// For traffic that may go anywhere.
    pub cluster: Vec<usize>,
    /// For traffic that must stay on this node.
    pub local: Vec<usize>,
    /// The union of both.
    pub all: Vec<usize>,
    /// Whether any usable endpoint exists on any node.
    pub any: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Topology {
    Anywhere,
    SameNode,
    SameZone,
}

fn topology(endpoints: &[Endpoint], zone: &str) -> Topology {
    let (mut all_nodes, mut our_node, mut all_zones, mut our_zone, mut seen) = (true, false, true, false, false);
    for endpoint in endpoints.iter().filter(|e| e.ready) {
        seen = true;
        let hints = endpoint.hints.as_deref();
        all_nodes &= hints.is_some_and(|h| h.has_nodes);
        our_node |= hints.is_some_and(|h| h.our_node);
        all_zones &= hints.is_some_and(|h| !h.zones.is_empty());
        our_zone |= !zone.is_empty() && hints.is_some_and(|h| h.zones.iter().any(|z| **z == *zone));
    }
    match seen {
        true if all_nodes && our_node => Topology::SameNode,
        true if all_zones && our_zone => Topology::SameZone,
        _ => Topology::Anywhere,
    }
}

fn fits(endpoint: &Endpoint, topology: Topology, zone: &str) -> bool {
    let hints = endpoint.hints.as_deref();
    match topology {
        Topology::Anywhere => true,
        Topology::SameNode => hints.is_some_and(|h| h.our_node),
        Topology::SameZone => hints.is_some_and(|h| h.zones.iter().any(|z| **z == *zone)),
    }
}

/// Sorts the endpoints of one service port into those for cluster-wide and for local traffic.
/// Terminating endpoints that still serve are used only where no ready one is left.
#[must_use]
pub fn select(endpoints: &[Endpoint], policy: &Policy<'_>) -> Selection {
    let pick = |wanted: &dyn Fn(&Endpoint) -> bool| -> Vec<usize> {
        endpoints.iter().enumerate().filter(|(_, e)| wanted(e)).map(|(i, _)| i).collect()
    };
    let leaving = |e: &Endpoint| e.serving && e.terminating;
    let mut out = Selection::default();
    if policy.uses_cluster() {
        let mode = topology(endpoints, policy.zone);
        out.cluster = pick(&|e| e.ready && fits(e, mode, policy.zone));
        if out.cluster.is_empty() {
            out.cluster = pick(&leaving);
        }
        out.any = !out.cluster.is_empty();
    }
    if policy.uses_local() {
        out.any |= endpoints.iter().any(|e| e.ready || leaving(e));
        out.local = pick(&|e| e.local && e.ready);
        if out.local.is_empty() {
            out.local = pick(&|e| e.local && leaving(e));
        }
    }
    out.all = out.cluster.iter().chain(&out.local).copied().collect();
    out.all.sort_unstable();
    out.all.dedup();
    out
}
