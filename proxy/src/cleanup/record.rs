//! How things were before the first rule of ours, in a file that outlives the process.

use std::{fs, io, path::Path};

use serde::{Deserialize, Serialize};

use super::removal::{is_ours, shares_firewall};
use crate::{
    apply::Error,
    kernel::Saved,
    model::Family,
    rules::{Fixed, Table},
    sysctls::Changed,
};

/// How things were before the first rule of ours; written once, kept until clean-up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// Tables that existed, as `IPv4/nat`.
    pub(super) tables: Vec<String>,
    /// Families whose KUBE-FIREWALL existed, as `IPv4`.
    pub(super) firewalls: Vec<String>,
    /// Settings of the kernel that we changed.
    #[serde(default)]
    pub(super) sysctls: Changed,
}

impl Record {
    pub(super) fn key(family: Family, table: Table) -> String {
        format!("{}/{}", family.name(), table.name())
    }

    /// Notes what is there that is not ours: a table in which chains of ours are was made by us, or
    /// is not empty for another reason.
    pub(super) fn note(&mut self, family: Family, saved: &Saved<'_>, text: &str) {
        let ours = |table: Table| saved.chains(table).any(|(name, _)| is_ours(table, name));
        for table in Table::BOTH {
            if saved.tables.contains_key(table.name()) && !ours(table) {
                self.tables.push(Self::key(family, table));
            }
        }
        let firewall = saved.chain(Table::Filter, Fixed::FilterFirewall.name()).is_some();
        if firewall && (shares_firewall(text) || !Table::BOTH.into_iter().any(ours)) {
            self.firewalls.push(family.name().to_owned());
        }
    }

    pub(super) fn read(path: &Path) -> Result<Option<Self>, Error> {
        match fs::read(path) {
            // A file cut short by a crash tells nothing: clean-up then goes by what it sees.
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::Record { path: path.to_owned(), source }),
        }
    }

    pub(super) fn write(&self, path: &Path) -> Result<(), Error> {
        let write = || -> io::Result<()> {
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            let next = path.with_extension("new");
            fs::write(&next, serde_json::to_vec(self)?)?;
            fs::rename(&next, path)
        };
        write().map_err(|source| Error::Record { path: path.to_owned(), source })
    }
}
