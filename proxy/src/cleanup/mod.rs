//! Removes the rules and chains of the proxy and of kube-proxy, and restores what was changed before the first rule.

mod predecessors;
mod removal;
mod table_snapshot;

use std::{collections::BTreeMap, fs, io};

use crate::{
    apply::{Backend, Error, Runner, Variant, nf_tables_netlink::NfTables},
    config::Config,
    ipvs::{self, Leftover},
    model::Family,
    nfacct,
    rules::Table,
    sync::{lock, policies},
    sysctls,
};
pub(crate) use predecessors::remove_predecessors;
use predecessors::{KUBE_PROXY_TABLE, delete_kube_proxy_table, nft_family};
use removal::{CANARY, MANGLE, Removal, shares_firewall};
use table_snapshot::TABLES;
pub(crate) use table_snapshot::TableSnapshot;

/// One thing that could not be removed or restored.
#[derive(Debug, thiserror::Error)]
#[error("clean-up of {what}: {source}")]
pub struct CleanupError {
    /// What was being cleaned up.
    pub what: String,
    /// What went wrong.
    pub source: Error,
}

/// Removes every rule and chain of the proxy from both families and both back ends, and what kube-proxy left in its
/// iptables, IPVS or nftables mode; restores the sysctls that the proxy changed. Rules of other programs stay. Fails
/// while a proxy runs in this network namespace, which would write all rules again. Blocks.
///
/// # Errors
/// Everything that failed; the rest was done nevertheless.
pub fn cleanup(config: &Config) -> Result<(), Vec<CleanupError>> {
    let mut errors = Vec::new();
    let mut collect = |what: &str, result: Result<(), Error>| {
        if let Err(source) = result {
            errors.push(CleanupError { what: what.to_owned(), source });
        }
    };
    let runner = Runner::new(config.command_prefix.clone());
    // Held until the end: a proxy that starts now waits. With a command prefix the rules are those of another network
    // namespace, in which we cannot bind the name.
    let _lock = match if runner.in_own_netns() { lock::acquire_blocking(lock::NAME) } else { Ok(None) } {
        Ok(lock) => lock,
        Err(process) => {
            collect("the service rules", Err(Error::Running { process: process.to_string() }));
            return Err(errors);
        }
    };
    let snapshot = TableSnapshot::read(&config.table_snapshot).unwrap_or_else(|e| {
        tracing::warn!(error = %e, "failed to read the snapshot of the tables; deciding by the present rules");
        None
    });
    // With a command prefix the devices and sets are those of another network namespace.
    let leftovers = if runner.in_own_netns() { ipvs::find_leftovers() } else { Ok(Vec::new()) };
    let leftovers = leftovers.unwrap_or_else(|source| {
        collect("what kube-proxy's IPVS mode left", Err(netlink_error("ip link; ipset list -n".to_owned(), &source)));
        Vec::new()
    });
    // Rules use the sets until they are deleted themselves.
    let (sets, others): (Vec<_>, Vec<_>) = leftovers.into_iter().partition(|left| matches!(left, Leftover::Set(_)));
    remove_ipvs_leftovers(&others, &mut collect);
    let mut seen: BTreeMap<String, ()> = BTreeMap::new();
    for variant in [Variant::Auto, Variant::Nft, Variant::Legacy] {
        for family in Family::BOTH {
            if variant == Variant::Legacy && !Backend::legacy_in_use(&runner, family) {
                continue;
            }
            let backend = match Backend::find(&runner, family, variant) {
                Ok(backend) => backend,
                // A back end or family that does not work here has no rules of ours.
                Err(e) => {
                    tracing::debug!(error = %e, family = family.name(), "nothing to clean up");
                    continue;
                }
            };
            let kind = format!("{}/{}", family.name(), backend.is_nft());
            if seen.insert(kind, ()).is_none() {
                let what = format!("the {} rules in {}", family.name(), backend.program());
                collect(&what, remove_rules(&backend, snapshot.as_ref()));
            }
        }
    }
    remove_ipvs_leftovers(&sets, &mut collect);
    for family in Family::BOTH {
        if let Err(source) = delete_kube_proxy_table(&runner, family) {
            let command = format!("nft delete table {} {KUBE_PROXY_TABLE}", nft_family(family));
            collect("the table of kube-proxy's nftables mode", Err(netlink_error(command, &source)));
        }
    }
    if let Some(snapshot) = &snapshot {
        for error in sysctls::restore(&runner, &snapshot.sysctls) {
            collect("the kernel's settings", Err(error));
        }
    }
    if runner.in_own_netns() {
        nfacct::delete_counters();
    }
    if errors.is_empty() {
        let removed = match fs::remove_file(&config.table_snapshot) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        };
        if let Err(source) = removed {
            let path = config.table_snapshot.clone();
            errors.push(CleanupError { what: "the snapshot".to_owned(), source: Error::Snapshot { path, source } });
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

fn remove_ipvs_leftovers(left: &[Leftover], collect: &mut impl FnMut(&str, Result<(), Error>)) {
    for left in left {
        match left.remove() {
            Ok(()) => tracing::info!("removed {left}"),
            Err(source) => collect(&left.to_string(), Err(netlink_error(left.command(), &source))),
        }
    }
}

/// An error of the kernel over netlink; `command` does the same by hand.
fn netlink_error(command: String, source: &io::Error) -> Error {
    Error::Failed { command, status: "netlink".to_owned(), stderr: source.to_string() }
}

fn remove_rules(backend: &Backend, snapshot: Option<&TableSnapshot>) -> Result<(), Error> {
    let text = backend.save(false)?;
    let saved = backend.parse(&text)?;
    let keep_firewall = match snapshot {
        Some(snapshot) => snapshot.firewalls.iter().any(|f| f == backend.family().name()),
        None => shares_firewall(&text),
    };
    // kube-proxy's canary in a table that has no other chains of it.
    if saved.tables.get(MANGLE).is_some_and(|chains| chains.contains_key(CANARY)) {
        backend.restore_text(&format!("*{MANGLE}\n:{CANARY} - [0:0]\n-X {CANARY}\nCOMMIT\n"))?;
    }
    let removal = Removal::of(&saved, keep_firewall);
    for (table, rules) in removal.jumps.iter().filter(|(_, rules)| !rules.is_empty()) {
        backend.restore_text(&table_input(*table, rules))?;
    }
    for (table, chains) in &removal.chains {
        if !(backend.is_nft() && backend.runner().in_own_netns()) {
            delete_chains(backend, *table, chains)?;
            continue;
        }
        match NfTables::open().and_then(|mut netlink| netlink.delete_chains(backend.family(), table.name(), chains)) {
            Ok(()) => {}
            Err(error) => {
                // Another program deleted some of them: the remaining ones are deleted with iptables-restore, which is
                // slow.
                tracing::debug!(%error, table = table.name(), "failed to delete chains over netlink; using iptables-restore");
                let text = backend.save(false)?;
                let now = backend.parse(&text)?;
                let left: Vec<&str> = chains.iter().copied().filter(|c| now.chain(*table, c).is_some()).collect();
                delete_chains(backend, *table, &left)?;
            }
        }
    }
    // With a command prefix the sets are those of another network namespace.
    if backend.runner().in_own_netns() {
        policies::kernel::remove(backend)?;
    }
    if backend.is_nft() {
        for table in TABLES {
            let was_there = snapshot.is_some_and(|r| r.tables.contains(&TableSnapshot::key(backend.family(), table)));
            if !was_there {
                delete_empty_table(backend, table)?;
            }
        }
    }
    Ok(())
}

/// Chains in one nf_tables transaction of iptables-restore, whose time grows with the square of its size.
const MAX_NFT_DELETIONS: usize = 1000;

fn table_input(table: Table, lines: &str) -> String {
    format!("*{}\n{lines}COMMIT\n", table.name())
}

/// Flushes and deletes chains that no rule jumps to, with `iptables-restore`.
fn delete_chains(backend: &Backend, table: Table, chains: &[&str]) -> Result<(), Error> {
    let bound = if backend.is_nft() { MAX_NFT_DELETIONS } else { usize::MAX };
    let parts = || chains.chunks(bound.min(chains.len().max(1)));
    for part in parts() {
        backend
            .restore_text(&table_input(table, &part.iter().map(|c| format!(":{c} - [0:0]\n")).collect::<String>()))?;
    }
    for part in parts() {
        backend.restore_text(&table_input(table, &part.iter().map(|c| format!("-X {c}\n")).collect::<String>()))?;
    }
    Ok(())
}

/// Deletes a table without rules, so that `iptables-save` prints what it printed before.
fn delete_empty_table(backend: &Backend, table: &str) -> Result<(), Error> {
    let failed = |e: io::Error| netlink_error(format!("removal of the empty table {table}"), &e);
    for _ in 0..5 {
        let mut netlink = if backend.runner().in_own_netns() { Some(NfTables::open().map_err(failed)?) } else { None };
        let generation = netlink.as_mut().map(NfTables::generation).transpose().map_err(failed)?;
        let text = backend.save(false)?;
        let saved = backend.parse(&text)?;
        let Some(chains) = saved.tables.get(table) else { return Ok(()) };
        if chains.values().any(|c| c.policy != "ACCEPT" || !c.rules.is_empty()) {
            return Ok(());
        }
        let (Some(netlink), Some(generation)) = (&mut netlink, generation) else {
            let family = nft_family(backend.family());
            return backend.runner().run("nft", &["delete", "table", family, table], "").map(drop);
        };
        // A use count above the number of printed chains: sets or native chains of another program.
        match netlink.users(backend.family(), table).map_err(failed)? {
            None => return Ok(()),
            Some(users) if users as usize > chains.len() => return Ok(()),
            Some(_) => {}
        }
        match netlink.delete_table(backend.family(), table, generation) {
            Ok(()) => return Ok(()),
            Err(e) => tracing::debug!(error = %e, table, "the ruleset changed meanwhile; retrying"),
        }
    }
    tracing::warn!(table, "failed to delete an empty table, the ruleset changes all the time; keeping it");
    Ok(())
}
