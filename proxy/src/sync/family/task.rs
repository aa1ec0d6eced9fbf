//! The task of one family.

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use windlass_kit::{blocking::RULES, liveness::HEARTBEAT_INTERVAL, repairs::Repair};

use super::{
    super::{
        Cluster, Letter,
        stale_udp::{self, SearchResult},
        transactions::{RulesetChange, Transactions},
    },
    FamilySync,
};
use crate::{
    config::{Error, NodePortAddresses, ValidConfig},
    conntrack::UdpFrontends,
    inspect::node_addresses,
    serve::{HealthCheckServers, LocalEndpoints},
};

/// How often the generation of nf_tables is queried, if that is more often than the sync period: one system call while
/// no rules change.
const NFT_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// A letter, or what the monitor of rules reports.
#[derive(Debug)]
pub(in crate::sync) enum Message {
    Letter(Letter),
    Ruleset(RulesetChange),
}

/// Forwards the rule monitor's reports to the families; never ends.
pub(in crate::sync) async fn report_changes(
    transactions: Arc<Transactions>,
    families: Vec<mpsc::UnboundedSender<Message>>,
) {
    loop {
        let change = transactions.changed().await;
        for family in &families {
            let _ = family.send(Message::Ruleset(change.clone()));
        }
    }
}

/// Owns the state of one family, and syncs it with the model that `Watcher` owns.
pub(in crate::sync) struct FamilyTask {
    sync: FamilySync,
    cluster: watch::Receiver<Cluster>,
    inbox: mpsc::UnboundedReceiver<Message>,
    /// Letters that were read.
    letters: u64,
    config: Arc<ValidConfig>,
    health: HealthCheckServers,
    /// Where the servers of health check node ports listen.
    health_addresses: Vec<IpAddr>,
    /// The running search for stale conntrack entries.
    search: JoinSet<Result<SearchResult, String>>,
}

impl FamilyTask {
    pub(in crate::sync) fn new(
        sync: FamilySync,
        cluster: watch::Receiver<Cluster>,
        inbox: mpsc::UnboundedReceiver<Message>,
        config: Arc<ValidConfig>,
    ) -> Self {
        let health = HealthCheckServers::new(
            sync.shared.status.clone(),
            Some((sync.shared.events.clone(), config.node_name.clone())),
            sync.shutdown.child_token(),
        );
        let (health_addresses, search) = (Vec::new(), JoinSet::new());
        Self { sync, cluster, inbox, letters: 0, config, health, health_addresses, search }
    }

    /// Runs until `shutdown`, which is heard between two batches of a write, too.
    pub(in crate::sync) async fn run(mut self, shutdown: CancellationToken) -> Result<(), Error> {
        let repairs = &self.config.repairs;
        let period = repairs.period(Repair::ProxySync, self.config.sync_period);
        let check = repairs.period(Repair::NftCheck, NFT_CHECK_INTERVAL);
        let interval = if self.sync.has_generation() { check.min(period) } else { period };
        let mut checks = tokio::time::interval_at(tokio::time::Instant::now() + interval, interval);
        checks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut heartbeat = tokio::time::interval(HEARTBEAT_INTERVAL);
        loop {
            self.sync.beat();
            let complete = self.cluster.borrow().complete;
            let now = Instant::now();
            let due = self.sync.due(now).filter(|_| complete);
            let comparison = self.sync.comparison_due().filter(|_| complete);
            tokio::select! {
                () = shutdown.cancelled() => break,
                message = self.inbox.recv() => match message {
                    None => break,
                    Some(message) => if self.take(message) && complete {
                        self.detect_drift().await;
                    },
                },
                () = tokio::time::sleep_until(due.unwrap_or(now).into()), if due.is_some() => {
                    self.write().await;
                    // Under constant change there is no other moment for it.
                    self.detect_drift().await;
                }
                () = tokio::time::sleep_until(comparison.unwrap_or(now).into()), if comparison.is_some() => {
                    self.detect_drift().await;
                }
                _ = checks.tick(), if complete => self.periodic_sync().await,
                Some(result) = self.search.join_next() => {
                    self.search_ended(result.unwrap_or_else(|error| Err(error.to_string())));
                }
                _ = heartbeat.tick() => {}
            }
        }
        self.sync.probe.end();
        self.health.close().await;
        Ok(())
    }

    /// Handles a message; returns whether other programs may have changed rules.
    fn take(&mut self, message: Message) -> bool {
        match message {
            Message::Letter(letter) => {
                self.letters += 1;
                let concerns = letter.concerns(self.sync.family());
                self.sync.apply_changes(&letter.changes);
                self.sync.apply_triggers(letter.triggers);
                if concerns {
                    self.sync.request_sync();
                }
                false
            }
            Message::Ruleset(change) => {
                if let RulesetChange::Commits(commits) = change {
                    commits.into_iter().for_each(|commit| self.sync.on_commit(commit));
                }
                true
            }
        }
    }

    /// The current cluster, after handling all messages sent up to it.
    fn snapshot(&mut self) -> Cluster {
        loop {
            let cluster = self.cluster.borrow().clone();
            while let Ok(message) = self.inbox.try_recv() {
                self.take(message);
            }
            if self.letters >= cluster.letters {
                return cluster;
            }
        }
    }

    /// The addresses of this node's interfaces, read only where rules depend on them.
    fn local_addresses(&self) -> Vec<IpAddr> {
        match &self.config.node_port_addresses {
            NodePortAddresses::Ranges(_) => node_addresses(),
            _ => Vec::new(),
        }
    }

    /// The periodic work, whether or not anything changed.
    async fn periodic_sync(&mut self) {
        self.detect_drift().await;
        let (cluster, local) = (self.snapshot(), self.local_addresses());
        self.sync.retry_refused(Instant::now());
        if self.sync.would_change(&cluster.model, &self.config, &cluster.node, &local) {
            self.sync.request_sync();
        }
        if self.sync.is_synced() {
            self.update_health_checks(&cluster, &local);
            self.find_stale_udp(&cluster);
        }
    }

    /// Requests a write if the rules were changed by other programs.
    async fn detect_drift(&mut self) {
        let cluster = self.snapshot();
        if self.sync.detect_drift(&cluster.model, self.config.sync_period).await {
            self.sync.request_sync();
        }
    }

    /// Writes the changes.
    async fn write(&mut self) {
        let (cluster, local) = (self.snapshot(), self.local_addresses());
        {
            let mut state = self.sync.shared.status.lock();
            state.service_changes_pending = 0;
            state.endpoint_changes_pending = 0;
        }
        if self.sync.write(&cluster.model, &self.config, &cluster.node, &local).await {
            let triggers = self.sync.take_triggers();
            self.sync.shared.status.record_programming_latency(self.sync.family(), &triggers, Timestamp::now());
            self.update_health_checks(&cluster, &local);
            self.find_stale_udp(&cluster);
        }
    }

    /// Opens and closes the servers of health check node ports: where Services, the Node, or the node's interfaces say
    /// so, as node ports do.
    fn update_health_checks(&mut self, cluster: &Cluster, local: &[IpAddr]) {
        let family = self.sync.family();
        let addresses = self.config.health_check_addresses(family, &cluster.node, local);
        if self.sync.health_checks_dirty || addresses != self.health_addresses {
            let wanted = LocalEndpoints::of(&cluster.model, family);
            self.sync.health_checks_dirty = !self.health.set(family, wanted, &addresses, Instant::now());
            self.health_addresses = addresses;
        }
    }

    /// Starts a search for stale conntrack entries, if one is requested.
    fn find_stale_udp(&mut self, cluster: &Cluster) {
        let family = self.sync.family();
        let Some(scope) = self.sync.stale_udp.begin() else { return };
        let frontends = UdpFrontends::of(&cluster.model, family, self.config.external_ips, &scope);
        // With a command prefix the conntrack table is that of another network namespace.
        if frontends.is_empty() || !self.config.command_prefix.is_empty() {
            return self.sync.stale_udp.succeeded();
        }
        let search = RULES.call(move || stale_udp::search(family, &frontends));
        self.search.spawn(async move { search.await.map_err(|error| error.to_string()) });
    }

    /// Records the result of a search; one that failed is repeated with the next periodic sync.
    fn search_ended(&mut self, result: Result<SearchResult, String>) {
        let problem = match result {
            Ok(SearchResult { took, deleted: Ok(count) }) => {
                self.sync.stale_udp.succeeded();
                if let Some(status) = self.sync.shared.status.lock().families.get_mut(&self.sync.family()) {
                    status.deleted_conntrack_entries += count as u64;
                    status.conntrack.observe(took);
                }
                // Others may have changed meanwhile.
                let cluster = self.snapshot();
                if self.sync.is_synced() {
                    self.find_stale_udp(&cluster);
                }
                return;
            }
            Ok(SearchResult { deleted: Err(error), .. }) => error.to_string(),
            Err(error) => format!("the search did not end: {error}"),
        };
        if self.sync.stale_udp.failed() {
            tracing::warn!(
                error = problem,
                "failed to delete stale UDP conntrack entries, clients may still send to removed endpoints; load the kernel module nf_conntrack_netlink; retrying"
            );
        }
    }
}
