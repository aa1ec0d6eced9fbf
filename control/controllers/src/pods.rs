//! Predicates of pods for controllers, and how they end those that they do not own.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use windlass_kit::pod_ending::{DISRUPTION_TARGET, Ending, Failed, Target};

use super::runtime::{CachedPod, Error, Key};

/// Succeeded or Failed: its containers do not run again.
pub(crate) fn is_terminal(pod: &CachedPod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Neither terminal nor being deleted.
pub(crate) fn is_active(pod: &CachedPod) -> bool {
    !is_terminal(pod) && pod.metadata.deletion_timestamp.is_none()
}

/// The phase; `Pending` if not set yet.
pub(crate) fn phase(pod: &CachedPod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("Pending")
}

pub(crate) fn condition<'a>(pod: &'a CachedPod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|c| c.type_ == kind)
}

pub(crate) fn is_ready(pod: &CachedPod) -> bool {
    condition(pod, "Ready").is_some_and(|c| c.status == "True")
}

/// Since when the pod is ready, if it is.
pub(crate) fn ready_since(pod: &CachedPod) -> Option<Timestamp> {
    condition(pod, "Ready").filter(|c| c.status == "True")?.last_transition_time.as_ref().map(|t| t.0)
}

/// How long until a ready pod counts as available: zero when it does, `None` when it is not ready.
pub(crate) fn available_in(pod: &CachedPod, min_ready: Duration, now: Timestamp) -> Option<Duration> {
    if !is_ready(pod) {
        return None;
    }
    if min_ready.is_zero() {
        return Some(Duration::ZERO);
    }
    let ready = Duration::try_from(now.duration_since(ready_since(pod)?)).unwrap_or_default();
    Some(min_ready.saturating_sub(ready))
}

/// `minReadySeconds`, as a time.
pub(crate) fn min_ready(seconds: Option<i32>) -> Duration {
    Duration::from_secs(u64::try_from(seconds.unwrap_or(0)).unwrap_or(0))
}

/// The shorter of two waits, of which there may be none.
pub(crate) fn earliest(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    one.into_iter().chain(other).min()
}

/// The node the pod is bound to; empty counts as none.
pub(crate) fn node_name(pod: &CachedPod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|n| !n.is_empty())
}

/// The pod's addresses, the primary one first.
pub(crate) fn addresses(pod: &CachedPod) -> Vec<&str> {
    let Some(status) = &pod.status else { return Vec::new() };
    let mut addresses: Vec<&str> =
        status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str()).filter(|ip| !ip.is_empty()).collect();
    if addresses.is_empty() {
        addresses.extend(status.pod_ip.as_deref().filter(|ip| !ip.is_empty()));
    }
    addresses
}

/// The owner that controls the object.
pub(crate) fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.as_ref()?.iter().find(|owner| owner.controller == Some(true))
}

/// Whether an object is controlled by the owner with this metadata.
pub(crate) fn is_controlled_by(meta: &ObjectMeta, owner: &ObjectMeta) -> bool {
    controller_of(meta).is_some_and(|controller| Some(&controller.uid) == owner.uid.as_ref())
}

/// Whether `labels` hold every pair of a non-empty map selector.
pub(crate) fn selects<'a>(
    selector: impl IntoIterator<Item = (&'a String, &'a String)>,
    labels: Option<&std::collections::BTreeMap<String, String>>,
) -> bool {
    let mut any = false;
    for (key, value) in selector {
        any = true;
        if labels.and_then(|labels| labels.get(key)) != Some(value) {
            return false;
        }
    }
    any
}

/// Ends a pod; returns whether it was this that deleted it.
///
/// # Errors
/// When the API refuses.
pub(crate) async fn end(client: &kube::Client, pod: &CachedPod, ending: &Ending<'_>) -> Result<bool, Error> {
    let meta = &pod.metadata;
    let target = Target {
        namespace: meta.namespace.as_deref().unwrap_or_default(),
        name: meta.name.as_deref().unwrap_or_default(),
        uid: meta.uid.as_deref().unwrap_or_default(),
        generation: meta.generation,
        is_terminal: is_terminal(pod),
        condition: condition(pod, DISRUPTION_TARGET),
    };
    let failed =
        |Failed { action, source }| Error::Api { action, object: Key::of(meta).to_string(), source: Box::new(source) };
    ending.end(client, &target).await.map_err(failed)
}
