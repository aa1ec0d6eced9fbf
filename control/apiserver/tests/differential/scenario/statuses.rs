//! Status updates of pods, by the node and by others.

use serde_json::{Value, json};

use super::{MERGE, NODE, STRATEGIC, get, pod, step, within};
use crate::api_server::{JSON, Step};

pub(super) fn steps() -> Vec<Step> {
    let status = within("pods/p0/status");
    let ready = |status: &str| json!({"type": "Ready", "status": status, "lastProbeTime": null, "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1});
    let container = |state: Value| json!({"name": "main", "image": "image:1", "imageID": "", "ready": false, "restartCount": 0, "started": false, "lastState": {}, "state": state});
    let waiting = json!({"waiting": {"reason": "ContainerCreating"}});
    let running = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
    let node = |name: &str, kind, body: Value| step(name, NODE, "PATCH", &status, kind, body);
    let uid = json!("${/api/v1/namespaces/diff/pods/p0 /metadata/uid}");
    vec![
        node(
            "status: waits",
            STRATEGIC,
            json!({"metadata": {"uid": uid}, "status": {"observedGeneration": 1, "phase": "Pending", "hostIP": "10.0.0.1",
            "hostIPs": [{"ip": "10.0.0.1"}], "startTime": "2026-01-01T00:00:00Z", "conditions": [ready("False"), {"type": "PodScheduled", "status": "True"}],
            "containerStatuses": [container(waiting)]}}),
        ),
        node(
            "status: runs",
            STRATEGIC,
            json!({"metadata": {"uid": uid}, "status": {"$setElementOrder/conditions": [{"type": "Ready"}, {"type": "PodScheduled"}],
            "phase": "Running", "podIP": "10.1.0.5", "podIPs": [{"ip": "10.1.0.5"}], "conditions": [ready("True")], "containerStatuses": [container(running)]}}),
        ),
        node("status: the same", STRATEGIC, json!({"metadata": {"uid": uid}, "status": {"phase": "Running"}})),
        node("status: nothing", STRATEGIC, json!({"metadata": {"uid": uid}})),
        node(
            "status: of another pod of this name",
            STRATEGIC,
            json!({"metadata": {"uid": "11111111-1111-1111-1111-111111111111"}, "status": {"phase": "Failed"}}),
        ),
        node("status: labels", STRATEGIC, json!({"metadata": {"labels": {"x": "y"}}})),
        node("status: spec", MERGE, json!({"spec": {"activeDeadlineSeconds": 5}})),
        node("status: a phase that there is not", MERGE, json!({"status": {"phase": "Resting"}})),
        node("status: a generation before", MERGE, json!({"status": {"observedGeneration": -1}})),
        node("status: an address that is none", MERGE, json!({"status": {"podIPs": [{"ip": "nowhere"}]}})),
        node(
            "status: two addresses of a family",
            MERGE,
            json!({"status": {"podIPs": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}]}}),
        ),
        node(
            "status: resources",
            STRATEGIC,
            json!({"status": {"qosClass": "BestEffort", "containerStatuses": [{"name": "main", "restartCount": 1,
            "allocatedResources": {"cpu": "0.1"}, "resources": {"requests": {"cpu": "100m"}, "limits": {}}, "volumeMounts": [], "user": {"linux": {"uid": 0, "gid": 0}}}]}}),
        ),
        node("status: another class", MERGE, json!({"status": {"qosClass": "Guaranteed"}})),
        node(
            "status: a run that ended",
            STRATEGIC,
            json!({"status": {"containerStatuses": [{"name": "main",
            "lastState": {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": null, "finishedAt": "2026-01-01T00:00:01Z", "containerID": "docker://a"}}}]}}),
        ),
        node(
            "status: fewer runs",
            STRATEGIC,
            json!({"status": {"containerStatuses": [{"name": "main", "restartCount": 0, "state": {"terminated": {"exitCode": 3}}}]}}),
        ),
        node(
            "status: a condition goes",
            STRATEGIC,
            json!({"status": {"conditions": [{"type": "PodScheduled", "$patch": "delete"}]}}),
        ),
        node(
            "status: conditions in order",
            STRATEGIC,
            json!({"status": {"$setElementOrder/conditions": [{"type": "B"}, {"type": "Ready"}, {"type": "A"}],
            "conditions": [{"type": "A", "status": "True"}, {"type": "B", "status": "Unknown", "reason": "r"}]}}),
        ),
        step("status: whole", "admin", "PUT", &status, JSON, {
            let mut whole = pod("p0", json!({}));
            whole["status"] = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "startTime": "2026-01-01T00:00:00.123456Z"});
            whole["spec"]["containers"][0]["image"] = json!("other");
            whole["metadata"]["labels"] = json!({"app": "p0", "of": "status"});
            whole
        }),
        step("status: of an old revision", "admin", "PUT", &status, JSON, {
            let mut whole = pod("p0", json!({}));
            whole["metadata"]["resourceVersion"] = json!("1");
            whole
        }),
        get("status: is read", &status),
        step(
            "status: of a pod that there is not",
            NODE,
            "PATCH",
            &within("pods/none/status"),
            STRATEGIC,
            json!({"status": {"phase": "Failed"}}),
        ),
    ]
}
