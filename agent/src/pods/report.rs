//! What a worker tells others: the patch of a pod's status, and which containers run. Pure.

use k8s_openapi::api::core::v1::{Pod, PodCondition, PodStatus};

use crate::{
    ContainerRecord,
    engine::{
        instance::{Instance, State},
        names,
    },
};

pub(super) fn record(instance: &Instance) -> Option<ContainerRecord> {
    let State::Running { pid, started_at } = instance.state else { return None };
    let who = &instance.identity;
    Some(ContainerRecord {
        id: instance.id.clone(),
        pid,
        docker_name: who.docker_name(),
        image: instance.image.clone(),
        pod_name: who.pod.clone(),
        pod_namespace: who.namespace.clone(),
        pod_uid: who.uid.clone(),
        container_name: who.container.clone(),
        is_sandbox: who.container == names::SANDBOX_NAME,
        started_at,
    })
}

pub(super) fn version(pod: &Pod) -> u64 {
    pod.metadata.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(0)
}

/// `before` with the fields that the agent owns replaced.
pub(super) fn merge(before: &PodStatus, wanted: &PodStatus) -> PodStatus {
    PodStatus {
        conditions: wanted.conditions.clone().map(|c| in_order_of(before, c)),
        container_statuses: wanted.container_statuses.clone(),
        init_container_statuses: wanted.init_container_statuses.clone(),
        host_ip: wanted.host_ip.clone(),
        host_ips: wanted.host_ips.clone(),
        pod_ip: wanted.pod_ip.clone(),
        pod_ips: wanted.pod_ips.clone(),
        phase: wanted.phase.clone(),
        qos_class: wanted.qos_class.clone(),
        reason: wanted.reason.clone(),
        message: wanted.message.clone(),
        start_time: wanted.start_time.clone(),
        observed_generation: wanted.observed_generation,
        ..before.clone()
    }
}

/// Conditions are a map by type: their order in the API's list says nothing.
fn in_order_of(before: &PodStatus, mut wanted: Vec<PodCondition>) -> Vec<PodCondition> {
    let position =
        |type_: &str| before.conditions.iter().flatten().position(|c| c.type_ == type_).unwrap_or(usize::MAX);
    wanted.sort_by_key(|c| position(&c.type_));
    wanted
}

/// A strategic merge patch; the uid keeps it from meeting a new pod of the same name.
pub(super) fn patch_of(pod: &Pod, wanted: &PodStatus) -> serde_json::Value {
    let mut status = serde_json::to_value(wanted).unwrap_or_default();
    if let Some(fields) = status.as_object_mut() {
        for (key, value) in [("reason", &wanted.reason), ("message", &wanted.message)] {
            if value.is_none() {
                fields.insert(key.to_owned(), serde_json::Value::Null);
            }
        }
    }
    serde_json::json!({"metadata": {"uid": pod.metadata.uid}, "status": status})
}
