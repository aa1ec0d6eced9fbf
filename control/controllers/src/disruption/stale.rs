//! Takes back the DisruptionTarget condition of pods that were to be deleted and are not. Upstream's
//! `syncStalePodDisruption`.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Time};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use windlass_kit::pod_ending::DISRUPTION_TARGET;

use crate::{
    pods,
    runtime::{Cache, CachedPod, Context, Controller, Error, Key, Outcome, error},
};

/// How long a pod may have the condition without being deleted. Upstream's `stalePodDisruptionTimeout`.
const STALE_AFTER: SignedDuration = SignedDuration::from_secs(2 * 60);
/// The reason of the node's own conditions, after which a pod may take any time to end.
const TERMINATION_BY_KUBELET: &str = "TerminationByKubelet";

/// The controller, whose keys are pods.
pub(crate) struct StalePodDisruptionController {
    client: Client,
    pods: Cache<CachedPod>,
}

impl Controller for StalePodDisruptionController {
    const NAME: &'static str = "stale_pod_disruption";
    type Key = Key;
    type Config = ();

    fn subscribe(context: &mut Context<Key>, (): ()) -> Self {
        let pods = context.informer::<CachedPod>();
        let queue = context.queue();
        pods.on_change(move |_, new| {
            if let Some((pod, wait)) = new.and_then(|pod| Some((pod, stale_in(pod, Timestamp::now())?))) {
                queue.add_after(Key::of(&pod.metadata), wait);
            }
        });
        Self { client: context.client(), pods: pods.cache() }
    }

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let now = Timestamp::now();
        let Some(pod) = self.pods.get(&key) else { return Ok(Outcome::Done) };
        match stale_in(&pod, now) {
            None => return Ok(Outcome::Done),
            Some(wait) if !wait.is_zero() => return Ok(Outcome::After(wait)),
            Some(_) => {}
        }
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        let written = api.patch_status(&key.name, &PatchParams::default(), &Patch::Strategic(patch(&pod, now))).await;
        if error::of_seen(written, "take back the DisruptionTarget condition of", &key)?.is_some() {
            tracing::debug!(pod = %key, "pod was not deleted; its DisruptionTarget condition is false now");
        }
        Ok(Outcome::Done)
    }
}

/// When the condition of a pod is stale; `None` for a pod without it, and for one that ends. Upstream's
/// `nonTerminatingPodHasStaleDisruptionCondition`. Pure.
pub(super) fn stale_in(pod: &CachedPod, now: Timestamp) -> Option<Duration> {
    let condition = pods::condition(pod, DISRUPTION_TARGET).filter(|condition| condition.status == "True")?;
    if !pods::is_active(pod) || condition.reason.as_deref() == Some(TERMINATION_BY_KUBELET) {
        return None;
    }
    let since = condition.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
    Some(Duration::try_from(STALE_AFTER - now.duration_since(since)).unwrap_or_default())
}

/// The strategic patch that makes the condition false in this version of a pod. Pure.
pub(super) fn patch(pod: &CachedPod, now: Timestamp) -> Value {
    let meta = &pod.metadata;
    let condition = json!({"type": DISRUPTION_TARGET, "status": "False", "lastTransitionTime": Time(now),
        "reason": null, "message": null, "lastProbeTime": null, "observedGeneration": meta.generation});
    json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}, "status": {"conditions": [condition]}})
}
