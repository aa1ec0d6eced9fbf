//! The state before the first rule of the proxy, in a file that outlives the process.

use std::{fs, io, path::Path};

use serde::{Deserialize, Serialize};
use windlass_kit::atomic_file;

use super::removal::{is_ours, shares_firewall};
use crate::{
    apply::Error,
    iptables_save::SavedRuleset,
    model::Family,
    network_policy::{ROOT_CHAIN, TABLE},
    rules::{StaticChain, Table},
    sysctls::ChangedSysctls,
};

/// The table in which the pod network checks source addresses, by a chain of its own name.
const RAW: (&str, &str) = ("raw", "WINDLASS-RPFILTER");
/// The tables that the proxy and the pod network write to.
pub(super) const TABLES: [&str; 4] = [Table::Filter.name(), Table::Nat.name(), TABLE, RAW.0];

/// The state before the first rule of the proxy; written once, and removed by clean-up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TableSnapshot {
    /// Tables that existed, as `IPv4/nat`.
    pub(crate) tables: Vec<String>,
    /// Families whose KUBE-FIREWALL existed, as `IPv4`.
    pub(crate) firewalls: Vec<String>,
    /// Sysctls that the proxy changed.
    #[serde(default)]
    pub(crate) sysctls: ChangedSysctls,
}

impl TableSnapshot {
    pub(crate) fn key(family: Family, table: &str) -> String {
        format!("{}/{table}", family.name())
    }

    /// Adds the tables of a family that are not ours. A table with chains of ours was created by the proxy, or clean-up
    /// does not delete it anyway, since it is not empty.
    pub(crate) fn add(&mut self, family: Family, saved: &SavedRuleset<'_>, text: &str) {
        let ours = |table: Table| saved.chains(table).any(|(name, _)| is_ours(table, name));
        let has_ours = |name: &str| {
            Table::BOTH.into_iter().any(|table| table.name() == name && ours(table))
                || [(TABLE, ROOT_CHAIN), RAW]
                    .iter()
                    .any(|(table, chain)| name == *table && saved.chain(*table, chain).is_some())
        };
        for table in TABLES {
            if saved.tables.contains_key(table) && !has_ours(table) {
                self.tables.push(Self::key(family, table));
            }
        }
        let firewall = saved.chain(Table::Filter, StaticChain::FilterKubeletFirewall.name()).is_some();
        if firewall && (shares_firewall(text) || !Table::BOTH.into_iter().any(ours)) {
            self.firewalls.push(family.name().to_owned());
        }
    }

    pub(crate) fn read(path: &Path) -> Result<Option<Self>, Error> {
        match fs::read(path) {
            // A truncated file counts as none: clean-up then decides by the present rules.
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::Snapshot { path: path.to_owned(), source }),
        }
    }

    pub(crate) fn write(&self, path: &Path) -> Result<(), Error> {
        let write = || -> io::Result<()> {
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            atomic_file::write(path, &serde_json::to_vec(self)?, 0o644)
        };
        write().map_err(|source| Error::Snapshot { path: path.to_owned(), source })
    }
}
