use jiff::Timestamp;
use serde_json::{Value, json};

use super::*;
use crate::apiserver::{
    tests::{api, stored_versions},
    types::{age, duration},
};

fn now() -> Timestamp {
    "2026-01-02T00:00:00Z".parse().unwrap()
}

fn cells(kind: &str, object: &Value) -> Vec<String> {
    (version(kind).spec.table.row)(object, now())
        .iter()
        .map(|c| c.as_str().map_or_else(|| c.to_string(), str::to_owned))
        .collect()
}

#[test]
fn ages() {
    for (seconds, wanted) in [
        (-5, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (130, "2m10s"),
        (599, "9m59s"),
        (600, "10m"),
        (10_799, "179m"),
        (10_800, "3h"),
        (11_000, "3h3m"),
        (28_800, "8h"),
        (172_799, "47h"),
        (172_800, "2d"),
        (180_000, "2d2h"),
        (691_200, "8d"),
        (63_072_000, "2y"),
        (63_158_400, "2y1d"),
        (252_288_000, "8y"),
    ] {
        assert_eq!(duration(seconds), wanted, "{seconds}");
    }
    assert_eq!(age("", now()), "<unknown>");
}

#[test]
fn every_kind_has_as_many_cells_as_columns() {
    for resource in stored_versions(&api()) {
        let object = json!({"metadata": {"name": "x", "creationTimestamp": "2026-01-01T00:00:00Z"}});
        assert_eq!(
            resource.spec.table.columns.len(),
            (resource.spec.table.row)(&object, now()).len(),
            "{}",
            resource.gvk.kind
        );
    }
}

#[test]
fn what_a_pod_is_doing() {
    let pod = |status: Value| json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}, {"name": "b"}]}, "status": status});
    let running = |ready: bool| json!({"name": "a", "ready": ready, "restartCount": 0, "state": {"running": {}}});
    let ended = |code: i64, reason: &str| json!({"name": "a", "ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": code, "reason": reason}}});
    let waiting = |reason: &str| {
        json!({"name": "a", "ready": false, "restartCount": 2, "state": {"waiting": {"reason": reason}},
        "lastState": {"terminated": {"finishedAt": "2026-01-01T23:59:30Z"}}})
    };
    for (status, ready, word, restarts) in [
        (json!({"phase": "Pending"}), "0/2", "Pending", "0"),
        (json!({"phase": "Running", "containerStatuses": [running(true), running(true)]}), "2/2", "Running", "0"),
        (
            json!({"phase": "Running", "containerStatuses": [running(true), waiting("CrashLoopBackOff")]}),
            "1/2",
            "CrashLoopBackOff",
            "2 (30s ago)",
        ),
        (
            json!({"phase": "Succeeded", "containerStatuses": [ended(0, "Completed"), ended(0, "Completed")]}),
            "0/2",
            "Completed",
            "0",
        ),
        (
            json!({"phase": "Failed", "containerStatuses": [ended(1, "Error"), ended(0, "Completed")]}),
            "0/2",
            "Error",
            "0",
        ),
        (json!({"phase": "Failed", "containerStatuses": [ended(3, "")]}), "0/2", "ExitCode:3", "0"),
        (json!({"phase": "Failed", "reason": "Evicted"}), "0/2", "Evicted", "0"),
    ] {
        assert_eq!(cells("Pod", &pod(status.clone()))[1..4], [ready, word, restarts], "{status}");
    }
    let mut going = pod(json!({"phase": "Running", "containerStatuses": [running(true)]}));
    going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert_eq!(cells("Pod", &going)[2], "Terminating");
    let mut init = pod(
        json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"running": {}}, "restartCount": 0}]}),
    );
    init["spec"]["initContainers"] = json!([{"name": "i"}]);
    assert_eq!(cells("Pod", &init)[2], "Init:0/1");
}

#[test]
fn services_and_endpoints() {
    let service = json!({"metadata": {"name": "s"}, "spec": {"type": "NodePort", "clusterIP": "10.96.0.5", "ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}], "selector": {"a": "b"}}});
    assert_eq!(cells("Service", &service)[1..5], ["NodePort", "10.96.0.5", "<none>", "80:30080/TCP"]);
    let pending = json!({"metadata": {"name": "s"}, "spec": {"type": "LoadBalancer", "clusterIP": "10.96.0.5"}});
    assert_eq!(cells("Service", &pending)[3], "<pending>");
    let address = |n: i64| json!({"ip": format!("10.0.0.{n}")});
    let endpoints = json!({"metadata": {"name": "s"}, "subsets": [{"addresses": [address(1), address(2), address(3), address(4)], "ports": [{"port": 80}]}]});
    assert_eq!(cells("Endpoints", &endpoints)[1], "10.0.0.1:80,10.0.0.2:80,10.0.0.3:80 + 1 more...");
}

/// Every branch of the pod's word, its ready count and its restarts.
#[test]
fn pods_that_initialize_end_and_vanish() {
    let init =
        |state: Value, restarts: i64| json!({"name": "i", "ready": false, "restartCount": restarts, "state": state});
    let app = |state: Value, ready: bool| json!({"name": "a", "ready": ready, "restartCount": 0, "state": state});
    let running = json!({"running": {}});
    let spec = json!({"containers": [{"name": "a"}], "initContainers": [{"name": "i"}, {"name": "j"}]});
    let sidecar = json!({"containers": [{"name": "a"}], "initContainers": [{"name": "i", "restartPolicy": "Always"}]});
    let ready = json!([{"type": "Ready", "status": "True"}]);
    for (spec, status, count, word, restarts) in [
        (
            &spec,
            json!({"phase": "Pending", "initContainerStatuses": [init(json!({"terminated": {"exitCode": 0}}), 0), init(running.clone(), 2)]}),
            "0/1",
            "Init:1/2",
            "2",
        ),
        (
            &spec,
            json!({"phase": "Pending", "initContainerStatuses": [init(json!({"terminated": {"exitCode": 1, "reason": "Error"}}), 0)]}),
            "0/1",
            "Init:Error",
            "0",
        ),
        (
            &spec,
            json!({"phase": "Pending", "initContainerStatuses": [init(json!({"terminated": {"exitCode": 9}}), 0)]}),
            "0/1",
            "Init:ExitCode:9",
            "0",
        ),
        (
            &spec,
            json!({"phase": "Pending", "initContainerStatuses": [init(json!({"terminated": {"exitCode": 137, "signal": 9}}), 0)]}),
            "0/1",
            "Init:Signal:9",
            "0",
        ),
        (
            &spec,
            json!({"phase": "Pending", "initContainerStatuses": [init(json!({"waiting": {"reason": "CrashLoopBackOff"}}), 4)]}),
            "0/1",
            "Init:CrashLoopBackOff",
            "4",
        ),
        (
            &spec,
            json!({"phase": "Pending", "initContainerStatuses": [init(json!({"waiting": {"reason": "PodInitializing"}}), 0)]}),
            "0/1",
            "Init:0/2",
            "0",
        ),
        (
            &spec,
            json!({"phase": "Running", "initContainerStatuses": [init(json!({"terminated": {"exitCode": 0}}), 3)], "containerStatuses": [app(running.clone(), true)]}),
            "1/1",
            "Running",
            "0",
        ),
        (
            &sidecar,
            json!({"phase": "Running", "initContainerStatuses": [{"name": "i", "ready": true, "started": true, "restartCount": 2, "state": running}],
            "containerStatuses": [app(running.clone(), true)]}),
            "2/2",
            "Running",
            "2",
        ),
        (
            &sidecar,
            json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "ready": false, "started": false, "restartCount": 0, "state": running}]}),
            "0/2",
            "Init:0/1",
            "0",
        ),
        (
            &spec,
            json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]}),
            "0/1",
            "SchedulingGated",
            "0",
        ),
        (
            &spec,
            json!({"phase": "Running", "containerStatuses": [app(json!({"terminated": {"exitCode": 137, "signal": 9}}), false)]}),
            "0/1",
            "Signal:9",
            "0",
        ),
        (
            &spec,
            json!({"phase": "Running", "containerStatuses": [app(json!({"terminated": {"exitCode": 0, "reason": "Completed"}}), false), app(running.clone(), true)]}),
            "1/1",
            "NotReady",
            "0",
        ),
        (
            &spec,
            json!({"phase": "Running", "conditions": ready, "containerStatuses": [app(json!({"terminated": {"exitCode": 0, "reason": "Completed"}}), false), app(running.clone(), true)]}),
            "1/1",
            "Running",
            "0",
        ),
        (
            &spec,
            json!({"phase": "Running", "containerStatuses": [app(json!({"terminated": {"exitCode": 0, "reason": "Completed"}}), false),
            app(json!({"terminated": {"exitCode": 2, "reason": "Error"}}), false)]}),
            "0/1",
            "Error",
            "0",
        ),
    ] {
        let pod = json!({"metadata": {"name": "p"}, "spec": spec, "status": status});
        assert_eq!(cells("Pod", &pod)[1..4], [count, word, restarts], "{status}");
    }
    let going = |status: Value| {
        cells("Pod", &json!({"metadata": {"name": "p", "deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": spec, "status": status}))[2].clone()
    };
    assert_eq!(going(json!({"phase": "Running", "reason": "NodeLost"})), "Unknown");
    assert_eq!(going(json!({"phase": "Succeeded"})), "Succeeded");
    assert_eq!(going(json!({"phase": "Running"})), "Terminating");
    let wide = cells(
        "Pod",
        &json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n", "readinessGates": [{"conditionType": "x"}, {"conditionType": "y"}]},
        "status": {"podIP": "10.0.0.1", "conditions": [{"type": "x", "status": "True"}]}}),
    );
    assert_eq!(wide[5..], ["10.0.0.1", "n", "<none>", "1/2"]);
}

#[test]
fn rows_of_the_other_kinds() {
    for (kind, object, wanted) in [
        (
            "ReplicationController",
            json!({"spec": {"replicas": 2, "selector": {"app": "web"}, "template": {"spec": {"containers": [{"name": "a", "image": "x:1"}, {"name": "b", "image": "y"}]}}},
            "status": {"replicas": 2, "readyReplicas": 1}}),
            vec!["2", "2", "1", "24h", "a,b", "x:1,y", "app=web"],
        ),
        (
            "Service",
            json!({"spec": {"type": "ClusterIP", "clusterIP": "None", "ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}}),
            vec!["ClusterIP", "None", "<none>", "53/UDP,53/TCP", "24h", "<none>"],
        ),
        (
            "Service",
            json!({"spec": {"type": "ExternalName", "externalName": "x.org"}}),
            vec!["ExternalName", "<none>", "x.org", "<none>", "24h", "<none>"],
        ),
        (
            "Service",
            json!({"spec": {"type": "LoadBalancer", "clusterIP": "10.96.0.1", "externalIPs": ["1.2.3.4"]}, "status": {"loadBalancer": {"ingress": [{"hostname": "lb.org"}]}}}),
            vec!["LoadBalancer", "10.96.0.1", "lb.org,1.2.3.4", "<none>", "24h", "<none>"],
        ),
        ("Endpoints", json!({}), vec!["<none>", "24h"]),
        (
            "EndpointSlice",
            json!({"addressType": "IPv4", "ports": [{"port": 80}, {"port": 443}], "endpoints": [{"addresses": ["10.0.0.1"]}, {"addresses": ["10.0.0.2"]}]}),
            vec!["IPv4", "80,443", "10.0.0.1,10.0.0.2", "24h"],
        ),
        ("EndpointSlice", json!({"addressType": "IPv4"}), vec!["IPv4", "<unset>", "<unset>", "24h"]),
        (
            "Node",
            json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}], "nodeInfo": {"kubeletVersion": "v1"}}}),
            vec!["NotReady", "<none>", "24h", "v1", "<none>", "<none>", "<unknown>", "<unknown>", "<unknown>"],
        ),
        (
            "Node",
            json!({"metadata": {"name": "x", "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"node-role.kubernetes.io/worker": "", "node-role.kubernetes.io/control-plane": ""}},
            "spec": {"unschedulable": true}, "status": {"conditions": [{"type": "Ready", "status": "True"}], "addresses": [{"type": "InternalIP", "address": "10.1.1.1"}],
            "nodeInfo": {"kubeletVersion": "v1", "osImage": "Debian", "kernelVersion": "6", "containerRuntimeVersion": "docker://20"}}}),
            vec![
                "Ready,SchedulingDisabled",
                "control-plane,worker",
                "24h",
                "v1",
                "10.1.1.1",
                "<none>",
                "Debian",
                "6",
                "docker://20",
            ],
        ),
        ("Namespace", json!({"status": {"phase": "Active"}}), vec!["Active", "24h"]),
        ("ConfigMap", json!({"data": {"a": "1"}, "binaryData": {"b": ""}}), vec!["2", "24h"]),
        ("Secret", json!({"type": "Opaque", "data": {"a": ""}}), vec!["Opaque", "1", "24h"]),
        ("ServiceAccount", json!({}), vec!["24h"]),
        ("Lease", json!({"spec": {"holderIdentity": "n_1"}}), vec!["n_1", "24h"]),
    ] {
        let mut object = object;
        if object["metadata"].is_null() {
            object["metadata"] = json!({"name": "x", "creationTimestamp": "2026-01-01T00:00:00Z"});
        }
        assert_eq!(cells(kind, &object)[1..], wanted, "{kind}");
    }
    let event = json!({"metadata": {"name": "e.1"}, "involvedObject": {"kind": "Pod", "name": "p", "fieldPath": "spec.containers{c}"}, "type": "Normal", "reason": "Pulled",
        "message": "there it is\n", "source": {"component": "agent", "host": "n"}, "firstTimestamp": "2026-01-01T23:00:00Z", "lastTimestamp": "2026-01-01T23:59:50Z", "count": 3});
    assert_eq!(
        cells("Event", &event),
        ["10s", "Normal", "Pulled", "pod/p", "spec.containers{c}", "agent, n", "there it is", "60m", "3", "e.1"]
    );
    let newer = json!({"metadata": {"name": "e.2"}, "involvedObject": {"kind": "Pod", "name": "p"}, "type": "Normal", "reason": "Pulled",
        "reportingComponent": "example.com/agent", "reportingInstance": "agent-1", "eventTime": "2026-01-01T23:59:50.000000Z"});
    assert_eq!(cells("Event", &newer)[5], "example.com/agent, agent-1");
}

proptest::proptest! {
    #[test]
    fn no_object_breaks_a_row(text in "[\\[\\]{}:,\"a-c0-9]{0,40}", phase in "[A-Za-z]{0,8}") {
        let odd: Value = serde_json::from_str(&text).unwrap_or_else(|_| json!({"spec": text, "status": [1], "metadata": phase}));
        for resource in stored_versions(&api()) {
            for object in [odd.clone(), json!({"spec": odd, "status": odd}), json!({"status": {"phase": phase, "containerStatuses": odd}})] {
                assert_eq!((resource.spec.table.row)(&object, now()).len(), resource.spec.table.columns.len());
            }
        }
    }
}
