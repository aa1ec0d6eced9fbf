//! Removes what another service proxy left that acts on packets besides our rules.

use std::io;

use super::{TableSnapshot, removal::shares_firewall, remove_rules};
use crate::{
    apply::{Backend, Error, Runner, nf_tables_netlink::NfTables},
    config::Config,
    ipvs,
    model::Family,
    rules::StaticChain,
};

/// The table of kube-proxy's nftables mode.
pub(super) const KUBE_PROXY_TABLE: &str = "kube-proxy";

pub(super) const fn nft_family(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

/// Deletes the table of kube-proxy's nftables mode; returns whether it existed.
pub(super) fn delete_kube_proxy_table(runner: &Runner, family: Family) -> io::Result<bool> {
    if !runner.in_own_netns() {
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
    let mut attempts = 0;
    loop {
        if netlink.users(family, KUBE_PROXY_TABLE)?.is_none() {
            return Ok(false);
        }
        match netlink.delete_table(family, KUBE_PROXY_TABLE, generation) {
            Ok(()) => return Ok(true),
            // The ruleset changed meanwhile.
            Err(_) if attempts < 5 => attempts += 1,
            Err(error) => return Err(error),
        }
        generation = netlink.generation()?;
    }
}

/// Removes other programs' and earlier runs' rules once ours are written: the table of kube-proxy's nftables mode, and
/// rules in the other iptables back end. They are no longer updated, and of two rules for one address either may match
/// first. Blocks.
pub(crate) fn remove_predecessors(config: &Config, backend: &Backend) {
    let family = backend.family();
    match delete_kube_proxy_table(backend.runner(), family) {
        Ok(true) => {
            tracing::info!(family = family.name(), "removed table {KUBE_PROXY_TABLE} of kube-proxy's nftables mode")
        }
        Ok(false) => {}
        Err(error) => tracing::warn!(
            %error, family = family.name(),
            "failed to delete table {KUBE_PROXY_TABLE} of kube-proxy's nftables mode, its old rules act in addition to ours; delete it with: nft delete table {} {KUBE_PROXY_TABLE}",
            nft_family(family)
        ),
    }
    // As in kube-proxy, only clean-up removes it; reported with IPv4, so that it is logged once.
    if family == Family::V4 && backend.runner().in_own_netns() && ipvs::has_device().unwrap_or(false) {
        tracing::warn!(
            "leftovers of kube-proxy's IPVS mode make this node accept packets to the addresses of deleted services; stop the proxy, run windlass proxy cleanup, and start it again"
        );
    }
    let Some(other) = backend.other_backend() else { return };
    let remove_other_rules = || -> Result<bool, Error> {
        let text = other.save(false)?;
        let saved = other.parse(&text)?;
        let ours = [StaticChain::NatServices, StaticChain::FilterServices];
        if !ours.iter().any(|chain| saved.chain(chain.table(), chain.name()).is_some()) {
            return Ok(false);
        }
        if shares_firewall(&text) {
            tracing::warn!(
                family = family.name(),
                program = other.program(),
                "the other iptables back end has service rules and chains of a kubelet; both back ends act on every packet"
            );
            return Ok(false);
        }
        remove_rules(&other, TableSnapshot::read(&config.table_snapshot)?.as_ref()).map(|()| true)
    };
    match remove_other_rules() {
        Ok(true) => tracing::info!(
            family = family.name(),
            program = other.program(),
            "removed old service rules from the other iptables back end"
        ),
        Ok(false) => {}
        Err(error) => tracing::warn!(
            %error, family = family.name(), program = other.program(),
            "failed to remove old service rules from the other iptables back end; they act in addition to ours"
        ),
    }
}
