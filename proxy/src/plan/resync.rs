//! What of the kernel's rules is as it should be: read back, set beside what would be rendered, chain by chain, so that
//! only the difference is written. Pure.

use std::collections::{BTreeSet, HashSet};

use super::{Ledger, Limit, Print, Step, ledger::DispatchId};
use crate::{
    config::each_step,
    explain::{Comparison, Difference},
    kernel::{ParseError, Saved},
    model::Model,
    rules::{ChainId, Fixed, Table, is_dispatch, is_owned},
};

/// Rules that are rendered at a time to be compared with the kernel's.
const PIECE: Limit = Limit::Lines(5000);

/// Which chains and jumps of ours the kernel holds, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KernelState {
    pub(super) chains: Vec<ChainId>,
    /// Names that this version would not make.
    pub(super) foreign: BTreeSet<String>,
    pub(super) dispatch: Vec<DispatchId>,
    pub(super) firewall_missing: bool,
    /// Indices into [`crate::rules::JUMPS`].
    pub(super) missing_jumps: BTreeSet<usize>,
}

impl KernelState {
    /// Reads the names.
    #[must_use]
    pub fn of(kernel: &Saved<'_>) -> Self {
        let mut out = Self::default();
        for table in Table::BOTH {
            let trees = kernel.chains(table).filter(|(name, _)| is_dispatch(name));
            out.dispatch.extend(trees.map(|(name, _)| (table, name.to_owned())));
        }
        for (name, _) in kernel.chains(Table::Nat).filter(|(name, _)| is_owned(name) && !is_dispatch(name)) {
            match ChainId::parse(name) {
                Some(id) => out.chains.push(id),
                None => drop(out.foreign.insert(name.to_owned())),
            }
        }
        out.firewall_missing = kernel.chain(Table::Filter, Fixed::FilterFirewall.name()).is_none();
        out.missing_jumps = kernel.missing_jumps().into_iter().collect();
        out
    }

    /// Whether there is any chain of ours.
    fn is_ours(kernel: &Saved<'_>) -> bool {
        Table::BOTH.into_iter().any(|table| {
            let ours = |name| Fixed::find(table, name).is_some() || is_owned(name) || is_dispatch(name);
            kernel.chains(table).any(|(name, _)| ours(name))
        })
    }
}

/// Chains that are in the kernel as they should be, with the fingerprints of what would be written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Standing {
    pub(super) chains: Vec<(ChainId, Print)>,
    pub(super) fixed: Vec<(Fixed, Print)>,
    pub(super) dispatch: Vec<(DispatchId, Print)>,
}

impl Standing {
    fn extend(&mut self, step: Step, differ: &HashSet<(Table, String)>) {
        let stands = |table: Table, name: String| !differ.contains(&(table, name));
        self.chains.extend(step.chains.into_iter().filter(|(id, _)| stands(Table::Nat, id.to_string())));
        self.fixed.extend(step.fixed.into_iter().filter(|(f, _)| stands(f.table(), f.name().to_owned())));
        self.dispatch.extend(step.dispatch.into_iter().filter(|(id, _)| stands(id.0, id.1.clone())));
    }
}

/// The kernel's rules beside those that should be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Compared {
    /// What there is, by name.
    pub kernel: KernelState,
    /// What of it is right.
    pub standing: Standing,
    /// What is not.
    pub differences: Vec<Difference>,
}

/// Compares what `iptables-save` printed with the rules of a model. Chains that could not be deleted are no
/// difference.
///
/// # Errors
/// When the text is not a rule set.
pub fn compare(model: &Model, ledger: &Ledger, saved: &str) -> Result<Compared, ParseError> {
    let saved = Saved::parse(saved)?;
    let kernel = KernelState::of(&saved);
    // An empty kernel is not compared with ten thousand services.
    if !KernelState::is_ours(&saved) {
        let differences = Comparison::new(&saved).end();
        return Ok(Compared { kernel, standing: Standing::default(), differences });
    }
    let mut comparison = Comparison::new(&saved);
    let mut standing = Standing::default();
    let mut unread = None;
    each_step(model, ledger.like(), PIECE, |step| match Saved::parse(&step.text) {
        Ok(wanted) => {
            let differ = comparison.look(&wanted);
            standing.extend(step.clone(), &differ);
        }
        Err(error) => unread = Some(error),
    });
    if let Some(error) = unread {
        return Err(error);
    }
    let mut differences = comparison.end();
    let known = |d: &Difference| ledger.undeletable().iter().any(|(t, name)| t.name() == d.table && *name == d.chain);
    differences.retain(|d| !known(d));
    Ok(Compared { kernel, standing, differences })
}
