//! The rules of one service port: its lines in the fixed chains, and its own chains.

use std::{fmt::Write as _, net::IpAddr};

use super::{ChainId, Kind, PARTS, Settings, Top};
use crate::{
    model::{Affinity, Endpoint, Family, Port, Protocol, Service},
    select::{Policy, Selection, select},
};

/// Everything that one service port adds to the tables of one family.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PortRules {
    /// Lines for the fixed chains, by [`Top`].
    pub top: [String; Top::COUNT],
    /// Its own chains in the nat table and their rules, one a line, in the order upstream writes them.
    pub chains: Vec<(ChainId, String)>,
    /// Usable or not: all endpoints.
    pub endpoints: usize,
    /// internalTrafficPolicy Local, endpoints elsewhere, none here.
    pub no_local_internal: bool,
    /// The same for externalTrafficPolicy.
    pub no_local_external: bool,
}

/// Renders one port of a Service; `None` when the Service has no address of the family, or the kernel no match for
/// its protocol.
#[must_use]
pub fn port_rules(settings: &Settings, service: &Service, port: &Port, endpoints: &[Endpoint]) -> Option<PortRules> {
    let cluster_ip = service.cluster_ip(settings.family)?;
    if port.protocol == Protocol::Sctp && !settings.sctp {
        return None;
    }
    let policy = Policy {
        internal_local: service.internal_local,
        external_local: service.external_local,
        externally_accessible: service.externally_accessible(port, settings.family, settings.external_ips),
        zone: &settings.zone,
    };
    let chosen = select(endpoints, &policy);
    let mut out = PortRules { endpoints: endpoints.len(), ..PortRules::default() };
    out.no_local_internal = policy.internal_local && chosen.any && chosen.local.is_empty();
    out.no_local_external =
        policy.externally_accessible && policy.external_local && chosen.any && chosen.local.is_empty();
    let writer = Writer { settings, service, port, endpoints, policy, chosen: &chosen, cluster_ip };
    writer.entries(&mut out);
    writer.chains(&mut out);
    Some(out)
}

struct Writer<'a> {
    settings: &'a Settings,
    service: &'a Service,
    port: &'a Port,
    endpoints: &'a [Endpoint],
    policy: Policy<'a>,
    chosen: &'a Selection,
    cluster_ip: IpAddr,
}

impl Writer<'_> {
    fn id(&self, kind: Kind) -> ChainId {
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
        self.chosen.any
            && self.of_family(&self.service.lb_ips).next().is_some()
            && !self.service.effective_ranges(self.settings.family).is_empty()
    }

    /// `-m tcp -p tcp -d ADDRESS --dport PORT`.
    fn at(&self, ip: IpAddr) -> String {
        let p = self.port.protocol.lower();
        format!("-m {p} -p {p} -d {ip} --dport {}", self.port.port)
    }

    fn internal_kind(&self) -> Kind {
        if self.policy.internal_local { Kind::ServiceLocal } else { Kind::Service }
    }

    fn internal_usable(&self) -> bool {
        self.chosen.any && (!self.policy.internal_local || !self.chosen.local.is_empty())
    }

    /// Lines in the fixed chains.
    fn entries(&self, out: &mut PortRules) {
        let name = &self.port.full_name;
        let any = self.chosen.any;
        let external_usable = any && (!self.policy.external_local || !self.chosen.local.is_empty());
        let (why, target) = if any { ("has no local endpoints", "DROP") } else { ("has no endpoints", "REJECT") };
        let at_cluster = self.at(self.cluster_ip);
        if self.internal_usable() {
            let to = self.id(self.internal_kind());
            line(out, Top::Services, format_args!("-m comment --comment \"{name} cluster IP\" {at_cluster} -j {to}"));
        } else {
            line(out, Top::Refused, format_args!("-m comment --comment \"{name} {why}\" {at_cluster} -j {target}"));
        }
        let external = self.id(Kind::External);
        for ip in self.external_ips() {
            let at = self.at(*ip);
            if any {
                line(
                    out,
                    Top::Services,
                    format_args!("-m comment --comment \"{name} external IP\" {at} -j {external}"),
                );
            }
            if !external_usable {
                line(out, Top::External, format_args!("-m comment --comment \"{name} {why}\" {at} -j {target}"));
            }
        }
        let firewall = self.uses_firewall().then(|| self.id(Kind::Firewall));
        for ip in self.of_family(&self.service.lb_ips) {
            let at = self.at(*ip);
            if any {
                let to = firewall.unwrap_or(external);
                line(out, Top::Services, format_args!("-m comment --comment \"{name} loadbalancer IP\" {at} -j {to}"));
            }
            if let Some(firewall) = firewall {
                line(
                    out,
                    Top::Firewall,
                    format_args!("-m comment --comment \"{name} traffic not accepted by {firewall}\" {at} -j DROP"),
                );
            }
        }
        if !external_usable {
            for ip in self.of_family(&self.service.lb_ips) {
                let at = self.at(*ip);
                line(out, Top::External, format_args!("-m comment --comment \"{name} {why}\" {at} -j {target}"));
            }
        }
        let p = self.port.protocol.lower();
        if self.port.node_port != 0 {
            let number = self.port.node_port;
            if any {
                if self.settings.counters && self.settings.localhost_node_ports && self.settings.family == Family::V4 {
                    line(
                        out,
                        Top::NodePorts,
                        format_args!(
                            "-m comment --comment {name} -m {p} -p {p} -d 127.0.0.0/8 --dport {number} \
                             -m nfacct --nfacct-name localhost_nps_accepted_pkts -j {external}"
                        ),
                    );
                }
                line(
                    out,
                    Top::NodePorts,
                    format_args!("-m comment --comment {name} -m {p} -p {p} --dport {number} -j {external}"),
                );
            }
            if !external_usable {
                line(
                    out,
                    Top::External,
                    format_args!(
                        "-m comment --comment \"{name} {why}\" -m addrtype --dst-type LOCAL -m {p} -p {p} \
                         --dport {number} -j {target}"
                    ),
                );
            }
        }
        if self.service.health_check_node_port != 0 {
            let number = self.service.health_check_node_port;
            line(
                out,
                Top::HealthChecks,
                format_args!(
                    "-m comment --comment \"{name} health check node port\" -m tcp -p tcp --dport {number} -j ACCEPT"
                ),
            );
        }
    }

    /// The port's own chains.
    fn chains(&self, out: &mut PortRules) {
        if !self.chosen.any {
            return;
        }
        let name = &self.port.full_name;
        if self.policy.externally_accessible {
            out.chains.push((self.id(Kind::External), self.external_chain()));
        }
        if self.uses_firewall() {
            out.chains.push((self.id(Kind::Firewall), self.firewall_chain()));
        }
        let endpoint_chain = |e: &Endpoint| ChainId::of_endpoint(name, self.port.protocol, &e.address());
        for (kind, used, list) in [
            (Kind::Service, self.policy.uses_cluster(), &self.chosen.cluster),
            (Kind::ServiceLocal, self.policy.uses_local(), &self.chosen.local),
        ] {
            if used && !list.is_empty() {
                let mut text = String::with_capacity(160 * (list.len() + 1));
                let chain = self.id(kind);
                if kind == self.internal_kind() {
                    self.masquerade(chain, &mut text);
                }
                let list: Vec<(&Endpoint, ChainId)> =
                    list.iter().map(|i| &self.endpoints[*i]).map(|e| (e, endpoint_chain(e))).collect();
                let mut below = Vec::new();
                self.balance(chain, &list, &mut text, &mut below);
                out.chains.push((chain, text));
                out.chains.append(&mut below);
            }
        }
        for endpoint in self.chosen.all.iter().map(|i| &self.endpoints[*i]) {
            let chain = endpoint_chain(endpoint);
            out.chains.push((chain, self.endpoint_chain(chain, endpoint)));
        }
    }

    fn masquerade(&self, chain: ChainId, text: &mut String) {
        let (name, at) = (&self.port.full_name, self.at(self.cluster_ip));
        let from = match &self.settings.local_traffic {
            _ if self.settings.masquerade_all => String::new(),
            Some(local) => format!(" {}", local.not_matching()),
            None => return,
        };
        let _ = writeln!(text, "-A {chain} -m comment --comment \"{name} cluster IP\" {at}{from} -j KUBE-MARK-MASQ");
    }

    fn external_chain(&self) -> String {
        let (chain, name) = (self.id(Kind::External), &self.port.full_name);
        let cluster = self.id(Kind::Service);
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
        if !self.chosen.local.is_empty() {
            let _ = writeln!(text, "-A {chain} -j {}", self.id(Kind::ServiceLocal));
        }
        text
    }

    fn firewall_chain(&self) -> String {
        let (chain, external, name) = (self.id(Kind::Firewall), self.id(Kind::External), &self.port.full_name);
        let mut text = String::new();
        let ranges = self.service.effective_ranges(self.settings.family);
        for range in &ranges {
            let _ =
                writeln!(text, "-A {chain} -m comment --comment \"{name} loadbalancer IP\" -s {range} -j {external}");
        }
        // The node itself may pass: replies to packets it sends to the balancer's address carry that address.
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

    /// Affinity first, then a choice among equals: as upstream writes it, or as a tree of which each part chooses
    /// among its children by the number of endpoints below them.
    fn balance(
        &self,
        chain: ChainId,
        list: &[(&Endpoint, ChainId)],
        text: &mut String,
        below: &mut Vec<(ChainId, String)>,
    ) {
        if let Some(seconds) = self.affinity() {
            for (endpoint, to) in list {
                let _ = write!(text, "-A {chain}");
                self.endpoint_comment(text, endpoint);
                let _ = writeln!(text, " -m recent --name {to} --rcheck --seconds {seconds} --reap -j {to}");
            }
        }
        if self.settings.layout.is_tree(list.len(), FEW_ENDPOINTS) {
            self.grow(chain, list, 0, text, below);
        } else {
            self.choose(chain, list, text);
        }
    }

    fn endpoint_comment(&self, text: &mut String, endpoint: &Endpoint) {
        if !self.settings.large {
            let _ = write!(text, " -m comment --comment \"{} -> {}\"", self.port.full_name, endpoint.address());
        }
    }

    /// One rule for each endpoint.
    fn choose(&self, chain: ChainId, list: &[(&Endpoint, ChainId)], text: &mut String) {
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

    /// One rule for each child. Endpoints are told apart by the digest in their chain's name, so that one that comes
    /// or goes changes only the chains on its own way.
    fn grow(
        &self,
        chain: ChainId,
        list: &[(&Endpoint, ChainId)],
        level: usize,
        text: &mut String,
        below: &mut Vec<(ChainId, String)>,
    ) {
        let mut left = list.len();
        for index in 0..8u8 {
            let group: Vec<(&Endpoint, ChainId)> =
                list.iter().filter(|(_, to)| to.spread(level) == index).copied().collect();
            let Some(child) = chain.child(index).filter(|_| !group.is_empty()) else { continue };
            let _ = write!(text, "-A {chain}");
            if left > group.len() {
                let _ = write!(text, " -m statistic --mode random --probability {}", share(group.len(), left));
            }
            let _ = writeln!(text, " -g {child}");
            left -= group.len();
            let mut inside = String::new();
            if group.len() > FEW_ENDPOINTS && level + 1 < PARTS {
                self.grow(child, &group, level + 1, &mut inside, below);
            } else {
                self.choose(child, &group, &mut inside);
            }
            below.push((child, inside));
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

/// More endpoints than this become a tree; also the most of a leaf.
const FEW_ENDPOINTS: usize = 16;

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

fn line(out: &mut PortRules, top: Top, rule: std::fmt::Arguments<'_>) {
    let _ = writeln!(out.top[top as usize], "-A {} {rule}", top.fixed().name());
}
