//! The loop: watches Services, EndpointSlices and our Node; owns the model and the books of both
//! families; writes what changed; repairs what others changed; forgets stale UDP connections.

mod ear;
mod family;
mod lock;
mod pace;
mod watch;

use std::{
    collections::HashSet,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{FutureExt as _, StreamExt as _};
use jiff::Timestamp;
use kube::Client;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use windlass_kit::{
    backoff::Backoff,
    events::{Recorder, Severity},
    heartbeat::{Heart, Heartbeats},
    supervise::Supervisor,
};

use crate::{
    apply::{Backend, Runner},
    cleanup,
    config::{Config, Error},
    conntrack::{Conntrack, Frontends},
    inspect::node_addresses,
    model::{Model, NodeFacts},
    nfacct,
    serve::{self, LocalHealth, ServiceHealth, Status},
    subject,
};
use ear::Ear;
use family::FamilySync;
use pace::Pace;
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
        tasks.spawn("proxy health", serve::serve("health", address, router, config.bind_hard_fail, tasks.token()));
    }
    if let Some(address) = config.metrics_bind {
        let router = serve::metrics_router(status.clone(), &config.pages);
        tasks.spawn("proxy metrics", serve::serve("metrics", address, router, config.bind_hard_fail, tasks.token()));
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
        families.push(FamilySync::new(backend, counters, status.clone(), events.clone(), runner.is_plain()));
    }
    let work = Loop {
        model: Model::default(),
        node: NodeFacts::default(),
        families,
        own_namespace: runner.is_plain(),
        udp: false,
        udp_failed: false,
        triggers: Vec::new(),
        health,
        status,
        config,
        failed: None,
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
    model: Model,
    node: NodeFacts,
    families: Vec<FamilySync>,
    /// Whether tracked connections are those of this process's network namespace.
    own_namespace: bool,
    /// UDP connections need a look after the next good write.
    udp: bool,
    udp_failed: bool,
    /// When endpoints changed whose rules are not in the kernel yet.
    triggers: Vec<Timestamp>,
    health: ServiceHealth,
    status: Arc<Status>,
    config: Arc<Config>,
    failed: Option<Instant>,
    heart: Heart,
}

impl Loop {
    async fn run(mut self, mut changes: ReceiverStream<Change>, shutdown: CancellationToken) {
        let mut lists = watch::Lists::default();
        let mut pace = Pace::new(self.config.min_sync_period);
        let mut backoff = Backoff::new(Duration::from_millis(500), self.config.sync_period);
        let (mut wanted, mut loaded) = (false, false);
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
            let ready = wanted && lists.complete();
            let due = self.failed.unwrap_or_else(|| pace.due(Instant::now()));
            tokio::select! {
                () = shutdown.cancelled() => break,
                change = changes.next() => match change {
                    None => break,
                    Some(change) => {
                        let changed = self.take(change, &mut lists);
                        wanted |= changed;
                        if changed {
                            // After a failure too, a change is tried as soon as the pace allows.
                            self.failed = None;
                        }
                        // What came together is written together.
                        while let Some(Some(change)) = changes.next().now_or_never() {
                            wanted |= self.take(change, &mut lists);
                        }
                    }
                },
                () = tokio::time::sleep_until(due.into()), if ready => {
                    let started = Instant::now();
                    ear.close();
                    self.triggers.extend(lists.take_triggers());
                    let (done, wrote) = self.write().await;
                    // What came to nothing holds up nothing; nor does the start, however long it took.
                    if wrote && loaded {
                        pace.ran(started, Instant::now());
                    }
                    loaded |= done;
                    wanted = !done;
                    self.failed = if done {
                        backoff.reset();
                        None
                    } else {
                        Some(Instant::now() + backoff.next_delay())
                    };
                }
                () = &mut node_wait, if !lists.has_node() => {
                    tracing::warn!(node = %self.config.node_name, "the list of our Node does not come: writing rules without its zone and addresses");
                    lists.go_on_without_node();
                    wanted = true;
                }
                () = ear.hear(), if lists.complete() && !ready && self.failed.is_none() => wanted |= self.check().await,
                _ = checks.tick(), if lists.complete() && !ready && self.failed.is_none() => {
                    wanted |= self.check().await;
                    wanted |= self.addresses_moved();
                }
                _ = still_here.tick() => {}
            }
        }
        self.heart.end();
        self.health.close().await;
    }

    /// Looks whether others changed our rules; true when they must be written again.
    async fn check(&mut self) -> bool {
        let mut drifted = false;
        for family in &mut self.families {
            drifted |= family.check(&self.model, self.config.sync_period).await;
        }
        drifted
    }

    /// Takes one change in; returns whether rules may have to be written.
    fn take(&mut self, change: Change, lists: &mut watch::Lists) -> bool {
        let was_complete = lists.complete();
        let (services, slices, node) = lists.take(change, &mut self.model, &self.config.node_name);
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
            changed |= rules(&node) != rules(&self.node);
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

    fn addresses_moved(&self) -> bool {
        let local = self.local_addresses();
        self.families.iter().any(|f| f.would_change(&self.model, &self.config, &self.node, &local))
    }

    /// Writes all that changed, family by family: whether all of it is in the kernel now, and whether there was
    /// anything to write.
    async fn write(&mut self) -> (bool, bool) {
        let (dirty, udp) = self.model.take_dirty();
        self.udp |= udp;
        {
            let mut state = self.status.lock();
            state.service_changes_pending = 0;
            state.endpoint_changes_pending = 0;
        }
        let local = self.local_addresses();
        let (mut done, mut wrote) = (true, false);
        for i in 0..self.families.len() {
            let before = self.families[i].generation();
            let (all, any) = self.families[i].write(&self.model, &dirty, &self.config, &self.node, &local).await;
            done &= all;
            wrote |= any;
            // Both families count their changes together: what this one wrote is no drift of the other.
            let after = self.families[i].generation();
            self.families.iter_mut().for_each(|other| other.moved(before, after));
        }
        if done {
            self.status.programmed(&std::mem::take(&mut self.triggers), Timestamp::now());
        }
        let addresses = self.config.health_check_addresses(self.families.iter().map(FamilySync::family), &local);
        self.health.set(LocalHealth::of(&self.model), &addresses).await;
        if done && self.own_namespace && self.udp {
            self.forget_stale_udp().await;
        }
        (done, wrote)
    }

    async fn forget_stale_udp(&mut self) {
        self.udp = false;
        for family in self.families.iter().map(FamilySync::family) {
            let frontends = Frontends::of(&self.model, family);
            if frontends.is_empty() {
                continue;
            }
            let started = Instant::now();
            let work = move || {
                let local: HashSet<IpAddr> = node_addresses().into_iter().collect();
                let mut conntrack = Conntrack::open()?;
                let flows = conntrack.udp(family)?;
                conntrack.forget(frontends.stale(&flows, &local))
            };
            match tokio::task::spawn_blocking(work).await {
                Ok(Ok(count)) => {
                    if let Some(f) = self.status.lock().families.get_mut(&family) {
                        f.forgotten += count as u64;
                        f.conntrack.observe(started.elapsed());
                    }
                }
                Ok(Err(error)) => {
                    if !std::mem::replace(&mut self.udp_failed, true) {
                        tracing::warn!(%error, "stale UDP connections cannot be forgotten: clients may go on talking to endpoints that are gone; load the kernel module nf_conntrack_netlink");
                    }
                }
                Err(error) => tracing::error!(%error, "the search for stale UDP connections broke off"),
            }
        }
    }
}
