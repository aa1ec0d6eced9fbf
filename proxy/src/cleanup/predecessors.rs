//! What another proxy left that acts on services beside our rules.

use std::io;

use super::{Record, clean, removal::shares_firewall};
use crate::{
    apply::{Backend, Error, Runner, nftables::NfTables},
    config::Config,
    ipvs,
    model::Family,
    rules::Fixed,
};

/// The table of kube-proxy's nftables mode.
pub(super) const KUBE_PROXY_TABLE: &str = "kube-proxy";

pub(super) const fn nft_family(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

/// Deletes the table of kube-proxy's nftables mode with all that is in it; whether it was there.
pub(super) fn delete_kube_proxy_table(runner: &Runner, family: Family) -> io::Result<bool> {
    if !runner.is_plain() {
        let table = [nft_family(family), KUBE_PROXY_TABLE];
        if runner.run("nft", &["list", "table", table[0], table[1]], "").is_err() {
            return Ok(false);
        }
        let deleted = runner.run("nft", &["delete", "table", table[0], table[1]], "");
        return deleted.map(|_| true).map_err(|e| io::Error::other(e.to_string()));
    }
    // A kernel without nf_tables has no such table.
    let Ok(mut netlink) = NfTables::open() else { return Ok(false) };
    let Ok(mut generation) = netlink.generation() else { return Ok(false) };
    let mut tries = 0;
    loop {
        if netlink.users(family, KUBE_PROXY_TABLE)?.is_none() {
            return Ok(false);
        }
        match netlink.delete_table(family, KUBE_PROXY_TABLE, generation) {
            Ok(()) => return Ok(true),
            // Somebody else changed something meanwhile.
            Err(_) if tries < 5 => tries += 1,
            Err(error) => return Err(error),
        }
        generation = netlink.generation()?;
    }
}

/// Removes what acts on services beside our rules, once these are there: the table of kube-proxy's nftables mode, and
/// rules of an earlier run in the other iptables back end. Nobody would ever change them again, and of two rules for
/// one address either may come first. Blocks.
pub(crate) fn remove_predecessors(config: &Config, backend: &Backend) {
    let family = backend.family();
    match delete_kube_proxy_table(backend.runner(), family) {
        Ok(true) => tracing::info!(
            family = family.name(),
            "the table {KUBE_PROXY_TABLE} that kube-proxy left behind in nftables mode was removed"
        ),
        Ok(false) => {}
        Err(error) => tracing::warn!(
            %error, family = family.name(),
            "the table {KUBE_PROXY_TABLE} of kube-proxy's nftables mode cannot be removed, and its old rules act beside ours: nft delete table {} {KUBE_PROXY_TABLE}",
            nft_family(family)
        ),
    }
    // As upstream, which removes it in clean-up alone; with IPv4, so that it is told once.
    if family == Family::V4 && backend.runner().is_plain() && ipvs::has_device().unwrap_or(false) {
        tracing::warn!(
            "what kube-proxy left behind in IPVS mode is still there, and this node takes the addresses of services that are gone for its own: end the proxy, run windlass proxy cleanup, and start it again"
        );
    }
    let Some(other) = backend.other() else { return };
    let clean_other = || -> Result<bool, Error> {
        let text = other.save(false)?;
        let saved = other.parse(&text)?;
        let ours = [Fixed::NatServices, Fixed::FilterServices];
        if !ours.iter().any(|chain| saved.chain(chain.table(), chain.name()).is_some()) {
            return Ok(false);
        }
        if shares_firewall(&text) {
            tracing::warn!(
                family = family.name(),
                program = other.program(),
                "the other iptables back end holds service rules and marks of a kubelet: both back ends act on every packet"
            );
            return Ok(false);
        }
        clean(&other, Record::read(&config.record)?.as_ref()).map(|()| true)
    };
    match clean_other() {
        Ok(true) => tracing::info!(
            family = family.name(),
            program = other.program(),
            "service rules of an earlier time were removed from the other iptables back end"
        ),
        Ok(false) => {}
        Err(error) => tracing::warn!(
            %error, family = family.name(), program = other.program(),
            "service rules of an earlier time cannot be removed from the other iptables back end and act beside ours"
        ),
    }
}
