//! Reads the kernel's rules back and compares them with the desired ones.

use std::sync::Arc;

use super::{FamilySync, run_blocking};
use crate::{
    apply::Error,
    model::Model,
    plan::{KernelComparison, compare_with_kernel},
    rules::Settings,
    sysctls,
};

impl FamilySync {
    /// Reads the kernel's rules. Chains that are right stay as they are; the others are written with the next batches.
    pub(super) async fn read_back(&mut self, model: &Arc<Model>) -> Result<(), Error> {
        let settings = Settings { drop_invalid: !sysctls::tcp_is_liberal(), ..self.ruleset.settings().clone() };
        self.set(model, settings);
        let foreign = self.foreign();
        self.beat();
        let text = self.save().await?;
        let found = self.compare(model, text).await?;
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
        model.services().for_each(|(id, _)| self.ruleset.mark_dirty(id));
    }

    /// The kernel's rules as `iptables-save` prints them.
    pub(super) async fn save(&self) -> Result<String, Error> {
        let backend = self.backend.clone();
        run_blocking(move || backend.save(false)).await
    }

    /// Compares the kernel's rules with the desired ones, on a thread of its own: the allocator returns the arena of a
    /// thread that ended as a whole, where the memory of a large comparison would remain fragmented on a worker thread.
    pub(super) async fn compare(&self, model: &Arc<Model>, text: String) -> Result<KernelComparison, Error> {
        let (model, ruleset) = (model.clone(), self.ruleset.empty_copy());
        let (sender, receiver) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            let found = compare_with_kernel(&model, &ruleset, &text);
            // The loop modifies the model in place, which it can only while it is the sole owner.
            drop(model);
            let _ = sender.send(found);
        });
        let program = self.backend.program().to_owned() + "-save";
        match receiver.await {
            Ok(found) => found.map_err(|source| Error::Output { program, source }),
            Err(_) => Err(Error::Interrupted { command: program, why: "the comparison panicked".to_owned() }),
        }
    }
}
