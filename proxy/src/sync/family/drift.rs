//! Detects whether other programs changed our rules in the kernel.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{FamilySync, run_blocking};
use crate::{apply::Error, explain::Difference, model::Model, rules::StaticChain};

/// All rules are compared so often regardless of the generation.
const FULL_CHECK_INTERVAL: Duration = Duration::from_secs(3600);
/// So many foreign changes of the dispatch chain within this window indicate another service proxy.
const CONFLICT_COUNT: usize = 3;
const CONFLICT_WINDOW: Duration = Duration::from_secs(600);

impl FamilySync {
    /// Checks whether other programs changed our rules; true when they must be written again. However long a comparison
    /// takes, the next one follows within `period`. Checks only while nothing is pending: then the model is what the
    /// kernel should have.
    pub(in crate::sync) async fn detect_drift(&mut self, model: &Arc<Model>, period: Duration) -> bool {
        self.comparison_due = None;
        if self.pending || self.needs_resync || !self.synced_once {
            return false;
        }
        let full_check = self.last_full_check.elapsed() > FULL_CHECK_INTERVAL;
        let differs = self.check(model, period, full_check).await;
        // Behind the comparison: the kernel has the comments that were written.
        differs | (full_check && self.ruleset.renew_comments())
    }

    async fn check(&mut self, model: &Arc<Model>, period: Duration, full_check: bool) -> bool {
        let foreign = self.foreign();
        // A transaction of the other family is on its way, which ends soon, or hangs.
        if self.netlink.is_some() && foreign.is_none() {
            if self.postponed.get_or_insert_with(Instant::now).elapsed() < period {
                return false;
            }
        } else {
            self.postponed = None;
        }
        let unchanged = foreign.is_some() && foreign == self.verified;
        if !full_check && self.unverified_repair.is_none() {
            if unchanged {
                return false;
            }
            // Where others change rules all the time, large tables are not read back each time. On legacy the duration
            // of a comparison says nothing: it may have waited for the xtables lock.
            if let Some((begin, end)) = self.last_comparison {
                let took = end.saturating_duration_since(begin);
                let due = match foreign {
                    Some(_) => end + (took * 20).min(period.max(took)),
                    None => begin + period / 2,
                };
                if Instant::now() < due {
                    // What was heard of is not heard of again.
                    self.comparison_due = foreign.map(|_| due);
                    return false;
                }
            }
        }
        if full_check {
            self.last_full_check = Instant::now();
            self.verified_fingerprint = None;
            self.accepted.clear();
        }
        self.beat();
        let begin = Instant::now();
        let found = self.compare_with_kernel(model).await;
        self.last_comparison = Some((begin, Instant::now()));
        let repair = self.unverified_repair.take();
        let drift = match found {
            Ok(drift) => drift,
            Err(error) => {
                tracing::warn!(%error, family = self.family().name(), "failed to read the rules back");
                return self.needs_resync;
            }
        };
        // The rules of this generation are known now, right or wrong.
        self.verified = foreign;
        if drift.is_empty() {
            return false;
        }
        let may_be_form = drift.iter().all(|difference| difference.problem.may_be_form());
        if may_be_form && repair.as_ref() == Some(&drift) && (unchanged || self.netlink.is_none()) {
            tracing::warn!(
                family = self.family().name(),
                difference = summary(&drift),
                "the kernel prints rules in another form than they were written; accepting this form"
            );
            self.accepted.extend(drift);
            return true;
        }
        tracing::warn!(
            family = self.family().name(),
            drift = summary(&drift),
            "service rules were changed by another program; writing them again"
        );
        self.detect_conflict(&drift);
        if let Some(status) = self.shared.status.lock().families.get_mut(&self.backend.family()) {
            status.repairs += 1;
        }
        self.unverified_repair = Some(drift);
        true
    }

    /// Reads the rules back and resyncs from them where they differ; returns the differences. An unchanged fingerprint
    /// replaces the comparison.
    async fn compare_with_kernel(&mut self, model: &Arc<Model>) -> Result<Vec<Difference>, Error> {
        if let Some(verified) = self.verified_fingerprint {
            let backend = self.backend.clone();
            if run_blocking(move || backend.fingerprint()).await? == verified {
                return Ok(Vec::new());
            }
        }
        let found = self.compare(model, false).await?;
        self.verified_fingerprint = Some(found.fingerprint);
        let Some(mut comparison) = found.comparison else { return Ok(Vec::new()) };
        comparison.differences.retain(|d| !self.accepted.contains(d));
        if comparison.differences.is_empty() {
            self.ruleset.learn(&comparison.verified);
            return Ok(Vec::new());
        }
        let differences = std::mem::take(&mut comparison.differences);
        self.resync_from(model, comparison);
        Ok(differences)
    }

    /// Another service proxy on this node rewrites KUBE-SERVICES at each of its syncs.
    fn detect_conflict(&mut self, drift: &[Difference]) {
        let services = StaticChain::NatServices;
        if !drift.iter().any(|d| d.chain == services.name() && d.table == services.table()) {
            return;
        }
        let now = Instant::now();
        self.conflicts.push_back(now);
        while self.conflicts.front().is_some_and(|at| now.saturating_duration_since(*at) > CONFLICT_WINDOW) {
            self.conflicts.pop_front();
        }
        if self.conflicts.len() >= CONFLICT_COUNT {
            self.conflicts.clear();
            tracing::error!(
                family = self.family().name(),
                "chain KUBE-SERVICES is rewritten by another program again and again; a kube-proxy may be running on \
                 this node, stop it"
            );
        }
    }
}

/// The first difference, and how many more there are.
fn summary(found: &[Difference]) -> String {
    let Some(first) = found.first() else { return String::new() };
    let more = if found.len() > 1 { format!(", and {} more", found.len() - 1) } else { String::new() };
    format!("{} {} {}{more}", first.table, first.chain, first.problem)
}
