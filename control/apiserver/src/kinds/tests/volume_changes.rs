//! Changes of claims and volumes in all their states.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::{
    recorded_rows::with,
    refusals::{compare, compare_warnings},
    table,
};
use crate::apiserver::tests::{call, with_namespace};

/// The kind, the stored object, its status or `null`, a pointer, what stands there instead (`-` for nothing), the errors
/// of its fields, and the warnings. Recorded from kube-apiserver 1.36.
static CHANGES: LazyLock<String> = LazyLock::new(|| table("volume_changes"));

#[tokio::test]
async fn claims_and_volumes_change_as_upstream_allows() {
    let mut wrong = Vec::new();
    for line in CHANGES.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [kind, object, status, pointer, value, refused, warnings] = fields[..] else { panic!("{line}") };
        let api = with_namespace().await;
        let path = match kind {
            "PersistentVolume" => "/api/v1/persistentvolumes",
            _ => "/api/v1/namespaces/n/persistentvolumeclaims",
        };
        let mut object: Value = serde_json::from_str(object).unwrap();
        object["metadata"]["name"] = json!("x");
        let mut stored = call(&api, "POST", path, object).await;
        assert_eq!(stored.code, 201, "{line}: {}", stored.body);
        if status != "null" {
            stored.body["status"] = serde_json::from_str(status).unwrap();
            stored = call(&api, "PUT", &format!("{path}/x/status"), stored.body).await;
            assert_eq!(stored.code, 200, "{line}: {}", stored.body);
        }
        let answer = call(&api, "PUT", &format!("{path}/x?dryRun=All"), with(stored.body, pointer, value)).await;
        let row = format!("{kind} {pointer} {value}");
        wrong.extend(compare(&row, &answer, refused));
        wrong.extend(compare_warnings(&row, &answer, warnings));
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[tokio::test]
async fn what_is_on_its_way_out_is_warned_of() {
    let api = with_namespace().await;
    let affinity = |key: &str| json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": "Exists"}]}]}});
    let volume = |rest: Value| {
        let mut spec = json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1"}});
        spec.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        json!({"metadata": {"name": "x"}, "spec": spec})
    };
    let rows = [
        (json!({"cephfs": {"monitors": ["a"]}}), "spec.cephfs: deprecated in v1.28, non-functional in v1.31+"),
        (json!({"storageos": {"volumeName": "a"}}), "spec.storageOS: deprecated in v1.22, non-functional in v1.25+"),
        (
            json!({"hostPath": {"path": "/x"}, "persistentVolumeReclaimPolicy": "Recycle"}),
            "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.",
        ),
        (
            json!({"hostPath": {"path": "/x"}, "nodeAffinity": affinity("beta.kubernetes.io/os")}),
            "spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0].key: beta.kubernetes.io/os is deprecated since v1.14; use \\\"kubernetes.io/os\\\" instead",
        ),
    ];
    for (rest, wanted) in rows {
        let answer = call(&api, "POST", "/api/v1/persistentvolumes?dryRun=All", volume(rest)).await;
        assert_eq!(answer.code, 201, "{}", answer.body);
        assert_eq!(answer.warnings, [format!("299 - \"{wanted}\"")]);
    }
    let claims = "/api/v1/namespaces/n/persistentvolumeclaims";
    let claim = |size: &str| json!({"metadata": {"name": "x"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}});
    let answer = call(&api, "POST", claims, claim("1500m")).await;
    assert_eq!(
        answer.warnings,
        [r#"299 - "spec.resources.requests[storage]: fractional byte value \"1500m\" is invalid, must be an integer""#]
    );
    let answer = call(&api, "PUT", &format!("{claims}/x/status"), answer.body).await;
    assert_eq!((answer.code, answer.warnings.len()), (200, 0), "a change of the status warns of nothing");
}
