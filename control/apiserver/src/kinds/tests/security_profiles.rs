//! Profiles of AppArmor and seccomp, as annotations and as fields.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::{
    pod_specs::with_pod,
    refusals::{compare, compare_warnings},
    table,
};
use crate::apiserver::tests::{PODS, call, pod, with_namespace};

/// `Pod`, or `Deployment` for its template; annotations; spec; the errors of fields; the warnings; the security contexts of
/// containers in the answer. Recorded from kube-apiserver 1.36.
static ROWS: LazyLock<String> = LazyLock::new(|| table("security_profiles"));

#[tokio::test]
async fn profiles_are_read_as_upstream_reads_them() {
    let api = with_namespace().await;
    let (mut rows, mut wrong) = (0, Vec::new());
    for line in ROWS.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [kind, annotations, spec, refused, warnings, contexts] = fields[..] else { panic!("{line}") };
        let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        let metadata = json!({"name": "x", "labels": {"a": "b"}, "annotations": value(annotations)});
        let (path, object, at) = with_pod(kind, json!({"metadata": metadata, "spec": value(spec)}));
        let answer = call(&api, "POST", &path, object).await;
        let row = format!("{kind} {annotations} {spec}");
        wrong.extend(compare(&row, &answer, refused));
        wrong.extend(compare_warnings(&row, &answer, warnings));
        if let Some(spec) = answer.body.pointer(at).filter(|_| answer.code == 201) {
            let containers = ["containers", "initContainers"].map(|list| spec[list].as_array());
            let containers = containers.into_iter().flatten().flatten().filter(|one| !one["securityContext"].is_null());
            let found: serde_json::Map<String, Value> = containers
                .map(|one| (one["name"].as_str().unwrap().to_owned(), one["securityContext"].clone()))
                .collect();
            if Value::Object(found.clone()) != value(contexts) {
                wrong.push(format!("{row}:\n  upstream: {contexts}\n  ours:     {found:?}"));
            }
        }
        rows += 1;
    }
    assert!(rows > 80, "{rows}");
    assert!(wrong.is_empty(), "{} of {rows} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[tokio::test]
async fn annotations_of_pods_change_as_upstream_allows() {
    let api = with_namespace().await;
    let (app_armor, seccomp) =
        ("container.apparmor.security.beta.kubernetes.io/c", "container.seccomp.security.alpha.kubernetes.io/c");
    let mut made = pod("p");
    made["metadata"]["annotations"] = json!({app_armor: "unconfined"});
    made["spec"]["containers"][0]["securityContext"] = json!({"seccompProfile": {"type": "RuntimeDefault"}});
    assert_eq!(call(&api, "POST", PODS, made).await.code, 201);
    assert_eq!(call(&api, "POST", PODS, pod("q")).await.code, 201);
    let change = "may not remove or update AppArmor annotations";
    for (name, profile, wanted) in [
        ("p", json!("unconfined"), None),
        ("p", json!("runtime/default"), Some(change)),
        ("p", Value::Null, Some(change)),
        ("q", json!("unconfined"), Some("may not add AppArmor annotations")),
    ] {
        for subresource in ["", "/status"] {
            let patch = json!({"metadata": {"annotations": {app_armor: profile.clone()}}});
            let answer = call(&api, "PATCH", &format!("{PODS}/{name}{subresource}?dryRun=All"), patch).await;
            let wanted = wanted.map(|why| format!("metadata.annotations[{app_armor}]: Forbidden: {why}"));
            let wanted = json!(wanted.into_iter().collect::<Vec<_>>()).to_string();
            assert_eq!(compare(&format!("{name}{subresource} {profile}"), &answer, &wanted), None);
        }
    }
    // Annotations and fields must match in new pods only.
    let patch = json!({"metadata": {"annotations": {seccomp: "unconfined"}}});
    assert_eq!(call(&api, "PATCH", &format!("{PODS}/p"), patch).await.code, 200);
    let debug = json!({"spec": {"ephemeralContainers": [{"name": "e", "image": "i"}]}});
    let answer = call(&api, "PATCH", &format!("{PODS}/p/ephemeralcontainers"), debug).await;
    assert_eq!(answer.code, 200, "{}", answer.body);
}
