//! The iptables programs of one address family and one back end (nf_tables or legacy).

use std::hash::{DefaultHasher, Hasher as _};

use super::{Error, Runner, command::failure};
use crate::{
    iptables_save::SavedRuleset,
    model::Family,
    plan::{BatchLimit, TableBatch},
};

/// Rules in one nf_tables transaction, whose time grows with the square of its size.
const MAX_NFT_BATCH_LINES: usize = 4000;
/// The prefix of all chain names of Kubernetes.
const KUBE_PREFIX: &[u8] = b"KUBE-";
/// The chain of a probe; kube-proxy uses this name too, so that its clean-up removes a leftover.
const PROBE_CHAIN: &str = "KUBE-PROXY-CANARY";
/// The oldest version whose `iptables-restore` waits for the xtables lock (`-w`).
pub(crate) const MIN_VERSION: &str = "1.6.2";
/// Attempts to acquire the xtables lock when the programs are tried first.
const MAX_LOCK_ATTEMPTS: u32 = 6;
/// How long each command waits for the xtables lock, in seconds; kube-proxy's value.
const LOCK_WAIT_SECONDS: &str = "5";

/// Which of the two iptables back ends to use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Variant {
    /// The one that the host's other rules use, else that of the program `iptables`.
    #[default]
    Auto,
    /// `iptables-nft`.
    Nft,
    /// `iptables-legacy`.
    Legacy,
}

/// The programs of one family and one back end.
#[derive(Debug, Clone)]
pub struct Backend {
    runner: Runner,
    family: Family,
    nft: bool,
    /// `iptables`, `iptables-nft` or `iptables-legacy`; `ip6tables…` for IPv6.
    base: String,
}

fn program_name(family: Family, suffix: &str) -> String {
    let stem = match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    };
    format!("{stem}{suffix}")
}

/// A hash over all chains of ours, their rules, and all rules that name one: equal as long as none of them changes.
#[derive(Debug, Default)]
pub struct Fingerprint(DefaultHasher);

impl Fingerprint {
    /// Adds a line of `iptables-save`.
    pub fn add(&mut self, line: &[u8]) {
        let table = line.starts_with(b"*");
        if table || line.windows(KUBE_PREFIX.len()).any(|part| part == KUBE_PREFIX) {
            // Headers of chains are printed with counters behind the policy.
            let end = if line.starts_with(b":") { line.iter().position(|b| *b == b'[') } else { None };
            self.0.write(&line[..end.unwrap_or(line.len())]);
        }
    }

    /// The hash.
    #[must_use]
    pub fn finish(&self) -> u64 {
        self.0.finish()
    }
}

impl Backend {
    /// Finds the programs of a family and lists the nat table with them.
    ///
    /// # Errors
    /// When they are missing, too old, or the kernel does not let them list the nat table.
    pub fn find(runner: &Runner, family: Family, variant: Variant) -> Result<Self, Error> {
        let version_of = |base: &str| runner.run(base, &["--version"], "");
        let (base, version) = match variant {
            Variant::Nft | Variant::Legacy => {
                let base = program_name(family, if variant == Variant::Nft { "-nft" } else { "-legacy" });
                let version = version_of(&base)?;
                (base, version)
            }
            Variant::Auto => {
                let plain = program_name(family, "");
                let version = version_of(&plain)?;
                match Self::detect(runner, family, version.contains("nf_tables")) {
                    "" => (plain, version),
                    suffix => {
                        let base = program_name(family, suffix);
                        let version = version_of(&base)?;
                        (base, version)
                    }
                }
            }
        };
        let nft = version.contains("nf_tables");
        if !is_supported_version(&version) {
            return Err(Error::Old { program: base, version: version.trim().to_owned() });
        }
        let mut attempts = 0;
        loop {
            match runner.run(&base, &["-w", LOCK_WAIT_SECONDS, "-t", "nat", "-S", "POSTROUTING"], "") {
                // While a machine boots, another program may hold the lock for long.
                Err(error) if error.is_locked() && attempts < MAX_LOCK_ATTEMPTS => attempts += 1,
                other => break other,
            }
        }?;
        Ok(Self { runner: runner.clone(), family, nft, base })
    }

    /// The back end that the host's other rules use: the one with the kubelet's chains, else the one with more rules,
    /// else that of the program `iptables`. Returns the suffix of the program names.
    fn detect(runner: &Runner, family: Family, default_nft: bool) -> &'static str {
        let (default, other) = if default_nft { ("-nft", "-legacy") } else { ("-legacy", "-nft") };
        if default_nft && !Self::legacy_in_use(runner, family) {
            return "";
        }
        let count_rules = |suffix: &str| {
            let Ok(text) = runner.run(&format!("{}-save", program_name(family, suffix)), &[], "") else {
                return (0, 0);
            };
            let marks = ["KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"];
            let marked = usize::from(marks.iter().any(|m| text.contains(m)));
            (marked, text.lines().filter(|l| l.starts_with("-A ")).count())
        };
        let (here, there) = (count_rules(default), count_rules(other));
        if there > here && (there.0 > here.0 || here.1 == 0) {
            tracing::warn!(
                family = family.name(),
                programs = program_name(family, other),
                "the host's rules are in the non-default iptables back end; using that one"
            );
            return other;
        }
        if there.1 > 0 {
            tracing::warn!(
                family = family.name(),
                rules = there.1,
                "the other iptables back end has rules too; both act on every packet"
            );
        }
        ""
    }

    /// The other back end, where its programs work and it may have rules.
    pub(crate) fn other_backend(&self) -> Option<Self> {
        let variant = if self.nft { Variant::Legacy } else { Variant::Nft };
        if self.nft && !Self::legacy_in_use(&self.runner, self.family) {
            return None;
        }
        Self::find(&self.runner, self.family, variant).ok()
    }

    /// Checks whether the kernel accepts a rule, in a temporary chain that nothing jumps to.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn probe_rule(&self, rule: &str) -> Result<(), Error> {
        self.restore_text(&format!(
            "*filter\n:{PROBE_CHAIN} - [0:0]\n-A {PROBE_CHAIN} {rule}\nCOMMIT\n*filter\n-F {PROBE_CHAIN}\n-X {PROBE_CHAIN}\nCOMMIT\n"
        ))
    }

    /// Whether the legacy back end has any table. Its programs create the tables that they list, so they must only run
    /// when this is true.
    pub(crate) fn legacy_in_use(runner: &Runner, family: Family) -> bool {
        // Of this thread: `/proc/net` is that of the main thread, which may be in another network namespace.
        let names = match family {
            Family::V4 => "/proc/thread-self/net/ip_tables_names",
            Family::V6 => "/proc/thread-self/net/ip6_tables_names",
        };
        runner.read(names).is_ok_and(|text| !text.trim().is_empty())
    }

    /// The address family.
    #[must_use]
    pub const fn family(&self) -> Family {
        self.family
    }

    /// Whether rules go to nf_tables.
    #[must_use]
    pub const fn is_nft(&self) -> bool {
        self.nft
    }

    /// The program's name, for messages.
    #[must_use]
    pub fn program(&self) -> &str {
        &self.base
    }

    /// The maximal size of one batch.
    #[must_use]
    pub const fn limit(&self) -> BatchLimit {
        if self.nft { BatchLimit::Lines(MAX_NFT_BATCH_LINES) } else { BatchLimit::None }
    }

    /// All tables, as `iptables-save` prints them. Never with `-t`: that prints tables that do not exist, or (legacy)
    /// creates them.
    ///
    /// # Errors
    /// When the program fails.
    pub fn save(&self, with_counters: bool) -> Result<String, Error> {
        let args: &[&str] = if with_counters { &["-c"] } else { &[] };
        self.runner.run(&format!("{}-save", self.base), args, "")
    }

    /// One table, which exists: of one that does not, legacy programs create it.
    ///
    /// # Errors
    /// When the program fails.
    pub fn save_table(&self, table: &str) -> Result<String, Error> {
        self.runner.run(&format!("{}-save", self.base), &["-t", table], "")
    }

    /// What [`save`](Self::save) prints, line by line: it is never in memory as a whole.
    ///
    /// # Errors
    /// When the program fails.
    pub fn for_each_saved_line(&self, each: impl FnMut(&[u8])) -> Result<(), Error> {
        self.runner.for_each_line(&format!("{}-save", self.base), &[], each)
    }

    /// The fingerprint of the kernel's rules.
    ///
    /// # Errors
    /// When the program fails.
    pub fn fingerprint(&self) -> Result<u64, Error> {
        let mut fingerprint = Fingerprint::default();
        self.for_each_saved_line(|line| fingerprint.add(line))?;
        Ok(fingerprint.finish())
    }

    /// Parses the output of [`save`](Self::save); the error names the program.
    ///
    /// # Errors
    /// When it is not a rule set.
    pub fn parse<'a>(&self, text: &'a str) -> Result<SavedRuleset<'a>, Error> {
        SavedRuleset::parse(text).map_err(|source| Error::Output { program: format!("{}-save", self.base), source })
    }

    /// Restores one batch.
    ///
    /// # Errors
    /// [`Error::Rule`] names a refused rule and its line. The table is as before, unless the error
    /// [says otherwise](Error::outcome).
    pub fn restore(&self, batch: &TableBatch) -> Result<(), Error> {
        self.restore_text(&batch.text)
    }

    /// Restores any input.
    ///
    /// # Errors
    /// As [`restore`](Self::restore).
    pub fn restore_text(&self, text: &str) -> Result<(), Error> {
        let program = format!("{}-restore", self.base);
        let args = ["-w", LOCK_WAIT_SECONDS, "--noflush", "--counters"];
        let output = self.runner.output(&program, &args, text)?;
        if output.status.success() {
            return Ok(());
        }
        let failed = failure(format!("{program} {}", args.join(" ")), output.status, &output.stderr);
        let Error::Failed { stderr, .. } = &failed else { return Err(failed) };
        match failed_line(stderr).and_then(|n| Some((n, text.lines().nth(n.checked_sub(1)?)?))) {
            Some((line, rule)) => {
                Err(Error::Rule { program, line, rule: rule.to_owned(), owner: None, stderr: stderr.clone() })
            }
            None => Err(failed),
        }
    }

    /// The runner of the programs.
    #[must_use]
    pub const fn runner(&self) -> &Runner {
        &self.runner
    }
}

/// Whether what `--version` prints, such as `iptables v1.8.9 (nf_tables)`, is [`MIN_VERSION`] or later.
fn is_supported_version(version: &str) -> bool {
    fn numbers(text: &str) -> Vec<u32> {
        text.split('.').map(|part| part.parse().unwrap_or(0)).collect()
    }
    let found = version.split_whitespace().find_map(|w| w.strip_prefix('v'));
    found.is_some_and(|text| numbers(text) >= numbers(MIN_VERSION))
}

/// The number of the line that `iptables-restore` names in its error.
fn failed_line(stderr: &str) -> Option<usize> {
    let at = stderr.find("line")?;
    let digits: String =
        stderr[at + 4..].chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_failed_lines_are_read() {
        assert!(is_supported_version("iptables v1.8.9 (nf_tables)") && is_supported_version("iptables v1.6.2"));
        assert!(!is_supported_version("iptables v1.6.1") && !is_supported_version("nonsense"));
        assert_eq!(failed_line("iptables-restore: line 7 failed"), Some(7));
        assert_eq!(failed_line("iptables-restore v1.8.9 (nf_tables): \nline 12: CHAIN_DEL failed"), Some(12));
        assert_eq!(failed_line("Error occurred at line: 3"), Some(3));
        assert_eq!(failed_line("Another app is currently holding the xtables lock"), None);
    }
}
