//! Which packets the matches of a rule match.

use std::net::IpAddr;

use super::{Match, PacketState, Walker};
use crate::{
    explain::RuleOptions,
    iptables_save::parse_mark,
    model::{Cidr, parse_ip},
};

impl Walker<'_> {
    pub(super) fn matches(&self, options: &RuleOptions, state: &PacketState) -> Match {
        let mut unknown = None;
        for (key, value) in options.all() {
            let (not, value) = value.strip_prefix("! ").map_or((false, value), |v| (true, v));
            let met = match key {
                "-p" => Some(value == self.packet.protocol || value == "all"),
                "-s" => cidr_contains(value, self.packet.source),
                "-d" => cidr_contains(value, state.destination),
                "--dport" => port_range_contains(value, state.port),
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

    fn interface(&self, pattern: &str) -> Option<bool> {
        if self.packet.interface.is_none() && self.is_local(self.packet.source) {
            return Some(pattern == "lo");
        }
        let name = self.packet.interface.as_deref()?;
        Some(pattern.strip_suffix('+').map_or(name == pattern, |prefix| name.starts_with(prefix)))
    }
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
