//! Which endpoints a service port's traffic may go to, as kube-proxy's `CategorizeEndpoints` (pkg/proxy/topology.go)
//! decides. Pure; imports only the model.

use crate::model::Endpoint;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod upstream_tests;

/// The traffic policies of a service port, and our node's zone.
#[derive(Debug, Clone, Copy)]
pub struct TrafficPolicy<'a> {
    /// internalTrafficPolicy is Local.
    pub internal_local: bool,
    /// externalTrafficPolicy is Local.
    pub external_local: bool,
    /// Has a node port, load balancer address or external IP.
    pub externally_accessible: bool,
    /// Our node's zone; empty when unknown.
    pub zone: &'a str,
}

impl TrafficPolicy<'_> {
    /// Whether any traffic is balanced over the whole cluster. Even with externalTrafficPolicy
    /// Local, traffic from pods to an external address is.
    #[must_use]
    pub const fn uses_cluster(&self) -> bool {
        !self.internal_local || self.externally_accessible
    }

    /// Whether any traffic is restricted to endpoints of this node.
    #[must_use]
    pub const fn uses_local(&self) -> bool {
        self.internal_local || (self.external_local && self.externally_accessible)
    }
}

/// Indices into the endpoint list, ascending.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CategorizedEndpoints {
    /// For traffic of policy Cluster.
    pub cluster: Vec<usize>,
    /// For traffic of policy Local.
    pub local: Vec<usize>,
    /// The union of both.
    pub all_reachable: Vec<usize>,
    /// Whether any usable endpoint exists on any node.
    pub has_any: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TopologyMode {
    Anywhere,
    SameNode,
    SameZone,
}

fn topology_mode_from_hints(endpoints: &[Endpoint], zone: &str) -> TopologyMode {
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
        true if all_nodes && our_node => TopologyMode::SameNode,
        true if all_zones && our_zone => TopologyMode::SameZone,
        _ => TopologyMode::Anywhere,
    }
}

fn matches_hints(endpoint: &Endpoint, topology: TopologyMode, zone: &str) -> bool {
    let hints = endpoint.hints.as_deref();
    match topology {
        TopologyMode::Anywhere => true,
        TopologyMode::SameNode => hints.is_some_and(|h| h.our_node),
        TopologyMode::SameZone => hints.is_some_and(|h| h.zones.iter().any(|z| **z == *zone)),
    }
}

/// Sorts the endpoints of one service port into those for cluster-wide and for local traffic.
/// Endpoints that are serving and terminating are used only where none is ready.
#[must_use]
pub fn categorize_endpoints(endpoints: &[Endpoint], policy: &TrafficPolicy<'_>) -> CategorizedEndpoints {
    let pick = |wanted: &dyn Fn(&Endpoint) -> bool| -> Vec<usize> {
        endpoints.iter().enumerate().filter(|(_, e)| wanted(e)).map(|(i, _)| i).collect()
    };
    let serving_terminating = |e: &Endpoint| e.serving && e.terminating;
    let mut out = CategorizedEndpoints::default();
    if policy.uses_cluster() {
        let mode = topology_mode_from_hints(endpoints, policy.zone);
        out.cluster = pick(&|e| e.ready && matches_hints(e, mode, policy.zone));
        if out.cluster.is_empty() {
            out.cluster = pick(&serving_terminating);
        }
        out.has_any = !out.cluster.is_empty();
    }
    if policy.uses_local() {
        out.has_any |= endpoints.iter().any(|e| e.ready || serving_terminating(e));
        out.local = pick(&|e| e.local && e.ready);
        if out.local.is_empty() {
            out.local = pick(&|e| e.local && serving_terminating(e));
        }
    }
    out.all_reachable = out.cluster.iter().chain(&out.local).copied().collect();
    out.all_reachable.sort_unstable();
    out.all_reachable.dedup();
    out
}
