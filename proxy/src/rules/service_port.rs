//! The rules of one service port: its rules in the dispatch chains, and its own chains. Order, comments and matches are
//! those of kube-proxy's `syncProxyRules` (pkg/proxy/iptables/proxier.go).

use std::{fmt::Write as _, net::IpAddr};

use super::{CLUSTER_IPS_CHECK, ChainId, ChainKind, DispatchChain, MAX_TREE_LEVELS, Settings};
use crate::{
    model::{Affinity, Endpoint, Family, Port, Protocol, Service},
    topology::{CategorizedEndpoints, TrafficPolicy, categorize_endpoints},
};

/// All rules of one service port in one address family.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServicePortRules {
    /// Its rules in the dispatch chains, by [`DispatchChain`].
    pub dispatch: [String; DispatchChain::COUNT],
    /// Its own chains in the nat table and their rules, one a line, in the order in which kube-proxy writes them.
    pub chains: Vec<(ChainId, String)>,
    /// The number of its endpoints, usable or not.
    pub endpoints: usize,
    /// The policy is Local, and all usable endpoints are on other nodes.
    pub no_local: PerPolicy<bool>,
}

/// A value for `internalTrafficPolicy`, and one for `externalTrafficPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PerPolicy<T> {
    /// For traffic from the cluster.
    pub internal: T,
    /// For traffic from elsewhere.
    pub external: T,
}

impl PerPolicy<usize> {
    /// Counted up where `more` is true.
    #[must_use]
    pub fn with(self, more: PerPolicy<bool>) -> Self {
        Self {
            internal: self.internal + usize::from(more.internal),
            external: self.external + usize::from(more.external),
        }
    }

    /// Counted down where `fewer` is true.
    #[must_use]
    pub fn without(self, fewer: PerPolicy<bool>) -> Self {
        Self {
            internal: self.internal - usize::from(fewer.internal),
            external: self.external - usize::from(fewer.external),
        }
    }
}

/// Renders one port of a Service; `None` when the Service has no address of the family, or the kernel no match for
/// its protocol.
#[must_use]
pub fn service_port_rules(
    settings: &Settings,
    service: &Service,
    port: &Port,
    endpoints: &[Endpoint],
) -> Option<ServicePortRules> {
    let cluster_ip = service.cluster_ip(settings.family)?;
    if port.protocol == Protocol::Sctp && !settings.sctp {
        return None;
    }
    let policy = TrafficPolicy {
        internal_local: service.internal_local,
        external_local: service.external_local,
        externally_accessible: service.externally_accessible(port, settings.family, settings.external_ips),
        zone: &settings.zone,
    };
    let selected = categorize_endpoints(endpoints, &policy);
    let mut out = ServicePortRules { endpoints: endpoints.len(), ..ServicePortRules::default() };
    let none_local = selected.has_any && selected.local.is_empty();
    out.no_local = PerPolicy {
        internal: policy.internal_local && none_local,
        external: policy.externally_accessible && policy.external_local && none_local,
    };
    let renderer = Renderer { settings, service, port, endpoints, policy, selected: &selected, cluster_ip };
    renderer.dispatch_rules(&mut out);
    renderer.render_chains(&mut out);
    Some(out)
}

struct Renderer<'a> {
    settings: &'a Settings,
    service: &'a Service,
    port: &'a Port,
    endpoints: &'a [Endpoint],
    policy: TrafficPolicy<'a>,
    selected: &'a CategorizedEndpoints,
    cluster_ip: IpAddr,
}

impl Renderer<'_> {
    fn id(&self, kind: ChainKind) -> ChainId {
        ChainId::of_port(kind, &self.port.full_name, self.port.protocol)
    }

    fn of_family<'b>(&self, ips: &'b [IpAddr]) -> impl Iterator<Item = &'b IpAddr> + use<'b> {
        let family = self.settings.family;
        ips.iter().filter(move |ip| Family::of(ip) == family)
    }

    fn external_ips(&self) -> impl Iterator<Item = &IpAddr> {
        self.of_family(&self.service.external_ips).filter(|_| self.settings.external_ips)
    }

    fn affinity(&self) -> Affinity {
        self.service.affinity.filter(|_| self.settings.recent)
    }

    fn uses_firewall(&self) -> bool {
        self.selected.has_any
            && self.of_family(&self.service.lb_ips).next().is_some()
            && self.service.source_ranges.of_family(self.settings.family).is_some()
    }

    /// `-m tcp -p tcp -d ADDRESS --dport PORT`.
    fn destination_match(&self, ip: IpAddr) -> String {
        let p = self.port.protocol.lower();
        format!("-m {p} -p {p} -d {ip} --dport {}", self.port.port)
    }

    fn internal_kind(&self) -> ChainKind {
        if self.policy.internal_local { ChainKind::ServiceLocal } else { ChainKind::Service }
    }

    fn internal_usable(&self) -> bool {
        self.selected.has_any && (!self.policy.internal_local || !self.selected.local.is_empty())
    }

    fn external_usable(&self) -> bool {
        self.selected.has_any && (!self.policy.external_local || !self.selected.local.is_empty())
    }

    /// The comment and the target for traffic without a usable endpoint, as kube-proxy's: DROP if there are endpoints
    /// only on other nodes, REJECT if there are none.
    fn without_endpoint(&self) -> (&'static str, &'static str) {
        if self.selected.has_any { ("has no local endpoints", "DROP") } else { ("has no endpoints", "REJECT") }
    }

    /// Its rules in the dispatch chains.
    fn dispatch_rules(&self, out: &mut ServicePortRules) {
        self.cluster_ip_rules(out);
        self.external_ip_rules(out);
        self.load_balancer_rules(out);
        self.node_port_rules(out);
        let (name, number) = (&self.port.full_name, self.service.health_check_node_port);
        if number != 0 {
            push_rule(
                out,
                DispatchChain::HealthChecks,
                format_args!(
                    "-m comment --comment \"{name} health check node port\" -m tcp -p tcp --dport {number} -j ACCEPT"
                ),
            );
        }
    }

    fn cluster_ip_rules(&self, out: &mut ServicePortRules) {
        let name = &self.port.full_name;
        let at = self.destination_match(self.cluster_ip);
        if self.internal_usable() {
            let to = self.id(self.internal_kind());
            push_rule(
                out,
                DispatchChain::Services,
                format_args!("-m comment --comment \"{name} cluster IP\" {at} -j {to}"),
            );
        } else {
            let (why, target) = self.without_endpoint();
            push_rule(
                out,
                DispatchChain::Refused,
                format_args!("-m comment --comment \"{name} {why}\" {at} -j {target}"),
            );
        }
        if self.settings.cluster_ips_check && self.is_last() {
            let (ip, why) = (self.cluster_ip, CLUSTER_IPS_CHECK[0]);
            push_rule(
                out,
                DispatchChain::Refused,
                format_args!("-m comment --comment \"{name} {why}\" -d {ip} -j REJECT"),
            );
        }
    }

    /// Whether the rules of all other ports of the Service come before: what is left is for none of them.
    fn is_last(&self) -> bool {
        let key = |port: &Port| (port.port, port.protocol, port.full_name.clone());
        let own = key(self.port);
        self.service.ports.iter().all(|port| key(port) <= own)
    }

    fn external_ip_rules(&self, out: &mut ServicePortRules) {
        let (name, external) = (&self.port.full_name, self.id(ChainKind::External));
        for ip in self.external_ips() {
            let at = self.destination_match(*ip);
            if self.selected.has_any {
                push_rule(
                    out,
                    DispatchChain::Services,
                    format_args!("-m comment --comment \"{name} external IP\" {at} -j {external}"),
                );
            }
            self.unusable_rule(out, &at);
        }
    }

    fn load_balancer_rules(&self, out: &mut ServicePortRules) {
        let name = &self.port.full_name;
        let firewall = self.uses_firewall().then(|| self.id(ChainKind::Firewall));
        for ip in self.of_family(&self.service.lb_ips) {
            let at = self.destination_match(*ip);
            if self.selected.has_any {
                let to = firewall.unwrap_or(self.id(ChainKind::External));
                push_rule(
                    out,
                    DispatchChain::Services,
                    format_args!("-m comment --comment \"{name} loadbalancer IP\" {at} -j {to}"),
                );
            }
            if let Some(firewall) = firewall {
                push_rule(
                    out,
                    DispatchChain::Firewall,
                    format_args!("-m comment --comment \"{name} traffic not accepted by {firewall}\" {at} -j DROP"),
                );
            }
            self.unusable_rule(out, &at);
        }
    }

    fn node_port_rules(&self, out: &mut ServicePortRules) {
        let (name, number) = (&self.port.full_name, self.port.node_port);
        if number == 0 {
            return;
        }
        let (p, external) = (self.port.protocol.lower(), self.id(ChainKind::External));
        if self.selected.has_any {
            if self.settings.counters && self.settings.localhost_node_ports && self.settings.family == Family::V4 {
                push_rule(
                    out,
                    DispatchChain::NodePorts,
                    format_args!(
                        "-m comment --comment {name} -m {p} -p {p} -d 127.0.0.0/8 --dport {number} \
                         -m nfacct --nfacct-name localhost_nps_accepted_pkts -j {external}"
                    ),
                );
            }
            push_rule(
                out,
                DispatchChain::NodePorts,
                format_args!("-m comment --comment {name} -m {p} -p {p} --dport {number} -j {external}"),
            );
        }
        self.unusable_rule(out, &format!("-m addrtype --dst-type LOCAL -m {p} -p {p} --dport {number}"));
    }

    /// Drops or rejects external traffic that matches `at`, where no endpoint may serve it.
    fn unusable_rule(&self, out: &mut ServicePortRules, at: &str) {
        if !self.external_usable() {
            let (name, (why, target)) = (&self.port.full_name, self.without_endpoint());
            push_rule(
                out,
                DispatchChain::External,
                format_args!("-m comment --comment \"{name} {why}\" {at} -j {target}"),
            );
        }
    }

    /// Its own chains.
    fn render_chains(&self, out: &mut ServicePortRules) {
        if !self.selected.has_any {
            return;
        }
        let name = &self.port.full_name;
        if self.policy.externally_accessible {
            out.chains.push((self.id(ChainKind::External), self.external_chain()));
        }
        if self.uses_firewall() {
            out.chains.push((self.id(ChainKind::Firewall), self.firewall_chain()));
        }
        let endpoint_chain = |e: &Endpoint| ChainId::of_endpoint(name, self.port.protocol, &e.address());
        for (kind, used, list) in [
            (ChainKind::Service, self.policy.uses_cluster(), &self.selected.cluster),
            (ChainKind::ServiceLocal, self.policy.uses_local(), &self.selected.local),
        ] {
            if used && !list.is_empty() {
                let mut text = String::with_capacity(160 * (list.len() + 1));
                let chain = self.id(kind);
                if kind == self.internal_kind() {
                    self.masquerade(chain, &mut text);
                }
                let list: Vec<(&Endpoint, ChainId)> =
                    list.iter().map(|i| &self.endpoints[*i]).map(|e| (e, endpoint_chain(e))).collect();
                let mut subchains = Vec::new();
                self.load_balance(chain, &list, &mut text, &mut subchains);
                out.chains.push((chain, text));
                out.chains.append(&mut subchains);
            }
        }
        for endpoint in self.selected.all_reachable.iter().map(|i| &self.endpoints[*i]) {
            let chain = endpoint_chain(endpoint);
            out.chains.push((chain, self.endpoint_chain(chain, endpoint)));
        }
    }

    fn masquerade(&self, chain: ChainId, text: &mut String) {
        let (name, at) = (&self.port.full_name, self.destination_match(self.cluster_ip));
        let from = match &self.settings.local_traffic {
            _ if self.settings.masquerade_all => String::new(),
            Some(local) => format!(" {}", local.not_matching()),
            None => return,
        };
        let _ = writeln!(text, "-A {chain} -m comment --comment \"{name} cluster IP\" {at}{from} -j KUBE-MARK-MASQ");
    }

    fn external_chain(&self) -> String {
        let (chain, name) = (self.id(ChainKind::External), &self.port.full_name);
        let cluster = self.id(ChainKind::Service);
        let mut text = String::new();
        if !self.policy.external_local {
            let _ = writeln!(
                text,
                "-A {chain} -m comment --comment \"masquerade traffic for {name} external destinations\" -j KUBE-MARK-MASQ\n\
                 -A {chain} -j {cluster}"
            );
            return text;
        }
        if let Some(local) = &self.settings.local_traffic {
            let _ = writeln!(
                text,
                "-A {chain} -m comment --comment \"pod traffic for {name} external destinations\" {} -j {cluster}",
                local.matching()
            );
        }
        let _ = writeln!(
            text,
            "-A {chain} -m comment --comment \"masquerade LOCAL traffic for {name} external destinations\" \
             -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ\n\
             -A {chain} -m comment --comment \"route LOCAL traffic for {name} external destinations\" \
             -m addrtype --src-type LOCAL -j {cluster}"
        );
        if !self.selected.local.is_empty() {
            let _ = writeln!(text, "-A {chain} -j {}", self.id(ChainKind::ServiceLocal));
        }
        text
    }

    fn firewall_chain(&self) -> String {
        let (chain, external, name) =
            (self.id(ChainKind::Firewall), self.id(ChainKind::External), &self.port.full_name);
        let mut text = String::new();
        let ranges = self.service.source_ranges.of_family(self.settings.family).unwrap_or_default();
        for range in &ranges {
            let _ =
                writeln!(text, "-A {chain} -m comment --comment \"{name} loadbalancer IP\" -s {range} -j {external}");
        }
        // The node itself is allowed: packets it sends to the load balancer's address may be routed back to it with
        // that address as their source.
        if self.settings.node_ip.is_some_and(|ip| ranges.iter().any(|r| r.contains(&ip))) {
            for ip in self.of_family(&self.service.lb_ips) {
                let _ =
                    writeln!(text, "-A {chain} -m comment --comment \"{name} loadbalancer IP\" -s {ip} -j {external}");
            }
        }
        let _ = writeln!(
            text,
            "-A {chain} -m comment --comment \"other traffic to {name} will be dropped by KUBE-PROXY-FIREWALL\""
        );
        text
    }

    /// Session affinity first, then a random choice: one rule for each endpoint as kube-proxy writes it, or a tree
    /// whose nodes weight their children by the number of endpoints below them.
    fn load_balance(
        &self,
        chain: ChainId,
        list: &[(&Endpoint, ChainId)],
        text: &mut String,
        subchains: &mut Vec<(ChainId, String)>,
    ) {
        if let Some(seconds) = self.affinity() {
            for (endpoint, to) in list {
                let _ = write!(text, "-A {chain}");
                self.endpoint_comment(text, endpoint);
                let _ = writeln!(text, " -m recent --name {to} --rcheck --seconds {seconds} --reap -j {to}");
            }
        }
        if self.settings.layout.is_tree(list.len(), MAX_FLAT_ENDPOINTS) {
            self.render_tree(chain, list, 0, text, subchains);
        } else {
            self.render_flat(chain, list, text);
        }
    }

    fn endpoint_comment(&self, text: &mut String, endpoint: &Endpoint) {
        if !self.settings.large {
            let _ = write!(text, " -m comment --comment \"{} -> {}\"", self.port.full_name, endpoint.address());
        }
    }

    /// One rule for each endpoint.
    fn render_flat(&self, chain: ChainId, list: &[(&Endpoint, ChainId)], text: &mut String) {
        for (i, (endpoint, to)) in list.iter().enumerate() {
            let _ = write!(text, "-A {chain}");
            self.endpoint_comment(text, endpoint);
            let left = list.len() - i;
            if left > 1 {
                let _ = write!(text, " -m statistic --mode random --probability {}", probability(left));
            }
            let _ = writeln!(text, " -j {to}");
        }
    }

    /// One rule for each child. Endpoints are assigned by the digest in their chain's name, so that an endpoint that is
    /// added or removed changes only the chains on the path to it.
    fn render_tree(
        &self,
        chain: ChainId,
        list: &[(&Endpoint, ChainId)],
        level: usize,
        text: &mut String,
        subchains: &mut Vec<(ChainId, String)>,
    ) {
        let mut left = list.len();
        for index in 0..8u8 {
            let group: Vec<(&Endpoint, ChainId)> =
                list.iter().filter(|(_, to)| to.hash_bucket(level) == index).copied().collect();
            let Some(child) = chain.child(index).filter(|_| !group.is_empty()) else { continue };
            let _ = write!(text, "-A {chain}");
            if left > group.len() {
                let _ = write!(text, " -m statistic --mode random --probability {}", share(group.len(), left));
            }
            let _ = writeln!(text, " -g {child}");
            left -= group.len();
            let mut inside = String::new();
            if group.len() > MAX_FLAT_ENDPOINTS && level + 1 < MAX_TREE_LEVELS {
                self.render_tree(child, &group, level + 1, &mut inside, subchains);
            } else {
                self.render_flat(child, &group, &mut inside);
            }
            subchains.push((child, inside));
        }
    }

    fn endpoint_chain(&self, chain: ChainId, endpoint: &Endpoint) -> String {
        let mut comment = String::new();
        if !self.settings.large {
            let _ = write!(comment, " -m comment --comment {}", self.port.full_name);
        }
        let (p, ip, address) = (self.port.protocol.lower(), endpoint.ip, endpoint.address());
        let mut text = format!("-A {chain}{comment} -s {ip} -j KUBE-MARK-MASQ\n-A {chain}{comment}");
        if self.affinity().is_some() {
            let _ = write!(text, " -m recent --name {chain} --set");
        }
        let _ = writeln!(text, " -m {p} -p {p} -j DNAT --to-destination {address}");
        text
    }
}

/// A service port with more endpoints than this gets a tree; also the endpoints that a leaf may have.
const MAX_FLAT_ENDPOINTS: usize = 16;

/// One in `n`, with ten decimals.
#[must_use]
pub fn probability(n: usize) -> String {
    share(1, n)
}

/// `part` in `n`, with ten decimals.
fn share(part: usize, n: usize) -> String {
    #[allow(clippy::cast_precision_loss)]
    let share = part as f64 / n as f64;
    format!("{share:.10}")
}

fn push_rule(out: &mut ServicePortRules, chain: DispatchChain, rule: std::fmt::Arguments<'_>) {
    let _ = writeln!(out.dispatch[chain as usize], "-A {} {rule}", chain.static_chain().name());
}
