//! The only place that runs iptables for services: reading tables back, restoring texts, finding
//! out which of the two back ends the host uses. Everything here blocks: call it from a thread
//! that may wait. May import settings and rules, never the loop.

mod backend;
mod command;
pub(crate) mod nftables;

use std::{io, path::PathBuf};

pub use backend::Backend;
pub(crate) use backend::OLDEST;
pub use command::Runner;

/// Why iptables could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program is not there or could not be started.
    #[error("cannot run {program}: {source}; install the package iptables")]
    Start {
        /// Which program.
        program: String,
        /// Why not.
        source: io::Error,
    },
    /// It ran and refused.
    #[error("{command} failed ({status}): {stderr}")]
    Failed {
        /// Program and arguments.
        command: String,
        /// Exit status in words.
        status: String,
        /// What it said, shortened.
        stderr: String,
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
        /// What it said.
        stderr: String,
    },
    /// It printed something that is not a rule set.
    #[error("{program} printed something else than rules: {source}")]
    Output {
        /// Which program.
        program: String,
        /// Where.
        source: crate::kernel::ParseError,
    },
    /// It is too old.
    #[error("{program} is too old ({version}): {} or later is needed for a restore that waits for the lock", OLDEST)]
    Old {
        /// Which program.
        program: String,
        /// What it calls itself.
        version: String,
    },
    /// Another proxy writes the rules of this network namespace.
    #[error("the service proxy is running here (process {process}), and would write its rules again: end it first")]
    Running {
        /// Its process.
        process: String,
    },
    /// A setting of the kernel could not be changed.
    #[error("cannot set {setting} to {value}: {problem}; run as root in the node's network namespace")]
    Sysctl {
        /// Its name.
        setting: String,
        /// The value.
        value: String,
        /// Why not.
        problem: String,
    },
    /// The note about the tables' state before our first rule.
    #[error("cannot keep the record of the tables in {path}: {source}")]
    Record {
        /// Where.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// What a kernel says that has no room just now: nothing about the rule itself.
const SHORTAGE: [&str; 5] = [
    "Cannot allocate memory",
    "No buffer space available",
    "Resource temporarily unavailable",
    "Message too long",
    "Too many open files",
];

impl Error {
    /// Somebody else held the lock of the tables for too long: nothing was changed.
    pub(crate) fn is_locked(&self) -> bool {
        matches!(self, Self::Failed { stderr, .. } if stderr.contains("xtables lock"))
    }

    /// The kernel had no room: the same may be taken later.
    pub(crate) fn is_shortage(&self) -> bool {
        match self {
            Self::Failed { stderr, .. } | Self::Rule { stderr, .. } => {
                SHORTAGE.iter().any(|word| stderr.contains(word))
            }
            Self::Start { .. } => true,
            _ => false,
        }
    }
}
