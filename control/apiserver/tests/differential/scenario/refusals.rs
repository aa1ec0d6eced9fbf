//! Invalid pods and requests.

use serde_json::{Value, json};

use super::{MERGE, get, pod, post, step, within};
use crate::api_server::{JSON, Step};

pub(super) fn steps() -> Vec<Step> {
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
    .into_iter()
    .chain(over_quota())
    .collect()
}

/// What is invalid and over its quota is invalid.
fn over_quota() -> [Step; 6] {
    const NAMESPACE: &str = "/api/v1/namespaces/quota";
    let hard = json!({"requests.cpu": "1"});
    let status = json!({"status": {"hard": hard, "used": {"requests.cpu": "0"}}});
    let wants = |image: Value| {
        let main = json!({"name": "main", "image": image, "resources": {"requests": {"cpu": "5"}}});
        pod("over", json!({"containers": [main]}))
    };
    [
        post("a namespace with a quota", "/api/v1/namespaces", json!({"metadata": {"name": "quota"}})),
        post("its account", &format!("{NAMESPACE}/serviceaccounts"), json!({"metadata": {"name": "default"}})),
        post(
            "its quota",
            &format!("{NAMESPACE}/resourcequotas"),
            json!({"metadata": {"name": "q"}, "spec": {"hard": hard}}),
        ),
        step("what is used of it", "admin", "PATCH", &format!("{NAMESPACE}/resourcequotas/q/status"), MERGE, status),
        post("refused: over its quota", &format!("{NAMESPACE}/pods"), wants(json!("i"))),
        post("refused: invalid and over its quota", &format!("{NAMESPACE}/pods"), wants(json!(""))),
    ]
}
