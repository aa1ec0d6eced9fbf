//! Writes the pending changes of a family, batch by batch.

use std::{collections::VecDeque, net::IpAddr, sync::Arc, time::Instant};

use windlass_kit::blocking::RULES;

use super::{FamilySync, in_time, panicked, refusal::WriteFailure};
use crate::{
    apply::Error,
    cleanup,
    config::Config,
    model::{Model, NodeFacts},
    plan::{Outcome, TableBatch},
    rules::Table,
    serve::{PerTable, SyncOutcome},
};

/// What was written.
#[derive(Debug, Clone, Copy, Default)]
struct Written {
    rules: PerTable,
    batches: usize,
}

/// Refusals that are worked around in one write.
const MAX_REFUSALS: u32 = 64;
/// Deletions that fail one by one in one write, before all others are postponed with them.
const MAX_FAILED_DELETIONS: u32 = 8;

impl FamilySync {
    /// Writes the chains that differ. Refusals are worked around where possible; any other failure is left to the
    /// back-off of this family. Returns whether all rules are in the kernel now.
    pub(in crate::sync) async fn write(
        &mut self,
        model: &Arc<Model>,
        config: &Config,
        node: &NodeFacts,
        local: &[IpAddr],
    ) -> bool {
        let started = Instant::now();
        let _writing = self.shared.transactions.write();
        let settings = self.settings(model, config, node, local);
        self.set(model, settings);
        let (mut guesses, mut refusals) = (0, 0);
        let done = loop {
            let full = self.needs_resync || self.ruleset.needs_read_back();
            let result = if full { self.read_back(model).await } else { Ok(()) };
            let result = match result {
                Ok(()) => self.apply(model).await,
                Err(error) => Err(WriteFailure { error, services: (0, None), services_only: false, full }),
            };
            match result.map_err(|failure| WriteFailure { full, ..failure }) {
                Ok(written) => {
                    self.ruleset.limit_services_per_batch(usize::MAX);
                    self.record_sync(started.elapsed(), SyncOutcome::Done { full }, written.rules);
                    // A write without changes does not count against the rate limit; nor does the first one, however
                    // long it took.
                    if written.batches > 0 && self.synced_once {
                        self.rate_limit.record(started, Instant::now());
                    }
                    break true;
                }
                // The rules are read back at the next start.
                Err(_) if self.shutdown.is_cancelled() => break false,
                Err(failure) => {
                    refusals += 1;
                    self.record_sync(started.elapsed(), SyncOutcome::Failed { full }, PerTable::default());
                    if refusals < MAX_REFUSALS && self.work_around(model, &failure, &mut guesses, config).await {
                        let settings = self.settings(model, config, node, local);
                        self.set(model, settings);
                        continue;
                    }
                    self.rate_limit.record(started, Instant::now());
                    break false;
                }
            }
        };
        if done {
            self.pending = false;
            self.retry_at = None;
            self.backoff.reset();
            self.schedule_refused_retry();
            if !std::mem::replace(&mut self.synced_once, true) {
                self.remove_predecessors(config).await;
            }
        } else {
            self.retry_at = Some(Instant::now() + self.backoff.next_delay());
        }
        done
    }

    /// Removes the rules of other service proxies once our own are written, so that services have rules at any time.
    async fn remove_predecessors(&mut self, config: &Config) {
        let (backend, config) = (self.backend.clone(), config.clone());
        let work = move || cleanup::remove_predecessors(&config, &backend);
        if let Err(error) = RULES.call(work).await {
            tracing::error!(%error, "removal of another proxy's rules panicked (bug)");
        }
    }

    /// Restores one batch, while `meanwhile` runs.
    async fn restore(
        &mut self,
        batch: TableBatch,
        meanwhile: impl FnOnce(&mut Self),
    ) -> (TableBatch, Result<(), Error>) {
        self.beat();
        let transaction = self.shared.transactions.begin();
        let backend = self.backend.clone();
        let shared = Arc::new(batch);
        let restoring = {
            let batch = shared.clone();
            RULES.spawn(move || {
                let started = Instant::now();
                let result = backend.restore(&batch);
                let (took, bytes) = (started.elapsed(), batch.text.len());
                tracing::debug!(
                    ?took,
                    lines = batch.lines,
                    bytes,
                    program = backend.program(),
                    "restored a batch of rules"
                );
                result
            })
        };
        meanwhile(self);
        let result = in_time(async {
            match restoring.await {
                Ok(Ok(result)) => result,
                Ok(Err(error)) => Err(panicked(&error)),
                Err(error) => Err(panicked(&error)),
            }
        })
        .await;
        let batch = Arc::unwrap_or_clone(shared);
        if result.is_ok() {
            transaction.committed();
        } else {
            drop(transaction);
        }
        self.verified_fingerprint = None;
        (batch, result)
    }

    /// Restores batch after batch, each rendered while the one before is being restored.
    async fn apply(&mut self, model: &Arc<Model>) -> Result<Written, WriteFailure> {
        let (mut written, mut failed_deletions) = (Written::default(), 0);
        let limit = self.backend.limit();
        let mut again = false;
        let mut waiting = std::mem::take(&mut self.pending_batches);
        loop {
            let next = waiting.pop_front().or_else(|| self.ruleset.next_batch(model, limit));
            let Some(batch) = next else {
                // Services that changed while pending batches waited, and the other deletions of a batch with one that
                // failed.
                if self.ruleset.is_dirty() || std::mem::take(&mut again) {
                    continue;
                }
                return Ok(written);
            };
            if self.shutdown.is_cancelled() {
                let stopped = Error::Interrupted {
                    command: "the write of service rules".to_owned(),
                    why: "the proxy stops".to_owned(),
                };
                return Err(self.abandon(stopped, batch, waiting));
            }
            written.batches += 1;
            *written.rules.of_mut(batch.table) += batch.rules;
            let mut ahead = None;
            let empty = waiting.is_empty();
            let (batch, result) = self
                .restore(batch, |this| ahead = if empty { this.ruleset.next_batch(model, limit) } else { None })
                .await;
            waiting.extend(ahead);
            let Err(error) = result else {
                self.ruleset.commit(&batch);
                continue;
            };
            if error.is_locked() {
                waiting.push_front(batch);
                self.pending_batches = waiting;
                return Err(WriteFailure { error, services: (0, None), services_only: false, full: false });
            }
            if !batch.deletes() || error.is_shortage() || error.outcome() == Outcome::Unknown {
                return Err(self.abandon(error, batch, waiting));
            }
            // A rule of another program may jump to a chain that is to be deleted. Everything else is written first.
            let (flushed, result) = self.restore(batch.without_deletions(), |_| {}).await;
            if let Err(error) = result {
                return Err(self.abandon(error, flushed, waiting));
            }
            self.ruleset.commit(&flushed);
            failed_deletions += 1;
            again = self.postpone_deletions(&error, &batch, failed_deletions <= MAX_FAILED_DELETIONS);
        }
    }

    /// Keeps the chain whose deletion failed, or all that the batch deletes where `one_by_one` is not set or the error
    /// names none. Returns whether the others can be deleted at once.
    fn postpone_deletions(&mut self, error: &Error, batch: &TableBatch, one_by_one: bool) -> bool {
        let refused = match error {
            Error::Rule { rule, .. } if one_by_one => {
                rule.strip_prefix("-X ").map(|name| (batch.table, name.to_owned()))
            }
            _ => None,
        };
        let others = refused.is_some();
        let chains: Vec<(Table, String)> = refused.map_or_else(|| batch.deletions().collect(), |one| vec![one]);
        tracing::warn!(
            %error, family = self.family().name(), chain = chains.first().map(|(_, name)| name.as_str()),
            "failed to delete a stale chain, a rule of another program may jump to it; the chain stays empty, retrying"
        );
        if let Some(status) = self.shared.status.lock().families.get_mut(&self.backend.family()) {
            status.failures += 1;
        }
        self.ruleset.mark_undeletable(chains);
        others
    }

    /// Hands back all batches that were not applied.
    fn abandon(&mut self, error: Error, batch: TableBatch, waiting: VecDeque<TableBatch>) -> WriteFailure {
        let services = (batch.services().len(), batch.services().first().cloned());
        let services_only = batch.contains_services_only();
        let error = self.with_service_port(error);
        self.ruleset.abandon(batch, error.outcome(), waiting);
        WriteFailure { error, services, services_only, full: false }
    }

    /// Adds to a refused rule the service port it belongs to.
    fn with_service_port(&self, error: Error) -> Error {
        match error {
            Error::Rule { program, line, rule, stderr, .. } => {
                let owner = self.ruleset.service_port_of_rule(&rule).map(|o| o.to_string());
                Error::Rule { program, line, rule, stderr, owner }
            }
            other => other,
        }
    }
}
