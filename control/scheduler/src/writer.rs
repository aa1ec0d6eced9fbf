//! The writes of the scheduler: bindings, volumes, conditions, nominations, evictions, events.

use std::{sync::Arc, time::Duration};

use k8s_openapi::{
    api::core::v1::{Binding, ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use windlass_kit::{
    events::{Recorder, Severity},
    fan_out::bounded_join,
    objects::claims::{BOUND_BY_CONTROLLER, SELECTED_NODE},
    pod_ending::{Ending, Failed, Target},
};

use super::{
    SCHEDULER_NAME, messages,
    model::{Constraints, PodInfo, PodReference},
    state::{Decided, Decision, Nomination, Preemption, Refusal},
    volumes::{ClaimWrite, VolumeWrite},
};

/// Timeout of the writes of one decision.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// The pause between looks at a pod whose binding failed.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The pauses before a status is written again (client-go's `DefaultBackoff`).
const STATUS_RETRIES: [Duration; 3] =
    [Duration::from_millis(10), Duration::from_millis(50), Duration::from_millis(250)];

/// How the writes of a decision ended.
pub(super) enum Outcome {
    Done,
    /// The pod is bound.
    Bound,
    /// The pod was not bound, and why.
    NotBound(Arc<PodInfo>, Arc<Constraints>, String),
    /// Volumes and claims were written, or why they were not.
    VolumesWritten(Arc<PodInfo>, Result<(), String>),
    /// Not all victims of the pod's preemption were deleted.
    NotPreempted(Arc<PodInfo>, Preemption),
}

/// Executes decisions by API requests.
pub(super) struct Writer {
    client: Client,
    recorder: Recorder,
}

impl Writer {
    pub(super) fn new(client: Client) -> Self {
        Self { recorder: Recorder::new(client.clone(), SCHEDULER_NAME, ""), client }
    }

    pub(super) async fn execute(&self, (pod, constraints, decision): Decided) -> Outcome {
        match decision {
            Decision::Bind { node } => match in_time(self.bind(&pod, &node)).await {
                Ok(true) => {
                    let text = messages::scheduled(&pod.namespace, &pod.name, &node);
                    self.recorder.record(&reference(&pod), Severity::Normal, "Scheduled", text);
                    Outcome::Bound
                }
                // Deleted concurrently; the watch removes it.
                Ok(false) => Outcome::Done,
                Err(why) => self.not_bound(pod, constraints, &node, why).await,
            },
            Decision::BindVolumes { node, volumes, claims } => {
                self.nominate_before_binding(&pod, &node).await;
                let written = in_time(self.write_volumes(&node, volumes, claims)).await;
                Outcome::VolumesWritten(pod, written)
            }
            Decision::Unschedulable(refusal) => {
                self.recorder.record(&reference(&pod), Severity::Warning, "FailedScheduling", refusal.message.clone());
                self.report(&pod, &constraints, &refusal).await;
                match refusal.preemption {
                    Some(preemption) => match in_time(self.preempt(&pod, &preemption)).await {
                        Ok(()) => Outcome::Done,
                        Err(why) => {
                            let (name, namespace, node) = (&pod.name, &pod.namespace, &preemption.node);
                            tracing::warn!(pod = name, namespace, node, why, "failed to preempt pods; retrying");
                            Outcome::NotPreempted(pod, preemption)
                        }
                    },
                    None => Outcome::Done,
                }
            }
        }
    }

    fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// False if the pod is gone.
    async fn bind(&self, pod: &PodInfo, node: &str) -> Result<bool, String> {
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
        let (api, params) = (self.pods(&pod.namespace), PostParams::default());
        match api.create_subresource::<_, Value>("binding", &pod.name, &params, &binding).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(false),
            Err(kube::Error::Api(status)) => Err(status.message.clone()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// A binding has failed, or its answer alone: the pod keeps its place until the API says that it has no node. Another one
    /// would get it else, and the pod would be said not to be scheduled while it runs.
    async fn not_bound(&self, pod: Arc<PodInfo>, constraints: Arc<Constraints>, node: &str, why: String) -> Outcome {
        let (name, namespace) = (&pod.name, &pod.namespace);
        match in_time(self.node_of(&pod)).await {
            Ok(None) => Outcome::Done,
            Ok(Some(Some(bound))) => {
                tracing::debug!(
                    pod = name,
                    namespace,
                    node = bound,
                    why,
                    "the pod is bound, although its binding failed"
                );
                let text = messages::scheduled(namespace, name, &bound);
                self.recorder.record(&reference(&pod), Severity::Normal, "Scheduled", text);
                Outcome::Bound
            }
            Ok(Some(None)) | Err(_) => {
                tracing::warn!(pod = name, namespace, node, why, "failed to bind pod; retrying");
                Outcome::NotBound(pod, constraints, why)
            }
        }
    }

    /// The node of a pod as the API has it, asked for until there is an answer; `None` if the pod is gone.
    async fn node_of(&self, pod: &PodInfo) -> Result<Option<Option<String>>, String> {
        loop {
            match self.pods(&pod.namespace).get_opt(&pod.name).await {
                Ok(found) => {
                    let found = found.filter(|found| found.metadata.uid.as_deref() == Some(pod.uid.as_str()));
                    return Ok(found.map(|found| found.spec.and_then(|spec| spec.node_name)));
                }
                Err(error) => {
                    tracing::debug!(%error, pod = pod.name, "failed to read the pod whose binding failed; retrying");
                    tokio::time::sleep(LOOK_INTERVAL).await;
                }
            }
        }
    }

    /// Sets PodScheduled=False and the nominated node, as far as that is news.
    async fn report(&self, pod: &PodInfo, constraints: &Constraints, refusal: &Refusal) {
        let (reason, message) = (refusal.reason.name(), &refusal.message);
        let mut status = serde_json::Map::new();
        if constraints.condition.as_ref().is_none_or(|(r, m)| r != reason || m != message) {
            let mut condition = json!({
                "type": "PodScheduled",
                "status": "False",
                "reason": reason,
                "message": message,
            });
            // A condition that was False before keeps its time.
            if constraints.condition.is_none() {
                condition["lastTransitionTime"] = json!(Time(jiff::Timestamp::now()));
            }
            observe(&mut condition, pod.generation);
            status.insert("conditions".to_owned(), json!([condition]));
        }
        match &refusal.nomination {
            Nomination::Set(node) if pod.nominated.as_ref() != Some(node) => {
                status.insert("nominatedNodeName".to_owned(), json!(node));
            }
            // What is nominated may be news; a write that only might change something is not sent.
            Nomination::Clear if pod.nominated.is_some() || !status.is_empty() => {
                status.insert("nominatedNodeName".to_owned(), Value::Null);
            }
            _ => {}
        }
        if status.is_empty() {
            return;
        }
        if let Err(error) = self.write_refusal(pod, &Value::Object(status)).await {
            tracing::debug!(%error, pod = pod.name, "failed to write status of an unschedulable pod; the event has the reason");
        }
    }

    async fn patch_status(&self, pod: &PodReference, status: &Value) -> kube::Result<()> {
        let patch = Patch::Strategic(json!({"metadata": {"uid": pod.uid}, "status": status}));
        self.pods(&pod.namespace).patch_status(&pod.name, &PatchParams::default(), &patch).await.map(drop)
    }

    /// Upstream's `PatchPodStatus`, which tries again, too: a pod would not be shown as unschedulable before it is looked at again.
    /// Each try is for the version that was read, so that a late one says nothing of a pod that was bound meanwhile.
    async fn write_refusal(&self, pod: &PodInfo, status: &Value) -> kube::Result<()> {
        let (pods, params) = (self.pods(&pod.namespace), PatchParams::default());
        let (mut version, mut pauses) = (pod.version.clone(), STATUS_RETRIES.into_iter());
        loop {
            let metadata = json!({"uid": pod.uid, "resourceVersion": version});
            let patch = Patch::Strategic(json!({"metadata": metadata, "status": status}));
            let Err(error) = pods.patch_status(&pod.name, &params, &patch).await else { return Ok(()) };
            let Some(pause) = pauses.next().filter(|_| is_retriable(&error)) else { return Err(error) };
            tokio::time::sleep(pause).await;
            if let Ok(now) = pods.get_opt(&pod.name).await {
                let unbound = now.filter(|now| now.spec.as_ref().is_some_and(|spec| spec.node_name.is_none()));
                let Some(read) = unbound.and_then(|now| now.metadata.resource_version) else { return Ok(()) };
                version = read;
            }
        }
    }

    /// Publishes the pod's future node before waiting for its volumes (`NominatedNodeNameForExpectation`).
    async fn nominate_before_binding(&self, pod: &PodInfo, node: &str) {
        if pod.nominated.as_deref() != Some(node)
            && let Err(error) = self.patch_status(&pod.reference(), &json!({"nominatedNodeName": node})).await
        {
            tracing::debug!(%error, pod = pod.name, "failed to write the nominated node; going on");
        }
    }

    /// Upstream's `bindAPIUpdate`. Resource versions are included, so that no other writer's change is undone.
    async fn write_volumes(
        &self,
        node: &str,
        volumes: Vec<VolumeWrite>,
        claims: Vec<ClaimWrite>,
    ) -> Result<(), String> {
        let params = PatchParams::default();
        for write in volumes {
            let (namespace, name) = &write.claim;
            let mut metadata = json!({"resourceVersion": write.version});
            if write.by_controller {
                metadata["annotations"] = json!({BOUND_BY_CONTROLLER: "yes"});
            }
            let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": name,
                "uid": write.claim_uid, "resourceVersion": write.claim_version});
            let patch = Patch::Merge(json!({"metadata": metadata, "spec": {"claimRef": claim}}));
            let api: Api<PersistentVolume> = Api::all(self.client.clone());
            let written = api.patch(&write.volume, &params, &patch).await;
            written.map_err(|error| format!("updating volume {:?} for node {node:?}: {error}", write.volume))?;
        }
        for write in claims {
            let (namespace, name) = &write.claim;
            let patch = Patch::Merge(json!({"metadata": {"uid": write.uid, "resourceVersion": write.version,
                "annotations": {SELECTED_NODE: write.node}}}));
            let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
            let written = api.patch(name, &params, &patch).await;
            written.map_err(|error| format!("updating claim {name:?} for node {node:?}: {error}"))?;
        }
        Ok(())
    }

    /// Deletes the victims; less important pods are nominated to the node no longer.
    async fn preempt(&self, preemptor: &PodInfo, preemption: &Preemption) -> Result<(), String> {
        for nominee in &preemption.nominees {
            if let Err(error) = self.patch_status(nominee, &json!({"nominatedNodeName": null})).await {
                tracing::debug!(%error, pod = nominee.name, "failed to clear the nominated node of a pod; going on");
            }
        }
        let evictions = preemption.victims.iter().map(|victim| self.evict(preemptor, victim, &preemption.node));
        bounded_join(evictions).await.into_iter().collect()
    }

    /// Upstream's `PreemptPod`.
    async fn evict(&self, preemptor: &PodInfo, victim: &PodReference, node: &str) -> Result<(), String> {
        let message = messages::disruption(SCHEDULER_NAME);
        let target = Target {
            namespace: &victim.namespace,
            name: &victim.name,
            uid: &victim.uid,
            generation: victim.generation,
            is_terminal: false,
            condition: None,
        };
        let ended = Ending::evicted(("PreemptionByScheduler", &message)).end(&self.client, &target).await;
        let failed = |Failed { action, source }: Failed| {
            format!("failed to {action} {}/{}: {source}", victim.namespace, victim.name)
        };
        if !ended.map_err(failed)? {
            return Ok(());
        }
        let text = messages::preempted(&preemptor.uid, node);
        self.recorder.record(&reference_of(victim), Severity::Normal, "Preempted", text);
        Ok(())
    }
}

/// The outcome of writes, which must be answered in time.
async fn in_time<T>(writes: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let answered = tokio::time::timeout(WRITE_TIMEOUT, writes).await;
    answered.unwrap_or_else(|_| Err("the API did not answer in time".to_owned()))
}

/// Whether the same write may succeed in a moment: the server failed, somebody else was faster, or there was no answer.
fn is_retriable(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => matches!(status.code, 409 | 429 | 500..),
        _ => true,
    }
}

/// The generation of the pod that a condition is about, where the API counts it.
fn observe(condition: &mut Value, generation: Option<i64>) {
    if let Some(generation) = generation {
        condition["observedGeneration"] = json!(generation);
    }
}

fn reference(pod: &PodInfo) -> ObjectReference {
    ObjectReference { resource_version: Some(pod.version.clone()), ..reference_of(&pod.reference()) }
}

fn reference_of(pod: &PodReference) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(pod.namespace.clone()),
        name: Some(pod.name.clone()),
        uid: Some(pod.uid.clone()),
        ..ObjectReference::default()
    }
}
