//! A small model of netfilter for tests: walks a packet through rendered rules and says where it
//! can end. Balancing rules are followed both ways; connection tracking is not modelled.

use std::{collections::BTreeSet, net::IpAddr};

use crate::{
    explain::Options,
    kernel::Saved,
    model::{Cidr, parse_ip},
    rules::Table,
};

pub(crate) struct Packet<'a> {
    pub(crate) source: &'a str,
    pub(crate) destination: &'a str,
    pub(crate) protocol: &'a str,
    pub(crate) port: u16,
}

pub(crate) struct Machine<'a> {
    pub(crate) rules: &'a Saved<'a>,
    pub(crate) local: Vec<IpAddr>,
}

/// Where a packet can end: `10.0.0.1:80`, `10.0.0.1:80 masq`, `REJECT`, `DROP`, `ACCEPT`, `pass`.
pub(crate) type Ends = BTreeSet<String>;

enum Walk {
    /// Fell off the end of the chain, marked or not.
    On(bool),
    End,
}

impl Machine<'_> {
    pub(crate) fn send(&self, packet: &Packet<'_>) -> Ends {
        let mut ends = Ends::new();
        if let Walk::On(_) = self.nat("KUBE-SERVICES", packet, false, &mut ends) {
            // Not translated on at least one way: the filter table decides.
            for chain in ["KUBE-PROXY-FIREWALL", "KUBE-NODEPORTS", "KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES"] {
                let rules = self.rules.chain(Table::Filter, chain).map(|c| c.rules.as_slice()).unwrap_or_default();
                let hit = rules.iter().map(|r| Options::of(r.text)).find(|o| self.matches(o, packet));
                if let Some(options) = hit {
                    ends.insert(options.target().to_owned());
                    return ends;
                }
            }
            ends.insert("pass".to_owned());
        }
        ends
    }

    fn nat(&self, chain: &str, packet: &Packet<'_>, mut masq: bool, ends: &mut Ends) -> Walk {
        let rules = self.rules.chain(Table::Nat, chain).unwrap_or_else(|| panic!("{chain} is led to and exists"));
        for rule in &rules.rules {
            let options = Options::of(rule.text);
            if !self.matches(&options, packet) {
                continue;
            }
            match options.target() {
                "" => {}
                "KUBE-MARK-MASQ" => masq = true,
                "DNAT" => {
                    let to = options.get("--to-destination").unwrap();
                    ends.insert(format!("{to}{}", if masq { " masq" } else { "" }));
                    return Walk::End;
                }
                target => {
                    let maybe = options.get("--probability").is_some() || options.get("--rcheck").is_some();
                    match self.nat(target, packet, masq, ends) {
                        Walk::On(marked) => masq = marked,
                        Walk::End if maybe => {}
                        Walk::End => return Walk::End,
                    }
                }
            }
        }
        Walk::On(masq)
    }

    fn matches(&self, options: &Options, packet: &Packet<'_>) -> bool {
        let inside = |value: &str, ip: &str| {
            let (not, range) = value.strip_prefix("! ").map_or((false, value), |r| (true, r));
            let range = Cidr::parse(range).unwrap_or_else(|| Cidr::host(parse_ip(range).unwrap()));
            range.contains(&parse_ip(ip).unwrap()) != not
        };
        let is_local = |ip: &str| {
            let ip = parse_ip(ip).unwrap();
            ip.is_loopback() || self.local.contains(&ip)
        };
        options.get("-p").is_none_or(|p| p == packet.protocol)
            && options.get("--dport").is_none_or(|p| p == packet.port.to_string())
            && options.get("-s").is_none_or(|v| inside(v, packet.source))
            && options.get("-d").is_none_or(|v| inside(v, packet.destination))
            && options.get("--src-type").is_none_or(|_| is_local(packet.source))
            && options.get("--dst-type").is_none_or(|_| is_local(packet.destination))
            && options.get("-i").is_none()
    }
}

/// Chains that are led to and not there, there and not led to, or written to without being made.
pub(crate) fn loose_ends(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    for table in Table::BOTH {
        let section = text.split(&format!("*{}\n", table.name())).nth(1).and_then(|t| t.split("COMMIT\n").next());
        let lines: Vec<&str> = section.unwrap_or_default().lines().collect();
        let made: BTreeSet<&str> = lines.iter().filter_map(|l| l.strip_prefix(':')?.split(' ').next()).collect();
        let mut led: BTreeSet<String> = BTreeSet::new();
        for line in lines.iter().filter_map(|l| l.strip_prefix("-A ")) {
            let (chain, rule) = line.split_once(' ').unwrap();
            if !made.contains(chain) {
                out.push(format!("{chain} is written to and not made"));
            }
            let target = Options::of(rule).target().to_owned();
            if target.starts_with("KUBE-") {
                if !made.contains(target.as_str()) {
                    out.push(format!("{target} is led to and not made"));
                }
                led.insert(target);
            }
        }
        let entrances = crate::rules::Fixed::ALL.map(crate::rules::Fixed::name);
        out.extend(
            made.iter()
                .filter(|c| !led.contains(**c) && !entrances.contains(c))
                .map(|c| format!("{c} is made and not led to")),
        );
    }
    out
}
