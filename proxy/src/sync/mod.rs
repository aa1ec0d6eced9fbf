//! The loops: one watches Services, EndpointSlices, ServiceCIDRs and our Node, and owns the model; one for each family owns its sync
//! state, writes changes, repairs rules that other programs changed, and deletes stale UDP conntrack entries. A family
//! that is slow, or whose program hangs, delays nothing of the other. May import everything else of the crate.

mod family;
mod forbidden;
pub(crate) mod lock;
pub(crate) mod policies;
mod rate_limit;
mod stale_udp;
#[cfg(test)]
mod tests;
mod transactions;
mod watch;

use std::{sync::Arc, time::Duration};

use futures::{FutureExt as _, StreamExt as _};
use kube::Client;
use tokio::sync::{mpsc, watch::Sender};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use windlass_kit::{
    announced_pod::Announcements,
    blocking::RULES,
    events::{Recorder, Severity},
    liveness::{HEARTBEAT_INTERVAL, Heartbeats, LoopProbe, STUCK_AFTER},
    repairs::MainPath,
    supervise::Supervisor,
};

use crate::{
    affinity,
    apply::{Backend, Runner},
    config::{Config, Error, ValidConfig},
    model::{Changes, Family, Model, NodeFacts},
    nfacct, object_ref,
    serve::{self, Status},
    startup::{self, KernelSettings},
};
use family::{FamilySync, FamilyTask};
use policies::PolicyTask;
use transactions::Transactions;
use watch::{Applied, Change, InitialSync, Trigger};

/// How often sysctls are compared with the wanted ones.
const KERNEL_SETTINGS_INTERVAL: Duration = Duration::from_secs(60);

/// How long the first write waits for our Node.
const NODE_WAIT_TIMEOUT: Duration = Duration::from_secs(30);

const CHANGE_QUEUE_CAPACITY: usize = 4096;

/// What enforcing NetworkPolicies needs.
#[allow(missing_debug_implementations, reason = "a client has none")]
pub struct NetworkPolicies {
    /// May list and watch NetworkPolicies, namespaces and pods.
    pub client: Client,
    /// Pods of the built-in pod network, which start when their rules are in force.
    pub announcements: Announcements,
}

/// Runs the proxy until `shutdown` is cancelled. The rules stay in the kernel then, so that established connections and
/// new traffic are not interrupted; [`cleanup`](crate::cleanup()) removes them. The loop reports to `heartbeats`. With
/// `policies` NetworkPolicies are enforced, too, which is for the built-in pod network; other networks enforce them
/// themselves.
///
/// # Errors
/// No working iptables for the node's first address family, or an address that cannot be bound while [`Config::bind_hard_fail`] is set. Later failures are retried, and reported by health and
/// metrics.
pub async fn run(
    client: Client,
    config: ValidConfig,
    policies: Option<NetworkPolicies>,
    heartbeats: Heartbeats,
    shutdown: CancellationToken,
) -> Result<(), Error> {
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
    let mut watched = watch::changes(&client, &config.node_name, config.cluster_ips_check);
    let _watching = AbortOnDropHandle::new(tokio::spawn(async move {
        while let Some(change) = watched.next().await {
            if sender.send(change).await.is_err() {
                break;
            }
        }
    }));
    let (backends, kernel_settings) = prepare(config.clone()).await?;
    let status = Arc::new(Status::new(config.sync_period));
    backends.iter().for_each(|(b, _)| status.start(b.family()));
    let events = Recorder::new(client.clone(), "kube-proxy", &config.node_name);
    events.record(&object_ref::node(&config.node_name), Severity::Normal, "Starting", "");

    let mut tasks = Supervisor::new(shutdown.child_token());
    spawn_servers(&config, &status, &mut tasks);
    tasks.forever("kernel settings", keep_kernel_settings(kernel_settings));
    let own_netns = Runner::new(config.command_prefix.clone()).in_own_netns();
    let by_netlink = own_netns && backends.iter().any(|(backend, _)| backend.is_nft());
    let monitored = by_netlink && !config.repairs.is_off(MainPath::NftMonitor);
    let transactions = Transactions::new(monitored);
    let (cluster, snapshots) = tokio::sync::watch::channel(Cluster::default());
    let mut families = Vec::new();
    let mut inboxes = Vec::new();
    if policies.is_none() && own_netns {
        remove_leftover_policies(&backends).await;
    }
    if let Some(NetworkPolicies { client, announcements }) = policies {
        let (sender, inbox) = mpsc::unbounded_channel();
        inboxes.push(sender);
        let parts = policies::Parts {
            client,
            backends: backends.iter().map(|(backend, _)| Arc::new(backend.clone())).collect(),
            transactions: transactions.clone(),
            status: status.clone(),
            events: events.clone(),
            probe: heartbeats.begin("network policies", "", STUCK_AFTER),
            config: config.clone(),
            announcements,
            inbox,
        };
        tasks.spawn("network policies", PolicyTask::run(parts, tasks.token()));
    }
    for (backend, counters) in backends {
        let family = backend.family();
        tracing::info!(
            family = family.name(),
            program = backend.program(),
            nf_tables = backend.is_nft(),
            "service rules go to this back end"
        );
        // All rules of the largest clusters are written in less, and each batch of them beats.
        let probe = heartbeats.begin("service rules", family.name(), STUCK_AFTER);
        let shared =
            family::Shared { status: status.clone(), events: events.clone(), transactions: transactions.clone() };
        let sync = FamilySync::new(backend, counters, shared, probe, tasks.token(), &config);
        let (letters, inbox) = mpsc::unbounded_channel();
        families.push(letters);
        let task = FamilyTask::new(sync, snapshots.clone(), inbox, config.clone());
        tasks.spawn(family_name(family), task.run(tasks.token()));
    }
    inboxes.extend(families.iter().cloned());
    tasks.forever("monitor of rules", family::report_changes(transactions, inboxes));
    let watcher =
        Watcher { cluster, families, status, config, probe: heartbeats.begin("service watches", "", STUCK_AFTER) };
    let ended = tokio::select! {
        () = watcher.run(ReceiverStream::new(changes), shutdown.clone()) => Ok(()),
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

/// Removes the rules of NetworkPolicies of an earlier process where this one enforces none: nobody would change them any
/// more, and the addresses in them become those of other pods.
async fn remove_leftover_policies(backends: &[(Backend, bool)]) {
    for backend in backends.iter().map(|(backend, _)| backend.clone()) {
        let family = backend.family().name();
        match RULES.call(move || policies::kernel::remove_leftovers(&backend)).await {
            Ok(Ok(false)) => {}
            Ok(Ok(true)) => {
                tracing::warn!(family, "removed the rules of NetworkPolicies, which this process does not enforce");
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, family, "failed to remove the rules of NetworkPolicies of an earlier process; windlass proxy cleanup removes them")
            }
            Err(error) => {
                tracing::warn!(%error, family, "failed to look for rules of NetworkPolicies of an earlier process")
            }
        }
    }
}

const fn family_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "service rules of IPv4",
        Family::V6 => "service rules of IPv6",
    }
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
async fn prepare(config: Arc<ValidConfig>) -> Result<(Vec<(Backend, bool)>, KernelSettings), Error> {
    let work = move || -> Result<_, crate::apply::Error> {
        let backends = startup::find_backends(&config)?;
        let settings = startup::set_sysctls(&config, &backends)?;
        // The match is of no family, and a program of the second that hangs must not hold up the first.
        let first = backends.iter().find(|backend| backend.family() == config.primary_family());
        let probe = || config.command_prefix.is_empty() && first.is_some_and(nfacct::create_counters);
        let counters = config.nfacct.unwrap_or_else(probe);
        Ok((backends.into_iter().map(|backend| (backend, counters)).collect(), settings))
    };
    match RULES.call(work).await {
        Ok(result) => Ok(result?),
        Err(e) => Err(Error::Ended { part: "the search for iptables", problem: e.to_string() }),
    }
}

/// What the watches know. Families take a snapshot when they need one: what they hold is not changed any more.
#[derive(Debug, Clone, Default)]
struct Cluster {
    model: Arc<Model>,
    node: Arc<NodeFacts>,
    /// All initial lists are complete, so that rules may be written.
    complete: bool,
    /// How many letters were sent about it: a reader of all of them knows every change.
    letters: u64,
}

/// What changed in the cluster.
#[derive(Debug, Clone)]
struct Letter {
    changes: Arc<Changes>,
    /// When endpoints changed.
    triggers: Vec<Trigger>,
    /// Something changed that all rules may depend on.
    everything: bool,
}

impl Letter {
    /// Whether rules of a family may have to be written.
    fn concerns(&self, family: Family) -> bool {
        self.everything || !self.changes.of(family).is_empty()
    }
}

/// The task that owns the model: applies the watches' changes to it, and notifies both families.
struct Watcher {
    cluster: Sender<Cluster>,
    families: Vec<mpsc::UnboundedSender<family::Message>>,
    status: Arc<Status>,
    config: Arc<ValidConfig>,
    probe: LoopProbe,
}

impl Watcher {
    async fn run(self, mut changes: ReceiverStream<Change>, shutdown: CancellationToken) {
        let mut initial_sync = InitialSync::default();
        let node_wait = tokio::time::sleep(NODE_WAIT_TIMEOUT);
        tokio::pin!(node_wait);
        let mut heartbeat = tokio::time::interval(HEARTBEAT_INTERVAL);
        loop {
            self.probe.beat();
            tokio::select! {
                () = shutdown.cancelled() => break,
                change = changes.next() => match change {
                    None => break,
                    Some(change) => {
                        // Changes that are queued already are written together.
                        let mut queued = vec![change];
                        while queued.len() < CHANGE_QUEUE_CAPACITY {
                            let Some(Some(change)) = changes.next().now_or_never() else { break };
                            queued.push(change);
                        }
                        self.apply(queued, &mut initial_sync);
                    }
                },
                () = &mut node_wait, if !initial_sync.has_node() => {
                    tracing::warn!(
                        node = %self.config.node_name,
                        "Node object not received in {} s; writing rules without zone and node addresses",
                        NODE_WAIT_TIMEOUT.as_secs()
                    );
                    initial_sync.proceed_without_node();
                    self.apply(Vec::new(), &mut initial_sync);
                }
                _ = heartbeat.tick() => {}
            }
        }
        self.probe.end();
    }

    /// Applies changes to the model, and notifies the families if rules may have to be written.
    fn apply(&self, queued: Vec<Change>, initial_sync: &mut InitialSync) {
        self.cluster.send_modify(|cluster| {
            let (mut changed, mut everything) = (false, false);
            for change in queued {
                let (one, all) = self.apply_one(change, cluster, initial_sync);
                (changed, everything) = (changed | one, everything | all);
            }
            if !cluster.complete && initial_sync.complete() {
                tracing::debug!("initial lists are complete");
                (cluster.complete, everything) = (true, true);
            }
            if !(changed || everything) {
                return;
            }
            let changes = Arc::new(Arc::make_mut(&mut cluster.model).take_changes());
            let letter = Letter { changes, triggers: initial_sync.take_triggers(), everything };
            if cluster.complete {
                self.status.queued(|family| letter.concerns(family));
            }
            cluster.letters += 1;
            for family in &self.families {
                // A family that has ended ends the proxy.
                let _ = family.send(family::Message::Letter(letter.clone()));
            }
        });
    }

    /// Applies one change; returns whether Services or endpoints changed, and whether something did that all rules may
    /// depend on.
    fn apply_one(&self, change: Change, cluster: &mut Cluster, initial_sync: &mut InitialSync) -> (bool, bool) {
        let model = Arc::make_mut(&mut cluster.model);
        let Applied { services, slices, ranges, node } = initial_sync.apply(change, model, &self.config.node_name);
        let changed = services || slices;
        {
            let mut state = self.status.lock();
            state.service_changes += u64::from(services);
            state.service_changes_pending += u64::from(services);
            state.endpoint_changes += u64::from(slices);
            state.endpoint_changes_pending += u64::from(slices);
        }
        let Some(node) = node else { return (changed, ranges) };
        self.status.lock().eligible = node.as_ref().is_some_and(|n| n.eligible);
        let Some(node) = node else { return (changed, ranges) };
        let of_rules = |n: &NodeFacts| (n.zone.clone(), n.addresses.clone(), n.pod_cidrs.clone());
        let moved = of_rules(&node) != of_rules(&cluster.node);
        cluster.node = Arc::new(node);
        (changed, ranges || moved)
    }
}

/// Compares the sysctls with the wanted ones all the time, as rules are: some are not there before the kernel has
/// loaded a module, and others may change them.
async fn keep_kernel_settings(mut settings: KernelSettings) {
    let (mut told, mut told_of_lists) = (String::new(), false);
    loop {
        tokio::time::sleep(KERNEL_SETTINGS_INTERVAL).await;
        let set = RULES.call(move || (settings.set(), affinity::full_lists(), settings)).await;
        let Ok((result, full, kept)) = set else { return std::future::pending().await };
        settings = kept;
        if let Some((endpoints, clients)) = full.filter(|_| !std::mem::replace(&mut told_of_lists, full.is_some())) {
            tracing::warn!(
                endpoints,
                clients,
                "session affinity remembers no more clients of some endpoints: further ones lose their endpoint to new ones; load the module xt_recent with a larger ip_list_tot (options xt_recent ip_list_tot=1000 in /etc/modprobe.d)"
            );
        }
        let problem = result.err().map(|error| error.to_string()).unwrap_or_default();
        if !problem.is_empty() && problem != told {
            tracing::warn!(error = problem, "failed to set the sysctls that services need; trying again");
        }
        told = problem;
    }
}
