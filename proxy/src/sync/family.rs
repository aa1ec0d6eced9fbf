//! One family's book and back end: what the loop does to it, off the runtime's threads.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use windlass_kit::events::{Recorder, Severity};

use crate::{
    apply::{Backend, Error, nftables::NfTables},
    config::{Config, each_step, is_large},
    explain::Comparison,
    kernel::Saved,
    model::{Family, Model, NodeFacts, ServiceId},
    plan::{Ledger, Limit},
    rules::{Settings, Table},
    serve::{Outcome, Status},
    subject, sysctls,
};

/// Rules that are rendered at a time to be compared with the kernel's.
const PIECE: Limit = Limit::Lines(5000);

pub(super) struct FamilySync {
    backend: Arc<Backend>,
    /// Rules may feed the kernel's named counters.
    counters: bool,
    ledger: Ledger,
    status: Arc<Status>,
    events: Recorder,
    /// Everything must be read back and written: at start, after a failure, after drift.
    full: bool,
    failures: u32,
    /// Generation of nf_tables when rules were last known to be right.
    right_at: Option<u32>,
    /// Fingerprint of the rules when they were last compared and found right, if nothing was written since.
    right_print: Option<u64>,
    netlink: Option<NfTables>,
    /// When the last thorough comparison was, and how long it took.
    compared: Option<(Instant, Duration)>,
}

impl FamilySync {
    pub(super) fn new(
        backend: Backend,
        counters: bool,
        status: Arc<Status>,
        events: Recorder,
        own_namespace: bool,
    ) -> Self {
        let netlink = (backend.is_nft() && own_namespace).then(NfTables::open).and_then(Result::ok);
        Self {
            ledger: Ledger::new(Settings::new(backend.family())),
            backend: Arc::new(backend),
            counters,
            status,
            events,
            full: true,
            failures: 0,
            right_at: None,
            right_print: None,
            netlink,
            compared: None,
        }
    }

    pub(super) fn family(&self) -> Family {
        self.backend.family()
    }

    /// Whether [`check`](Self::check) costs next to nothing while nobody changes rules.
    pub(super) const fn checks_cheaply(&self) -> bool {
        self.netlink.is_some()
    }

    /// The generation of nf_tables now.
    pub(super) fn generation(&mut self) -> Option<u32> {
        self.netlink.as_mut().and_then(|n| n.generation().ok())
    }

    /// We ourselves moved the generation: rules that were right before are right after.
    pub(super) fn moved(&mut self, before: Option<u32>, after: Option<u32>) {
        if before.is_some() && self.right_at == before {
            self.right_at = after;
        }
    }

    fn settings(&self, model: &Model, config: &Config, node: &NodeFacts, local: &[IpAddr]) -> Settings {
        Settings {
            large: is_large(model, self.family()),
            drop_invalid: self.ledger.settings().drop_invalid,
            counters: self.counters,
            ..config.settings(self.family(), node, local)
        }
    }

    /// Whether rules would differ for these facts.
    pub(super) fn would_change(&self, model: &Model, config: &Config, node: &NodeFacts, local: &[IpAddr]) -> bool {
        self.settings(model, config, node, local) != *self.ledger.settings()
    }

    /// Writes what differs. After a refusal everything is read back and tried once more at once;
    /// what fails then is left to the loop's back-off. Whether all is in the kernel, and whether anything was written.
    pub(super) async fn write(
        &mut self,
        model: &Model,
        dirty: &BTreeSet<ServiceId>,
        config: &Config,
        node: &NodeFacts,
        local: &[IpAddr],
    ) -> (bool, bool) {
        let started = Instant::now();
        let settings = self.settings(model, config, node, local);
        let mut first = !self.full;
        if first {
            if self.ledger.set(settings.clone()) {
                model.services().for_each(|(id, _)| self.ledger.touch(id));
            }
            dirty.iter().for_each(|id| self.ledger.touch(id));
        }
        loop {
            let full = self.full;
            let result = if full { self.start_over(model, settings.clone()).await } else { Ok(()) };
            let result = match result {
                Ok(()) => self.apply(model).await,
                Err(error) => Err(error),
            };
            match result {
                Ok((lines, steps)) => {
                    self.failures = 0;
                    self.ledger.delete_apart(false);
                    self.full = false;
                    self.note(started.elapsed(), Outcome::Done { full }, lines);
                    return (true, steps > 0);
                }
                Err(error) => {
                    self.failures += 1;
                    self.full = true;
                    self.note(started.elapsed(), Outcome::Failed { full }, (0, 0));
                    tracing::warn!(
                        error = %error, family = self.family().name(), failures = self.failures,
                        "rules could not be written; the kernel keeps the last ones and all of them are tried again"
                    );
                    self.complain(&error, config);
                    if !std::mem::replace(&mut first, false) {
                        return (false, true);
                    }
                }
            }
        }
    }

    /// Tells the people of the cluster: at the Service whose rule was refused, else at the Node.
    fn complain(&self, error: &Error, config: &Config) {
        let owner = match error {
            Error::Rule { owner: Some(owner), .. } => owner.split(':').next().and_then(subject::service),
            _ => None,
        };
        let about = owner.unwrap_or_else(|| subject::node(&config.node_name));
        let message =
            format!("{} rules could not be written on node {}: {error}", self.family().name(), config.node_name);
        self.events.record(&about, Severity::Warning, "FailedToWriteServiceRules", message);
    }

    fn note(&self, took: Duration, outcome: Outcome, lines: (u64, u64)) {
        let rules = (self.ledger.rules(Table::Filter), self.ledger.rules(Table::Nat));
        let without = self.ledger.without_local();
        self.status.ran(self.family(), took, outcome, |status| {
            if let Outcome::Done { .. } = outcome {
                status.rules = rules;
                status.last_lines = lines;
                status.without_local = (without[0] as u64, without[1] as u64);
            }
        });
    }

    /// Reads names back and takes all Services in anew.
    async fn start_over(&mut self, model: &Model, settings: Settings) -> Result<(), Error> {
        let text = self.save().await?;
        let saved = self.backend.parse(&text)?;
        self.ledger.adopt(&saved);
        drop(saved);
        drop(text);
        self.ledger.set(Settings { drop_invalid: !sysctls::tcp_is_liberal(), ..settings });
        self.ledger.delete_apart(self.failures > 0);
        model.services().for_each(|(id, _)| self.ledger.touch(id));
        Ok(())
    }

    async fn save(&self) -> Result<String, Error> {
        let backend = self.backend.clone();
        blocking(move || backend.save(false)).await
    }

    /// Restores step after step, each rendered while the one before is being restored; the rules written, of filter
    /// and nat, and the number of steps.
    async fn apply(&mut self, model: &Model) -> Result<((u64, u64), usize), Error> {
        let (mut lines, mut count) = ((0, 0), 0);
        let limit = self.backend.limit();
        let mut next = self.ledger.next_step(model, limit);
        while let Some(step) = next {
            count += 1;
            lines.0 += step.rules.0;
            lines.1 += step.rules.1;
            let backend = self.backend.clone();
            let restoring = tokio::task::spawn_blocking(move || {
                let started = Instant::now();
                let result = backend.restore(&step);
                let (took, bytes) = (started.elapsed(), step.text.len());
                tracing::debug!(?took, lines = step.lines, bytes, program = backend.program(), "rules were restored");
                (step, result)
            });
            next = self.ledger.next_step(model, limit);
            let (step, result) = restoring.await.map_err(broken)?;
            match result {
                Ok(()) => self.ledger.commit(&step),
                Err(error) => return Err(self.named(error)),
            }
        }
        if count > 0 {
            self.right_at = self.generation();
            self.right_print = None;
        }
        Ok((lines, count))
    }

    /// Adds to a refused rule the service port it belongs to.
    fn named(&self, error: Error) -> Error {
        match error {
            Error::Rule { program, line, rule, stderr, .. } => {
                let owner = rule.split_whitespace().find_map(|word| self.ledger.owner(word.trim_start_matches(':')));
                Error::Rule { program, line, rule, stderr, owner: owner.map(|o| o.to_string()) }
            }
            other => other,
        }
    }

    /// What differs between the kernel and what should be, in words.
    fn drift(&self, model: &Model, kernel: &Saved<'_>) -> Option<String> {
        let mut comparison = Comparison::new(kernel);
        let mut unread = None;
        each_step(model, self.ledger.settings().clone(), PIECE, |step| match Saved::parse(&step.text) {
            Ok(wanted) => comparison.look(&wanted),
            Err(error) => unread = Some(error.to_string()),
        });
        if unread.is_some() {
            return unread;
        }
        let found = comparison.end();
        let first = found.first()?;
        let more = if found.len() > 1 { format!(", and {} more", found.len() - 1) } else { String::new() };
        Some(format!("{} {} {}{more}", first.table, first.chain, first.problem))
    }

    /// Reads the rules back; what differs, in words. While nobody changed any of ours a fingerprint tells that.
    async fn look(&mut self, model: &Model) -> Result<Option<String>, Error> {
        let backend = self.backend.clone();
        let print = blocking(move || backend.fingerprint()).await?;
        if self.right_print == Some(print) {
            return Ok(None);
        }
        let text = self.save().await?;
        // On a thread of its own: what a large comparison takes, its arena gives back to the system as a whole, where
        // it would stay between the small things of this one.
        let compare = || match Saved::parse(&text) {
            Ok(saved) => self.drift(model, &saved),
            Err(error) => Some(error.to_string()),
        };
        let drift = std::thread::scope(|scope| scope.spawn(compare).join())
            .unwrap_or_else(|_| Some("the comparison broke off".to_owned()));
        // Taken before the text: whatever came between makes the next fingerprint another one.
        self.right_print = drift.is_none().then_some(print);
        Ok(drift)
    }

    /// Looks whether others changed our rules; true when they must be written again. However long a comparison takes,
    /// the next one does not wait longer than `period`.
    pub(super) async fn check(&mut self, model: &Model, period: Duration) -> bool {
        if self.full {
            return true;
        }
        let generation = match self.netlink.as_mut().map(NfTables::generation) {
            Some(Ok(generation)) if Some(generation) == self.right_at => return false,
            Some(Ok(generation)) => Some(generation),
            _ => None,
        };
        // Where others change rules all the time, large tables are not read back each time. What a comparison took may
        // be the wait for the tables' lock.
        if self.compared.is_some_and(|(at, took)| at.elapsed() < (took * 20).min(period.max(took))) {
            return false;
        }
        let started = Instant::now();
        let found = self.look(model).await;
        self.compared = Some((Instant::now(), started.elapsed()));
        let drift = match found {
            Ok(Some(drift)) => drift,
            Ok(None) => {
                self.right_at = generation;
                return false;
            }
            Err(error) => {
                tracing::warn!(%error, "the rules could not be read back");
                return false;
            }
        };
        tracing::warn!(
            family = self.family().name(),
            drift,
            "service rules were changed by something else: writing them again"
        );
        if let Some(status) = self.status.lock().families.get_mut(&self.backend.family()) {
            status.repairs += 1;
        }
        self.full = true;
        true
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Error> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|e| Err(broken(e)))
}

fn broken(error: tokio::task::JoinError) -> Error {
    Error::Failed {
        command: "iptables".to_owned(),
        status: "not finished".to_owned(),
        stderr: format!("the thread that ran it ended: {error}"),
    }
}
