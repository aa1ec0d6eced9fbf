//! Annotations with profiles of AppArmor and seccomp, once a pod is there.

use serde_json::{Value, json};

use super::recorded_tables::compare;
use crate::apiserver::tests::{PODS, call, pod, with_namespace};

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
            let wanted: Vec<String> = wanted.into_iter().collect();
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
