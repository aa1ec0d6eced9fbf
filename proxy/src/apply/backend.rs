//! One family's iptables programs, of one back end.

use std::hash::{DefaultHasher, Hasher as _};

use super::{Error, Runner, command::shorten};
use crate::{
    config::Variant,
    kernel::Saved,
    model::Family,
    plan::{Limit, Step},
};

/// Lines in one nf_tables transaction; its time grows with the square.
const NFT_LINES: usize = 4000;
/// What every name of ours starts with.
const OURS: &[u8] = b"KUBE-";
/// A name that kube-proxy uses too, so that either's clean-up knows it.
const TRIAL: &str = "KUBE-PROXY-CANARY";
/// The oldest version whose restore waits for the lock.
pub(crate) const OLDEST: &str = "1.6.2";
/// How often a first look waits anew for another holder of the lock.
const LOCK_TRIES: u32 = 6;
/// How long to wait for another holder of the lock, in seconds.
const WAIT: &str = "5";

/// The programs of one family and one back end.
#[derive(Debug, Clone)]
pub struct Backend {
    runner: Runner,
    family: Family,
    nft: bool,
    /// `iptables`, `iptables-nft` or `iptables-legacy`; `ip6tables…` for IPv6.
    base: String,
}

fn base(family: Family, suffix: &str) -> String {
    let stem = match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    };
    format!("{stem}{suffix}")
}

impl Backend {
    /// Finds the programs of a family and tries them.
    ///
    /// # Errors
    /// When they are missing, too old, or the kernel does not let them list the nat table.
    pub fn find(runner: &Runner, family: Family, variant: Variant) -> Result<Self, Error> {
        let version_of = |base: &str| runner.run(base, &["--version"], "");
        let (base, version) = match variant {
            Variant::Nft | Variant::Legacy => {
                let base = base(family, if variant == Variant::Nft { "-nft" } else { "-legacy" });
                let version = version_of(&base)?;
                (base, version)
            }
            Variant::Auto => {
                let plain = base(family, "");
                let version = version_of(&plain)?;
                match Self::detect(runner, family, version.contains("nf_tables")) {
                    "" => (plain, version),
                    suffix => {
                        let base = base(family, suffix);
                        let version = version_of(&base)?;
                        (base, version)
                    }
                }
            }
        };
        let nft = version.contains("nf_tables");
        if !new_enough(&version) {
            return Err(Error::Old { program: base, version: version.trim().to_owned() });
        }
        let mut tries = 0;
        loop {
            match runner.run(&base, &["-w", WAIT, "-t", "nat", "-S", "POSTROUTING"], "") {
                // What holds the lock while a machine starts may take long.
                Err(error) if error.is_locked() && tries < LOCK_TRIES => tries += 1,
                other => break other,
            }
        }?;
        Ok(Self { runner: runner.clone(), family, nft, base })
    }

    /// The back end that the host's other rules use: the one with the node agent's marks, else the
    /// one with more rules, else whatever `iptables` is. Returns the suffix of the program names.
    fn detect(runner: &Runner, family: Family, default_nft: bool) -> &'static str {
        let (mine, other) = if default_nft { ("-nft", "-legacy") } else { ("-legacy", "-nft") };
        if default_nft && !Self::legacy_in_use(runner, family) {
            return "";
        }
        let weigh = |suffix: &str| {
            let Ok(text) = runner.run(&format!("{}-save", base(family, suffix)), &[], "") else { return (0, 0) };
            let marks = ["KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"];
            let marked = usize::from(marks.iter().any(|m| text.contains(m)));
            (marked, text.lines().filter(|l| l.starts_with("-A ")).count())
        };
        let (here, there) = (weigh(mine), weigh(other));
        if there > here && (there.0 > here.0 || here.1 == 0) {
            tracing::warn!(
                family = family.name(),
                programs = base(family, other),
                "the host's rules are in the other iptables back end than the default one: using that"
            );
            return other;
        }
        if there.1 > 0 {
            tracing::warn!(
                family = family.name(),
                rules = there.1,
                "the other iptables back end holds rules too; both act on every packet"
            );
        }
        ""
    }

    /// The programs of the other back end, where they work and it may hold rules.
    pub(crate) fn other(&self) -> Option<Self> {
        let variant = if self.nft { Variant::Legacy } else { Variant::Nft };
        if self.nft && !Self::legacy_in_use(&self.runner, self.family) {
            return None;
        }
        Self::find(&self.runner, self.family, variant).ok()
    }

    /// Whether the kernel takes a rule: tried in a chain of its own, to which nothing leads and which is gone afterwards.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn try_rule(&self, rule: &str) -> Result<(), Error> {
        self.restore_text(&format!(
            "*filter\n:{TRIAL} - [0:0]\n-A {TRIAL} {rule}\nCOMMIT\n*filter\n-F {TRIAL}\n-X {TRIAL}\nCOMMIT\n"
        ))
    }

    /// Whether the legacy back end holds any table. Its program creates tables by looking at them: it is asked only
    /// when this says so.
    pub(crate) fn legacy_in_use(runner: &Runner, family: Family) -> bool {
        // Of this thread: `/proc/net` is that of the process, whose first thread may be in another namespace.
        let names = match family {
            Family::V4 => "/proc/thread-self/net/ip_tables_names",
            Family::V6 => "/proc/thread-self/net/ip6_tables_names",
        };
        runner.read(names).is_ok_and(|text| !text.trim().is_empty())
    }

    /// Which family this is.
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

    /// How large one restore may be.
    #[must_use]
    pub const fn limit(&self) -> Limit {
        if self.nft { Limit::Lines(NFT_LINES) } else { Limit::None }
    }

    /// What all tables hold, as `iptables-save` prints it. It is not asked for single tables: then
    /// it would print those that do not exist too, or (legacy) make them.
    ///
    /// # Errors
    /// When the program fails.
    pub fn save(&self, with_counters: bool) -> Result<String, Error> {
        let args: &[&str] = if with_counters { &["-c"] } else { &[] };
        self.runner.run(&format!("{}-save", self.base), args, "")
    }

    /// A fingerprint of all rules and chains of ours, and of all rules that name one: the same as long as nobody
    /// changes any of them.
    ///
    /// # Errors
    /// When the program fails.
    pub fn fingerprint(&self) -> Result<u64, Error> {
        let mut hasher = DefaultHasher::new();
        self.runner.each_line(&format!("{}-save", self.base), &[], |line| {
            let table = line.starts_with(b"*");
            if table || line.windows(OURS.len()).any(|part| part == OURS) {
                // Chains are printed with counters behind their policy.
                let end = if line.starts_with(b":") { line.iter().position(|b| *b == b'[') } else { None };
                hasher.write(&line[..end.unwrap_or(line.len())]);
            }
        })?;
        Ok(hasher.finish())
    }

    /// Reads saved text, naming the program in the error.
    ///
    /// # Errors
    /// When it is not a rule set.
    pub fn parse<'a>(&self, text: &'a str) -> Result<Saved<'a>, Error> {
        Saved::parse(text).map_err(|source| Error::Output { program: format!("{}-save", self.base), source })
    }

    /// Restores one step.
    ///
    /// # Errors
    /// A refused rule with its line; lock and resource trouble as [`Error::Failed`]. A table is
    /// changed wholly or not at all, but the filter table may have been when nat was not.
    pub fn restore(&self, step: &Step) -> Result<(), Error> {
        self.restore_text(&step.text)
    }

    /// Restores a text.
    ///
    /// # Errors
    /// As [`restore`](Self::restore).
    pub fn restore_text(&self, text: &str) -> Result<(), Error> {
        let program = format!("{}-restore", self.base);
        let args = ["-w", WAIT, "--noflush", "--counters"];
        let output = self.runner.output(&program, &args, text)?;
        if output.status.success() {
            return Ok(());
        }
        let stderr = shorten(&output.stderr);
        match failed_line(&stderr).and_then(|n| Some((n, text.lines().nth(n.checked_sub(1)?)?))) {
            Some((line, rule)) => Err(Error::Rule { program, line, rule: rule.to_owned(), owner: None, stderr }),
            None => Err(Error::Failed {
                command: format!("{program} {}", args.join(" ")),
                status: output.status.to_string(),
                stderr,
            }),
        }
    }

    /// The runner that the programs run with.
    #[must_use]
    pub const fn runner(&self) -> &Runner {
        &self.runner
    }
}

/// Whether what `--version` prints, such as `iptables v1.8.9 (nf_tables)`, is [`OLDEST`] or later.
fn new_enough(version: &str) -> bool {
    fn numbers(text: &str) -> Vec<u32> {
        text.split('.').map(|part| part.parse().unwrap_or(0)).collect()
    }
    let found = version.split_whitespace().find_map(|w| w.strip_prefix('v'));
    found.is_some_and(|text| numbers(text) >= numbers(OLDEST))
}

/// Finds the line that a restore complained about.
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
        assert!(new_enough("iptables v1.8.9 (nf_tables)") && new_enough("iptables v1.6.2"));
        assert!(!new_enough("iptables v1.6.1") && !new_enough("nonsense"));
        assert_eq!(failed_line("iptables-restore: line 7 failed"), Some(7));
        assert_eq!(failed_line("iptables-restore v1.8.9 (nf_tables): \nline 12: CHAIN_DEL failed"), Some(12));
        assert_eq!(failed_line("Error occurred at line: 3"), Some(3));
        assert_eq!(failed_line("Another app is currently holding the xtables lock"), None);
    }
}
