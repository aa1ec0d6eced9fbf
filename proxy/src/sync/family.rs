//! One family's book and back end: what the loop does to it, off the runtime's threads. Each family has a pace, a
//! back-off and work of its own, so that one that fails for good holds up nothing of the other.

use std::{
    collections::{HashSet, VecDeque},
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use windlass_kit::{
    backoff::Backoff,
    events::{Recorder, Severity},
};

use super::{pace::Pace, stale_udp};
use crate::{
    apply::{Backend, Error, nftables::NfTables},
    cleanup,
    config::{Config, is_large},
    explain::Difference,
    model::{Changes, Family, Model, NodeFacts},
    plan::{Compared, Ledger, Step, compare},
    rules::{Settings, Table},
    serve::{Outcome, Status},
    subject, sysctls,
};

/// While a family fails, a change is tried at once only so many times in a row; then its back-off holds.
const EAGER: u32 = 3;
/// Refusals that are worked around in one write.
const REFUSALS: u32 = 64;
/// Services that are held back in one write although the kernel did not say which rule it refused.
const GUESSES: u32 = 4;
/// Deletions that fail one by one in one write, before the others are put off with them.
const DELETIONS: u32 = 8;
/// Times of changes that are kept while they cannot be written.
const TRIGGERS: usize = 4096;
/// Refused rules and deletions are tried again after the sync period, and at longest after so many of them.
const LONGEST: u32 = 60;

/// What a kernel may lack and services can do without.
#[derive(Debug, Clone, Copy)]
pub(super) struct Features {
    /// Named packet counters.
    pub(super) counters: bool,
    /// Session affinity.
    pub(super) recent: bool,
    /// Services of SCTP.
    pub(super) sctp: bool,
}

pub(super) struct FamilySync {
    pub(super) backend: Arc<Backend>,
    features: Features,
    pub(super) ledger: Ledger,
    pub(super) status: Arc<Status>,
    events: Recorder,
    /// The kernel's rules must be read back before the next write: at start, and after a failure that tells nothing.
    pub(super) resync: bool,
    /// Something waits to be written.
    pub(super) wanted: bool,
    /// All was written once.
    pub(super) loaded: bool,
    pace: Pace,
    backoff: Backoff,
    /// After a failure: when the next write may start.
    failed: Option<Instant>,
    /// Rendered, and not restored because somebody else held the lock.
    kept: VecDeque<Step>,
    /// Generation of nf_tables at which the rules are known to be what was written.
    pub(super) verified: Option<u32>,
    /// Generations before and after our own transactions, for the other family.
    moves: Vec<(u32, u32)>,
    /// Fingerprint of the rules when they were last compared and found right, if nothing was written since.
    pub(super) verified_print: Option<u64>,
    pub(super) netlink: Option<NfTables>,
    /// When the last comparison began, when it ended.
    pub(super) compared: Option<(Instant, Instant)>,
    /// When all was last compared whatever the generation said.
    pub(super) thorough: Instant,
    /// A repair was written that was not looked at yet: what it mended.
    pub(super) repaired: Option<Vec<Difference>>,
    /// Differences that stay after a repair: the kernel prints these rules in another form.
    pub(super) accepted: HashSet<Difference>,
    /// When others had changed the dispatching chain of services.
    pub(super) fights: VecDeque<Instant>,
    retry: Retry,
    /// When endpoints changed whose rules are not in the kernel yet.
    pub(super) triggers: Vec<Timestamp>,
    /// The counts of health check node ports want a look after the next good write.
    pub(super) health: bool,
    /// Conntrack entries of UDP services. While they are looked at, nothing is written.
    pub(super) stale_udp: stale_udp::Work,
}

/// When refused rules and deletions are tried again.
#[derive(Debug)]
struct Retry {
    backoff: Backoff,
    at: Option<Instant>,
}

/// Why a write broke off.
struct Refusal {
    error: Error,
    /// The step held chains of so many Services: the first of them.
    services: (usize, Option<Arc<str>>),
    /// And nothing else.
    of_services: bool,
    /// All had been read back before.
    full: bool,
}

impl FamilySync {
    pub(super) fn new(
        backend: Backend,
        counters: bool,
        status: Arc<Status>,
        events: Recorder,
        own_namespace: bool,
        config: &Config,
    ) -> Self {
        let netlink = (backend.is_nft() && own_namespace).then(NfTables::open).and_then(Result::ok);
        let period = config.sync_period;
        Self {
            ledger: Ledger::new(Settings::new(backend.family())),
            backend: Arc::new(backend),
            features: Features { counters, recent: true, sctp: true },
            status,
            events,
            resync: true,
            wanted: false,
            loaded: false,
            pace: Pace::new(config.min_sync_period),
            backoff: Backoff::new(Duration::from_millis(500), period),
            failed: None,
            kept: VecDeque::new(),
            verified: None,
            moves: Vec::new(),
            verified_print: None,
            netlink,
            compared: None,
            thorough: Instant::now(),
            repaired: None,
            accepted: HashSet::new(),
            fights: VecDeque::new(),
            retry: Retry { backoff: Backoff::new(period, period * LONGEST), at: None },
            triggers: Vec::new(),
            health: true,
            stale_udp: stale_udp::Work::new(),
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

    /// A transaction of the other family moved the generation: rules that were known before are known after.
    pub(super) fn moved(&mut self, (before, after): (u32, u32)) {
        if self.verified == Some(before) {
            self.verified = Some(after);
        }
    }

    /// The transactions of ours since the last call.
    pub(super) fn take_moves(&mut self) -> Vec<(u32, u32)> {
        std::mem::take(&mut self.moves)
    }

    /// Something changed: it is to be written as soon as the pace allows, after a failure too, as long as those are few.
    pub(super) fn want(&mut self) {
        self.wanted = true;
        if self.backoff.failures() < EAGER {
            self.failed = None;
        }
    }

    /// Takes in what changed in the model.
    pub(super) fn take_in(&mut self, changes: &Changes) {
        changes.services.iter().for_each(|id| self.ledger.touch(id));
        let family = self.family();
        self.health |= changes.health_checks;
        let removed = changes.removed_udp.iter().filter(|(of, _)| *of == family).map(|(_, frontend)| *frontend);
        self.stale_udp.add(changes.udp[family as usize], removed);
    }

    /// Notes when endpoints changed.
    pub(super) fn triggered(&mut self, at: Timestamp) {
        if self.triggers.len() < TRIGGERS {
            self.triggers.push(at);
        }
    }

    /// When the next write may start, if there is anything to write.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        let may = self.wanted && !self.stale_udp.is_running();
        may.then(|| self.failed.unwrap_or(now).max(self.pace.due(now)))
    }

    /// Looks whether it is time to try again what was refused.
    pub(super) fn retry_refused(&mut self, now: Instant) {
        if self.retry.at.is_some_and(|at| at <= now) {
            self.retry.at = None;
            self.ledger.release_quarantine();
            self.ledger.retry_deletions();
            self.want();
        }
    }

    fn settings(&self, model: &Model, config: &Config, node: &NodeFacts, local: &[IpAddr]) -> Settings {
        let known = self.ledger.settings();
        Settings {
            large: is_large(model, self.family(), known.large),
            drop_invalid: known.drop_invalid,
            counters: self.features.counters,
            recent: self.features.recent,
            sctp: self.features.sctp,
            ..config.settings(self.family(), node, local)
        }
    }

    /// Whether rules would differ for these facts.
    pub(super) fn would_change(&self, model: &Model, config: &Config, node: &NodeFacts, local: &[IpAddr]) -> bool {
        self.settings(model, config, node, local) != *self.ledger.settings()
    }

    fn set(&mut self, model: &Model, settings: Settings) {
        if self.ledger.set(settings) {
            model.services().for_each(|(id, _)| self.ledger.touch(id));
        }
    }

    /// Writes what differs. What is refused is worked around where that can be done; what fails otherwise is left to
    /// the back-off, and nothing waits for it but this family. Whether all is in the kernel now.
    pub(super) async fn write(
        &mut self,
        model: &Arc<Model>,
        config: &Config,
        node: &NodeFacts,
        local: &[IpAddr],
    ) -> bool {
        let started = Instant::now();
        let settings = self.settings(model, config, node, local);
        self.set(model, settings);
        let (mut guesses, mut refusals) = (0, 0);
        let done = loop {
            let full = self.resync;
            let result = if full { self.read_back(model).await } else { Ok(()) };
            let result = match result {
                Ok(()) => self.apply(model).await,
                Err(error) => Err(Refusal { error, services: (0, None), of_services: false, full }),
            };
            match result.map_err(|refusal| Refusal { full, ..refusal }) {
                Ok((lines, steps)) => {
                    self.ledger.limit_services_per_step(usize::MAX);
                    self.note(started.elapsed(), Outcome::Done { full }, lines);
                    // What came to nothing holds up nothing; nor does the start, however long it took.
                    if steps > 0 && self.loaded {
                        self.pace.ran(started, Instant::now());
                    }
                    break true;
                }
                Err(refusal) => {
                    refusals += 1;
                    self.note(started.elapsed(), Outcome::Failed { full }, (0, 0));
                    if refusals < REFUSALS && self.work_around(model, &refusal, &mut guesses, config).await {
                        let settings = self.settings(model, config, node, local);
                        self.set(model, settings);
                        continue;
                    }
                    self.pace.ran(started, Instant::now());
                    break false;
                }
            }
        };
        if done {
            self.wanted = false;
            self.failed = None;
            self.backoff.reset();
            self.plan_retry();
            if !std::mem::replace(&mut self.loaded, true) {
                self.remove_predecessors(config).await;
            }
        } else {
            self.failed = Some(Instant::now() + self.backoff.next_delay());
        }
        done
    }

    /// Finds a way round a refusal that can be tried at once.
    async fn work_around(&mut self, model: &Model, refusal: &Refusal, guesses: &mut u32, config: &Config) -> bool {
        let error = &refusal.error;
        let failures = self.backoff.failures() + 1;
        let family = self.family().name();
        if error.is_locked() {
            tracing::warn!(%error, family, failures, "the lock of the rules is held: they are tried again");
            self.complain(error, config);
            return false;
        }
        if let Error::Rule { owner, rule, .. } = error
            && !error.is_shortage()
        {
            if self.lacks_features(rule).await {
                return true;
            }
            if let Some(owner) = owner
                && self.ledger.quarantine_port(model, owner)
            {
                tracing::warn!(%error, family, "the kernel refuses rules of a service port: it gets no connections, all others are written");
                self.complain(error, config);
                return true;
            }
            // The kernel does not say whose rule it was: fewer Services at a time tell.
            let (count, first) = &refusal.services;
            if owner.is_none() && (*count > 1 || !refusal.of_services) && self.ledger.limits_services() != Some(1) {
                self.ledger.limit_services_per_step((count / 2).max(1));
                return true;
            }
            if let (None, true, Some(id)) = (owner, refusal.of_services && *guesses < GUESSES, first)
                && let Some((_, service)) = model.service_entry(id)
            {
                *guesses += 1;
                let ports: Vec<_> = service.ports.iter().map(|p| p.full_name.clone()).collect();
                let held = ports.iter().fold(false, |held, port| self.ledger.quarantine_port(model, port) | held);
                if held {
                    tracing::warn!(%error, family, service = &**id, "the kernel refuses rules of a service: it gets no connections, all others are written");
                    self.complain(error, config);
                    return true;
                }
            }
        }
        tracing::warn!(
            %error, family, failures,
            "rules could not be written; the kernel keeps the last ones and they are tried again"
        );
        self.complain(error, config);
        self.resync = true;
        !refusal.full && self.backoff.failures() == 0
    }

    /// After a refusal: whether the kernel lacks a match that services can do without, and is known to do so only now.
    async fn lacks_features(&mut self, rule: &str) -> bool {
        let unnamed = rule == "COMMIT";
        let mut found = false;
        let trials = [
            (" -m recent ", "-m recent --name T --rcheck --seconds 60 --reap -j RETURN", self.features.recent),
            (" -m sctp ", "-p sctp -m sctp --dport 80 -j RETURN", self.features.sctp),
        ];
        for (i, (word, trial, has)) in trials.into_iter().enumerate() {
            if !has || !(unnamed || rule.contains(word)) {
                continue;
            }
            let backend = self.backend.clone();
            let tried = blocking(move || backend.try_rule(trial)).await;
            let Err(error) = tried else { continue };
            if error.is_locked() || error.is_shortage() {
                continue;
            }
            let family = self.family().name();
            found = true;
            if i == 0 {
                self.features.recent = false;
                tracing::warn!(%error, family, "the kernel has no match recent (xt_recent): session affinity has no effect");
            } else {
                self.features.sctp = false;
                tracing::warn!(%error, family, "the kernel has no match sctp (xt_sctp): services of SCTP get no rules");
            }
        }
        found
    }

    /// What was refused is tried again some time.
    fn plan_retry(&mut self) {
        if self.ledger.quarantined() == 0 && self.ledger.undeletable().is_empty() {
            self.retry.backoff.reset();
            self.retry.at = None;
        } else if self.retry.at.is_none() {
            self.retry.at = Some(Instant::now() + self.retry.backoff.next_delay());
        }
    }

    /// What other proxies left behind goes once our own rules are there, so that nothing is without rules meanwhile.
    async fn remove_predecessors(&mut self, config: &Config) {
        let (backend, config) = (self.backend.clone(), config.clone());
        let work = move || cleanup::remove_predecessors(&config, &backend);
        if let Err(error) = tokio::task::spawn_blocking(work).await {
            tracing::error!(%error, "the removal of what another proxy left behind broke off");
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
        let held_back = (self.ledger.quarantined() as u64, self.ledger.undeletable().len() as u64);
        self.status.ran(self.family(), took, outcome, |status| {
            if let Outcome::Done { .. } = outcome {
                status.rules = rules;
                status.last_lines = lines;
                status.without_local = (without[0] as u64, without[1] as u64);
                status.refused_ports = held_back.0;
                status.undeletable = held_back.1;
            }
        });
    }

    /// Reads the kernel's rules; what of them is right stays as it is, the rest is written with the next steps.
    async fn read_back(&mut self, model: &Arc<Model>) -> Result<(), Error> {
        let settings = Settings { drop_invalid: !sysctls::tcp_is_liberal(), ..self.ledger.settings().clone() };
        self.set(model, settings);
        let generation = self.generation();
        let text = self.save().await?;
        let found = self.compare(model, text).await?;
        tracing::debug!(
            family = self.family().name(),
            differences = found.differences.len(),
            "the rules were read back"
        );
        self.adopt(model, found);
        self.verified = generation;
        self.resync = false;
        Ok(())
    }

    /// Takes over what was found in the kernel.
    pub(super) fn adopt(&mut self, model: &Model, found: Compared) {
        self.ledger.resync(found.kernel, found.standing);
        self.kept.clear();
        self.verified_print = None;
        model.services().for_each(|(id, _)| self.ledger.touch(id));
    }

    pub(super) async fn save(&self) -> Result<String, Error> {
        let backend = self.backend.clone();
        blocking(move || backend.save(false)).await
    }

    /// Sets the kernel's rules beside those that should be, on a thread of its own: what a large comparison takes, its
    /// arena gives back to the system as a whole, where it would stay between the small things of others.
    pub(super) async fn compare(&self, model: &Arc<Model>, text: String) -> Result<Compared, Error> {
        let (model, ledger) = (model.clone(), self.ledger.like());
        let (tell, told) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            let found = compare(&model, &ledger, &text);
            // Nobody else may hold the model when the loop goes on with it.
            drop(model);
            let _ = tell.send(found);
        });
        let program = self.backend.program().to_owned() + "-save";
        match told.await {
            Ok(found) => found.map_err(|source| Error::Output { program, source }),
            Err(_) => Err(Error::Failed {
                command: program,
                status: "not compared".to_owned(),
                stderr: "the comparison broke off".to_owned(),
            }),
        }
    }

    /// Restores one step, while `meanwhile` runs.
    async fn restore(&mut self, step: Step, meanwhile: impl FnOnce(&mut Self)) -> (Step, Result<(), Error>) {
        let before = self.generation();
        let backend = self.backend.clone();
        let kept = Arc::new(step);
        let restoring = {
            let step = kept.clone();
            tokio::task::spawn_blocking(move || {
                let started = Instant::now();
                let result = backend.restore(&step);
                let (took, bytes) = (started.elapsed(), step.text.len());
                tracing::debug!(?took, lines = step.lines, bytes, program = backend.program(), "rules were restored");
                result
            })
        };
        meanwhile(self);
        let result = restoring.await.unwrap_or_else(|e| Err(broken(e)));
        let step = Arc::unwrap_or_clone(kept);
        // Only if nobody else changed anything since the rules were known, and nobody did meanwhile, are they known
        // still. Each table of the text is one transaction.
        if result.is_ok()
            && let (Some(before), Some(after)) = (before, self.generation())
        {
            let ours = u32::try_from(step.text.lines().filter(|l| *l == "COMMIT").count()).unwrap_or(u32::MAX);
            if after == before.wrapping_add(ours) {
                self.moved((before, after));
                self.moves.push((before, after));
            }
        }
        self.verified_print = None;
        (step, result)
    }

    /// Restores step after step, each rendered while the one before is being restored; the rules written, of filter
    /// and nat, and the number of steps.
    async fn apply(&mut self, model: &Arc<Model>) -> Result<((u64, u64), usize), Refusal> {
        let (mut lines, mut count, mut undeleted) = ((0, 0), 0, 0);
        let limit = self.backend.limit();
        let mut again = false;
        let mut waiting = std::mem::take(&mut self.kept);
        loop {
            let next = waiting.pop_front().or_else(|| self.ledger.next_step(model, limit));
            let Some(step) = next else {
                // What was touched while kept steps waited, and deletions beside one that failed.
                if self.ledger.is_touched() || std::mem::take(&mut again) {
                    continue;
                }
                return Ok((lines, count));
            };
            count += 1;
            lines.0 += step.rules.0;
            lines.1 += step.rules.1;
            let mut ahead = None;
            let empty = waiting.is_empty();
            let (step, result) =
                self.restore(step, |this| ahead = if empty { this.ledger.next_step(model, limit) } else { None }).await;
            waiting.extend(ahead);
            let Err(error) = result else {
                self.ledger.commit(&step);
                continue;
            };
            if error.is_locked() {
                waiting.push_front(step);
                self.kept = waiting;
                return Err(Refusal { error, services: (0, None), of_services: false, full: false });
            }
            if !step.deletes() || error.is_shortage() {
                return Err(self.give_up(error, step, waiting));
            }
            // Something may lead to a chain that is to be deleted. All else comes first.
            let (plain, result) = self.restore(step.without_deletions(), |_| {}).await;
            if let Err(error) = result {
                return Err(self.give_up(error, step, waiting));
            }
            self.ledger.commit(&plain);
            undeleted += 1;
            let culprit = match &error {
                Error::Rule { rule, line, .. } if undeleted <= DELETIONS => {
                    rule.strip_prefix("-X ").and_then(|name| Some((step.table_of_line(*line)?, name.to_owned())))
                }
                _ => None,
            };
            again = culprit.is_some();
            let stay: Vec<(Table, String)> = culprit.map_or_else(|| step.deletions().collect(), |one| vec![one]);
            tracing::warn!(
                %error, family = self.family().name(), chain = stay.first().map(|(_, name)| name.as_str()),
                "a chain that no service needs any more cannot be deleted: a rule of somebody else may lead to it; it stays, empty, and is tried again"
            );
            if let Some(status) = self.status.lock().families.get_mut(&self.backend.family()) {
                status.failures += 1;
            }
            self.ledger.keep_undeletable(stay);
        }
    }

    fn give_up(&mut self, error: Error, step: Step, waiting: VecDeque<Step>) -> Refusal {
        let services = (step.services().len(), step.services().first().cloned());
        let of_services = step.is_of_services();
        let error = self.named(error);
        self.ledger.abandon(std::iter::once(step).chain(waiting));
        Refusal { error, services, of_services, full: false }
    }

    /// Adds to a refused rule the service port it belongs to.
    fn named(&self, error: Error) -> Error {
        match error {
            Error::Rule { program, line, rule, stderr, .. } => {
                let owner = self.ledger.owner_of_rule(&rule).map(|o| o.to_string());
                Error::Rule { program, line, rule, stderr, owner }
            }
            other => other,
        }
    }
}

pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|e| Err(broken(e)))
}

fn broken(error: tokio::task::JoinError) -> Error {
    Error::Failed {
        command: "iptables".to_owned(),
        status: "not finished".to_owned(),
        stderr: format!("the thread that ran it ended: {error}"),
    }
}
