//! Whether the kernel still holds what was written, and what to do when it does not.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::family::{FamilySync, blocking};
use crate::{
    apply::{Error, nftables::Commit},
    explain::Difference,
    model::Model,
    rules::Fixed,
};

/// All is compared so often whatever the generation says.
const THOROUGH: Duration = Duration::from_secs(3600);
/// So many times in so long, and another proxy is the likely reason.
const FIGHT: (usize, Duration) = (3, Duration::from_secs(600));

impl FamilySync {
    /// Another process committed a transaction: one that has nothing to do with our chains changes nothing of what is
    /// known.
    pub(super) fn heard(&mut self, commit: Commit) {
        if !commit.concerns[self.family() as usize] && self.verified == Some(commit.generation.wrapping_sub(1)) {
            self.verified = Some(commit.generation);
        }
    }

    /// Looks whether others changed our rules; true when they must be written again. However long a comparison takes,
    /// the next one does not wait longer than `period`. Looks only while nothing waits to be written: then the model
    /// is what should be in the kernel.
    pub(super) async fn check(&mut self, model: &Arc<Model>, period: Duration) -> bool {
        if self.wanted || self.resync || !self.loaded {
            return false;
        }
        let thorough = self.thorough.elapsed() > THOROUGH;
        let generation = self.generation();
        let known = generation.is_some() && generation == self.verified;
        if !thorough && self.repaired.is_none() {
            if known {
                return false;
            }
            // Where others change rules all the time, large tables are not read back each time. What a comparison
            // took may be the wait for the tables' lock.
            let rest = |(begin, end): (Instant, Instant)| match generation {
                Some(_) => {
                    let took = end.saturating_duration_since(begin);
                    end.elapsed() < (took * 20).min(period.max(took))
                }
                None => begin.elapsed() < period / 2,
            };
            if self.compared.is_some_and(rest) {
                return false;
            }
        }
        if thorough {
            self.thorough = Instant::now();
            self.verified_print = None;
            self.accepted.clear();
        }
        let begin = Instant::now();
        let found = self.look(model).await;
        self.compared = Some((begin, Instant::now()));
        let repaired = self.repaired.take();
        let drift = match found {
            Ok(drift) => drift,
            Err(error) => {
                tracing::warn!(%error, family = self.family().name(), "the rules could not be read back");
                return false;
            }
        };
        // What there was at this generation is known now, right or wrong.
        self.verified = generation;
        if drift.is_empty() {
            return false;
        }
        if repaired.as_ref() == Some(&drift) && (known || generation.is_none()) {
            tracing::warn!(
                family = self.family().name(),
                difference = sentence(&drift),
                "rules were written and are read back in another form: this form is taken for right from now on"
            );
            self.accepted.extend(drift);
            return true;
        }
        tracing::warn!(
            family = self.family().name(),
            drift = sentence(&drift),
            "service rules were changed by something else: writing them again"
        );
        self.look_for_a_fight(&drift);
        if let Some(status) = self.status.lock().families.get_mut(&self.backend.family()) {
            status.repairs += 1;
        }
        self.repaired = Some(drift);
        true
    }

    /// Reads the rules back and takes over what differs; what that is. While nobody changed any of ours a fingerprint
    /// tells that.
    async fn look(&mut self, model: &Arc<Model>) -> Result<Vec<Difference>, Error> {
        let backend = self.backend.clone();
        let print = blocking(move || backend.fingerprint()).await?;
        if self.verified_print == Some(print) {
            return Ok(Vec::new());
        }
        let text = self.save().await?;
        let mut found = self.compare(model, text).await?;
        found.differences.retain(|d| !self.accepted.contains(d));
        if found.differences.is_empty() {
            // Taken before the text: whatever came between makes the next fingerprint another one.
            self.verified_print = Some(print);
            return Ok(Vec::new());
        }
        let differences = std::mem::take(&mut found.differences);
        self.adopt(model, found);
        Ok(differences)
    }

    /// Another proxy that runs here writes its dispatching chain at each of its syncs.
    fn look_for_a_fight(&mut self, drift: &[Difference]) {
        let services = Fixed::NatServices;
        if !drift.iter().any(|d| d.chain == services.name() && d.table == services.table().name()) {
            return;
        }
        let now = Instant::now();
        self.fights.push_back(now);
        while self.fights.front().is_some_and(|at| now.saturating_duration_since(*at) > FIGHT.1) {
            self.fights.pop_front();
        }
        if self.fights.len() >= FIGHT.0 {
            self.fights.clear();
            tracing::error!(
                family = self.family().name(),
                "the dispatching chain KUBE-SERVICES is written by something else again and again: a kube-proxy may be \
                 running on this node too; end it, for its rules and these take turns"
            );
        }
    }
}

/// The first difference in words, and how many more there are.
fn sentence(found: &[Difference]) -> String {
    let Some(first) = found.first() else { return String::new() };
    let more = if found.len() > 1 { format!(", and {} more", found.len() - 1) } else { String::new() };
    format!("{} {} {}{more}", first.table, first.chain, first.problem)
}
