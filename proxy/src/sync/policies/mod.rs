//! The task that owns what NetworkPolicies are to be and what the kernel has of them, in both families: a pod starts when
//! its rules of all families are in force. It shares back ends and the count of transactions with the tasks of services, and
//! waits for none of their writes.

pub(crate) mod kernel;
#[cfg(test)]
mod tests;
mod watch;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{FutureExt as _, StreamExt as _};
use kube::Client;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use windlass_kit::{
    announced_pod::{Announcement, Announcements},
    backoff::Backoff,
    blocking::RULES,
    events::{Recorder, Severity},
    liveness::{HEARTBEAT_INTERVAL, LoopProbe},
    repairs::Repair,
};

use super::{
    family::{Message, in_time, panicked},
    rate_limit::SyncRateLimiter,
    transactions::{ForeignCommit, ForeignCount, RulesetChange, Transactions},
};
use crate::{
    apply::{Backend, Error, nf_tables_netlink::NfTables},
    config::ValidConfig,
    model::Family,
    network_policy::{Cluster, Wanted, plan::Kernel},
    object_ref,
    serve::Status,
};
use kernel::{Known, Written};
use watch::{Change, Lists};

/// Changes that are applied before the next write.
const MAX_QUEUED: usize = 4096;
/// The longest pause after failures: it is not known what is in force meanwhile.
const MAX_BACKOFF: Duration = Duration::from_secs(10);

/// The rules of one family.
struct FamilyRules {
    backend: Arc<Backend>,
    /// What the kernel has, as far as it is known.
    kernel: Known,
    /// Asks nf_tables for its generation.
    netlink: Option<NfTables>,
    /// How many transactions of others there were when the chains were known.
    verified: Option<ForeignCount>,
    /// What was wanted when it was last written.
    last: Option<Wanted>,
}

/// A pod that waits for its rules.
type Waiting = oneshot::Sender<Result<(), String>>;

/// What the task is started with.
pub(super) struct Parts {
    pub(super) client: Client,
    pub(super) backends: Vec<Arc<Backend>>,
    pub(super) transactions: Arc<Transactions>,
    pub(super) status: Arc<Status>,
    pub(super) events: Recorder,
    pub(super) probe: LoopProbe,
    pub(super) config: Arc<ValidConfig>,
    pub(super) announcements: Announcements,
    /// What the monitor of rules reports.
    pub(super) inbox: mpsc::UnboundedReceiver<Message>,
}

/// The task.
pub(super) struct PolicyTask {
    cluster: Cluster,
    lists: Lists,
    families: Vec<FamilyRules>,
    waiting: Vec<Waiting>,
    /// Something is to be written, or compared.
    pending: bool,
    /// What is in force was read or written at least once, and nothing failed since.
    in_force: bool,
    rate_limit: SyncRateLimiter,
    backoff: Backoff,
    retry_at: Option<Instant>,
    transactions: Arc<Transactions>,
    status: Arc<Status>,
    events: Recorder,
    probe: LoopProbe,
    config: Arc<ValidConfig>,
}

impl PolicyTask {
    /// Runs until `shutdown`. The rules stay in the kernel then.
    pub(super) async fn run(parts: Parts, shutdown: CancellationToken) -> Result<(), crate::config::Error> {
        let Parts { client, backends, transactions, status, events, probe, config, mut announcements, mut inbox } =
            parts;
        let families = backends.into_iter().map(FamilyRules::new).collect();
        let mut task = Self {
            cluster: Cluster::new(&config.node_name),
            lists: Lists::default(),
            families,
            waiting: Vec::new(),
            pending: true,
            in_force: false,
            rate_limit: SyncRateLimiter::new(config.min_sync_period),
            backoff: Backoff::new(Duration::from_millis(200), MAX_BACKOFF),
            retry_at: None,
            transactions,
            status,
            events,
            probe,
            config,
        };
        let mut changes = watch::changes(&client);
        let period = task.config.repairs.period(Repair::ProxySync, task.config.sync_period);
        let mut checks = tokio::time::interval_at(tokio::time::Instant::now() + period, period);
        checks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut heartbeat = tokio::time::interval(HEARTBEAT_INTERVAL);
        loop {
            task.probe.beat();
            let due = task.due(Instant::now());
            let due = async {
                match due {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some(announcement) = announcements.recv() => task.announcement(announcement),
                () = due => {
                    // What is queued already is written together.
                    for _ in 0..MAX_QUEUED {
                        let Some(Some(change)) = changes.next().now_or_never() else { break };
                        task.change(change);
                    }
                    task.write().await;
                }
                Some(change) = changes.next() => task.change(change),
                Some(message) = inbox.recv() => task.on_message(&message),
                _ = checks.tick() => task.check(),
                _ = heartbeat.tick() => {}
            }
        }
        task.probe.end();
        Ok(())
    }

    fn change(&mut self, change: Change) {
        self.lists.apply(change, &mut self.cluster);
        self.pending |= self.cluster.take_changed();
    }

    fn announcement(&mut self, announcement: Announcement) {
        match announcement {
            Announcement::Starts(pod, reply) => {
                self.cluster.announce(&pod);
                self.waiting.push(reply);
            }
            Announcement::Ended(uid) => self.cluster.withdraw(&uid),
        }
        self.pending |= self.cluster.take_changed();
    }

    fn on_message(&mut self, message: &Message) {
        let Message::Ruleset(change) = message else { return };
        for family in &mut self.families {
            // What is forgotten is read with the next write.
            self.pending |= match change {
                RulesetChange::Commits(commits) => commits.iter().any(|commit| family.on_commit(*commit)),
                RulesetChange::Unknown => !family.is_verified(&self.transactions) && family.forget(),
            };
        }
    }

    /// Others may have changed sets, of which nobody is notified, and on legacy rules.
    fn check(&mut self) {
        for family in &mut self.families {
            self.pending |= match family.is_verified(&self.transactions) {
                true => family.forget_sets(),
                false => family.forget(),
            };
        }
    }

    /// When to write: at once for a pod that waits. Before it is known which policies there are nothing is written.
    fn due(&self, now: Instant) -> Option<Instant> {
        let wanted = self.lists.are_complete() && (self.pending || !self.waiting.is_empty());
        let limit = if self.waiting.is_empty() { self.rate_limit.due(now) } else { now };
        wanted.then(|| self.retry_at.map_or(limit, |retry| retry.max(limit)))
    }

    /// Writes what is wanted of all families, and lets pods start that waited for it.
    async fn write(&mut self) {
        let started = Instant::now();
        let families: Vec<Family> = self.families.iter().map(|of| of.backend.family()).collect();
        let needed = self.pending || !self.in_force;
        let mut wrote_rules = false;
        let mut failed: Option<(Family, Error)> = None;
        if needed {
            self.pending = false;
            let wanted = self.cluster.wanted(&families);
            let writes =
                self.families.iter_mut().zip(wanted).map(|(family, wanted)| family.write(&self.transactions, wanted));
            for (family, result) in families.iter().zip(futures::future::join_all(writes).await) {
                self.record(*family, started.elapsed(), result.as_ref().ok());
                match result {
                    Ok(of) => wrote_rules |= of.rules,
                    Err(error) => failed = failed.or(Some((*family, error))),
                }
            }
        }
        if wrote_rules {
            self.rate_limit.record(started, Instant::now());
        }
        self.in_force = failed.is_none();
        match failed {
            None => {
                self.retry_at = None;
                self.backoff.reset();
                self.waiting.drain(..).for_each(|pod| _ = pod.send(Ok(())));
            }
            Some((family, error)) => {
                self.pending = true;
                self.retry_at = Some(Instant::now() + self.backoff.next_delay());
                self.report(family, &error);
            }
        }
    }

    /// For the page of metrics.
    fn record(&self, family: Family, took: Duration, written: Option<&Written>) {
        let wanted = self.families.iter().find(|of| of.backend.family() == family).and_then(|of| of.last.as_ref());
        let mut state = self.status.lock();
        let status = state.policies.entry(family).or_default();
        status.in_force = written.is_some();
        match written {
            Some(written) => {
                status.syncs.observe(took);
                status.repairs += u64::from(written.repaired);
            }
            None => status.failures += 1,
        }
        if let Some(wanted) = wanted {
            (status.chains, status.sets) = (wanted.chains.len(), wanted.sets.0.len());
            status.entries = wanted.sets.0.values().map(|set| set.entries.len()).sum();
        }
    }

    fn report(&mut self, family: Family, error: &Error) {
        let failures = self.backoff.failures();
        tracing::warn!(%error, family = family.name(), failures, "failed to write the rules of NetworkPolicies; pods do not start meanwhile, retrying");
        let message =
            format!("{} rules could not be written on node {}: {error}", family.name(), self.config.node_name);
        let node = object_ref::node(&self.config.node_name);
        self.events.record(&node, Severity::Warning, "FailedToWriteNetworkPolicies", message.clone());
        // Who waits retries with a back-off of its own, and says why in the meantime.
        self.waiting.drain(..).for_each(|pod| _ = pod.send(Err(message.clone())));
    }
}

impl FamilyRules {
    fn new(backend: Arc<Backend>) -> Self {
        let netlink = backend.is_nft().then(NfTables::open).and_then(Result::ok);
        Self { backend, kernel: Known::Nothing, netlink, verified: None, last: None }
    }

    /// How many transactions of nf_tables are of others, where that is known at the moment.
    fn foreign(&mut self, transactions: &Transactions) -> Option<ForeignCount> {
        self.netlink.as_mut().and_then(|netlink| transactions.foreign(netlink))
    }

    /// Reads everything with the next write, unless there is nothing of ours; whether that is to be done.
    fn forget(&mut self) -> bool {
        match std::mem::replace(&mut self.kernel, Known::Nothing) {
            Known::All(kernel) | Known::Chains(kernel) if kernel.is_empty() => {
                self.kernel = Known::All(kernel);
                false
            }
            _ => true,
        }
    }

    /// Whether nobody else has changed nf_tables since chains were read.
    fn is_verified(&mut self, transactions: &Transactions) -> bool {
        let foreign = self.foreign(transactions);
        foreign.is_some() && foreign == self.verified
    }

    /// A transaction of another program: one that does not affect our chains leaves them verified.
    fn on_commit(&mut self, commit: ForeignCommit) -> bool {
        if commit.affected.policies {
            return self.forget();
        }
        if self.verified == Some(commit.number.wrapping_sub(1)) {
            self.verified = Some(commit.number);
        }
        false
    }

    /// Reads the sets with the next write, unless there is nothing of ours; whether that is to be done.
    fn forget_sets(&mut self) -> bool {
        match std::mem::replace(&mut self.kernel, Known::Nothing) {
            Known::All(kernel) if !kernel.is_empty() => self.kernel = Known::Chains(kernel),
            other => {
                self.kernel = other;
                return false;
            }
        }
        true
    }

    /// Writes what is wanted. After a failure the kernel is read before the next write.
    async fn write(&mut self, transactions: &Arc<Transactions>, wanted: Wanted) -> Result<Written, Error> {
        let known = std::mem::replace(&mut self.kernel, Known::Nothing);
        if matches!(known, Known::Nothing) {
            self.verified = self.foreign(transactions);
        }
        let is_same = !matches!(known, Known::All(_)) && self.last.as_ref() == Some(&wanted);
        let (backend, transactions) = (self.backend.clone(), transactions.clone());
        let work = move || kernel::sync(&backend, &transactions, known, &wanted).map(|written| (written, wanted));
        let (mut written, wanted) = in_time(RULES.run(work, |error| panicked(&error))).await?;
        self.kernel = Known::All(Kernel::of(&wanted));
        let family = wanted.family.name();
        written.repaired = written.any && is_same;
        if written.repaired {
            tracing::warn!(family, "rules of NetworkPolicies were changed by another program; wrote them again");
        } else if written.any {
            tracing::debug!(family, rules = written.rules, "wrote NetworkPolicies");
        }
        self.last = Some(wanted);
        Ok(written)
    }
}
