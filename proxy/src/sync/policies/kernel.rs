//! The kernel's chains and sets of one family, and the steps that bring them to what is wanted. Everything here blocks.

use std::sync::Arc;

use super::super::transactions::Transactions;
use crate::{
    apply::{Backend, Error, ip_sets},
    model::Family,
    netlink::Netlink,
    network_policy::{
        IpSets, TABLE, Wanted, is_policy_set,
        plan::{Kernel, ReadSets, Steps, without_deletions},
        set_suffix,
    },
};

/// What was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Written {
    /// Anything at all.
    pub(super) any: bool,
    /// By `iptables-restore`, which costs more than changes of sets.
    pub(super) rules: bool,
    /// What was wanted was the same as before: others had changed it.
    pub(super) repaired: bool,
}

/// Reads chains and sets. Only with rules, or where they are wanted, is the table named: legacy programs create what they
/// list.
fn read(backend: &Backend, wanted: &Wanted) -> Result<Kernel, Error> {
    let text = if wanted.chains.is_empty() { backend.save(false)? } else { backend.save_table(TABLE)? };
    Ok(Kernel::read(&backend.parse(&text)?, read_all_sets(backend.family())?, wanted))
}

fn read_all_sets(family: Family) -> Result<ReadSets, Error> {
    let suffix = set_suffix(family);
    let sets = Netlink::netfilter()
        .and_then(|mut netlink| ip_sets::read(&mut netlink, |name| is_policy_set(name) && name.ends_with(suffix)));
    sets.map_err(|source| Error::IpSet { what: "read the IP sets".to_owned(), source })
}

/// The sets of a family in this thread's network namespace.
pub(crate) fn read_sets(family: Family) -> Result<IpSets, Error> {
    Ok(IpSets(read_all_sets(family)?.into_iter().filter_map(|(name, set)| Some((name, set?))).collect()))
}

/// Does the steps. After an error it is not known which of them were done.
fn run(backend: &Backend, transactions: Option<&Arc<Transactions>>, steps: &Steps) -> Result<(), Error> {
    let failed = |what: &str, name: &str| {
        let what = format!("{what} {name}");
        move |source| Error::IpSet { what, source }
    };
    let mut netlink = Netlink::netfilter().map_err(failed("open netlink for", "IP sets"))?;
    for name in &steps.destroy_first {
        ip_sets::destroy(&mut netlink, name).map_err(failed("destroy the IP set", name))?;
    }
    for (name, kind) in &steps.create {
        ip_sets::create(&mut netlink, name, *kind, backend.family()).map_err(failed("create the IP set", name))?;
    }
    for (name, entries) in &steps.add {
        ip_sets::add(&mut netlink, name, entries).map_err(failed("add entries to the IP set", name))?;
    }
    if !steps.texts.is_empty() {
        // The monitor of rules is closed meanwhile: it takes whatever it hears for others'.
        let _writing = transactions.map(|all| all.write());
        steps.texts.iter().try_for_each(|text| restore(backend, transactions, text))?;
    }
    for (name, entries) in &steps.delete {
        ip_sets::delete(&mut netlink, name, entries).map_err(failed("delete entries of the IP set", name))?;
    }
    for name in &steps.destroy {
        // One that a rule of another program names stays, without harm, until there is nothing that names it.
        match ip_sets::destroy(&mut netlink, name) {
            Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                tracing::warn!(%error, set = name, "failed to destroy an IP set that no policy needs any more");
            }
            other => other.map_err(failed("destroy the IP set", name))?,
        }
    }
    Ok(())
}

fn restore(backend: &Backend, transactions: Option<&Arc<Transactions>>, text: &str) -> Result<(), Error> {
    let once = |text: &str| {
        let transaction = transactions.map(|all| all.begin());
        let restored = backend.restore_text(text);
        if let (Ok(()), Some(transaction)) = (&restored, transaction) {
            transaction.committed();
        }
        restored
    };
    match once(text) {
        // A rule of another program may jump to a chain that is to be deleted. It stays, empty.
        Err(error) if text.contains("\n-X ") && !error.is_passing() => {
            once(&without_deletions(text))?;
            tracing::warn!(%error, "failed to delete a chain that no policy needs any more; it stays, empty");
            Ok(())
        }
        other => other,
    }
}

/// What is known of the kernel.
#[derive(Debug)]
pub(super) enum Known {
    /// Nothing: it is read.
    Nothing,
    /// Its chains; its sets are read.
    Chains(Kernel),
    /// All.
    All(Kernel),
}

/// Brings a family from what is known, and else from what is read, to what is wanted.
pub(super) fn sync(
    backend: &Backend,
    transactions: &Arc<Transactions>,
    known: Known,
    wanted: &Wanted,
) -> Result<Written, Error> {
    let kernel = match known {
        Known::All(kernel) => kernel,
        Known::Chains(kernel) => kernel.with_sets(read_all_sets(backend.family())?),
        Known::Nothing => read(backend, wanted)?,
    };
    let steps = kernel.steps_to(wanted);
    if steps.is_empty() {
        return Ok(Written::default());
    }
    run(backend, Some(transactions), &steps)?;
    Ok(Written { any: true, rules: !steps.texts.is_empty(), repaired: false })
}

/// Writes what is wanted into a network namespace that has nothing of it.
pub(crate) fn write(backend: &Backend, wanted: &Wanted) -> Result<(), Error> {
    run(backend, None, &Kernel::default().steps_to(wanted))
}

/// Removes what an earlier process that enforced policies has left in the kernel; whether there was anything. Without sets
/// there are no chains.
pub(crate) fn remove_leftovers(backend: &Backend) -> Result<bool, Error> {
    let is_there = !read_all_sets(backend.family())?.is_empty();
    if is_there {
        remove(backend)?;
    }
    Ok(is_there)
}

/// Removes all chains and sets of a family from one back end, for clean-up. Sets are the other back end's, too: they go
/// when no rule names them.
pub(crate) fn remove(backend: &Backend) -> Result<(), Error> {
    let nothing = Wanted::nothing(backend.family());
    let steps = read(backend, &nothing)?.steps_to(&nothing);
    if steps.is_empty() { Ok(()) } else { run(backend, None, &steps) }
}
