//! Taking everything back: the rules, the chains, and what else was changed before the first rule.

mod predecessors;
mod record;
mod removal;

use std::{collections::BTreeMap, fs, io};

use crate::{
    apply::{Backend, Error, Runner, nftables::NfTables},
    config::{Config, Variant},
    ipvs::{self, Left},
    model::Family,
    nfacct,
    rules::Table,
    sync::lock,
    sysctls::{self, Changed},
};
pub(crate) use predecessors::remove_predecessors;
use predecessors::{KUBE_PROXY_TABLE, delete_kube_proxy_table, nft_family};
use record::Record;
use removal::{CANARY, MANGLE, Removal, shares_firewall};

/// One thing that could not be taken back.
#[derive(Debug, thiserror::Error)]
#[error("clean-up of {what}: {source}")]
pub struct CleanupError {
    /// What was being cleaned up.
    pub what: String,
    /// What went wrong.
    pub source: Error,
}

/// The programs of both families. The one of the node's first address must work; the other may be missing.
pub(crate) fn backends(config: &Config) -> Result<Vec<Backend>, Error> {
    let runner = Runner::new(config.command_prefix.clone());
    let disabled = runner.read("/proc/sys/net/ipv6/conf/all/disable_ipv6").map_or(true, |text| text.trim() == "1");
    let find = |family| Backend::find(&runner, family, config.variant);
    // Side by side: each asks several programs.
    let (four, six) = std::thread::scope(|scope| {
        let six = (!disabled).then(|| scope.spawn(|| find(Family::V6)));
        (find(Family::V4), six.map(std::thread::ScopedJoinHandle::join))
    });
    let first = config.node_ips.first().map_or(Family::V4, Family::of);
    let mut backends = Vec::new();
    let mut add = |family: Family, found: Result<Backend, Error>| match found {
        Ok(backend) => {
            backends.push(backend);
            Ok(())
        }
        Err(error) if family == first => Err(error),
        Err(error) => {
            let family = family.name();
            tracing::warn!(%error, family, "iptables does not work for one family: its services get no rules");
            Ok(())
        }
    };
    add(Family::V4, four)?;
    match six {
        None => tracing::warn!("IPv6 is switched off on this machine: IPv6 services get no rules"),
        Some(Ok(six)) => add(Family::V6, six)?,
        Some(Err(_)) => tracing::error!("the search for ip6tables broke off: IPv6 services get no rules"),
    }
    if backends.is_empty() {
        return find(first).map(|backend| vec![backend]);
    }
    Ok(backends)
}

/// Notes which tables there are, unless that was noted before, so that [`cleanup`] removes exactly
/// those that came later. [`run`](crate::run()) does it too; call it earlier when something else of
/// the same node writes rules before the proxy starts. Blocks.
///
/// # Errors
/// When iptables does not work or the record cannot be written.
pub fn record(config: &Config) -> Result<(), Error> {
    if Record::read(&config.record)?.is_some() {
        return Ok(());
    }
    noted(config, &backends(config)?).map(drop)
}

fn noted(config: &Config, backends: &[Backend]) -> Result<Record, Error> {
    if let Some(record) = Record::read(&config.record)? {
        return Ok(record);
    }
    let mut fresh = Record::default();
    let texts: Vec<_> = std::thread::scope(|scope| {
        let reading: Vec<_> = backends.iter().map(|backend| (backend, scope.spawn(|| backend.save(false)))).collect();
        reading.into_iter().filter_map(|(backend, thread)| Some((backend, thread.join().ok()?))).collect()
    });
    for (backend, text) in texts {
        let text = text?;
        fresh.note(backend.family(), &backend.parse(&text)?, &text);
    }
    fresh.write(&config.record)?;
    Ok(fresh)
}

/// Sets the kernel as services need it, without writing a rule; [`run`](crate::run()) does it too. Blocks.
///
/// # Errors
/// When iptables does not work, the record cannot be written, or packets from 127.0.0.1 cannot be routed.
pub fn prepare(config: &Config) -> Result<(), Error> {
    set_kernel(config, &backends(config)?)
}

/// Notes how things are, unless that was noted already or rules of ours are there; then sets the kernel: packets
/// from 127.0.0.1 are routed where node ports are to answer there, and connection tracking gets its room. Blocks.
pub(crate) fn set_kernel(config: &Config, backends: &[Backend]) -> Result<(), Error> {
    let mut record = noted(config, backends)?;
    let runner = Runner::new(config.command_prefix.clone());
    let tables = record.clone();
    let keep = |changed: &Changed| Record { sysctls: changed.clone(), ..tables.clone() }.write(&config.record);
    if config.localhost_effective() {
        sysctls::route_localnet(&runner, &mut record.sysctls, &keep)?;
    }
    sysctls::conntrack(&runner, &config.conntrack, &mut record.sysctls, &keep)
}

/// Removes every rule and chain of the proxy from both families and both back ends, what kube-proxy left in its
/// iptables, IPVS or nftables mode, and puts back what was changed here. Rules of others stay; what is not there is no error. Refuses while a proxy runs here, which
/// would write all of it again. Blocks.
///
/// # Errors
/// All that failed; the rest was done nevertheless.
pub fn cleanup(config: &Config) -> Result<(), Vec<CleanupError>> {
    let mut errors = Vec::new();
    let mut note = |what: &str, result: Result<(), Error>| {
        if let Err(source) = result {
            errors.push(CleanupError { what: what.to_owned(), source });
        }
    };
    let runner = Runner::new(config.command_prefix.clone());
    // Held to the end: a proxy that starts now waits. Behind a prefix the name would be that of another namespace.
    let _lock = match if runner.is_plain() { lock::take_soon(lock::NAME) } else { Ok(None) } {
        Ok(lock) => lock,
        Err(process) => {
            note("the service rules", Err(Error::Running { process: process.to_string() }));
            return Err(errors);
        }
    };
    let record = Record::read(&config.record).unwrap_or_else(|e| {
        tracing::warn!(error = %e, "the record of the tables' state cannot be read: going by what is there");
        None
    });
    // Behind a prefix the devices and sets are those of another namespace.
    let of_ipvs = if runner.is_plain() { ipvs::left_behind() } else { Ok(Vec::new()) };
    let of_ipvs = of_ipvs.unwrap_or_else(|source| {
        note("what kube-proxy's IPVS mode left", Err(netlink_failed("ip link; ipset list -n".to_owned(), &source)));
        Vec::new()
    });
    // Rules ask the sets until they are gone themselves.
    let (sets, others): (Vec<_>, Vec<_>) = of_ipvs.into_iter().partition(|left| matches!(left, Left::Set(_)));
    remove_of_ipvs(&others, &mut note);
    let mut seen: BTreeMap<String, ()> = BTreeMap::new();
    for variant in [Variant::Auto, Variant::Nft, Variant::Legacy] {
        for family in Family::BOTH {
            if variant == Variant::Legacy && !Backend::legacy_in_use(&runner, family) {
                continue;
            }
            let backend = match Backend::find(&runner, family, variant) {
                Ok(backend) => backend,
                // A back end or family that does not work here holds no rules of ours.
                Err(e) => {
                    tracing::debug!(error = %e, family = family.name(), "nothing to clean up");
                    continue;
                }
            };
            let kind = format!("{}/{}", family.name(), backend.is_nft());
            if seen.insert(kind, ()).is_none() {
                let what = format!("the {} rules in {}", family.name(), backend.program());
                note(&what, clean(&backend, record.as_ref()));
            }
        }
    }
    remove_of_ipvs(&sets, &mut note);
    for family in Family::BOTH {
        if let Err(source) = delete_kube_proxy_table(&runner, family) {
            let command = format!("nft delete table {} {KUBE_PROXY_TABLE}", nft_family(family));
            note("the table of kube-proxy's nftables mode", Err(netlink_failed(command, &source)));
        }
    }
    if let Some(record) = &record {
        for error in sysctls::restore(&runner, &record.sysctls) {
            note("the kernel's settings", Err(error));
        }
    }
    if runner.is_plain() {
        nfacct::remove();
    }
    if errors.is_empty() {
        let removed = match fs::remove_file(&config.record) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        };
        if let Err(source) = removed {
            let path = config.record.clone();
            errors.push(CleanupError { what: "the record".to_owned(), source: Error::Record { path, source } });
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

fn remove_of_ipvs(left: &[Left], note: &mut impl FnMut(&str, Result<(), Error>)) {
    for left in left {
        match left.remove() {
            Ok(()) => tracing::info!("{left} was removed"),
            Err(source) => note(&left.to_string(), Err(netlink_failed(left.command(), &source))),
        }
    }
}

/// What the kernel refused over netlink; `command` does the same by hand.
fn netlink_failed(command: String, source: &io::Error) -> Error {
    Error::Failed { command, status: "netlink".to_owned(), stderr: source.to_string() }
}

fn clean(backend: &Backend, record: Option<&Record>) -> Result<(), Error> {
    let text = backend.save(false)?;
    let saved = backend.parse(&text)?;
    let keep_firewall = match record {
        Some(record) => record.firewalls.iter().any(|f| f == backend.family().name()),
        None => shares_firewall(&text),
    };
    // kube-proxy's mark in a table that is not ours otherwise.
    if saved.tables.get(MANGLE).is_some_and(|chains| chains.contains_key(CANARY)) {
        backend.restore_text(&format!("*{MANGLE}\n:{CANARY} - [0:0]\n-X {CANARY}\nCOMMIT\n"))?;
    }
    let removal = Removal::of(&saved, keep_firewall);
    for (table, rules) in removal.jumps.iter().filter(|(_, rules)| !rules.is_empty()) {
        backend.restore_text(&section(*table, rules))?;
    }
    for (table, chains) in &removal.chains {
        if !(backend.is_nft() && backend.runner().is_plain()) {
            remove(backend, *table, chains)?;
            continue;
        }
        match NfTables::open().and_then(|mut netlink| netlink.delete_chains(backend.family(), table.name(), chains)) {
            Ok(()) => {}
            Err(error) => {
                // Somebody else deleted some of them: what is there now goes the slow way.
                tracing::debug!(%error, table = table.name(), "chains could not be deleted all at once");
                let text = backend.save(false)?;
                let now = backend.parse(&text)?;
                let left: Vec<&str> = chains.iter().copied().filter(|c| now.chain(*table, c).is_some()).collect();
                remove(backend, *table, &left)?;
            }
        }
    }
    if backend.is_nft() {
        for table in Table::BOTH {
            let was_there = record.is_some_and(|r| r.tables.contains(&Record::key(backend.family(), table)));
            if !was_there {
                drop_empty_table(backend, table)?;
            }
        }
    }
    Ok(())
}

/// Chains in one nf_tables transaction of iptables-restore; its time grows with the square.
const CHUNK: usize = 1000;

fn section(table: Table, lines: &str) -> String {
    format!("*{}\n{lines}COMMIT\n", table.name())
}

/// Empties and deletes chains that nothing leads to, with the programs.
fn remove(backend: &Backend, table: Table, chains: &[&str]) -> Result<(), Error> {
    let bound = if backend.is_nft() { CHUNK } else { usize::MAX };
    let parts = || chains.chunks(bound.min(chains.len().max(1)));
    for part in parts() {
        backend.restore_text(&section(table, &part.iter().map(|c| format!(":{c} - [0:0]\n")).collect::<String>()))?;
    }
    for part in parts() {
        backend.restore_text(&section(table, &part.iter().map(|c| format!("-X {c}\n")).collect::<String>()))?;
    }
    Ok(())
}

/// Removes a table in which nothing is left, so that `iptables-save` prints what it did before.
fn drop_empty_table(backend: &Backend, table: Table) -> Result<(), Error> {
    let failed = |e: io::Error| netlink_failed(format!("removal of the empty table {}", table.name()), &e);
    for _ in 0..5 {
        let mut netlink = if backend.runner().is_plain() { Some(NfTables::open().map_err(failed)?) } else { None };
        let generation = netlink.as_mut().map(NfTables::generation).transpose().map_err(failed)?;
        let text = backend.save(false)?;
        let saved = backend.parse(&text)?;
        let Some(chains) = saved.tables.get(table.name()) else { return Ok(()) };
        if chains.values().any(|c| c.policy != "ACCEPT" || !c.rules.is_empty()) {
            return Ok(());
        }
        let (Some(netlink), Some(generation)) = (&mut netlink, generation) else {
            let family = nft_family(backend.family());
            return backend.runner().run("nft", &["delete", "table", family, table.name()], "").map(drop);
        };
        // More users than the printed chains: sets or chains of somebody else.
        match netlink.users(backend.family(), table.name()).map_err(failed)? {
            None => return Ok(()),
            Some(users) if users as usize > chains.len() => return Ok(()),
            Some(_) => {}
        }
        match netlink.delete_table(backend.family(), table.name(), generation) {
            Ok(()) => return Ok(()),
            Err(e) => tracing::debug!(error = %e, table = table.name(), "the rules changed meanwhile: looking again"),
        }
    }
    tracing::warn!(table = table.name(), "an empty table stays: others change the rules all the time");
    Ok(())
}
