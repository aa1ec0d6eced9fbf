//! Reads what `iptables-save` prints, line by line, and recognises our chains by a hash of what it printed of them when
//! they were last compared: only the text of others is kept. How this version of the program prints a rule is learnt,
//! not known: the first comparison of a chain is one of its rules. Pure.

use std::{
    collections::BTreeSet,
    hash::{DefaultHasher, Hasher},
    num::NonZeroU64,
};

use super::{ChainHash, RulesetState};
use crate::{
    iptables_save::{ParseError, SavedRuleset},
    rules::{JUMPS, StaticChain, Table, is_service_chain, is_tree_chain},
};

/// Identifies what is printed of a chain's rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrintedHash(NonZeroU64);

/// The hash of one chain while its rules are read.
#[derive(Debug, Default)]
struct PrintedHasher(DefaultHasher);

impl PrintedHasher {
    fn add(&mut self, rule: &str) {
        self.0.write(rule.as_bytes());
        self.0.write_u8(b'\n');
    }

    fn finish(&self) -> PrintedHash {
        PrintedHash(NonZeroU64::new(self.0.finish()).unwrap_or(NonZeroU64::MIN))
    }
}

impl PrintedHash {
    /// Of rules without the name of their chain.
    pub(super) fn of<'a>(rules: impl Iterator<Item = &'a str>) -> Self {
        let mut hasher = PrintedHasher::default();
        rules.for_each(|rule| hasher.add(rule));
        hasher.finish()
    }
}

/// A chain as it was last written, and what is printed of that, once it has been read back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    pub(super) written: ChainHash,
    pub(super) printed: Option<PrintedHash>,
}

impl From<ChainHash> for Committed {
    fn from(written: ChainHash) -> Self {
        Self { written, printed: None }
    }
}

/// The kernel's rules: which of our chains were recognised, and the text of the others.
#[derive(Debug)]
pub struct ReadKernel<'r> {
    /// With what was known.
    pub(super) ruleset: &'r RulesetState,
    /// The chains that were not recognised, and the rules of base chains that may be jumps to ours, as they are printed.
    pub(super) text: String,
    /// Chains found with other rules than were known; `None` where no chain was known.
    pub(super) changed: Option<BTreeSet<(Table, String)>>,
    /// Every chain that was known was found.
    complete: bool,
}

impl ReadKernel<'_> {
    /// Whether a chain whose rules and their print are known has these in the kernel.
    pub(super) fn recognised(&self, table: Table, name: &str, known: Option<Committed>) -> bool {
        known.is_some_and(|known| known.printed.is_some())
            && (self.changed.as_ref())
                .is_some_and(|changed| changed.is_empty() || !changed.contains(&(table, name.to_owned())))
    }

    /// Whether the kernel has exactly the chains that were committed, and each jump once.
    ///
    /// # Errors
    /// When what was kept is not a rule set.
    pub fn is_as_committed(&self) -> Result<bool, ParseError> {
        if !self.changed.as_ref().is_some_and(BTreeSet::is_empty) || !self.ruleset.is_known() {
            return Ok(false);
        }
        let rest = SavedRuleset::parse(&self.text)?;
        let kubelets = StaticChain::FilterKubeletFirewall;
        let is_other = |table, name: &str| is_ours(table, name) && (table, name) != (kubelets.table(), kubelets.name());
        let others = Table::BOTH.into_iter().any(|table| rest.chains(table).any(|(name, _)| is_other(table, name)));
        let has_kubelets = rest.chain(kubelets.table(), kubelets.name()).is_some()
            || self.ruleset.committed_chain(kubelets.table(), kubelets.name()).is_some();
        Ok(!others && has_kubelets && crate::iptables_save::jump_counts(&rest).iter().all(|count| *count == 1))
    }
}

/// Reads the kernel's rules by calling `read`, which calls back for each line. If a known chain is missing or has lost
/// all its rules, everything is read a second time, and no chain counts as known.
///
/// # Errors
/// What `read` returns; inside, a text that `iptables-save` does not print.
pub fn read_kernel<E>(
    ruleset: &RulesetState,
    mut read: impl FnMut(&mut dyn FnMut(&[u8])) -> Result<(), E>,
) -> Result<Result<ReadKernel<'_>, ParseError>, E> {
    for with_knowledge in [true, false] {
        let mut reader = KernelReader::new(ruleset, with_knowledge);
        read(&mut |line| reader.line(line))?;
        match reader.finish() {
            Ok(kernel) if !kernel.complete => {}
            result => return Ok(result),
        }
    }
    Ok(Err(ParseError { line: 0, text: "nothing was read".to_owned() }))
}

fn is_ours(table: Table, name: &str) -> bool {
    StaticChain::find(table, name).is_some() || (table == Table::Nat && is_service_chain(name)) || is_tree_chain(name)
}

/// What is done with the rules of the chain that is being read.
#[derive(Debug)]
enum Current {
    /// It is of others.
    Ignored,
    /// Its text is kept.
    Kept,
    /// A base chain: rules that name a chain of ours are kept.
    Base,
    /// It is known: its text is kept only if it is another one.
    Known(PrintedHash, PrintedHasher),
}

#[derive(Debug)]
struct KernelReader<'r> {
    ruleset: &'r RulesetState,
    /// Chains are recognised.
    with_knowledge: bool,
    lines: usize,
    /// `None` outside of a table, and inside for one that is not ours.
    table: Option<Option<Table>>,
    chain: String,
    current: Current,
    /// The rules of the present chain.
    rules: String,
    text: String,
    changed: BTreeSet<(Table, String)>,
    /// Known chains without rules, as far as read.
    empty: BTreeSet<(Table, String)>,
    recognised: usize,
    error: Option<ParseError>,
}

impl<'r> KernelReader<'r> {
    fn new(ruleset: &'r RulesetState, with_knowledge: bool) -> Self {
        Self {
            ruleset,
            with_knowledge,
            lines: 0,
            table: None,
            chain: String::new(),
            current: Current::Ignored,
            rules: String::new(),
            text: String::new(),
            changed: BTreeSet::new(),
            empty: BTreeSet::new(),
            recognised: 0,
            error: None,
        }
    }

    fn line(&mut self, line: &[u8]) {
        self.lines += 1;
        let text = String::from_utf8_lossy(line);
        let text = text.trim_end();
        if self.error.is_none() && self.read(text).is_none() {
            self.error = Some(ParseError { line: self.lines, text: text.chars().take(200).collect() });
        }
    }

    /// `None` for a line that is not printed.
    fn read(&mut self, line: &str) -> Option<()> {
        if line.is_empty() || line.starts_with('#') {
            return Some(());
        }
        if let Some(name) = line.strip_prefix('*') {
            let known = Table::BOTH.into_iter().find(|table| table.name() == name);
            if known.is_some() {
                self.text.extend([line, "\n"]);
            }
            return self.table.replace(known).is_none().then_some(()).filter(|()| !name.is_empty());
        }
        let table = self.table?;
        if line == "COMMIT" {
            if let Some(table) = table {
                self.end_chain(table);
                self.text.push_str("COMMIT\n");
            }
            self.table = None;
            return Some(());
        }
        let Some(table) = table else { return Some(()) };
        if let Some(declared) = line.strip_prefix(':') {
            let (name, policy) = declared.split_once(' ').filter(|(name, _)| !name.is_empty())?;
            self.declare(table, name, policy.split(' ').next().unwrap_or_default());
            return Some(());
        }
        let (chain, rule) = line.strip_prefix("-A ").map(|rule| rule.split_once(' ').unwrap_or((rule, "")))?;
        if chain != self.chain {
            self.begin_chain(table, chain);
        }
        match &mut self.current {
            Current::Ignored => {}
            Current::Base if !rule.contains("KUBE-") => {}
            Current::Base | Current::Kept => self.text.extend([line, "\n"]),
            Current::Known(_, hasher) => {
                hasher.add(rule);
                self.rules.extend([line, "\n"]);
            }
        }
        Some(())
    }

    /// What is printed of a chain that is known.
    fn known(&self, table: Table, name: &str) -> Option<(Committed, PrintedHash)> {
        let committed = self.ruleset.committed_chain(table, name).filter(|_| self.with_knowledge)?;
        Some((committed, committed.printed?))
    }

    fn declare(&mut self, table: Table, name: &str, policy: &str) {
        if !is_ours(table, name) {
            if JUMPS.iter().any(|jump| jump.to.table() == table && jump.from == name) {
                self.text.push_str(&format!(":{name} {policy} [0:0]\n"));
            }
            return;
        }
        match self.known(table, name) {
            Some((committed, _)) if committed.written.rules() == 0 => {
                self.empty.insert((table, name.to_owned()));
            }
            Some(_) => {}
            None => self.text.push_str(&format!(":{name} - [0:0]\n")),
        }
    }

    fn begin_chain(&mut self, table: Table, name: &str) {
        self.end_chain(table);
        name.clone_into(&mut self.chain);
        self.current = if is_ours(table, name) {
            match self.known(table, name) {
                Some((_, printed)) => Current::Known(printed, PrintedHasher::default()),
                None => Current::Kept,
            }
        } else if JUMPS.iter().any(|jump| jump.to.table() == table && jump.from == name) {
            Current::Base
        } else {
            Current::Ignored
        };
    }

    fn end_chain(&mut self, table: Table) {
        if let Current::Known(printed, hasher) = std::mem::replace(&mut self.current, Current::Ignored) {
            let id = (table, std::mem::take(&mut self.chain));
            self.empty.remove(&id);
            if hasher.finish() == printed {
                self.recognised += 1;
            } else {
                self.text.push_str(&format!(":{} - [0:0]\n{}", id.1, self.rules));
                self.changed.insert(id);
            }
        }
        self.chain.clear();
        self.rules.clear();
    }

    fn finish(self) -> Result<ReadKernel<'r>, ParseError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        if self.table.is_some() {
            return Err(ParseError { line: self.lines, text: "the last table has no COMMIT".to_owned() });
        }
        let found = self.recognised + self.empty.len() + self.changed.len();
        Ok(ReadKernel {
            ruleset: self.ruleset,
            text: self.text,
            complete: !self.with_knowledge || found == self.ruleset.known_chains(),
            changed: self.with_knowledge.then_some(self.changed),
        })
    }
}
