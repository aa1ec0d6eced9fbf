//! A written sequence: what kubelets, controllers and people do to pods, nodes and what belongs to them.

use serde_json::{Value, json};

use crate::side::{JSON, Step};

pub(crate) const MERGE: &str = "application/merge-patch+json";
pub(crate) const STRATEGIC: &str = "application/strategic-merge-patch+json";
pub(crate) const PATCH: &str = "application/json-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

/// The namespace of all that has one.
pub(crate) const NAMESPACE: &str = "diff";
/// The node whose credentials are used too.
pub(crate) const NODE: &str = "n0";

pub(crate) fn step(
    name: &str,
    who: &'static str,
    method: &'static str,
    path: &str,
    kind: &'static str,
    body: Value,
) -> Step {
    Step { name: name.to_owned(), who, method, path: path.to_owned(), kind, body, accept: JSON }
}

fn get(name: &str, path: &str) -> Step {
    step(name, "admin", "GET", path, JSON, Value::Null)
}

fn post(name: &str, path: &str, body: Value) -> Step {
    step(name, "admin", "POST", path, JSON, body)
}

/// A path of the namespace.
pub(crate) fn within(rest: &str) -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/{rest}")
}

/// What is there before anything is asked.
pub(crate) fn ground() -> Vec<Step> {
    vec![
        post("namespace", "/api/v1/namespaces", json!({"metadata": {"name": NAMESPACE}})),
        post("account", &within("serviceaccounts"), json!({"metadata": {"name": "default"}})),
    ]
}

/// A pod that is bound.
pub(crate) fn pod(name: &str, mut spec: Value) -> Value {
    let fields = spec.as_object_mut().expect("a spec is an object");
    fields.entry("containers").or_insert_with(|| json!([{"name": "main", "image": "image:1"}]));
    fields.entry("nodeName").or_insert_with(|| json!(NODE));
    fields.entry("automountServiceAccountToken").or_insert_with(|| json!(false));
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": spec})
}

/// Everything, in order.
pub(crate) fn steps() -> Vec<Step> {
    [nodes(), pods(), statuses(), patches(), refusals(), subresources(), deletions(), beside()].concat()
}

fn nodes() -> Vec<Step> {
    let (all, one) = ("/api/v1/nodes", "/api/v1/nodes/n0");
    let status = format!("{one}/status");
    let condition = |status: &str, kind: &str| {
        json!({"type": kind, "status": status, "reason": "KubeletReady", "message": "m",
               "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    let node = |method, name: &str, path: &str, kind, body| step(name, NODE, method, path, kind, body);
    let registered = json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": NODE, "labels": {"kubernetes.io/hostname": NODE, "kubernetes.io/os": "linux"},
                     "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}},
        "status": {"capacity": {"cpu": "2", "memory": "4Gi", "pods": "110"}, "nodeInfo": {"kubeletVersion": "v1.36.0"},
                   "conditions": [condition("False", "Ready")]}});
    let swap = |bytes: i64| json!({"status": {"nodeInfo": {"swap": {"capacity": bytes}}}});
    vec![
        node("GET", "node of nobody", one, JSON, Value::Null),
        node("POST", "node of another", all, JSON, json!({"metadata": {"name": "n9"}})),
        node(
            "POST",
            "node with a label that it may not have",
            all,
            JSON,
            json!({"metadata": {"name": NODE, "labels": {"x.kubernetes.io/y": ""}}}),
        ),
        node("POST", "node registers", all, JSON, registered.clone()),
        node("POST", "node registers again", all, JSON, registered),
        node("GET", "node reads itself", one, JSON, Value::Null),
        node("GET", "node reads all", all, JSON, Value::Null),
        node("PATCH", "node changes its taints", one, STRATEGIC, json!({"spec": {"taints": null}})),
        node(
            "PATCH",
            "node changes a label",
            one,
            STRATEGIC,
            json!({"metadata": {"labels": {"kubernetes.io/arch": "amd64"}}}),
        ),
        node(
            "PATCH",
            "node takes a label that it may not",
            one,
            MERGE,
            json!({"metadata": {"labels": {"x.kubernetes.io/y": ""}}}),
        ),
        node(
            "PATCH",
            "node status: addresses",
            &status,
            STRATEGIC,
            json!({"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": NODE}]}}),
        ),
        node(
            "PATCH",
            "node status: two addresses of a kind",
            &status,
            STRATEGIC,
            json!({"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "InternalIP", "address": "fd00::1"},
                                             {"type": "Hostname", "address": NODE}, {"$patch": "replace"}]}}),
        ),
        node(
            "PATCH",
            "node status: ready",
            &status,
            STRATEGIC,
            json!({"status": {"$setElementOrder/conditions": [{"type": "MemoryPressure"}, {"type": "Ready"}],
                               "conditions": [condition("False", "MemoryPressure"), condition("True", "Ready")]}}),
        ),
        step(
            "node status: a condition of somebody else",
            "admin",
            "PATCH",
            &status,
            STRATEGIC,
            json!({"status": {"conditions": [condition("False", "NetworkUnavailable")]}}),
        ),
        node(
            "PATCH",
            "node status: more and less of capacity",
            &status,
            STRATEGIC,
            json!({"status": {"capacity": {"hugepages-2Mi": "0", "pods": null, "cpu": "2000m", "memory": "4294967296"},
                               "allocatable": {"cpu": "1.5", "memory": "4Gi"}}}),
        ),
        node("PATCH", "node status: swap of nothing", &status, STRATEGIC, swap(0)),
        node("PATCH", "node status: swap", &status, STRATEGIC, swap(1024)),
        node(
            "PATCH",
            "node status: no swap again",
            &status,
            STRATEGIC,
            json!({"status": {"nodeInfo": {"swap": null}}}),
        ),
        node(
            "PATCH",
            "node status: features",
            &status,
            STRATEGIC,
            json!({"status": {"declaredFeatures": ["B", "A"], "features": {"supplementalGroupsPolicy": true}}}),
        ),
        node(
            "PATCH",
            "node status: features in order",
            &status,
            STRATEGIC,
            json!({"status": {"declaredFeatures": ["A", "B"], "runtimeHandlers": [{"name": ""}]}}),
        ),
        node("PATCH", "node status: nothing", &status, STRATEGIC, json!({})),
        node("PATCH", "node status: its annotations", &status, MERGE, json!({"metadata": {"annotations": {"a": "b"}}})),
        node("PATCH", "node status: its spec", &status, MERGE, json!({"spec": {"unschedulable": true}})),
        node(
            "PATCH",
            "node status: images without names",
            &status,
            STRATEGIC,
            json!({"status": {"images": [{"names": [], "sizeBytes": 5}, {"sizeBytes": 0}], "volumesInUse": []}}),
        ),
        step(
            "node: a range",
            "admin",
            "PATCH",
            one,
            MERGE,
            json!({"spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"]}}),
        ),
        step(
            "node: another range",
            "admin",
            "PATCH",
            one,
            MERGE,
            json!({"spec": {"podCIDR": "10.2.0.0/24", "podCIDRs": ["10.2.0.0/24"]}}),
        ),
        step("node: provider", "admin", "PATCH", one, MERGE, json!({"spec": {"providerID": "a://b"}})),
        step("node: another provider", "admin", "PATCH", one, MERGE, json!({"spec": {"providerID": "a://c"}})),
        step(
            "node: taint of a bad kind",
            "admin",
            "PATCH",
            one,
            MERGE,
            json!({"spec": {"taints": [{"key": "a", "effect": "Never"}]}}),
        ),
        step(
            "node: taints",
            "admin",
            "PATCH",
            one,
            MERGE,
            json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}, {"key": "b", "value": "c", "effect": "NoExecute"}]}}),
        ),
        step("node: cordoned", "admin", "PATCH", one, STRATEGIC, json!({"spec": {"unschedulable": true}})),
        step("node: no longer cordoned", "admin", "PATCH", one, STRATEGIC, json!({"spec": {"unschedulable": null}})),
        post("second node", all, json!({"metadata": {"name": "n1"}})),
        get("nodes by label", "/api/v1/nodes?labelSelector=kubernetes.io/os=linux"),
        get("nodes by name", "/api/v1/nodes?fieldSelector=metadata.name=n1"),
        get("nodes by a field that there is not", "/api/v1/nodes?fieldSelector=spec.providerID=x"),
        step("node deletes itself", NODE, "DELETE", one, JSON, Value::Null),
        step("node is deleted", "admin", "DELETE", "/api/v1/nodes/n1", JSON, Value::Null),
        step("node is deleted again", "admin", "DELETE", "/api/v1/nodes/n1", JSON, Value::Null),
    ]
}

fn pods() -> Vec<Step> {
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

fn statuses() -> Vec<Step> {
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

fn patches() -> Vec<Step> {
    let one = within("pods/p0");
    let admin = |name: &str, kind, body: Value| step(name, "admin", "PATCH", &one, kind, body);
    vec![
        admin("patch: label", MERGE, json!({"metadata": {"labels": {"a": "b", "app": null}}})),
        admin("patch: nothing", MERGE, json!({})),
        admin("patch: image", STRATEGIC, json!({"spec": {"containers": [{"name": "main", "image": "image:2"}]}})),
        admin("patch: a container more", STRATEGIC, json!({"spec": {"containers": [{"name": "more", "image": "i"}]}})),
        admin(
            "patch: JSON",
            PATCH,
            json!([{"op": "add", "path": "/metadata/annotations", "value": {"x": "1"}}, {"op": "test", "path": "/metadata/labels/a", "value": "b"}]),
        ),
        admin("patch: JSON test fails", PATCH, json!([{"op": "test", "path": "/metadata/labels/a", "value": "c"}])),
        admin("patch: JSON of no place", PATCH, json!([{"op": "remove", "path": "/metadata/labels/none"}])),
        admin("patch: JSON of no operation", PATCH, json!([{"op": "twist", "path": "/metadata"}])),
        admin("patch: JSON is no list", PATCH, json!({"op": "remove"})),
        admin(
            "patch: JSON copies and moves",
            PATCH,
            json!([{"op": "copy", "from": "/metadata/labels/a", "path": "/metadata/labels/c"}, {"op": "move", "from": "/metadata/labels/a", "path": "/metadata/labels/d"}]),
        ),
        admin("patch: another uid", MERGE, json!({"metadata": {"uid": "11111111-1111-1111-1111-111111111111"}})),
        admin("patch: old revision", MERGE, json!({"metadata": {"resourceVersion": "1", "labels": {"z": "z"}}})),
        admin("patch: another name", MERGE, json!({"metadata": {"name": "other"}})),
        admin("patch: another node", MERGE, json!({"spec": {"nodeName": "n1"}})),
        step(
            "patch: a toleration more",
            "admin",
            "PATCH",
            &within("pods/stated"),
            STRATEGIC,
            json!({"spec": {"tolerations": [{"key": "new", "operator": "Exists"}]}}),
        ),
        admin("patch: a deadline", MERGE, json!({"spec": {"activeDeadlineSeconds": 50}})),
        admin("patch: a later deadline", MERGE, json!({"spec": {"activeDeadlineSeconds": 60}})),
        admin("patch: a field that there is not", MERGE, json!({"spec": {"nonsense": 1}})),
        step(
            "patch: strictly",
            "admin",
            "PATCH",
            &format!("{one}?fieldValidation=Strict"),
            MERGE,
            json!({"spec": {"nonsense": 1}}),
        ),
        admin("patch: a wrong type", MERGE, json!({"spec": {"activeDeadlineSeconds": "soon"}})),
        admin("patch: no patch", MERGE, json!([1])),
        step("patch: of no kind", "admin", "PATCH", &one, "text/plain", json!({})),
        step(
            "patch: tried",
            "admin",
            "PATCH",
            &format!("{one}?dryRun=All"),
            MERGE,
            json!({"metadata": {"labels": {"tried": "yes"}}}),
        ),
        step("node patches a pod", NODE, "PATCH", &one, MERGE, json!({"metadata": {"labels": {"n": "n"}}})),
        step("patch: nobody", "admin", "PATCH", &within("pods/none"), MERGE, json!({})),
        step("put: whole", "admin", "PUT", &one, JSON, json!("${/api/v1/namespaces/diff/pods/p0}")),
        step("put: another name", "admin", "PUT", &one, JSON, pod("other", json!({}))),
        step("put: of an old revision", "admin", "PUT", &one, JSON, {
            let mut pod = pod("p0", json!({}));
            pod["metadata"]["resourceVersion"] = json!("1");
            pod
        }),
        step("put: nobody", "admin", "PUT", &within("pods/none"), JSON, pod("none", json!({}))),
        step(
            "apply: a config map",
            "admin",
            "PATCH",
            &format!("{}?fieldManager=one", within("configmaps/applied")),
            APPLY,
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied"}, "data": {"a": "1", "b": "2"}}),
        ),
        step(
            "apply: less of it",
            "admin",
            "PATCH",
            &format!("{}?fieldManager=one", within("configmaps/applied")),
            APPLY,
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied"}, "data": {"a": "1"}}),
        ),
        step(
            "apply: by another",
            "admin",
            "PATCH",
            &format!("{}?fieldManager=two", within("configmaps/applied")),
            APPLY,
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied"}, "data": {"a": "3"}}),
        ),
        step(
            "apply: by another, with force",
            "admin",
            "PATCH",
            &format!("{}?fieldManager=two&force=true", within("configmaps/applied")),
            APPLY,
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied"}, "data": {"a": "3"}}),
        ),
    ]
}

fn refusals() -> Vec<Step> {
    let all = within("pods");
    let refused = |name: &str, spec: Value| post(&format!("refused: {name}"), &all, pod("refused", spec));
    let main = |more: Value| {
        let mut main = json!({"name": "main", "image": "i"});
        for (key, value) in more.as_object().into_iter().flatten() {
            main[key] = value.clone();
        }
        json!({"containers": [main]})
    };
    vec![
        refused("no containers", json!({"containers": []})),
        refused("no image", json!({"containers": [{"name": "main"}]})),
        refused("two of a name", json!({"containers": [{"name": "a", "image": "i"}, {"name": "a", "image": "i"}]})),
        refused("a name that is none", json!({"containers": [{"name": "A_", "image": "i"}]})),
        refused("restarts that there are not", json!({"restartPolicy": "Sometimes"})),
        refused("a mount of nothing", main(json!({"volumeMounts": [{"name": "none", "mountPath": "/x"}]}))),
        refused(
            "two volumes of a name",
            json!({"volumes": [{"name": "v", "emptyDir": {}}, {"name": "v", "emptyDir": {}}]}),
        ),
        refused(
            "two kinds of a volume",
            json!({"volumes": [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}]}),
        ),
        refused(
            "more asked than allowed",
            main(json!({"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}})),
        ),
        refused("a quantity that is none", main(json!({"resources": {"limits": {"memory": "much"}}}))),
        refused("a negative quantity", main(json!({"resources": {"limits": {"memory": "-1"}}}))),
        refused("a port too far", main(json!({"ports": [{"containerPort": 70000}]}))),
        refused(
            "a probe of two ways",
            main(json!({"livenessProbe": {"tcpSocket": {"port": 1}, "exec": {"command": ["a"]}}})),
        ),
        refused(
            "a liveness probe with two successes",
            main(json!({"livenessProbe": {"tcpSocket": {"port": 1}, "successThreshold": 2}})),
        ),
        refused("an environment without a name", main(json!({"env": [{"value": "x"}]}))),
        refused("a grace before now", json!({"terminationGracePeriodSeconds": -1})),
        refused("a class that there is not", json!({"priorityClassName": "none"})),
        refused("an account that there is not", json!({"serviceAccountName": "none"})),
        refused(
            "a port of the host that is another",
            json!({"hostNetwork": true, "containers": [{"name": "m", "image": "i", "ports": [{"containerPort": 1, "hostPort": 2}]}]}),
        ),
        refused("an unknown user", json!({"securityContext": {"runAsUser": -1}})),
        refused("fields that there are not", json!({"nonsense": true})),
        post("refused: strictly", &format!("{all}?fieldValidation=Strict"), pod("refused", json!({"nonsense": true}))),
        post("refused: another kind", &all, json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}})),
        post(
            "refused: another namespace",
            &all,
            json!({"metadata": {"name": "x", "namespace": "default"}, "spec": {}}),
        ),
        post("refused: no name", &all, json!({"metadata": {}, "spec": {"containers": [{"name": "a", "image": "i"}]}})),
        post(
            "refused: a bad label",
            &all,
            json!({"metadata": {"name": "x", "labels": {"a b": "c"}}, "spec": {"containers": [{"name": "a", "image": "i"}]}}),
        ),
        post("refused: no body", &all, json!("text")),
        step("refused: a type of body", "admin", "POST", &all, "text/plain", json!({})),
        post("refused: no such namespace", "/api/v1/namespaces/none/pods", pod("x", json!({}))),
        get("refused: no such resource", &within("nonsenses")),
        get("refused: a selector that is none", &format!("{all}?labelSelector=a%20b")),
        get("refused: a field that pods have not", &format!("{all}?fieldSelector=spec.x=y")),
        get("refused: a limit that is none", &format!("{all}?limit=x")),
        get("refused: a revision that is none", &format!("{all}?resourceVersion=x")),
        step("refused: a method", "admin", "PUT", &all, JSON, json!({})),
    ]
}

fn subresources() -> Vec<Step> {
    let all = within("pods");
    let resize =
        |cpu: &str| json!({"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]}});
    let token = |audiences: Value| {
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": audiences, "expirationSeconds": 3600,
        "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p0", "uid": "11111111-1111-1111-1111-111111111111"}}})
    };
    vec![
        step(
            "ephemeral container",
            "admin",
            "PATCH",
            &format!("{all}/host/ephemeralcontainers"),
            STRATEGIC,
            json!({"spec": {"ephemeralContainers": [{"name": "debug", "image": "i"}]}}),
        ),
        step(
            "ephemeral container changes",
            "admin",
            "PATCH",
            &format!("{all}/host/ephemeralcontainers"),
            STRATEGIC,
            json!({"spec": {"ephemeralContainers": [{"name": "debug", "image": "j"}]}}),
        ),
        step("resize where the node cannot", "admin", "PATCH", &format!("{all}/rich/resize"), STRATEGIC, resize("60m")),
        step("resize of nothing", "admin", "PATCH", &format!("{all}/p0/resize"), STRATEGIC, json!({})),
        step(
            "token for another pod of this name",
            NODE,
            "POST",
            &within("serviceaccounts/default/token"),
            JSON,
            token(json!([])),
        ),
        step(
            "token without a pod",
            NODE,
            "POST",
            &within("serviceaccounts/default/token"),
            JSON,
            json!({"spec": {"audiences": []}}),
        ),
        step(
            "eviction",
            "admin",
            "POST",
            &format!("{all}/pooled/eviction"),
            JSON,
            json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "pooled"}, "deleteOptions": {"gracePeriodSeconds": 7}}),
        ),
        get("pod after its eviction", &format!("{all}/pooled")),
        step(
            "eviction of nobody",
            "admin",
            "POST",
            &format!("{all}/none/eviction"),
            JSON,
            json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "none"}}),
        ),
    ]
}

fn deletions() -> Vec<Step> {
    let all = within("pods");
    let delete = |name: &str, who, path: &str, body: Value| step(name, who, "DELETE", path, JSON, body);
    vec![
        delete(
            "delete: another uid",
            "admin",
            &format!("{all}/p0"),
            json!({"preconditions": {"uid": "11111111-1111-1111-1111-111111111111"}}),
        ),
        delete(
            "delete: an old revision",
            "admin",
            &format!("{all}/p0"),
            json!({"preconditions": {"resourceVersion": "1"}}),
        ),
        delete("delete: tried", "admin", &format!("{all}/p0?dryRun=All"), Value::Null),
        delete("delete: with a grace", "admin", &format!("{all}/p0?gracePeriodSeconds=20"), Value::Null),
        delete("delete: with a longer grace", "admin", &format!("{all}/p0?gracePeriodSeconds=40"), Value::Null),
        delete("delete: with a shorter grace", "admin", &format!("{all}/p0"), json!({"gracePeriodSeconds": 5})),
        step(
            "status after deletion",
            NODE,
            "PATCH",
            &format!("{all}/p0/status"),
            STRATEGIC,
            json!({"status": {"phase": "Succeeded"}}),
        ),
        delete(
            "delete: by its node",
            NODE,
            &format!("{all}/p0"),
            json!({"gracePeriodSeconds": 0, "preconditions": {"uid": "${/api/v1/namespaces/diff/pods/p0 /metadata/uid}"}}),
        ),
        delete("delete: by its node again", NODE, &format!("{all}/p0"), json!({"gracePeriodSeconds": 0})),
        step("node reads a pod that is gone", NODE, "GET", &format!("{all}/p0"), JSON, Value::Null),
        delete("delete: a finalizer", "admin", &format!("{all}/none"), Value::Null),
        step(
            "finalizer",
            "admin",
            "PATCH",
            &format!("{all}/host"),
            MERGE,
            json!({"metadata": {"finalizers": ["x.io/y"]}}),
        ),
        delete("delete: what has a finalizer", "admin", &format!("{all}/host?gracePeriodSeconds=0"), Value::Null),
        step(
            "finalizer more",
            "admin",
            "PATCH",
            &format!("{all}/host"),
            MERGE,
            json!({"metadata": {"finalizers": ["x.io/y", "x.io/z"]}}),
        ),
        step(
            "finalizer gone",
            "admin",
            "PATCH",
            &format!("{all}/host"),
            MERGE,
            json!({"metadata": {"finalizers": null}}),
        ),
        get("pod without its finalizer", &format!("{all}/host")),
        delete("delete: a grace that is none", "admin", &format!("{all}/rich?gracePeriodSeconds=x"), Value::Null),
        delete("delete: nonsense", "admin", &format!("{all}/rich"), json!({"kind": "Pod"})),
        delete(
            "delete: all of a label",
            "admin",
            &format!("{all}?labelSelector=app=stated&gracePeriodSeconds=0"),
            Value::Null,
        ),
        post(
            "delete: a pod that is not bound",
            &all,
            json!({"metadata": {"name": "unbound"}, "spec": {"automountServiceAccountToken": false, "containers": [{"name": "main", "image": "i"}]}}),
        ),
        delete("delete: goes at once", "admin", &format!("{all}/unbound"), Value::Null),
        get("pods that are left", &all),
    ]
}

fn beside() -> Vec<Step> {
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": NODE},
        "spec": {"holderIdentity": NODE, "leaseDurationSeconds": 40, "renewTime": "2026-01-01T00:00:00.000000Z"}});
    let event = |name: &str, count: i64| {
        json!({"metadata": {"name": name, "namespace": NAMESPACE}, "reason": "Started", "message": "m", "type": "Normal", "count": count,
        "involvedObject": {"kind": "Pod", "namespace": NAMESPACE, "name": "p0"}, "source": {"component": "kubelet", "host": NODE},
        "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:00Z"})
    };
    let config = within("configmaps");
    vec![
        post("namespace of leases", "/api/v1/namespaces", json!({"metadata": {"name": "kube-node-lease"}})),
        step("lease", NODE, "POST", leases, JSON, lease.clone()),
        step("lease again", NODE, "POST", leases, JSON, lease),
        step(
            "lease is renewed",
            NODE,
            "PATCH",
            &format!("{leases}/n0"),
            MERGE,
            json!({"spec": {"renewTime": "2026-01-01T00:00:10.000000Z"}}),
        ),
        step("lease of another", NODE, "GET", &format!("{leases}/n1"), JSON, Value::Null),
        step("leases", NODE, "GET", leases, JSON, Value::Null),
        step(
            "lease of no time",
            NODE,
            "PATCH",
            &format!("{leases}/n0"),
            MERGE,
            json!({"spec": {"leaseDurationSeconds": 0}}),
        ),
        step("event", NODE, "POST", &within("events"), JSON, event("e", 1)),
        step(
            "event counts",
            NODE,
            "PATCH",
            &within("events/e"),
            STRATEGIC,
            json!({"count": 2, "lastTimestamp": "2026-01-01T00:00:09Z"}),
        ),
        step("event of nobody", NODE, "PATCH", &within("events/none"), STRATEGIC, json!({"count": 2})),
        step("event elsewhere", NODE, "POST", "/api/v1/namespaces/default/events", JSON, event("f", 1)),
        step(
            "event of the new group",
            NODE,
            "GET",
            "/apis/events.k8s.io/v1/namespaces/diff/events/e",
            JSON,
            Value::Null,
        ),
        step("events are not read by nodes", NODE, "GET", &within("events"), JSON, Value::Null),
        post(
            "config map",
            &config,
            json!({"metadata": {"name": "c"}, "data": {"a": "b"}, "binaryData": {"x": "AAE="}}),
        ),
        step("config map of a pod of the node", NODE, "GET", &format!("{config}/c"), JSON, Value::Null),
        step("config map of nobody", NODE, "GET", &format!("{config}/applied"), JSON, Value::Null),
        step("config map that stays", "admin", "PATCH", &format!("{config}/c"), MERGE, json!({"immutable": true})),
        step(
            "config map that stays changes",
            "admin",
            "PATCH",
            &format!("{config}/c"),
            MERGE,
            json!({"data": {"a": "c"}}),
        ),
        post("config map of a bad key", &config, json!({"metadata": {"name": "d"}, "data": {"a/b": "b"}})),
        post("secret", &within("secrets"), json!({"metadata": {"name": "s"}, "stringData": {"a": "b"}})),
        step("secret of a pod of the node", NODE, "GET", &within("secrets/s"), JSON, Value::Null),
        post(
            "secret of a kind",
            &within("secrets"),
            json!({"metadata": {"name": "t"}, "type": "kubernetes.io/tls", "data": {}}),
        ),
        post(
            "review",
            "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            json!({"spec": {"user": "system:node:n0", "groups": ["system:nodes"],
            "resourceAttributes": {"verb": "list", "group": "discovery.k8s.io", "resource": "endpointslices"}}}),
        ),
        post("mirror pod of an administrator", &within("pods"), {
            let mut pod = pod("mirror", json!({}));
            pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
            pod
        }),
        step("mirror pod", NODE, "POST", &within("pods"), JSON, {
            let mut pod = pod("static-n0", json!({"enableServiceLinks": true}));
            pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
            pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "${/api/v1/nodes/n0 /metadata/uid}", "controller": true}]);
            pod
        }),
        step("pod that is no mirror", NODE, "POST", &within("pods"), JSON, pod("own", json!({}))),
    ]
}
