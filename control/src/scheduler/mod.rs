//! The scheduler: binds unscheduled pods to nodes. Knows a `kube::Client` and nothing else. `model`, `volume_binding`,
//! `filters`, `scores`, `messages`, `queue` and `state` are pure and may not import kube's client; this file is the loop.

use std::{collections::HashSet, fmt, sync::Arc, time::Duration};

use futures::{Stream, StreamExt, stream::FuturesUnordered};
use k8s_openapi::{
    api::core::v1::{Binding, Node, ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{Patch, PatchParams, PostParams},
    runtime::{WatchStreamExt, watcher},
};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use windlass_kit::{
    events::{Recorder, Severity},
    reflector::{Extent, reflect},
};

mod filters;
mod messages;
mod model;
mod queue;
mod scores;
mod state;
#[cfg(test)]
mod tests;
mod volume_binding;

use model::{Constraints, PodInfo};
use state::{Decision, State};
use volume_binding::Stored;

/// The scheduler's name: pods with this or no `spec.schedulerName` are scheduled. Also the source of events.
const SCHEDULER_NAME: &str = "default-scheduler";
/// Maximum number of concurrent bindings.
const MAX_BINDINGS_IN_FLIGHT: usize = 64;
/// Timeout of a write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Why the scheduler ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A watch ended for good.
    #[error("the scheduler's watch of {0} ended; restart the control plane")]
    WatchEnded(&'static str),
}

/// A watch of all objects of a kind.
fn all<K>(client: &Client) -> impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send + use<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug + Send + 'static,
{
    reflect(Api::all(client.clone()), watcher::Config::default().streaming_lists(), Extent::Many)
}

/// Schedules pods until `shutdown`. Failed watches and writes are retried with back-off.
///
/// # Errors
/// Only when a watch ends for good, which no API server causes.
pub async fn run(client: Client, shutdown: CancellationToken) -> Result<(), Error> {
    let pods = all::<Pod>(&client).default_backoff();
    let nodes = all::<Node>(&client).default_backoff();
    let claims = all::<PersistentVolumeClaim>(&client).default_backoff();
    let volumes = all::<PersistentVolume>(&client).default_backoff();
    futures::pin_mut!(pods, nodes, claims, volumes);
    let writer = Writer { recorder: Recorder::new(client.clone(), SCHEDULER_NAME, ""), client };
    let mut state = State::default();
    let mut synced = Synced::default();
    let mut writes = FuturesUnordered::new();
    loop {
        let due = if synced.all() {
            let due = state.advance(Instant::now());
            while writes.len() < MAX_BINDINGS_IN_FLIGHT {
                let Some((pod, constraints, decision)) = state.next(Instant::now()) else { break };
                writes.push(writer.execute(pod, constraints, decision));
            }
            // Failures of this pass set new times.
            due.into_iter().chain(state.advance(Instant::now())).min()
        } else {
            None
        };
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            event = pods.next() => match event {
                None => return Err(Error::WatchEnded("pods")),
                Some(Err(error)) => tracing::debug!(%error, "watch of pods failed; retrying"),
                Some(Ok(event)) => pod_event(&mut state, &mut synced, event),
            },
            event = nodes.next() => match event {
                None => return Err(Error::WatchEnded("nodes")),
                Some(Err(error)) => tracing::debug!(%error, "watch of nodes failed; retrying"),
                Some(Ok(event)) => node_event(&mut state, &mut synced, event),
            },
            event = claims.next() => match event {
                None => return Err(Error::WatchEnded("persistent volume claims")),
                Some(Err(error)) => tracing::debug!(%error, "watch of persistent volume claims failed; retrying"),
                Some(Ok(event)) => synced.claims |= storage_event(&mut state, event),
            },
            event = volumes.next() => match event {
                None => return Err(Error::WatchEnded("persistent volumes")),
                Some(Err(error)) => tracing::debug!(%error, "watch of persistent volumes failed; retrying"),
                Some(Ok(event)) => synced.volumes |= storage_event(&mut state, event),
            },
            Some(failed) = writes.next(), if !writes.is_empty() => {
                if let Some((pod, constraints)) = failed {
                    state.bind_failed(&pod, constraints, Instant::now());
                }
            }
            () = sleep_until(due) => {}
        }
    }
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Nothing is scheduled before all first lists are complete.
#[derive(Debug, Default)]
struct Synced {
    pods: bool,
    nodes: bool,
    claims: bool,
    volumes: bool,
    listed_pods: HashSet<(String, String)>,
    listed_nodes: HashSet<String>,
}

impl Synced {
    fn all(&self) -> bool {
        self.pods && self.nodes && self.claims && self.volumes
    }
}

fn pod_event(state: &mut State, synced: &mut Synced, event: watcher::Event<Pod>) {
    let now = Instant::now();
    let mut apply = |pod: &Pod| {
        let info = PodInfo::of(pod);
        let name = pod.spec.as_ref().and_then(|s| s.scheduler_name.as_deref()).unwrap_or(SCHEDULER_NAME);
        let key = info.key();
        state.pod_applied(info, name == SCHEDULER_NAME, now);
        key
    };
    match event {
        watcher::Event::Init => synced.listed_pods.clear(),
        watcher::Event::InitApply(pod) => drop(synced.listed_pods.insert(apply(&pod))),
        watcher::Event::InitDone => {
            state.retain_pods(&std::mem::take(&mut synced.listed_pods), now);
            synced.pods = true;
        }
        watcher::Event::Apply(pod) => drop(apply(&pod)),
        watcher::Event::Delete(pod) => {
            state.pod_deleted(&(pod.namespace().unwrap_or_default(), pod.name_any()), now);
        }
    }
}

fn node_event(state: &mut State, synced: &mut Synced, event: watcher::Event<Node>) {
    let now = Instant::now();
    match event {
        watcher::Event::Init => synced.listed_nodes.clear(),
        watcher::Event::InitApply(node) => {
            synced.listed_nodes.insert(node.name_any());
            state.node_applied(&node, now);
        }
        watcher::Event::InitDone => {
            state.retain_nodes(&std::mem::take(&mut synced.listed_nodes));
            synced.nodes = true;
        }
        watcher::Event::Apply(node) => state.node_applied(&node, now),
        watcher::Event::Delete(node) => state.node_deleted(&node.name_any()),
    }
}

/// Applies a watch event of claims or volumes; returns whether the first list is complete.
fn storage_event<K: Stored>(state: &mut State, event: watcher::Event<K>) -> bool {
    let now = Instant::now();
    match event {
        watcher::Event::Init => state.storage_cleared::<K>(),
        watcher::Event::InitDone => return true,
        watcher::Event::InitApply(object) | watcher::Event::Apply(object) => state.storage_applied(&object, now),
        watcher::Event::Delete(object) => state.storage_deleted(&object),
    }
    false
}

/// Executes decisions by API requests.
struct Writer {
    client: Client,
    recorder: Recorder,
}

impl Writer {
    /// Returns the pod when its binding failed.
    async fn execute(
        &self,
        pod: PodInfo,
        constraints: Arc<Constraints>,
        decision: Decision,
    ) -> Option<(PodInfo, Arc<Constraints>)> {
        match decision {
            Decision::Bind { node } => {
                let bound = tokio::time::timeout(WRITE_TIMEOUT, self.bind(&pod, &node)).await;
                match bound.unwrap_or_else(|_| Err("the API did not answer in time".to_owned())) {
                    Ok(()) => {
                        let text = format!("Successfully assigned {}/{} to {node}", pod.namespace, pod.name);
                        self.recorder.record(&reference(&pod), Severity::Normal, "Scheduled", text);
                        None
                    }
                    Err(why) => {
                        tracing::warn!(
                            pod = pod.name,
                            namespace = pod.namespace,
                            node,
                            why,
                            "failed to bind pod; retrying"
                        );
                        Some((pod, constraints))
                    }
                }
            }
            Decision::Unschedulable { message } => {
                self.recorder.record(&reference(&pod), Severity::Warning, "FailedScheduling", message.clone());
                let is_reported =
                    constraints.condition.as_ref().is_some_and(|(r, m)| r == "Unschedulable" && *m == message);
                if !is_reported {
                    self.report_unschedulable(&pod, &message).await;
                }
                None
            }
        }
    }

    async fn bind(&self, pod: &PodInfo, node: &str) -> Result<(), String> {
        let binding = Binding {
            metadata: ObjectMeta {
                name: Some(pod.name.clone()),
                namespace: Some(pod.namespace.clone()),
                uid: Some(pod.uid.clone()),
                ..ObjectMeta::default()
            },
            target: ObjectReference {
                kind: Some("Node".to_owned()),
                name: Some(node.to_owned()),
                ..ObjectReference::default()
            },
        };
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        match api
            .create_subresource::<_, serde_json::Value>("binding", &pod.name, &PostParams::default(), &binding)
            .await
        {
            Ok(_) => Ok(()),
            // Deleted concurrently; the watch removes it.
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Sets PodScheduled=False.
    async fn report_unschedulable(&self, pod: &PodInfo, message: &str) {
        let condition = json!({
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
            "lastTransitionTime": Time(jiff::Timestamp::now()),
        });
        let patch = Patch::Strategic(json!({"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}}));
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        if let Err(error) = api.patch_status(&pod.name, &PatchParams::default(), &patch).await {
            tracing::debug!(%error, pod = pod.name, "failed to write PodScheduled condition; the event has the reason");
        }
    }
}

fn reference(pod: &PodInfo) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(pod.namespace.clone()),
        name: Some(pod.name.clone()),
        uid: Some(pod.uid.clone()),
        resource_version: Some(pod.version.clone()),
        ..ObjectReference::default()
    }
}
