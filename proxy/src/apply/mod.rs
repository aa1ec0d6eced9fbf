//! The only module that runs iptables for Services: saves and restores rulesets, and detects which of the two back ends
//! the host uses. Everything here blocks: call it on a blocking thread. May import the model, the rules, the plan and
//! `iptables_save`, never `sync`.

mod backend;
mod command;
pub(crate) mod ip_sets;
pub(crate) mod nf_tables_netlink;

use std::{io, path::PathBuf};

use crate::plan::Outcome;

pub(crate) use backend::MIN_VERSION;
pub use backend::{Backend, Fingerprint, Variant};
pub use command::Runner;

/// Why iptables could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program does not exist or could not be started.
    #[error("cannot run {program}: {source}; install the package iptables")]
    Start {
        /// Which program.
        program: String,
        /// Why not.
        source: io::Error,
    },
    /// It failed.
    #[error("{command} failed ({status}): {stderr}")]
    Failed {
        /// Program and arguments.
        command: String,
        /// Its exit status.
        status: String,
        /// Its standard error, shortened.
        stderr: String,
    },
    /// Another process held the xtables lock for too long.
    #[error("{command} did not get the xtables lock, which another process holds: {stderr}")]
    Locked {
        /// Program and arguments.
        command: String,
        /// Its standard error, shortened.
        stderr: String,
    },
    /// It was killed, or its end was not seen.
    #[error("{command} was interrupted: {why}")]
    Interrupted {
        /// Program and arguments.
        command: String,
        /// By what.
        why: String,
    },
    /// A rule was refused.
    #[error("{program} refused line {line}, \"{rule}\"{}: {stderr}", owner.as_ref().map(|o| format!(" of service port {o}")).unwrap_or_default())]
    Rule {
        /// Which program.
        program: String,
        /// Line of the text, from 1.
        line: usize,
        /// That line.
        rule: String,
        /// The service port it belongs to, where known.
        owner: Option<String>,
        /// Its standard error, shortened.
        stderr: String,
    },
    /// Its output cannot be parsed.
    #[error("cannot parse the output of {program}: {source}")]
    Output {
        /// Which program.
        program: String,
        /// Which line.
        source: crate::iptables_save::ParseError,
    },
    /// An IP set could not be read or changed.
    #[error(
        "cannot {what}: {source}; NetworkPolicies need the kernel's IP sets (modules ip_set, ip_set_hash_ip, xt_set)"
    )]
    IpSet {
        /// What was tried, with the set's name.
        what: String,
        /// Why not.
        source: io::Error,
    },
    /// It is too old.
    #[error(
        "{program} is too old ({version}): {} or later is needed, whose iptables-restore waits for the xtables lock",
        MIN_VERSION
    )]
    Old {
        /// Which program.
        program: String,
        /// The version it reports.
        version: String,
    },
    /// The node's first address is of a family that this machine does not have.
    #[error(
        "the node's first address is of IPv6, which is disabled on this machine (net.ipv6.conf.all.disable_ipv6); enable it, or give the node an address of IPv4"
    )]
    NoIpv6,
    /// A service proxy runs in this network namespace.
    #[error("the service proxy is running (process {process}) and would write its rules again; stop it first")]
    Running {
        /// Its process id.
        process: String,
    },
    /// A sysctl could not be written.
    #[error("cannot set {setting} to {value}: {problem}; run as root in the node's network namespace")]
    Sysctl {
        /// Its name.
        setting: String,
        /// The value.
        value: String,
        /// Why not.
        problem: String,
    },
    /// The snapshot of the tables before our first rule cannot be read or written.
    #[error("cannot keep the snapshot of the tables in {path}: {source}")]
    Snapshot {
        /// Where.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// Messages of a kernel that lacks memory or descriptors at the moment, which say nothing about the rule.
const SHORTAGE_MESSAGES: [&str; 5] = [
    "Cannot allocate memory",
    "No buffer space available",
    "Resource temporarily unavailable",
    "Message too long",
    "Too many open files",
];

impl Error {
    /// Another process held the xtables lock for too long: the table is as before.
    pub(crate) const fn is_locked(&self) -> bool {
        matches!(self, Self::Locked { .. })
    }

    /// What is known of a transaction that failed with this.
    pub(crate) const fn outcome(&self) -> Outcome {
        match self {
            Self::Interrupted { .. } => Outcome::Unknown,
            _ => Outcome::Unchanged,
        }
    }

    /// It says nothing about the input, which may be accepted the next time.
    pub(crate) fn is_passing(&self) -> bool {
        self.is_locked() || self.is_shortage() || matches!(self, Self::Interrupted { .. })
    }

    /// The kernel lacked resources; the same input may be accepted later.
    pub(crate) fn is_shortage(&self) -> bool {
        match self {
            Self::Failed { stderr, .. } | Self::Rule { stderr, .. } => {
                SHORTAGE_MESSAGES.iter().any(|word| stderr.contains(word))
            }
            Self::Start { .. } => true,
            _ => false,
        }
    }
}
