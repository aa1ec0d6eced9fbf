//! Works around rules that the kernel refuses, so that one service port does not keep all others from being written.

use std::sync::Arc;

use super::{FamilySync, run_blocking};
use crate::{apply::Error, config::Config, model::Model};

/// Services that are quarantined in one write although the kernel did not name the refused rule.
const MAX_GUESSES: u32 = 4;

/// Why a write failed.
pub(super) struct WriteFailure {
    pub(super) error: Error,
    /// The number of Services with chains in the failed batch, and the first of them.
    pub(super) services: (usize, Option<Arc<str>>),
    /// The batch contained nothing else.
    pub(super) services_only: bool,
    /// All rules had been read back before.
    pub(super) full: bool,
}

impl FamilySync {
    /// Reacts to a failed write; returns whether the write can be repeated at once.
    pub(super) async fn work_around(
        &mut self,
        model: &Model,
        failure: &WriteFailure,
        guesses: &mut u32,
        config: &Config,
    ) -> bool {
        let error = &failure.error;
        let failures = self.backoff.failures() + 1;
        let family = self.family().name();
        if error.is_locked() {
            tracing::warn!(%error, family, failures, "another process holds the xtables lock; retrying");
            self.record_failure_event(error, config);
            return false;
        }
        if let Error::Rule { owner, rule, .. } = error
            && !error.is_shortage()
        {
            if self.disable_missing_features(rule).await {
                return true;
            }
            if let Some(owner) = owner
                && self.ruleset.quarantine_port(model, owner)
            {
                tracing::warn!(%error, family, service_port = owner, "the kernel refuses rules of a service port; it gets no connections, all others are written");
                self.record_failure_event(error, config);
                return true;
            }
            // The kernel does not name the rule: bisect, with fewer Services in each batch.
            let (count, first) = &failure.services;
            if owner.is_none() && (*count > 1 || !failure.services_only) && self.ruleset.services_limit() != Some(1) {
                self.ruleset.limit_services_per_batch((count / 2).max(1));
                return true;
            }
            if let (None, true, Some(id)) = (owner, failure.services_only && *guesses < MAX_GUESSES, first)
                && let Some((_, service)) = model.service_entry(id)
            {
                *guesses += 1;
                let ports: Vec<_> = service.ports.iter().map(|p| p.full_name.clone()).collect();
                let quarantined =
                    ports.iter().fold(false, |changed, port| self.ruleset.quarantine_port(model, port) | changed);
                if quarantined {
                    tracing::warn!(%error, family, service = &**id, "the kernel refuses rules of a service; it gets no connections, all others are written");
                    self.record_failure_event(error, config);
                    return true;
                }
            }
        }
        tracing::warn!(%error, family, failures, "failed to write rules; the last ones stay in the kernel, retrying");
        self.record_failure_event(error, config);
        self.needs_resync = true;
        !failure.full && self.backoff.failures() == 0
    }

    /// After a refusal: probes the optional extensions that the rule uses, and disables those that the kernel lacks.
    /// Returns whether any was disabled.
    async fn disable_missing_features(&mut self, rule: &str) -> bool {
        // Legacy iptables names the COMMIT line alone.
        let unnamed = rule == "COMMIT";
        let mut found = false;
        let probes = [
            (" -m recent ", "-m recent --name T --rcheck --seconds 60 --reap -j RETURN", self.features.recent),
            (" -m sctp ", "-p sctp -m sctp --dport 80 -j RETURN", self.features.sctp),
        ];
        for (i, (word, probe, has)) in probes.into_iter().enumerate() {
            if !has || !(unnamed || rule.contains(word)) {
                continue;
            }
            let backend = self.backend.clone();
            let probed = run_blocking(move || backend.probe_rule(probe)).await;
            let Err(error) = probed else { continue };
            if error.is_passing() {
                continue;
            }
            let family = self.family().name();
            found = true;
            if i == 0 {
                self.features.recent = false;
                tracing::warn!(%error, family, "the kernel lacks the match recent (xt_recent); session affinity has no effect");
            } else {
                self.features.sctp = false;
                tracing::warn!(%error, family, "the kernel lacks the match sctp (xt_sctp); services of SCTP get no rules");
            }
        }
        found
    }
}
