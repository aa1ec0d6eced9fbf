//! The loop: watches Services, EndpointSlices and our Node; owns the model and the books of both
//! families; writes what changed; repairs what others changed; forgets stale UDP connections.

mod drift;
mod ear;
mod family;
pub(crate) mod lock;
mod pace;
mod refused;
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
    heartbeat::{Heart, Heartbeats},
    supervise::Supervisor,
};

use crate::{
    apply::{Backend, Runner},
    cleanup,
    config::{Config, Error},
    inspect::node_addresses,
    model::{Model, NodeFacts},
    nfacct,
    serve::{self, LocalHealth, ServiceHealth, Status},
    subject,
};
use ear::{Ear, Heard};
use family::FamilySync;
use watch::Change;

/// How often the generation of nf_tables is looked at: one system call when nobody changed a thing.
const NFT_CHECK: Duration = Duration::from_secs(5);

/// How long the first write waits for our Node.
const NODE_WAIT: Duration = Duration::from_secs(30);

/// The loop shows that it lives this often; one that does not for so long hangs. All rules of the largest clusters are
/// written in less.
const BEAT: Duration = Duration::from_secs(10);
const STUCK_AFTER: Duration = Duration::from_secs(300);

/// Changes that may wait for the loop.
const WAITING: usize = 4096;

/// Runs the proxy until `shutdown` is cancelled. Rules stay in the kernel then, so that connections
/// and new traffic go on; [`cleanup`](crate::cleanup()) removes them. Its loop shows in `heartbeats` that it moves.
///
/// # Errors
/// Settings that cannot be, no working iptables for IPv4, or an address that cannot be bound while
/// [`Config::bind_hard_fail`] is set. What happens later is retried and told by health and metrics.
pub async fn run(
    client: Client,
    config: Config,
    heartbeats: Heartbeats,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    config.check()?;
    let config = Arc::new(config);
    // Behind a prefix the rules are those of another namespace, whose name this one cannot hold.
    let _lock = match config.command_prefix.is_empty() {
        true => lock::acquire(lock::NAME, &shutdown).await,
        false => None,
    };
    if shutdown.is_cancelled() {
        return Ok(());
    }
    // The first lists come while the kernel is being prepared.
    let (sender, changes) = tokio::sync::mpsc::channel(WAITING);
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
    events.record(&subject::node(&config.node_name), Severity::Normal, "Starting", "");

    let mut tasks = Supervisor::new(shutdown.child_token());
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
    let health = ServiceHealth::new(status.clone(), Some(events.clone()), tasks.token());
    let runner = Runner::new(config.command_prefix.clone());
    let mut families = Vec::new();
    for (backend, counters) in backends {
        tracing::info!(
            family = backend.family().name(),
            program = backend.program(),
            nf_tables = backend.is_nft(),
            "service rules go to this back end"
        );
        let plain = runner.is_plain();
        families.push(FamilySync::new(backend, counters, status.clone(), events.clone(), plain, &config));
    }
    let work = Loop {
        model: Arc::default(),
        node: NodeFacts::default(),
        families,
        own_namespace: runner.is_plain(),
        stale_udp: JoinSet::new(),
        health,
        status,
        config,
        heart: heartbeats.begin("service rules", "", STUCK_AFTER),
    };
    let ended = tokio::select! {
        () = work.run(ReceiverStream::new(changes), shutdown.clone()) => Ok(()),
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

/// Finds the programs of both families, notes how the tables are, and sets the kernel.
/// Each comes with whether its rules may feed the kernel's named counters.
async fn prepare(config: Arc<Config>) -> Result<Vec<(Backend, bool)>, Error> {
    let work = move || -> Result<Vec<(Backend, bool)>, crate::apply::Error> {
        let backends = cleanup::backends(&config)?;
        cleanup::set_kernel(&config, &backends)?;
        let usable = |backend: &Backend| match config.nfacct {
            Some(usable) => usable,
            None => config.command_prefix.is_empty() && nfacct::prepare(backend),
        };
        Ok(backends.into_iter().map(|backend| (backend.clone(), usable(&backend))).collect())
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
    /// Whether tracked connections are those of this process's network namespace.
    own_namespace: bool,
    /// Searches for stale conntrack entries that are under way, one for a family at most.
    stale_udp: JoinSet<stale_udp::Pass>,
    health: ServiceHealth,
    status: Arc<Status>,
    config: Arc<Config>,
    heart: Heart,
}

impl Loop {
    async fn run(mut self, mut changes: ReceiverStream<Change>, shutdown: CancellationToken) {
        let mut lists = watch::Lists::default();
        let check = if self.families.iter().all(FamilySync::checks_cheaply) {
            NFT_CHECK.min(self.config.sync_period)
        } else {
            self.config.sync_period
        };
        let mut ear = Ear::new(!self.families.iter().any(FamilySync::checks_cheaply));
        let mut checks = tokio::time::interval_at(tokio::time::Instant::now() + check, check);
        checks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let node_wait = tokio::time::sleep(NODE_WAIT);
        tokio::pin!(node_wait);
        let mut still_here = tokio::time::interval(BEAT);
        loop {
            self.heart.beat();
            let complete = lists.complete();
            let now = Instant::now();
            let due = self.families.iter().filter_map(|f| f.due(now)).min().filter(|_| complete);
            tokio::select! {
                () = shutdown.cancelled() => break,
                change = changes.next() => match change {
                    None => break,
                    Some(change) => {
                        let mut changed = self.take(change, &mut lists);
                        // What came together is written together.
                        for _ in 0..WAITING {
                            let Some(Some(change)) = changes.next().now_or_never() else { break };
                            changed |= self.take(change, &mut lists);
                        }
                        if changed {
                            self.families.iter_mut().for_each(FamilySync::want);
                        }
                    }
                },
                () = tokio::time::sleep_until(due.unwrap_or(now).into()), if due.is_some() => {
                    ear.close();
                    self.write(&mut lists).await;
                    // Under constant change there is no other moment for it.
                    self.check().await;
                }
                () = &mut node_wait, if !lists.has_node() => {
                    tracing::warn!(node = %self.config.node_name, "the list of our Node does not come: writing rules without its zone and addresses");
                    lists.go_on_without_node();
                    self.families.iter_mut().for_each(FamilySync::want);
                }
                heard = ear.hear(), if complete => {
                    if let Heard::Commits(commits) = heard {
                        for commit in commits {
                            self.families.iter_mut().for_each(|family| family.heard(commit));
                        }
                    }
                    self.check().await;
                }
                _ = checks.tick(), if complete => self.look_around().await,
                Some(pass) = self.stale_udp.join_next() => self.stale_udp_ended(pass),
                _ = still_here.tick() => {}
            }
        }
        self.heart.end();
        self.health.close().await;
    }

    /// What is done from time to time, whatever changes.
    async fn look_around(&mut self) {
        self.check().await;
        let local = self.local_addresses();
        for family in &mut self.families {
            family.retry_refused(Instant::now());
            if family.would_change(&self.model, &self.config, &self.node, &local) {
                family.want();
            }
        }
        for i in 0..self.families.len() {
            if self.families[i].loaded && !self.families[i].wanted {
                self.open_health_checks(i, &local).await;
                self.find_stale_udp(i);
            }
        }
    }

    /// Looks whether others changed our rules.
    async fn check(&mut self) {
        for family in &mut self.families {
            if family.check(&self.model, self.config.sync_period).await {
                family.want();
            }
        }
    }

    /// Takes one change in; returns whether rules may have to be written.
    fn take(&mut self, change: Change, lists: &mut watch::Lists) -> bool {
        let was_complete = lists.complete();
        let (services, slices, node) = lists.take(change, Arc::make_mut(&mut self.model), &self.config.node_name);
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
            let rules = |n: &NodeFacts| (n.zone.clone(), n.addresses.clone(), n.pod_cidrs.clone());
            if rules(&node) != rules(&self.node) {
                changed = true;
                self.families.iter_mut().for_each(|family| family.health = true);
            }
            self.node = node;
        }
        if !was_complete && lists.complete() {
            tracing::debug!("the first lists are complete");
            changed = true;
        }
        if changed && lists.complete() {
            self.status.queued();
        }
        changed
    }

    /// Interface addresses, asked for only where rules depend on them.
    fn local_addresses(&self) -> Vec<IpAddr> {
        match &self.config.node_port_addresses {
            crate::config::NodePortAddresses::Ranges(_) => node_addresses(),
            _ => Vec::new(),
        }
    }

    /// Writes what changed, for each family whose time has come.
    async fn write(&mut self, lists: &mut watch::Lists) {
        let changes = Arc::make_mut(&mut self.model).take_changes();
        self.families.iter_mut().for_each(|family| family.take_in(&changes));
        for (of, at) in lists.take_triggers() {
            self.families.iter_mut().filter(|f| f.family() == of).for_each(|family| family.triggered(at));
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
                self.status.programmed(family.family(), &std::mem::take(&mut family.triggers), Timestamp::now());
            }
            // Both families count their changes together: what this one wrote is no drift of the other.
            for moved in self.families[i].take_moves() {
                self.families.iter_mut().for_each(|other| other.moved(moved));
            }
            if done {
                self.open_health_checks(i, &local).await;
                self.find_stale_udp(i);
            }
        }
    }

    /// Opens and closes the servers of health check node ports, where that may be needed.
    async fn open_health_checks(&mut self, i: usize, local: &[IpAddr]) {
        let family = &mut self.families[i];
        if family.health {
            let addresses = self.config.health_check_addresses(family.family(), &self.node, local);
            let wanted = LocalHealth::of(&self.model, family.family());
            family.health = !self.health.set(family.family(), wanted, &addresses).await;
        }
    }
}
