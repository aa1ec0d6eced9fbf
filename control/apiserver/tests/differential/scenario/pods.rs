//! Pods: creation, lists, binding.

use serde_json::{Value, json};

use super::{NODE, TABLE, get, pod, post, step, within};
use crate::api_server::{JSON, Step};

pub(super) fn steps() -> Vec<Step> {
    let all = within("pods");
    let rich = json!({
        "initContainers": [{"name": "side", "image": "i", "restartPolicy": "Always"}, {"name": "init", "image": "r.io/a/b@sha256:0000000000000000000000000000000000000000000000000000000000000000"}],
        "containers": [{"name": "main", "image": "image", "ports": [{"containerPort": 80}, {"name": "dns", "containerPort": 53, "protocol": "UDP"}],
            "env": [{"name": "A", "value": ""}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            "resources": {"limits": {"cpu": "100m", "memory": "0.5Gi"}, "requests": {"cpu": 0.05}},
            "livenessProbe": {"httpGet": {"port": "http"}}, "readinessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 3},
            "lifecycle": {"preStop": {"httpGet": {"port": 80}}},
            "volumeMounts": [{"name": "e", "mountPath": "/e"}, {"name": "c", "mountPath": "/c", "readOnly": true}]}],
        "volumes": [{"name": "e", "emptyDir": {}}, {"name": "c", "configMap": {"name": "c"}}, {"name": "s", "secret": {"secretName": "s", "optional": true}},
            {"name": "h", "hostPath": {"path": "/h"}}, {"name": "d", "downwardAPI": {"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
            {"name": "p", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}],
        "tolerations": [{"key": "k", "operator": "Exists", "tolerationSeconds": 5, "effect": "NoExecute"}],
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}],
        "securityContext": {"runAsUser": 5, "sysctls": [{"name": "net.ipv4.ip_forward", "value": "1"}]},
        "hostAliases": [{"ip": "1.2.3.4", "hostnames": ["h"]}], "dnsConfig": {"options": [{"name": "n"}]},
        "readinessGates": [{"conditionType": "x.io/y"}], "priorityClassName": "system-node-critical",
    });
    vec![
        post("pod", &all, pod("p0", json!({}))),
        post("pod of everything", &all, pod("rich", rich)),
        post(
            "pod that is not bound",
            &all,
            json!({"metadata": {"name": "free"}, "spec": {"automountServiceAccountToken": false, "containers": [{"name": "main", "image": "i"}]}}),
        ),
        post(
            "pod on the host's network",
            &all,
            pod(
                "host",
                json!({"hostNetwork": true, "containers": [{"name": "main", "image": "i", "ports": [{"containerPort": 81}]}]}),
            ),
        ),
        post(
            "pod with resources of its own",
            &all,
            pod("pooled", json!({"resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2", "memory": "1Gi"}}})),
        ),
        post("pod with a status", &all, {
            let mut pod = pod("stated", json!({}));
            pod["status"] = json!({"phase": "Running"});
            pod
        }),
        post("pod that is there", &all, pod("p0", json!({}))),
        post("pod that is tried", &format!("{all}?dryRun=All"), pod("tried", json!({}))),
        get("pod that was tried", &format!("{all}/tried")),
        get("pod is read", &format!("{all}/p0")),
        get("pods", &all),
        get("pods by node", &format!("{all}?fieldSelector=spec.nodeName=n0")),
        get(
            "pods by phase and label",
            &format!("{all}?fieldSelector=status.phase!=Running&labelSelector=app%20in%20(p0,host)"),
        ),
        get("pods in pieces", &format!("{all}?limit=2")),
        Step { accept: TABLE, ..get("pods as a table", &all) },
        step("node reads its pods", NODE, "GET", "/api/v1/pods?fieldSelector=spec.nodeName=n0", JSON, Value::Null),
        step("node reads all pods", NODE, "GET", "/api/v1/pods", JSON, Value::Null),
        step("node reads a pod of its own", NODE, "GET", &format!("{all}/p0"), JSON, Value::Null),
        step("node reads a pod of nobody", NODE, "GET", &format!("{all}/free"), JSON, Value::Null),
        step(
            "pod is bound",
            "admin",
            "POST",
            &format!("{all}/free/binding"),
            JSON,
            json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "free"}, "target": {"kind": "Node", "name": NODE}}),
        ),
        step(
            "pod is bound again",
            "admin",
            "POST",
            &format!("{all}/free/binding"),
            JSON,
            json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "free"}, "target": {"kind": "Node", "name": "n1"}}),
        ),
        get("pod after its binding", &format!("{all}/free")),
    ]
}
