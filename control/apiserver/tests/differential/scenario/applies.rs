//! Server-side apply by several managers, among updates and patches of others: objects, owners and conflicts.

use serde_json::{Value, json};

use super::{APPLY, MERGE, STRATEGIC, get, step, within};
use crate::api_server::{JSON, Step};

/// A write by a manager.
fn by(manager: &str, what: &str, method: &'static str, path: &str, kind: &'static str, body: Value) -> Step {
    let (path, force) = path.split_once('!').map_or((path, ""), |(path, _)| (path, "&force=true"));
    let path = format!("{path}?fieldManager={manager}{force}");
    step(&format!("apply: {what}, by {manager}"), "admin", method, &path, kind, body)
}

fn with(kind: &str, name: &str, mut object: Value) -> Value {
    object["apiVersion"] = json!("v1");
    object["kind"] = json!(kind);
    object["metadata"]["name"] = json!(name);
    object
}

pub(super) fn steps() -> Vec<Step> {
    [config_maps(), services(), pods(), controllers(), managers()].concat()
}

fn config_maps() -> Vec<Step> {
    let (all, one) = (within("configmaps"), within("configmaps/owned"));
    let forced = format!("{one}!");
    let map = |object| with("ConfigMap", "owned", object);
    vec![
        by(
            "x",
            "a new map",
            "POST",
            &all,
            JSON,
            map(json!({"data": {"k": "v", "l": "w"}, "metadata": {"labels": {"a": "1"}}})),
        ),
        by("y", "another value", "PATCH", &one, MERGE, json!({"data": {"k": "x", "n": "1"}})),
        by(
            "a",
            "what others own",
            "PATCH",
            &one,
            APPLY,
            map(json!({"data": {"k": "y", "l": "z"}, "metadata": {"labels": {"a": "2"}}})),
        ),
        by("a", "one conflict", "PATCH", &one, APPLY, map(json!({"data": {"k": "y"}}))),
        by("a", "by force", "PATCH", &forced, APPLY, map(json!({"data": {"k": "y"}}))),
        by("a", "the same again", "PATCH", &one, APPLY, map(json!({"data": {"k": "y"}}))),
        by("b", "shared", "PATCH", &one, APPLY, map(json!({"data": {"k": "y", "o": "2"}}))),
        by("a", "other fields", "PATCH", &one, APPLY, map(json!({"data": {"p": "1"}}))),
        by("b", "fewer", "PATCH", &one, APPLY, map(json!({"data": {"o": "2"}}))),
        by("b", "labels", "PATCH", &one, APPLY, map(json!({"metadata": {"labels": {"q": "1"}}}))),
        by(
            "b",
            "sets",
            "PATCH",
            &one,
            APPLY,
            map(json!({"metadata": {"finalizers": ["a.io/b", "a.io/c"], "annotations": {"x": "1"}}})),
        ),
        by("c", "one more", "PATCH", &one, STRATEGIC, json!({"metadata": {"finalizers": ["d.io/e"]}})),
        by("b", "sets in order", "PATCH", &one, APPLY, map(json!({"metadata": {"finalizers": ["f.io/g", "d.io/e"]}}))),
        by("b", "nothing", "PATCH", &one, APPLY, map(json!({}))),
        by("c", "no finalizers", "PATCH", &one, MERGE, json!({"metadata": {"finalizers": null}})),
        by("a", "an unknown field", "PATCH", &one, APPLY, map(json!({"dota": {"a": "b"}}))),
        by("a", "a wrong type", "PATCH", &one, APPLY, map(json!({"data": {"a": 1}}))),
        by("a", "a list for a map", "PATCH", &one, APPLY, map(json!({"data": ["a"]}))),
        by("a", "its own owners", "PATCH", &one, APPLY, map(json!({"metadata": {"managedFields": []}}))),
        by("a", "null", "PATCH", &one, APPLY, map(json!({"data": {"p": null}, "metadata": {"labels": {}}}))),
        get("apply: owned", &one),
    ]
}

fn services() -> Vec<Step> {
    let one = within("services/owned");
    let forced = format!("{one}!");
    let service = |spec| with("Service", "owned", json!({"spec": spec}));
    let ip = "10.96.0.77";
    let ports = json!([{"port": 80, "name": "w"}, {"port": 53, "protocol": "UDP", "name": "d"}]);
    vec![
        by(
            "a",
            "a service",
            "PATCH",
            &one,
            APPLY,
            service(json!({"clusterIP": ip, "selector": {"x": "y"}, "ports": ports})),
        ),
        by(
            "b",
            "another port",
            "PATCH",
            &one,
            APPLY,
            service(json!({"ports": [{"port": 53, "protocol": "TCP", "name": "t"}]})),
        ),
        by("b", "its selector", "PATCH", &one, APPLY, service(json!({"selector": {"z": "1"}}))),
        by(
            "a",
            "one port less",
            "PATCH",
            &one,
            APPLY,
            service(
                json!({"clusterIP": ip, "ports": [{"port": 80, "protocol": "TCP", "name": "w", "targetPort": 8080}]}),
            ),
        ),
        by("b", "a target", "PATCH", &one, APPLY, service(json!({"ports": [{"port": 80, "targetPort": "http"}]}))),
        by(
            "e",
            "affinity",
            "PATCH",
            &one,
            MERGE,
            json!({"spec": {"sessionAffinity": "ClientIP", "publishNotReadyAddresses": true}}),
        ),
        by(
            "a",
            "ports moved",
            "PATCH",
            &one,
            APPLY,
            service(json!({"clusterIP": ip, "ports": [{"port": 81, "name": "x"}], "publishNotReadyAddresses": false})),
        ),
        by(
            "a",
            "ports moved by force",
            "PATCH",
            &forced,
            APPLY,
            service(json!({"clusterIP": ip, "ports": [{"port": 81, "name": "x"}], "publishNotReadyAddresses": false})),
        ),
        by(
            "a",
            "a port twice",
            "PATCH",
            &one,
            APPLY,
            service(json!({"ports": [{"port": 81, "name": "x"}, {"port": 81, "name": "y"}]})),
        ),
    ]
}

fn pods() -> Vec<Step> {
    let (all, one) = (within("pods"), within("pods/owned"));
    let (forced, status) = (format!("{one}!"), format!("{one}/status"));
    let pod = |object| with("Pod", "owned", object);
    let image = |image: &str| {
        pod(json!({"metadata": {"labels": {"x": "y"}}, "spec": {"containers": [{"name": "c", "image": image}]}}))
    };
    let owner = |uid: &str| json!({"apiVersion": "v1", "kind": "X", "name": "x", "uid": uid});
    let container = json!({"name": "c", "image": "i", "env": [{"name": "A", "value": "1"}, {"name": "B"}],
        "volumeMounts": [{"name": "v", "mountPath": "/a"}], "ports": [{"containerPort": 80}, {"containerPort": 443, "name": "s"}],
        "resources": {"limits": {"cpu": "1000m"}}});
    let spec = json!({"containers": [container], "volumes": [{"name": "v", "emptyDir": {}}], "imagePullSecrets": [{"name": "x"}],
        "tolerations": [{"key": "q"}], "nodeSelector": {"x": "y"}, "automountServiceAccountToken": false});
    vec![
        by(
            "sched",
            "a pod",
            "POST",
            &all,
            JSON,
            pod(json!({"metadata": {"labels": {"a": "b"}, "ownerReferences": [owner("u1")]}, "spec": spec})),
        ),
        by(
            "kubelet",
            "its status",
            "PATCH",
            &status,
            STRATEGIC,
            json!({"status": {"conditions": [{"type": "Ready", "status": "False"}, {"type": "x.io/y", "status": "True"}],
            "podIP": "10.1.1.1", "podIPs": [{"ip": "10.1.1.1"}, {"ip": "fd00::1"}]}}),
        ),
        by(
            "kubelet",
            "its status again",
            "PATCH",
            &status,
            STRATEGIC,
            json!({"status": {"conditions": [{"type": "Ready", "status": "True"}], "phase": "Running"}}),
        ),
        by("a", "its image", "PATCH", &one, APPLY, image("j")),
        by("a", "its image by force", "PATCH", &forced, APPLY, image("j")),
        by("a", "labels alone", "PATCH", &one, APPLY, pod(json!({"metadata": {"labels": {"x": "z"}}}))),
        by("own", "another owner", "PATCH", &one, APPLY, pod(json!({"metadata": {"ownerReferences": [owner("u2")]}}))),
        by("l", "no labels", "PATCH", &one, MERGE, json!({"metadata": {"labels": null}})),
        by(
            "np",
            "a condition",
            "PATCH",
            &status,
            APPLY,
            pod(json!({"status": {"conditions": [{"type": "x.io/z", "status": "True"}]}})),
        ),
        by(
            "np",
            "the condition of another",
            "PATCH",
            &status,
            APPLY,
            pod(json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}})),
        ),
        by("np", "a status on the pod", "PATCH", &one, APPLY, pod(json!({"status": {"phase": "Failed"}}))),
    ]
}

fn controllers() -> Vec<Step> {
    let (all, one) = (within("replicationcontrollers"), within("replicationcontrollers/owned"));
    let (forced, scale) = (format!("{one}!"), format!("{one}/scale"));
    let of = |spec| with("ReplicationController", "owned", json!({"spec": spec}));
    let template = |image: &str| json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": image}]}});
    let last = of(json!({"replicas": 1, "selector": {"a": "b"}, "template": template("old")}));
    let mut made = last.clone();
    made["metadata"]["annotations"] = json!({"kubectl.kubernetes.io/last-applied-configuration": format!("{last}\n")});
    let new = |image: &str| of(json!({"replicas": 1, "selector": {"a": "b"}, "template": template(image)}));
    vec![
        by("kubectl-client-side-apply", "a controller", "POST", &all, JSON, made),
        by("other", "a new image", "PATCH", &one, APPLY, new("new")),
        by("kubectl", "a new image", "PATCH", &one, APPLY, new("new")),
        by("sc", "replicas", "PATCH", &scale, MERGE, json!({"spec": {"replicas": 3}})),
        by("kubectl", "replicas back", "PATCH", &one, APPLY, new("newer")),
        by(
            "kubectl",
            "without replicas",
            "PATCH",
            &one,
            APPLY,
            of(json!({"selector": {"a": "b"}, "template": template("newer")})),
        ),
        by("scaler", "replicas by force", "PATCH", &forced, APPLY, of(json!({"replicas": 5}))),
        by(
            "kubectl",
            "the same replicas",
            "PATCH",
            &one,
            APPLY,
            of(json!({"replicas": 5, "selector": {"a": "b"}, "template": template("newer")})),
        ),
        get("apply: controller", &one),
    ]
}

fn managers() -> Vec<Step> {
    let (all, one) = (within("configmaps"), within("configmaps/many"));
    let map = |object| with("ConfigMap", "many", object);
    let managed = |entries: Value| json!({"metadata": {"managedFields": entries}});
    let mut steps = vec![
        by("m", "a map", "POST", &all, JSON, map(json!({"data": {"k": "v"}}))),
        by("n", "a reset", "PATCH", &one, MERGE, managed(json!([{}]))),
        by("n", "without owners", "PATCH", &one, MERGE, json!({"data": {"l": "w"}})),
        by("a", "before the first apply", "PATCH", &one, APPLY, map(json!({"data": {"k": "x"}}))),
        by("a", "the first apply", "PATCH", &one, APPLY, map(json!({"data": {"l": "w", "z": "1"}}))),
        by("n", "an empty list", "PATCH", &one, MERGE, managed(json!([]))),
        by(
            "n",
            "owners that are made up",
            "PATCH",
            &one,
            MERGE,
            managed(
                json!([{"manager": "x", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {"f:k": {}}}}]),
            ),
        ),
        by("n", "owners that are none", "PATCH", &one, MERGE, managed(json!([{"manager": "x", "operation": "Oops"}]))),
        by("x", "what it does not own any more", "PATCH", &one, APPLY, map(json!({"data": {"a": "b"}}))),
    ];
    for number in 0..12 {
        let data = json!({"data": {format!("k{number}"): "v"}});
        steps.push(by(&format!("m{number:02}"), "many", "PATCH", &one, MERGE, data));
    }
    let odd = [
        ("", "no name"),
        ("%09", "a tab"),
        (
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            "a long name",
        ),
    ];
    for (manager, what) in odd {
        steps.push(by(manager, what, "PATCH", &one, APPLY, map(json!({"data": {"a": "b"}}))));
    }
    steps.push(by("f", "force of a patch", "PATCH", &format!("{one}!"), MERGE, json!({"data": {"q": "1"}})));
    steps.push(by(
        "f",
        "another version",
        "PATCH",
        &one,
        APPLY,
        json!({"apiVersion": "v2", "kind": "ConfigMap", "metadata": {"name": "many"}}),
    ));
    steps
}
