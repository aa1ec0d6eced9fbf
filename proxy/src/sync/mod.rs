//! The loop: watches Services, EndpointSlices and our Node; owns the model and the sync state of both families; writes
//! changes; repairs rules that other programs changed; deletes stale UDP conntrack entries. May import everything else
//! of the crate.

mod family;
mod forbidden;
pub(crate) mod lock;
mod nft_monitor;
mod rate_limit;
mod stale_udp;
mod watch;

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{FutureExt as _, StreamExt as _};
use jiff::Timestamp;
use kube::Client;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use windlass_kit::{
    events::{Recorder, Severity},
    liveness::{HEARTBEAT_INTERVAL, Heartbeats, LoopProbe, STUCK_AFTER},
    supervise::Supervisor,
};

use crate::{
    apply::{Backend, Runner},
    config::{Config, Error},
    inspect::node_addresses,
    model::{Model, NodeFacts},
    nfacct, object_ref,
    serve::{self, HealthCheckServers, LocalEndpoints, Status},
    startup,
};
use family::FamilySync;
use nft_monitor::{RulesetChange, RulesetMonitor};
use watch::{Change, InitialSync};

/// How often the generation of nf_tables is queried: one system call while nobody changes rules.
const NFT_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// How long the first write waits for our Node.
const NODE_WAIT_TIMEOUT: Duration = Duration::from_secs(30);

const CHANGE_QUEUE_CAPACITY: usize = 4096;

/// Runs the proxy until `shutdown` is cancelled. The rules stay in the kernel then, so that established connections and
/// new traffic are not interrupted; [`cleanup`](crate::cleanup()) removes them. The loop reports to `heartbeats`.
///
/// # Errors An invalid configuration, no working iptables for the node's first address family, or an address that
/// cannot be bound while [`Config::bind_hard_fail`] is set. Later failures are retried, and reported by health and
/// metrics.
pub async fn run(
    client: Client,
    config: Config,
    heartbeats: Heartbeats,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    config.check()?;
    let config = Arc::new(config);
    // With a command prefix the rules are those of another network namespace, in which we cannot bind the lock's name.
    let _lock = match config.command_prefix.is_empty() {
        true => lock::acquire(lock::NAME, &shutdown).await,
        false => None,
    };
    if shutdown.is_cancelled() {
        return Ok(());
    }
    // The initial lists arrive while the kernel is being prepared.
    let (sender, changes) = tokio::sync::mpsc::channel(CHANGE_QUEUE_CAPACITY);
    let mut watched = watch::changes(&client, &config.node_name);
    let _watching = AbortOnDropHandle::new(tokio::spawn(async move {
        while let Some(change) = watched.next().await {
            if sender.send(change).await.is_err() {
                break;
            }
        }
    }));
    let backends = prepare(config.clone()).await?;
    let status = Arc::new(Status::new(config.sync_period));
    backends.iter().for_each(|(b, _)| status.start(b.family()));
    let events = Recorder::new(client.clone(), "kube-proxy", &config.node_name);
    events.record(&object_ref::node(&config.node_name), Severity::Normal, "Starting", "");

    let mut tasks = Supervisor::new(shutdown.child_token());
    spawn_servers(&config, &status, &mut tasks);
    let health =
        HealthCheckServers::new(status.clone(), Some((events.clone(), config.node_name.clone())), tasks.token());
    let own_netns = Runner::new(config.command_prefix.clone()).in_own_netns();
    let mut families = Vec::new();
    for (backend, counters) in backends {
        tracing::info!(
            family = backend.family().name(),
            program = backend.program(),
            nf_tables = backend.is_nft(),
            "service rules go to this back end"
        );
        families.push(FamilySync::new(backend, counters, status.clone(), events.clone(), own_netns, &config));
    }
    let sync = Loop {
        model: Arc::default(),
        node: NodeFacts::default(),
        families,
        own_netns,
        stale_udp: JoinSet::new(),
        health,
        status,
        config,
        // All rules of the largest clusters are written in less.
        probe: heartbeats.begin("service rules", "", STUCK_AFTER),
    };
    let ended = tokio::select! {
        () = sync.run(ReceiverStream::new(changes), shutdown.clone()) => Ok(()),
        ended = async {
            loop {
                match tasks.next_ended().await {
                    Some(serve_ended) if serve_ended.result.is_err() => break serve_ended,
                    Some(_) => {}
                    None => std::future::pending().await,
                }
            }
        } => Err(Error::Ended { part: ended.name, problem: ended.result.err().unwrap_or_default() }),
    };
    tasks.shutdown(Duration::from_secs(3)).await;
    ended
}

/// Starts the servers of health and metrics.
fn spawn_servers(config: &Config, status: &Arc<Status>, tasks: &mut Supervisor) {
    if let Some(address) = config.healthz_bind {
        let router = serve::health_router(status.clone());
        tasks.spawn(
            "proxy health",
            serve::serve("kubeproxy_healthz", address, router, config.bind_hard_fail, tasks.token()),
        );
    }
    if let Some(address) = config.metrics_bind {
        let router = serve::metrics_router(status.clone(), &config.pages);
        tasks.spawn(
            "proxy metrics",
            serve::serve("kubeproxy_metrics", address, router, config.bind_hard_fail, tasks.token()),
        );
    }
}

/// Finds the iptables programs of both families, takes the snapshot of the tables, and sets the sysctls. Each back end
/// comes with whether its rules may use nfacct counters.
async fn prepare(config: Arc<Config>) -> Result<Vec<(Backend, bool)>, Error> {
    let work = move || -> Result<Vec<(Backend, bool)>, crate::apply::Error> {
        let backends = startup::find_backends(&config)?;
        startup::set_sysctls(&config, &backends)?;
        let counters = |backend: &Backend| match config.nfacct {
            Some(usable) => usable,
            None => config.command_prefix.is_empty() && nfacct::create_counters(backend),
        };
        Ok(backends.into_iter().map(|backend| (backend.clone(), counters(&backend))).collect())
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => Ok(result?),
        Err(e) => Err(Error::Ended { part: "the search for iptables", problem: e.to_string() }),
    }
}

struct Loop {
    /// Shared with a comparison while the loop waits for it, and with nobody else.
    model: Arc<Model>,
    node: NodeFacts,
    families: Vec<FamilySync>,
    /// Whether the conntrack table is that of this process's network namespace.
    own_netns: bool,
    /// Running searches for stale conntrack entries, at most one for each family.
    stale_udp: JoinSet<stale_udp::SearchResult>,
    health: HealthCheckServers,
    status: Arc<Status>,
    config: Arc<Config>,
    probe: LoopProbe,
}

impl Loop {
    async fn run(mut self, mut changes: ReceiverStream<Change>, shutdown: CancellationToken) {
        let mut initial_sync = InitialSync::default();
        let check_interval = if self.families.iter().all(FamilySync::has_generation) {
            NFT_CHECK_INTERVAL.min(self.config.sync_period)
        } else {
            self.config.sync_period
        };
        let mut monitor = RulesetMonitor::new(!self.families.iter().any(FamilySync::has_generation));
        let mut checks = tokio::time::interval_at(tokio::time::Instant::now() + check_interval, check_interval);
        checks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let node_wait = tokio::time::sleep(NODE_WAIT_TIMEOUT);
        tokio::pin!(node_wait);
        let mut heartbeat = tokio::time::interval(HEARTBEAT_INTERVAL);
        loop {
            self.probe.beat();
            let complete = initial_sync.complete();
            let now = Instant::now();
            let due = self.families.iter().filter_map(|f| f.due(now)).min().filter(|_| complete);
            tokio::select! {
                () = shutdown.cancelled() => break,
                change = changes.next() => match change {
                    None => break,
                    Some(change) => {
                        let mut changed = self.apply_change(change, &mut initial_sync);
                        // Changes that are queued already are written together.
                        for _ in 0..CHANGE_QUEUE_CAPACITY {
                            let Some(Some(change)) = changes.next().now_or_never() else { break };
                            changed |= self.apply_change(change, &mut initial_sync);
                        }
                        if changed {
                            self.families.iter_mut().for_each(FamilySync::request_sync);
                        }
                    }
                },
                () = tokio::time::sleep_until(due.unwrap_or(now).into()), if due.is_some() => {
                    monitor.close();
                    self.write(&mut initial_sync).await;
                    // Under constant change there is no other moment for it.
                    self.detect_drift().await;
                }
                () = &mut node_wait, if !initial_sync.has_node() => {
                    tracing::warn!(
                        node = %self.config.node_name,
                        "Node object not received in {} s; writing rules without zone and node addresses",
                        NODE_WAIT_TIMEOUT.as_secs()
                    );
                    initial_sync.proceed_without_node();
                    self.families.iter_mut().for_each(FamilySync::request_sync);
                }
                change = monitor.changed(), if complete => {
                    if let RulesetChange::Commits(commits) = change {
                        for commit in commits {
                            self.families.iter_mut().for_each(|family| family.on_commit(commit));
                        }
                    }
                    self.detect_drift().await;
                }
                _ = checks.tick(), if complete => self.periodic_sync().await,
                Some(result) = self.stale_udp.join_next() => self.stale_udp_ended(result),
                _ = heartbeat.tick() => {}
            }
        }
        self.probe.end();
        self.health.close().await;
    }

    /// The periodic work, whether or not anything changed.
    async fn periodic_sync(&mut self) {
        self.detect_drift().await;
        let local = self.local_addresses();
        for family in &mut self.families {
            family.retry_refused(Instant::now());
            if family.would_change(&self.model, &self.config, &self.node, &local) {
                family.request_sync();
            }
        }
        for i in 0..self.families.len() {
            if self.families[i].is_synced() {
                self.update_health_checks(i, &local).await;
                self.find_stale_udp(i);
            }
        }
    }

    /// Requests a write for each family whose rules were changed by other programs.
    async fn detect_drift(&mut self) {
        for family in &mut self.families {
            if family.detect_drift(&self.model, self.config.sync_period).await {
                family.request_sync();
            }
        }
    }

    /// Applies one change to the model; returns whether rules may have to be written.
    fn apply_change(&mut self, change: Change, initial_sync: &mut InitialSync) -> bool {
        let was_complete = initial_sync.complete();
        let (services, slices, node) =
            initial_sync.apply(change, Arc::make_mut(&mut self.model), &self.config.node_name);
        {
            let mut state = self.status.lock();
            state.service_changes += u64::from(services);
            state.service_changes_pending += u64::from(services);
            state.endpoint_changes += u64::from(slices);
            state.endpoint_changes_pending += u64::from(slices);
        }
        let mut changed = services || slices;
        if let Some(node) = node {
            self.status.lock().eligible = node.as_ref().is_some_and(|n| n.eligible);
            let node = node.unwrap_or_else(|| self.node.clone());
            let of_rules = |n: &NodeFacts| (n.zone.clone(), n.addresses.clone(), n.pod_cidrs.clone());
            if of_rules(&node) != of_rules(&self.node) {
                changed = true;
                self.families.iter_mut().for_each(|family| family.health_checks_dirty = true);
            }
            self.node = node;
        }
        if !was_complete && initial_sync.complete() {
            tracing::debug!("initial lists are complete");
            changed = true;
        }
        if changed && initial_sync.complete() {
            self.status.queued();
        }
        changed
    }

    /// The addresses of this node's interfaces, read only where rules depend on them.
    fn local_addresses(&self) -> Vec<IpAddr> {
        match &self.config.node_port_addresses {
            crate::config::NodePortAddresses::Ranges(_) => node_addresses(),
            _ => Vec::new(),
        }
    }

    /// Writes the changes of each family whose write is due.
    async fn write(&mut self, initial_sync: &mut InitialSync) {
        let changes = Arc::make_mut(&mut self.model).take_changes();
        self.families.iter_mut().for_each(|family| family.apply_changes(&changes));
        for (of, at) in initial_sync.take_endpoint_trigger_times() {
            self.families
                .iter_mut()
                .filter(|f| f.family() == of)
                .for_each(|family| family.add_endpoint_trigger_time(at));
        }
        {
            let mut state = self.status.lock();
            state.service_changes_pending = 0;
            state.endpoint_changes_pending = 0;
        }
        let local = self.local_addresses();
        for i in 0..self.families.len() {
            let now = Instant::now();
            if self.families[i].due(now).is_none_or(|due| due > now) {
                continue;
            }
            let family = &mut self.families[i];
            let done = family.write(&self.model, &self.config, &self.node, &local).await;
            if done {
                let triggers = std::mem::take(&mut family.endpoint_trigger_times);
                self.status.record_programming_latency(family.family(), &triggers, Timestamp::now());
            }
            // Both families share one generation of nf_tables: our write of one is no drift of the other.
            for bump in self.families[i].take_generation_bumps() {
                self.families.iter_mut().for_each(|other| other.advance_genid(bump));
            }
            if done {
                self.update_health_checks(i, &local).await;
                self.find_stale_udp(i);
            }
        }
    }

    /// Opens and closes the servers of health check node ports, where that may be needed.
    async fn update_health_checks(&mut self, i: usize, local: &[IpAddr]) {
        let family = &mut self.families[i];
        if family.health_checks_dirty {
            let addresses = self.config.health_check_addresses(family.family(), &self.node, local);
            let wanted = LocalEndpoints::of(&self.model, family.family());
            family.health_checks_dirty = !self.health.set(family.family(), wanted, &addresses).await;
        }
    }
}
