//! The controllers of the embedded control plane. Each is a pure decision in its own file and a
//! thin loop over one shared set of watches; they know a `kube::Client` and nothing of the store,
//! the API server, the agent or the proxy.

use std::{fmt, future::Future, time::Duration};

use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{
        ConfigMap, Endpoints, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ReplicationController,
        Service, ServiceAccount,
    },
    discovery::v1::EndpointSlice,
};
use kube::{Api, Client, Resource, api::ApiResource, core::PartialObjectMeta, runtime::watcher};
use serde::de::DeserializeOwned;
use tokio::{sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;
use windlass_kit::reflector::{Extent, reflect};

mod cache;
mod endpoints;
mod error;
mod expectations;
#[cfg(test)]
pub(crate) mod fake_api;
mod gc;
mod key;
pub(crate) mod kinds;
mod namespaces;
mod nodes;
mod persistent_volumes;
mod pods;
mod replication;
mod service_accounts;
#[cfg(test)]
mod tests;
mod workqueue;

pub use error::Error;

use cache::{Cache, Informer, trim_metadata, trim_node, trim_pod};
use endpoints::{EndpointsController, Sources};
use gc::GarbageCollector;
use namespaces::Namespaces;
use nodes::{NodeIpam, NodeLifecycle, PodGc, Ranges, TaintEviction, Timing};
use persistent_volumes::PersistentVolumes;
use replication::Replication;
use service_accounts::ServiceAccounts;

/// Keys worked on at a time by one controller (upstream's usual number).
const WORKERS: usize = 5;
/// The same for the garbage collector and namespaces, which mostly wait.
const MANY_WORKERS: usize = 10;

/// Configuration of the controllers.
#[derive(Debug, Clone)]
pub struct Config {
    /// The range of all pods; `10.244.0.0/16`, or two ranges with a comma for both families.
    pub cluster_cidr: String,
    /// Prefix length of one node's part of an IPv4 cluster range.
    pub node_mask_v4: u8,
    /// Prefix length of one node's part of an IPv6 cluster range.
    pub node_mask_v6: u8,
    /// The CA certificates (PEM) that every namespace gets as ConfigMap `kube-root-ca.crt`, also when they change; empty
    /// for none.
    pub root_ca: watch::Receiver<String>,
    /// Grace period of a node's heartbeats until it counts as not ready (upstream: 50 s).
    pub node_grace: Duration,
    /// The same for a node that has never reported (upstream: 60 s).
    pub node_startup_grace: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cluster_cidr: "10.244.0.0/16".to_owned(),
            node_mask_v4: 24,
            node_mask_v6: 64,
            root_ca: watch::Sender::new(String::new()).subscribe(),
            node_grace: Duration::from_secs(50),
            node_startup_grace: Duration::from_secs(60),
        }
    }
}

/// Runs all controllers until `shutdown`.
///
/// Failed requests and watches are logged and retried with back-off.
///
/// # Errors
/// When the cluster CIDR is invalid, or a watch ends for good.
pub async fn run(client: Client, config: Config, shutdown: CancellationToken) -> Result<(), Error> {
    let ranges = Ranges::parse_all(&config.cluster_cidr, config.node_mask_v4, config.node_mask_v6)?;
    let mut pods: Informer<Pod> = Informer::new(trim_pod);
    let mut owners: Informer<ReplicationController> = Informer::new(trim_metadata);
    let mut services: Informer<Service> = Informer::new(trim_metadata);
    let mut endpoints: Informer<Endpoints> = Informer::new(trim_metadata);
    let mut slices: Informer<EndpointSlice> = Informer::new(trim_metadata);
    let mut nodes: Informer<Node> = Informer::new(trim_node);
    let mut namespaces: Informer<Namespace> = Informer::new(trim_metadata);
    let mut leases: Informer<Lease> = Informer::new(trim_metadata);
    let mut claims: Informer<PersistentVolumeClaim> = Informer::new(trim_metadata);
    let mut volumes: Informer<PersistentVolume> = Informer::new(trim_metadata);
    let mut accounts: Informer<PartialObjectMeta<ServiceAccount>> = Informer::new(trim_metadata);
    let mut config_maps: Informer<PartialObjectMeta<ConfigMap>> = Informer::new(trim_metadata);

    let gc = GarbageCollector::new(client.clone());
    monitor(&gc, &mut pods, true);
    monitor(&gc, &mut owners, true);
    monitor(&gc, &mut services, true);
    monitor(&gc, &mut endpoints, true);
    monitor(&gc, &mut slices, true);
    monitor(&gc, &mut nodes, false);
    monitor(&gc, &mut namespaces, false);
    monitor(&gc, &mut leases, true);
    monitor(&gc, &mut claims, true);
    monitor(&gc, &mut volumes, false);
    gc.monitor(&mut accounts, ApiResource::erase::<ServiceAccount>(&()), true);
    gc.monitor(&mut config_maps, ApiResource::erase::<ConfigMap>(&()), true);

    let replication = Replication::new(client.clone(), &mut owners, &mut pods);
    let endpoints_controller = EndpointsController::new(
        client.clone(),
        Sources {
            services: &mut services,
            pods: &mut pods,
            nodes: &mut nodes,
            slices: &mut slices,
            endpoints: &mut endpoints,
        },
    );
    let service_accounts =
        ServiceAccounts::new(client.clone(), &mut namespaces, &mut accounts, &mut config_maps, config.root_ca);
    let persistent_volumes = PersistentVolumes::new(client.clone(), &mut claims, &mut volumes, &mut pods);
    let namespaces_controller = Namespaces::new(client.clone(), &mut namespaces, &mut pods);
    let ipam = NodeIpam::new(client.clone(), &mut nodes, ranges);
    let timing = Timing { grace: config.node_grace, startup_grace: config.node_startup_grace };
    let lifecycle = NodeLifecycle::new(client.clone(), &mut nodes, &mut pods, &mut leases, timing);
    let eviction = TaintEviction::new(client.clone(), &mut nodes, &mut pods);
    let pod_gc = PodGc::new(client.clone(), &mut nodes, &mut pods);

    // All watches start at once; controllers start when every first list is complete.
    let mut watches = Watches { client, tasks: JoinSet::new(), synced: Vec::new(), shutdown: shutdown.clone() };
    watches.start(pods);
    watches.start(owners);
    watches.start(services);
    watches.start(endpoints);
    watches.start(slices);
    watches.start(nodes);
    watches.start(namespaces);
    watches.start(leases);
    watches.start(claims);
    watches.start(volumes);
    watches.start(accounts);
    watches.start(config_maps);
    let Watches { mut tasks, synced, .. } = watches;
    for wait in synced {
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            synced = wait => synced?,
        }
    }
    tracing::debug!("informer caches synced");
    gc.start();

    let token = || shutdown.clone();
    tokio::join!(
        replication.queue().run("replication", WORKERS, token(), |key| replication.reconcile(key)),
        endpoints_controller.queue().run("endpoints", WORKERS, token(), |key| endpoints_controller.reconcile(key)),
        service_accounts.follow_root_ca(token()),
        service_accounts.queue().run("service-accounts", WORKERS, token(), |key| service_accounts.reconcile(key)),
        persistent_volumes
            .queue()
            .run("persistent-volumes", WORKERS, token(), |item| persistent_volumes.reconcile(item)),
        namespaces_controller
            .queue()
            .run("namespaces", MANY_WORKERS, token(), |key| namespaces_controller.reconcile(key)),
        ipam.queue().run("node-ipam", 1, token(), |key| ipam.reconcile(key)),
        lifecycle.queue().run("node-lifecycle", WORKERS, token(), |key| lifecycle.reconcile(key)),
        eviction.queue().run("taint-eviction", WORKERS, token(), |key| eviction.reconcile(key)),
        pod_gc.queue().run("pod-gc", WORKERS, token(), |key| pod_gc.reconcile(key)),
        gc.queue().run("garbage-collector", MANY_WORKERS, token(), |id| gc.reconcile(id)),
        gc.sync_monitors(token()),
    );
    while tasks.join_next().await.is_some() {}
    Ok(())
}

fn monitor<K>(gc: &GarbageCollector, informer: &mut Informer<K>, namespaced: bool)
where
    K: Resource<DynamicType = ()> + Clone + Send + Sync + 'static,
{
    gc.monitor(informer, ApiResource::erase::<K>(&()), namespaced);
}

type Synced = std::pin::Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

/// The running watches and the futures of their first lists.
struct Watches {
    client: Client,
    tasks: JoinSet<()>,
    synced: Vec<Synced>,
    shutdown: CancellationToken,
}

impl Watches {
    fn start<K>(&mut self, informer: Informer<K>)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static,
    {
        self.wait_for(informer.cache(), K::kind(&()).into_owned());
        let events = reflect(Api::<K>::all(self.client.clone()), watcher::Config::default(), Extent::Many);
        self.tasks.spawn(informer.run(events, self.shutdown.clone()));
    }

    fn wait_for<K: Send + Sync + 'static>(&mut self, cache: Cache<K>, kind: String) {
        self.synced
            .push(Box::pin(async move { if cache.synced().await { Ok(()) } else { Err(Error::WatchEnded { kind }) } }));
    }
}
