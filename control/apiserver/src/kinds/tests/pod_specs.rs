//! Specs of pods, in pods and in templates.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::{
    refusals::{compare, compare_warnings},
    table,
};
use crate::apiserver::tests::{PODS, call, with_namespace};

/// `Pod`, or `Deployment` for its template; the spec, but for its container; the errors of fields; the warnings; and what
/// the answer has of affinity and spreading, if it was asked. Recorded from kube-apiserver 1.36.
static SCHEDULING: LazyLock<String> = LazyLock::new(|| table("scheduling"));

/// The same, of volumes with templates of claims.
static VOLUMES: LazyLock<String> = LazyLock::new(|| table("pod_volumes"));

/// The same, of specs that are warned of.
static WARNINGS: LazyLock<String> = LazyLock::new(|| table("pod_warnings"));

/// The same, of who pods and containers may be.
static SECURITY: LazyLock<String> = LazyLock::new(|| table("pod_security"));

/// The same, of fields of pods that stand for themselves.
static FIELDS: LazyLock<String> = LazyLock::new(|| table("pod_fields"));

/// The same, of resources.
static RESOURCES: LazyLock<String> = LazyLock::new(|| table("pod_resources"));

/// The same, of containers.
static CONTAINERS: LazyLock<String> = LazyLock::new(|| table("pod_containers"));

/// The same, of the sources of volumes.
static SOURCES: LazyLock<String> = LazyLock::new(|| table("pod_volume_sources"));

/// The ephemeral containers that are there, those that stand there instead, the errors of fields, the warnings, and what is
/// there then, if they are taken. Recorded from kube-apiserver 1.36.
static EPHEMERAL: LazyLock<String> = LazyLock::new(|| table("ephemeral_containers"));

/// A pod, or the Deployment with it as template: the path and object to create, and where the spec of pods is in it.
pub(super) fn with_pod(kind: &str, pod: Value) -> (String, Value, &'static str) {
    let (path, object, at) = match kind {
        "Pod" => (PODS, pod, "/spec"),
        _ => {
            let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "template": pod});
            let deployment = json!({"metadata": {"name": "x"}, "spec": spec});
            ("/apis/apps/v1/namespaces/n/deployments", deployment, "/spec/template/spec")
        }
    };
    (format!("{path}?dryRun=All"), object, at)
}

/// A pod with a container, and the rest of its spec.
pub(super) fn pod_of(rest: &str) -> Value {
    let mut spec = json!({"containers": [{"name": "c", "image": "i"}], "automountServiceAccountToken": false});
    spec.as_object_mut().unwrap().extend(serde_json::from_str::<serde_json::Map<_, _>>(rest).unwrap());
    json!({"metadata": {"name": "x", "labels": {"a": "b"}}, "spec": spec})
}

#[tokio::test]
async fn specs_are_validated_as_upstream_does() {
    let api = with_namespace().await;
    let (mut rows, mut wrong) = (0, Vec::new());
    let tables = [&SCHEDULING, &VOLUMES, &WARNINGS, &SECURITY, &FIELDS, &RESOURCES, &CONTAINERS, &SOURCES];
    for line in tables.into_iter().flat_map(|table| table.lines()) {
        let fields: Vec<&str> = line.split('\t').collect();
        let [kind, rest, refused, warnings, answered] = fields[..] else { panic!("{line}") };
        let (path, object, at) = with_pod(kind, pod_of(rest));
        let answer = call(&api, "POST", &path, object).await;
        let row = format!("{kind} {rest}");
        wrong.extend(compare(&row, &answer, refused));
        wrong.extend(compare_warnings(&row, &answer, warnings));
        if !answered.is_empty() && answer.code == 201 {
            let spec = answer.body.pointer(at).unwrap();
            for (field, wanted) in serde_json::from_str::<serde_json::Map<_, _>>(answered).unwrap() {
                if spec[&field] != wanted {
                    wrong.push(format!("{row}:\n  upstream: {wanted}\n  ours:     {}", spec[&field]));
                }
            }
        }
        rows += 1;
    }
    assert!(rows > 1000, "{rows}");
    assert!(wrong.is_empty(), "{} of {rows} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[tokio::test]
async fn ephemeral_containers_are_validated_as_upstream_does() {
    let mut wrong = Vec::new();
    let (mut there, mut api, mut stored) = (String::new(), with_namespace().await, Value::Null);
    for line in EPHEMERAL.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [before, wanted, refused, warnings, answered] = fields[..] else { panic!("{line}") };
        let one = format!("{PODS}/x/ephemeralcontainers");
        if there != before {
            api = with_namespace().await;
            let pod = json!({"metadata": {"name": "x"}, "spec": {
                "containers": [{"name": "c", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
                "initContainers": [{"name": "i", "image": "i"}], "volumes": [{"name": "v", "emptyDir": {}}],
            }});
            let mut pod = call(&api, "POST", PODS, pod).await.body;
            pod["spec"]["ephemeralContainers"] = serde_json::from_str(before).unwrap();
            let answer = call(&api, "PUT", &one, pod).await;
            assert_eq!(answer.code, 200, "{}", answer.body);
            (there, stored) = (before.to_owned(), answer.body);
        }
        let mut pod = stored.clone();
        pod["spec"]["ephemeralContainers"] = serde_json::from_str(wanted).unwrap();
        let answer = call(&api, "PUT", &format!("{one}?dryRun=All"), pod).await;
        let row = format!("{before} {wanted}");
        wrong.extend(compare(&row, &answer, refused));
        wrong.extend(compare_warnings(&row, &answer, warnings));
        if !answered.is_empty() && answer.code == 200 {
            let found = &answer.body["spec"]["ephemeralContainers"];
            if *found != serde_json::from_str::<Value>(answered).unwrap() {
                wrong.push(format!("{wanted}:\n  upstream: {answered}\n  ours:     {found}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}
