//! What a worker publishes: the patch of a pod's status, and its running containers. Pure.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition, PodStatus};
use serde_json::{Map, Value, json};
use windlass_cadvisor::Target;

use super::time::saturating_add;
use crate::engine::inspect::{Instance, State};

/// A container as it is measured, if it runs. When its pod started is known to those who know all of its containers.
pub(crate) fn running(instance: &Instance) -> Option<Target> {
    let State::Running { pid, started_at } = instance.state else { return None };
    let who = &instance.identity;
    Some(Target {
        container_id: instance.id.clone(),
        pid,
        name: who.docker_name(),
        image: instance.image.clone(),
        pod_name: who.pod.clone(),
        pod_namespace: who.namespace.clone(),
        pod_uid: who.uid.clone(),
        container_name: who.container.clone(),
        started_at,
        pod_started_at: started_at,
        cpu_shares: u64::try_from(instance.limits.cpu_shares).ok().filter(|shares| *shares > 0),
        limits: vec![instance.limits.memory, instance.limits.cpu_shares, instance.limits.cpu_quota],
        ..Target::default()
    })
}

/// The resourceVersion of a pod as a number; 0 where it has none.
pub(crate) fn version(pod: &Pod) -> u64 {
    pod.metadata.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(0)
}

/// The status `before` with the fields that the kubelet owns replaced.
pub(crate) fn merge(before: &PodStatus, wanted: &PodStatus) -> PodStatus {
    PodStatus {
        conditions: wanted.conditions.clone().map(|c| in_order_of(before, c)),
        container_statuses: wanted.container_statuses.clone(),
        init_container_statuses: wanted.init_container_statuses.clone(),
        ephemeral_container_statuses: wanted.ephemeral_container_statuses.clone(),
        resources: wanted.resources.clone(),
        allocated_resources: wanted.allocated_resources.clone(),
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

/// Conditions in the order of `before`: the API merges them by type, and their order means nothing.
fn in_order_of(before: &PodStatus, mut wanted: Vec<PodCondition>) -> Vec<PodCondition> {
    let position =
        |type_: &str| before.conditions.iter().flatten().position(|c| c.type_ == type_).unwrap_or(usize::MAX);
    wanted.sort_by_key(|c| position(&c.type_));
    wanted
}

/// The strategic merge patch that turns the status `before` into `after`, both in their canonical form; `None` where
/// they are equal. The uid keeps it from reaching a new pod of the same name. A removed field is `null`, else the
/// server would keep it.
pub(crate) fn patch_of(pod: &Pod, before: &PodStatus, after: &PodStatus) -> Option<Value> {
    if before == after {
        return None;
    }
    let of = |status: &PodStatus| match serde_json::to_value(status) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    };
    let status = difference(&of(before), &of(after));
    (!status.is_empty()).then(|| json!({"metadata": {"uid": pod.metadata.uid}, "status": status}))
}

/// Whether no client waits for what has changed: addresses, ids of containers that are about to start, readiness of the
/// sandbox; and the observed generation of a pod that `terminates`. Such a change is batched with the next one, as
/// upstream's status manager does by syncing once a second.
pub(crate) fn can_batch(before: &PodStatus, after: &PodStatus, terminates: bool) -> bool {
    let awaited = |status: &PodStatus| {
        let mut status = PodStatus { pod_ip: None, pod_ips: None, ..status.clone() };
        status.conditions.iter_mut().for_each(|all| all.retain(|c| c.type_ != "PodReadyToStartContainers"));
        if terminates {
            status.observed_generation = None;
            status.conditions.iter_mut().flatten().for_each(|condition| condition.observed_generation = None);
        }
        let lists = [&mut status.container_statuses, &mut status.init_container_statuses];
        for container in lists.into_iter().flatten().flatten() {
            if container.state.as_ref().is_some_and(|state| state.waiting.is_some()) {
                container.container_id = None;
                container.image_id.clear();
            }
        }
        status
    };
    awaited(before) == awaited(after)
}

/// How long a change that no client waits for is batched; the period of upstream's status manager.
const BATCH_PERIOD: Duration = Duration::from_secs(1);
/// The same while a container is being created, started or stopped, after which the status changes again. When many
/// pods start at once that takes seconds, and a write per part would delay all of them.
const BATCH_PERIOD_BUSY: Duration = Duration::from_secs(5);

/// Until when a change of the time `since` is batched; `busy` while an engine operation of the pod is in flight.
pub(crate) fn batch_until(since: Timestamp, busy: bool) -> Timestamp {
    saturating_add(since, if busy { BATCH_PERIOD_BUSY } else { BATCH_PERIOD })
}

/// The lists of a pod's status that the server merges item by item, and their merge keys.
const MERGED_LISTS: [(&str, &str); 3] = [("conditions", "type"), ("hostIPs", "ip"), ("podIPs", "ip")];

fn difference(before: &Map<String, Value>, after: &Map<String, Value>) -> Map<String, Value> {
    let mut patch: Map<String, Value> =
        before.keys().filter(|key| !after.contains_key(*key)).map(|key| (key.clone(), Value::Null)).collect();
    for (key, value) in after {
        let old = before.get(key);
        if old == Some(value) {
            continue;
        }
        let merged_by = MERGED_LISTS.iter().find(|(list, _)| list == key).map(|(_, field)| *field);
        let change = match (old, value, merged_by) {
            (Some(Value::Object(old)), Value::Object(new), _) => Value::Object(difference(old, new)),
            (Some(Value::Array(old)), Value::Array(new), Some(field)) => match items(old, new, field) {
                // The server keeps the order that it has.
                items if items.is_empty() => continue,
                items => Value::Array(items),
            },
            _ => value.clone(),
        };
        patch.insert(key.clone(), change);
    }
    patch
}

/// The items of a merged list that changed, and those to delete.
fn items(before: &[Value], after: &[Value], field: &str) -> Vec<Value> {
    let find = |list: &[Value], item: &Value| list.iter().find(|i| i[field] == item[field]).cloned();
    let mut out = Vec::new();
    for item in after {
        match (find(before, item), item) {
            (Some(old), item) if old == *item => {}
            (Some(Value::Object(old)), Value::Object(new)) => {
                let mut change = difference(&old, new);
                change.insert(field.to_owned(), item[field].clone());
                out.push(Value::Object(change));
            }
            _ => out.push(item.clone()),
        }
    }
    let removed = before.iter().filter(|item| find(after, item).is_none());
    out.extend(removed.map(|item| json!({"$patch": "delete", field: item[field]})));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(value: Value) -> PodStatus {
        serde_json::from_value(value).unwrap()
    }

    fn patch(before: Value, after: Value) -> Value {
        patch_of(&Pod::default(), &status(before), &status(after)).map_or(Value::Null, |patch| patch["status"].clone())
    }

    #[test]
    fn a_reason_that_is_gone_is_taken_away() {
        let before = json!({"phase": "Pending", "reason": "NodeLost", "conditions": [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "wait"},
        ]});
        let after = json!({"phase": "Running", "conditions": [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": "True"},
        ]});
        let expected = json!({"phase": "Running", "reason": null, "conditions": [
            {"type": "Ready", "status": "True", "reason": null, "message": null},
        ]});
        assert_eq!(patch(before, after), expected);
    }

    #[test]
    fn lists_are_merged_or_replaced_as_the_server_does_it() {
        let container = |state: Value| json!({"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state});
        let before = json!({"podIPs": [{"ip": "10.0.0.1"}], "containerStatuses": [container(json!({"waiting": {}}))]});
        let after = json!({"podIPs": [{"ip": "10.0.0.2"}], "containerStatuses": [container(json!({"running": {}}))]});
        let patch = patch(before, after);
        assert_eq!(patch["podIPs"], json!([{"ip": "10.0.0.2"}, {"$patch": "delete", "ip": "10.0.0.1"}]));
        assert_eq!(patch["containerStatuses"][0]["state"], json!({"running": {}}));
    }

    #[test]
    fn what_nobody_waits_for_can_batch() {
        let with = |ready: &str, sandbox: &str, state: &str, id: &str| {
            status(json!({"phase": "Pending", "podIP": id, "conditions": [
                {"type": "PodReadyToStartContainers", "status": sandbox}, {"type": "Ready", "status": ready}],
                "containerStatuses": [{"name": "c", "image": "i", "imageID": id, "containerID": id, "ready": false,
                    "restartCount": 0, "state": {state: {}}}]}))
        };
        let before = with("False", "False", "waiting", "");
        for (after, can) in [
            (with("False", "True", "waiting", ""), true),
            (with("False", "True", "waiting", "1"), true),
            (with("True", "True", "waiting", "1"), false),
            (with("False", "True", "running", "1"), false),
        ] {
            assert_eq!(can_batch(&before, &after, false), can, "{after:?}");
        }
        let runs = |id| with("True", "True", "running", id);
        let seen = PodStatus { observed_generation: Some(2), ..before.clone() };
        assert_eq!([true, false].map(|terminates| can_batch(&before, &seen, terminates)), [true, false]);
        assert!(!can_batch(&runs("1"), &runs("2"), true), "clients wait for another run");
    }

    #[test]
    fn it_waits_longer_while_there_is_more_to_come() {
        let since = Timestamp::UNIX_EPOCH;
        assert_eq!([false, true].map(|busy| batch_until(since, busy).as_second()), [1, 5]);
    }

    #[test]
    fn what_did_not_change_is_not_sent() {
        let same = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
        assert_eq!(patch(same.clone(), same), Value::Null);
        let list = |first: &str, second: &str| json!({"hostIPs": [{"ip": first}, {"ip": second}]});
        assert_eq!(patch(list("10.0.0.1", "fd00::1"), list("fd00::1", "10.0.0.1")), Value::Null, "an order alone");
    }
}
