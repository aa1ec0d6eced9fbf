//! Which packets the matches of a rule match.

use std::net::IpAddr;

use super::{Match, PacketState, Walker};
use crate::{
    explain::RuleOptions,
    iptables_save::{parse_mark, split_words},
    model::{Cidr, parse_ip},
    network_policy::{Entry, IpSet},
};

impl Walker<'_> {
    pub(super) fn matches(&self, rule: &str, options: &RuleOptions, state: &PacketState) -> Match {
        let mut unknown = None;
        for (not, name, sides) in set_matches(rule) {
            match self.sets.0.get(&name).map(|set| self.is_in(set, &sides, state)) {
                Some(Some(met)) if met == not => return Match::No,
                Some(Some(_)) => {}
                _ => unknown = Some(format!("--match-set {name} {sides} cannot be decided, the set is not known")),
            }
        }
        for (key, value) in options.all() {
            let (not, value) = value.strip_prefix("! ").map_or((false, value), |v| (true, v));
            let met = match key {
                "-p" => Some(value == self.packet.protocol || value == "all"),
                "-s" => cidr_contains(value, self.packet.source),
                "-d" => cidr_contains(value, state.destination),
                "--dport" => port_range_contains(value, state.port),
                "--dports" => value
                    .split(',')
                    .map(|part| port_range_contains(part, state.port))
                    .try_fold(false, |any, is| Some(any | is?)),
                // Decided above: a rule may have several.
                "--match-set" => Some(!not),
                "--src-type" => (value == "LOCAL").then(|| self.is_local(self.packet.source)),
                "--dst-type" => (value == "LOCAL").then(|| self.is_local(state.destination)),
                "--ctstate" => Some(value.split(',').any(|s| s == "NEW" || (s == "DNAT" && state.translated))),
                "--mark" => parse_mark_mask(value).map(|(value, mask)| state.mark & mask == value),
                "-i" => self.interface(value),
                // Of other clients nothing is known: a first connection.
                "--rcheck" => Some(false),
                "-m" | "-j" | "-g" | "--comment" | "--mode" | "--probability" | "--name" | "--mask" | "--rsource"
                | "--set" | "--seconds" | "--reap" | "--nfacct-name" | "--to-destination" | "--reject-with"
                | "--random-fully" | "--set-xmark" | "--or-mark" | "--xor-mark" | "--set-mark" => Some(!not),
                _ => None,
            };
            match met {
                Some(met) if met == not => return Match::No,
                Some(_) => {}
                None => unknown = Some(format!("{key} {value} cannot be recorded from the rules")),
            }
        }
        unknown.map_or(Match::Yes, Match::Unknown)
    }

    /// Whether a packet's addresses, as the sides say which, are in a set; `None` where the entries do not determine it.
    fn is_in(&self, set: &IpSet, sides: &str, state: &PacketState) -> Option<bool> {
        let address = |side| match side {
            "src" => Some(self.packet.source),
            "dst" => Some(state.destination),
            _ => None,
        };
        let (first, second) = sides.split_once(',').map_or((sides, None), |(first, second)| (first, Some(second)));
        let ip = address(first)?;
        let is_met = |entry: &Entry| match entry {
            Entry::Address(of) => Some(*of == ip),
            Entry::Range(range) => Some(range.contains(&ip)),
            // Of a source port nothing is known.
            Entry::Port(of, protocol, port) => (second == Some("dst"))
                .then(|| *of == ip && protocol.lower() == self.packet.protocol && *port == state.port),
            // A pod's own link: what leaves by it is for the pod.
            Entry::Interface(of, _) => (sides == "src,dst").then(|| *of == ip && state.destination == ip),
        };
        set.entries.keys().map(is_met).try_fold(false, |any, is| Some(any | is?))
    }

    fn interface(&self, pattern: &str) -> Option<bool> {
        if self.packet.interface.is_none() && self.is_local(self.packet.source) {
            return Some(pattern == "lo");
        }
        let name = self.packet.interface.as_deref()?;
        Some(pattern.strip_suffix('+').map_or(name == pattern, |prefix| name.starts_with(prefix)))
    }
}

/// The sets that a rule matches: whether negated, the name, and which addresses.
pub(in crate::explain) fn set_matches(rule: &str) -> Vec<(bool, String, String)> {
    let words = split_words(rule);
    let at = (0..words.len()).filter(|i| words[*i] == "--match-set");
    let read = |i: usize| {
        let is_negated = i > 0 && words[i - 1] == "!";
        Some((is_negated, words.get(i + 1)?.clone(), words.get(i + 2)?.clone()))
    };
    at.filter_map(read).collect()
}

fn cidr_contains(value: &str, ip: IpAddr) -> Option<bool> {
    let range = Cidr::parse(value).or_else(|| parse_ip(value).map(Cidr::host))?;
    Some(range.contains(&ip))
}

fn port_range_contains(value: &str, port: u16) -> Option<bool> {
    let (from, to) = value.split_once(':').unwrap_or((value, value));
    Some((from.parse::<u16>().ok()?..=to.parse().ok()?).contains(&port))
}

fn parse_mark_mask(value: &str) -> Option<(u32, u32)> {
    let (value, mask) = value.split_once('/').unwrap_or((value, "0xffffffff"));
    Some((parse_mark(value)?, parse_mark(mask)?))
}

/// Value and mask of a MARK rule, in the form of `--set-xmark`.
pub(super) fn mark_change(options: &RuleOptions) -> (u32, u32) {
    let of = |key: &str| options.get(key);
    if let Some(bits) = of("--or-mark").and_then(parse_mark) {
        return (bits, bits);
    }
    if let Some(bits) = of("--xor-mark").and_then(parse_mark) {
        return (bits, 0);
    }
    of("--set-xmark").or_else(|| of("--set-mark")).and_then(parse_mark_mask).unwrap_or((0, 0))
}
