//! Reads the kernel's rules back and compares them with the desired ones.

use std::sync::Arc;

use windlass_kit::blocking::RULES;

use super::{FamilySync, in_time, panicked};
use crate::{
    apply::{Backend, Error, Fingerprint},
    model::Model,
    plan::{KernelComparison, RulesetState, read_kernel},
    rules::Settings,
    sysctls,
};

/// What was found in the kernel.
pub(super) struct Found {
    /// Of all that was read.
    pub(super) fingerprint: u64,
    /// `None`: all chains are as they were committed.
    pub(super) comparison: Option<KernelComparison>,
}

impl FamilySync {
    /// Reads the kernel's rules. Chains that are right stay as they are; the others are written with the next batches.
    pub(super) async fn read_back(&mut self, model: &Arc<Model>) -> Result<(), Error> {
        let settings = Settings { drop_invalid: !sysctls::tcp_is_liberal(), ..self.ruleset.settings().clone() };
        self.set(model, settings);
        let foreign = self.foreign();
        self.beat();
        let found = self.compare(model, true).await?.comparison.unwrap_or_default();
        tracing::debug!(family = self.family().name(), differences = found.differences.len(), "read the rules back");
        self.resync_from(model, found);
        self.verified = foreign;
        self.needs_resync = false;
        Ok(())
    }

    /// Replaces the ruleset state by what was found in the kernel.
    pub(super) fn resync_from(&mut self, model: &Model, found: KernelComparison) {
        self.ruleset.resync(found.kernel, found.verified);
        self.pending_batches.clear();
        self.verified_fingerprint = None;
        self.ruleset.mark_all_dirty(model);
    }

    /// Compares the kernel's rules with the desired ones; chains that are as committed are not compared rule by rule,
    /// and if all are, there is no comparison unless one is needed. Runs on a separate thread: when it ends, the
    /// allocator returns its arena as a whole, whereas the memory of a large comparison would remain fragmented on a
    /// worker thread. If it does not end, the state is lost with it, and the rules must be read back.
    pub(super) async fn compare(&mut self, model: &Arc<Model>, needed: bool) -> Result<Found, Error> {
        let unknown = self.ruleset.empty_copy();
        let ruleset = std::mem::replace(&mut self.ruleset, unknown);
        let unread = std::mem::replace(&mut self.needs_resync, true);
        let (model, backend) = (model.clone(), self.backend.clone());
        let work = move || {
            let thread = std::thread::spawn(move || {
                let found = find(&backend, &model, &ruleset, needed);
                // The loop modifies the model in place, which it can only while it is the sole owner.
                drop(model);
                (ruleset, found)
            });
            thread.join().map_err(|_| panicked(&"the comparison panicked"))
        };
        let (ruleset, found) = in_time(RULES.run(work, |error| panicked(&error))).await?;
        (self.ruleset, self.needs_resync) = (ruleset, unread);
        found
    }
}

/// Reads the kernel's rules while they are printed. Blocks.
fn find(backend: &Backend, model: &Model, ruleset: &RulesetState, needed: bool) -> Result<Found, Error> {
    let mut fingerprint = 0;
    let kernel = read_kernel(ruleset, |each| {
        let mut hash = Fingerprint::default();
        backend.for_each_saved_line(|line| {
            hash.add(line);
            each(line);
        })?;
        fingerprint = hash.finish();
        Ok::<_, Error>(())
    })?;
    let found = kernel.and_then(|kernel| {
        Ok(match needed || !kernel.is_as_committed()? {
            true => Some(kernel.compare(model)?),
            false => None,
        })
    });
    let comparison =
        found.map_err(|source| Error::Output { program: format!("{}-save", backend.program()), source })?;
    Ok(Found { fingerprint, comparison })
}
