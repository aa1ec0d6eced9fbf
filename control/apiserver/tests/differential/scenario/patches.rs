//! Patches of each type, and server-side apply.

use serde_json::{Value, json};

use super::{APPLY, MERGE, NODE, PATCH, STRATEGIC, pod, step, within};
use crate::api_server::{JSON, Step};

pub(super) fn steps() -> Vec<Step> {
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
        admin("patch: to be merged", STRATEGIC, json!({"metadata": {"labels": {"$patch": "merge", "z": "1"}}})),
        admin("patch: to be done something", STRATEGIC, json!({"metadata": {"labels": {"$patch": 1, "z": "1"}}})),
        admin("patch: labels that go", STRATEGIC, json!({"metadata": {"annotations": {"$patch": "delete", "z": "1"}}})),
        admin(
            "patch: new labels alone",
            STRATEGIC,
            json!({"metadata": {"annotations": {"$patch": "replace", "z": "1"}}}),
        ),
        admin("patch: to explode where nothing is", STRATEGIC, {
            json!({"spec": {"nodeSelector": {"$patch": "explode", "z": "1"}, "imagePullSecrets": [{"$patch": "explode", "name": "x"}]}})
        }),
        admin("patch: null where nothing is", STRATEGIC, json!({"spec": {"nodeSelector": {"$patch": null, "z": "1"}}})),
        admin("patch: to explode in a new item", STRATEGIC, {
            json!({"spec": {"containers": [{"name": "new", "image": "i", "resources": {"$patch": "explode"}}]}})
        }),
        admin(
            "patch: items to be merged",
            STRATEGIC,
            json!({"spec": {"containers": [{"$patch": "merge", "name": "main", "image": "k"}]}}),
        ),
        admin(
            "patch: items of an unknown directive",
            STRATEGIC,
            json!({"spec": {"containers": [{"$patch": "explode", "name": "main"}]}}),
        ),
        admin(
            "patch: items of no key",
            STRATEGIC,
            json!({"spec": {"containers": [{"image": "k", "ports": [1, null, true]}]}}),
        ),
        admin(
            "patch: an order without the item",
            STRATEGIC,
            json!({"spec": {"$setElementOrder/containers": [{"name": "other"}], "containers": [{"name": "main", "image": "k"}]}}),
        ),
        admin(
            "patch: an order of no list",
            STRATEGIC,
            json!({"spec": {"$setElementOrder/containers": {"name": "main"}}}),
        ),
        admin("patch: an order of a map", STRATEGIC, json!({"metadata": {"$setElementOrder/labels": ["a"]}})),
        admin("patch: an order of texts", STRATEGIC, json!({"spec": {"$setElementOrder/containers": ["main"]}})),
        admin(
            "patch: kept keys that lack one",
            STRATEGIC,
            json!({"spec": {"$retainKeys": ["containers"], "hostname": "x"}}),
        ),
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
