//! Claims and volumes that are taken with a warning.

use serde_json::{Value, json};

use crate::apiserver::tests::{call, with_namespace};

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
