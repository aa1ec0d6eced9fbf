//! The sync of one address family: its ruleset state, its back end and its schedule. The rate limit and the back-off
//! are per family, so that one that keeps failing does not delay the other. What blocks runs off the runtime's worker
//! threads.

mod drift;
mod read_back;
mod refusal;
mod task;
mod write;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;
use windlass_kit::{
    backoff::Backoff,
    blocking::RULES,
    events::{Recorder, Severity},
    liveness::LoopProbe,
};

use super::{
    rate_limit::SyncRateLimiter,
    stale_udp,
    transactions::{ForeignCommit, ForeignCount, Transactions},
    watch::Trigger,
};
use crate::{
    apply::{Backend, Error, nf_tables_netlink::NfTables},
    config::Config,
    conntrack::UdpScope,
    explain::Difference,
    model::{Changes, Family, Model, NodeFacts, ServiceId},
    object_ref,
    plan::{RulesetState, TableBatch, is_large_cluster},
    rules::{Settings, Table},
    serve::{PerTable, Status, SyncOutcome},
};
pub(super) use task::{FamilyTask, Message, report_changes};

/// While a family fails, at most this number of changes in a row starts a write at once; then its back-off decides.
const MAX_IMMEDIATE_RETRIES: u32 = 3;
/// Change times of endpoints that are kept while they cannot be written.
const MAX_TRIGGER_TIMES: usize = 4096;
/// A program that was killed must have ended by then.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(150);
/// Refused rules and deletions are retried after the sync period, and at longest after this number of them.
const MAX_RETRY_PERIODS: u32 = 60;

/// Extensions that a kernel may lack and that services can do without.
#[derive(Debug, Clone, Copy)]
struct Features {
    /// nfacct counters.
    counters: bool,
    /// Session affinity (xt_recent).
    recent: bool,
    /// Services of SCTP (xt_sctp).
    sctp: bool,
}

/// What both families share.
pub(super) struct Shared {
    pub(super) status: Arc<Status>,
    pub(super) events: Recorder,
    pub(super) transactions: Arc<Transactions>,
}

pub(super) struct FamilySync {
    pub(super) shared: Shared,
    probe: LoopProbe,
    /// Heard between two batches of a write.
    pub(super) shutdown: CancellationToken,
    backend: Arc<Backend>,
    features: Features,
    ruleset: RulesetState,
    /// The kernel's rules must be read back before the next write: at start, and after a failure of unknown effect.
    needs_resync: bool,
    /// Changes wait to be written.
    pending: bool,
    /// A write has succeeded since the start.
    synced_once: bool,
    rate_limit: SyncRateLimiter,
    backoff: Backoff,
    /// After a failure: when the next write may start.
    retry_at: Option<Instant>,
    /// Batches that are rendered, and not restored because another process held the xtables lock.
    pending_batches: VecDeque<TableBatch>,
    /// How many transactions of others there were when the rules were known to be those that were written.
    verified: Option<ForeignCount>,
    /// Since when nothing was compared because the other family was writing.
    postponed: Option<Instant>,
    /// Fingerprint of the rules when they were last compared and found right, if nothing was written since.
    verified_fingerprint: Option<u64>,
    netlink: Option<NfTables>,
    /// When the last comparison began and when it ended.
    last_comparison: Option<(Instant, Instant)>,
    /// Others have changed rules, and it was too early to compare: when it is time.
    comparison_due: Option<Instant>,
    /// When all rules were last compared regardless of the generation.
    last_full_check: Instant,
    /// The differences that a repair was written for and that is not verified yet.
    unverified_repair: Option<Vec<Difference>>,
    /// Differences that remain after a repair: the kernel prints these rules in another form.
    accepted: HashSet<Difference>,
    /// When other programs had changed the dispatch chain of services.
    conflicts: VecDeque<Instant>,
    refused_retry: RefusedRetry,
    /// When endpoints changed whose rules are not in the kernel yet.
    endpoint_trigger_times: HashMap<ServiceId, Vec<Timestamp>>,
    /// The servers of health check node ports must be updated after the next successful write.
    pub(super) health_checks_dirty: bool,
    /// The search for stale conntrack entries of UDP services. While it runs, what it concerns is not written.
    pub(super) stale_udp: stale_udp::Search,
}

/// When refused rules and deletions are retried.
#[derive(Debug)]
struct RefusedRetry {
    backoff: Backoff,
    at: Option<Instant>,
}

impl FamilySync {
    pub(super) fn new(
        backend: Backend,
        counters: bool,
        shared: Shared,
        probe: LoopProbe,
        shutdown: CancellationToken,
        config: &Config,
    ) -> Self {
        let own_netns = backend.runner().in_own_netns();
        let netlink = (backend.is_nft() && own_netns).then(NfTables::open).and_then(Result::ok);
        let period = config.sync_period;
        Self {
            ruleset: RulesetState::new(Settings::new(backend.family())),
            backend: Arc::new(backend),
            shared,
            probe,
            shutdown,
            features: Features { counters, recent: true, sctp: true },
            needs_resync: true,
            pending: false,
            synced_once: false,
            rate_limit: SyncRateLimiter::new(config.min_sync_period),
            backoff: Backoff::new(Duration::from_millis(500), period),
            retry_at: None,
            pending_batches: VecDeque::new(),
            verified: None,
            postponed: None,
            verified_fingerprint: None,
            netlink,
            last_comparison: None,
            comparison_due: None,
            last_full_check: Instant::now(),
            unverified_repair: None,
            accepted: HashSet::new(),
            conflicts: VecDeque::new(),
            refused_retry: RefusedRetry { backoff: Backoff::new(period, period * MAX_RETRY_PERIODS), at: None },
            endpoint_trigger_times: HashMap::new(),
            health_checks_dirty: true,
            stale_udp: stale_udp::Search::new(),
        }
    }

    pub(super) fn family(&self) -> Family {
        self.backend.family()
    }

    /// Whether the generation of nf_tables can be queried: then [`detect_drift`](Self::detect_drift) costs one system
    /// call while no rules change.
    pub(super) const fn has_generation(&self) -> bool {
        self.netlink.is_some()
    }

    /// How many transactions of nf_tables are of others, where that is known at the moment.
    fn foreign(&mut self) -> Option<ForeignCount> {
        self.netlink.as_mut().and_then(|netlink| self.shared.transactions.foreign(netlink))
    }

    /// The task is alive.
    pub(super) fn beat(&self) {
        self.probe.beat();
    }

    /// A commit of another process: one that does not affect our chains leaves the rules verified.
    pub(super) fn on_commit(&mut self, commit: ForeignCommit) {
        if !commit.affected.has(self.family()) && self.verified == Some(commit.number.wrapping_sub(1)) {
            self.verified = Some(commit.number);
        }
    }

    /// Requests a write as soon as the rate limit allows, also after a failure, as long as failures are few.
    pub(super) fn request_sync(&mut self) {
        self.pending = true;
        if self.backoff.failures() < MAX_IMMEDIATE_RETRIES {
            self.retry_at = None;
        }
    }

    /// Whether a write succeeded, and none is pending.
    pub(super) const fn is_synced(&self) -> bool {
        self.synced_once && !self.pending
    }

    /// Marks what changed in the model.
    pub(super) fn apply_changes(&mut self, changes: &Changes) {
        let family = self.family();
        let services = changes.of(family);
        services.iter().for_each(|id| self.ruleset.mark_dirty(id));
        self.health_checks_dirty |= changes.health_checks && !services.is_empty();
        let removed = changes.removed_udp.iter().filter(|(of, _)| *of == family).map(|(_, frontend)| *frontend);
        let scope = UdpScope { services: Some(changes.udp[family as usize].clone()), removed: removed.collect() };
        if scope != UdpScope::none() {
            self.stale_udp.request(scope);
        }
    }

    /// Records when endpoints changed. A slice that was deleted says nothing of its Service's times any more, as
    /// upstream (pkg/proxy/endpointschangetracker.go).
    pub(super) fn apply_triggers(&mut self, triggers: Vec<Trigger>) {
        let family = self.family();
        for trigger in triggers {
            match trigger {
                Trigger::At(of, service, at) if of == family => {
                    if self.endpoint_trigger_times.len() < MAX_TRIGGER_TIMES {
                        let times = self.endpoint_trigger_times.entry(service).or_default();
                        if times.len() < MAX_TRIGGER_TIMES {
                            times.push(at);
                        }
                    }
                }
                Trigger::At(..) => {}
                Trigger::Forget(service) => drop(self.endpoint_trigger_times.remove(&service)),
            }
        }
    }

    /// When the endpoints changed whose rules are written now.
    pub(super) fn take_triggers(&mut self) -> Vec<Timestamp> {
        std::mem::take(&mut self.endpoint_trigger_times).into_values().flatten().collect()
    }

    /// When the next write may start, if there is anything to write.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        let may = self.pending && !self.stale_udp.delays_write();
        may.then(|| self.retry_at.unwrap_or(now).max(self.rate_limit.due(now)))
    }

    /// When rules are to be compared that others have changed, if that was too early.
    pub(super) const fn comparison_due(&self) -> Option<Instant> {
        self.comparison_due
    }

    /// Retries refused rules and deletions once they are due.
    pub(super) fn retry_refused(&mut self, now: Instant) {
        if self.refused_retry.at.is_some_and(|at| at <= now) {
            self.refused_retry.at = None;
            self.ruleset.release_quarantine();
            self.ruleset.retry_deletions();
            self.request_sync();
        }
    }

    /// Schedules the retry of what was refused.
    fn schedule_refused_retry(&mut self) {
        if self.ruleset.quarantined() == 0 && self.ruleset.undeletable().is_empty() {
            self.refused_retry.backoff.reset();
            self.refused_retry.at = None;
        } else if self.refused_retry.at.is_none() {
            self.refused_retry.at = Some(Instant::now() + self.refused_retry.backoff.next_delay());
        }
    }

    fn settings(&self, model: &Model, config: &Config, node: &NodeFacts, local: &[IpAddr]) -> Settings {
        let known = self.ruleset.settings();
        Settings {
            large: is_large_cluster(model, self.family(), known.large),
            drop_invalid: known.drop_invalid,
            counters: self.features.counters,
            recent: self.features.recent,
            sctp: self.features.sctp,
            service_cidrs: model.service_cidrs.of(self.family()),
            ..config.settings(self.family(), node, local)
        }
    }

    /// Whether these facts would change the settings of the rules.
    pub(super) fn would_change(&self, model: &Model, config: &Config, node: &NodeFacts, local: &[IpAddr]) -> bool {
        self.settings(model, config, node, local) != *self.ruleset.settings()
    }

    fn set(&mut self, model: &Model, settings: Settings) {
        if self.ruleset.set(settings) {
            self.ruleset.mark_all_dirty(model);
        }
    }

    /// Records an event for the users of the cluster: at the Service whose rule was refused, else at the Node.
    fn record_failure_event(&self, error: &Error, config: &Config) {
        let service = match error {
            Error::Rule { owner: Some(owner), .. } => owner.split(':').next().and_then(object_ref::service),
            _ => None,
        };
        let about = service.unwrap_or_else(|| object_ref::node(&config.node_name));
        let message =
            format!("{} rules could not be written on node {}: {error}", self.family().name(), config.node_name);
        self.shared.events.record(&about, Severity::Warning, "FailedToWriteServiceRules", message);
    }

    fn record_sync(&self, took: Duration, outcome: SyncOutcome, lines: PerTable) {
        let rules = PerTable { filter: self.ruleset.rules(Table::Filter), nat: self.ruleset.rules(Table::Nat) };
        let without = self.ruleset.without_local();
        let (quarantined, undeletable) = (self.ruleset.quarantined() as u64, self.ruleset.undeletable().len() as u64);
        self.shared.status.record_sync(self.family(), took, outcome, |status| {
            if let SyncOutcome::Done { .. } = outcome {
                status.rules = rules;
                status.last_lines = lines;
                status.without_local = without;
                status.refused_ports = quarantined;
                status.undeletable = undeletable;
            }
        });
    }
}

/// Runs blocking iptables work off the runtime's worker threads.
async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Error> {
    in_time(RULES.run(work, |error| panicked(&error))).await
}

/// Each program is killed after a while; one stuck in the kernel, which cannot be killed, is not waited for.
pub(in crate::sync) async fn in_time<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    tokio::time::timeout(GIVEN_UP_AFTER, work).await.unwrap_or_else(|_| {
        Err(Error::Interrupted {
            command: "iptables".to_owned(),
            why: format!("it hangs in the kernel, and is not waited for after {} s", GIVEN_UP_AFTER.as_secs()),
        })
    })
}

pub(in crate::sync) fn panicked(error: &dyn std::fmt::Display) -> Error {
    Error::Interrupted {
        command: "iptables".to_owned(),
        why: format!("the thread that was to run it did not: {error}"),
    }
}
