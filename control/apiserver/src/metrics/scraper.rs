//! Asks the nodes that do not run in this process for their `/metrics/resource`, as metrics-server does: with the
//! credentials, the address and the verified TLS of everything else that the API server asks of a node.

use std::{collections::BTreeSet, time::Duration};

use futures::StreamExt as _;
use http_body_util::{BodyExt as _, Limited};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::{
    ContainerReading, Containers, Readings, Run, Usage,
    resource_page::{self, ContainerName, ResourcePage},
    stored::MeasuredCache,
};
use crate::{
    apiserver::KubeletClient,
    store::{Key, Store},
};

/// The time between two scrapes (`--metric-resolution` of metrics-server's manifest).
pub(super) const SCRAPE_INTERVAL: Duration = Duration::from_secs(15);
/// The time limit of one (`--kubelet-request-timeout`).
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(10);
/// Nodes that are asked at once.
const MAX_CONCURRENT: usize = 64;
/// The largest page: some hundred bytes for each of many thousand containers.
const MAX_PAGE_BYTES: usize = 16 << 20;
const PATH: &str = "/metrics/resource";
/// Where a node may say another path (metrics-server's `AnnotationResourceMetricsPath`).
const PATH_ANNOTATION: &str = "metrics.k8s.io/resource-metrics-path";

/// The source of all other nodes.
#[derive(Debug)]
pub(crate) struct Scraper {
    store: Store,
    kubelet: KubeletClient,
    usage: Usage,
    pods: MeasuredCache,
    /// Nodes whose last scrape failed, so that a failure is logged once.
    failing: Mutex<BTreeSet<String>>,
}

impl Scraper {
    pub(crate) fn new(store: Store, kubelet: KubeletClient, usage: Usage) -> Self {
        Self { store, kubelet, usage, pods: MeasuredCache::default(), failing: Mutex::default() }
    }

    /// Scrapes until `shutdown`.
    pub(crate) async fn run(self, shutdown: CancellationToken) {
        let mut ticks = tokio::time::interval(SCRAPE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                _ = ticks.tick() => {}
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = self.round() => {}
            }
        }
    }

    /// Asks every Ready node of another process once.
    pub(crate) async fn round(&self) {
        let nodes: Vec<Value> =
            self.store.list(self.store.resource("nodes"), None).0.iter().map(|node| node.value()).collect();
        let names: BTreeSet<&str> = nodes.iter().map(name_of).collect();
        self.usage.retain(|node| names.contains(node));
        self.failing().retain(|node| names.contains(node.as_str()));
        let pods = self.store.resource("pods");
        self.pods.sweep(|key| self.store.get(pods, key).is_some());
        let others = nodes.iter().filter(|node| is_ready(node) && !self.kubelet.is_in_process(name_of(node)));
        futures::stream::iter(others).for_each_concurrent(MAX_CONCURRENT, |node| self.scrape(node)).await;
    }

    async fn scrape(&self, node: &Value) {
        let name = name_of(node);
        let page = tokio::time::timeout(SCRAPE_TIMEOUT, self.page(node));
        let page = page.await.unwrap_or_else(|_| {
            Err(format!("the API of node {name:?} did not answer within {} s", SCRAPE_TIMEOUT.as_secs()))
        });
        match page {
            Ok(page) => {
                self.usage.record(&self.readings(name, page));
                if self.failing().remove(name) {
                    tracing::info!(node = name, "usage of the node can be read again");
                }
            }
            Err(reason) => {
                if self.failing().insert(name.to_owned()) {
                    tracing::warn!(
                        node = name,
                        reason,
                        "failed to read the usage of the node: metrics.k8s.io leaves it and its pods out; retrying"
                    );
                }
            }
        }
    }

    async fn page(&self, node: &Value) -> Result<ResourcePage, String> {
        let asked_at = Timestamp::now();
        let path = node["metadata"]["annotations"][PATH_ANNOTATION].as_str().filter(|path| path.starts_with('/'));
        let response = self.kubelet.get(node, path.unwrap_or(PATH)).await.map_err(|error| error.to_string())?;
        let body = Limited::new(response.into_body(), MAX_PAGE_BYTES).collect().await;
        let body = body.map_err(|error| format!("the page of node {:?} broke off: {error}", name_of(node)))?;
        let page = resource_page::read(&String::from_utf8_lossy(&body.to_bytes()), asked_at);
        if page == ResourcePage::default() {
            return Err(format!("the page of node {:?} has no usage of anything", name_of(node)));
        }
        Ok(page)
    }

    /// Pages know pods by their names only. The pod that is meant is the one that the API knows on that node; others
    /// are left over there.
    fn readings(&self, node: &str, page: ResourcePage) -> Readings {
        let id = self.store.resource("pods");
        let uid = |name: &ContainerName| {
            let key = Key { namespace: name.namespace.clone(), name: name.pod.clone() };
            let pod = self.pods.of(&*self.store.get(id, &key)?);
            (pod.node == node).then(|| pod.uid.clone())
        };
        let containers = page.containers.into_iter().filter_map(|(name, of_page)| {
            let run = Run::Started(of_page.started);
            Some(ContainerReading { pod_uid: uid(&name)?, name: name.name, run, reading: of_page.reading })
        });
        let containers = Containers::All(containers.collect());
        Readings { node: node.to_owned(), machine: page.machine, containers }
    }

    fn failing(&self) -> parking_lot::MutexGuard<'_, BTreeSet<String>> {
        self.failing.lock()
    }
}

fn name_of(node: &Value) -> &str {
    node["metadata"]["name"].as_str().unwrap_or_default()
}

/// Whether the condition `Ready` of a node is `True`.
fn is_ready(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}
