//! Clients of different languages write what is empty in their own ways; none of them changes an object by that.

use super::{
    templates::{collection, name_of, object},
    *,
};
use crate::schema::forms;

#[tokio::test]
async fn writers_of_empty_fields_and_omitters_do_not_conflict() {
    let api = with_namespace().await;
    for (at, resource) in stored_versions(&api).iter().enumerate() {
        // Two resources may share their objects.
        let (one, other) = (format!("x{at}"), format!("y{at}"));
        let (gvk, schema) = (&resource.gvk, &resource.spec.schema);
        let left_out = |object: &Value| schema.canonical(object).into_owned();
        let written_out = |object: &Value| forms::written_out(schema.node(), object);
        for (name, forms) in [
            (one.as_str(), [&left_out as &dyn Fn(&Value) -> Value, &written_out]),
            (other.as_str(), [&written_out as &dyn Fn(&Value) -> Value, &left_out]),
        ] {
            let made = call(&api, "POST", &collection(resource), forms[0](&object(resource, name))).await;
            assert_eq!(made.code, 201, "{} {name}: {}", gvk.kind, made.body);
            let path = format!("{}/{}", collection(resource), name_of(resource, name));
            let mut last = made.body;
            for (turn, form) in forms.iter().cycle().skip(1).take(4).enumerate() {
                let same = call(&api, "PUT", &path, form(&last)).await;
                assert_eq!(same.code, 200, "{} {name}: {}", gvk.kind, same.body);
                assert_eq!(same.body, last, "{}: nothing was changed", gvk.kind);
                let mut changed = form(&last);
                changed["metadata"]["labels"]["l"] = json!(turn.to_string());
                let updated = call(&api, "PUT", &path, changed).await;
                assert_eq!(updated.code, 200, "{} {name}: {}", gvk.kind, updated.body);
                let counted = resource.strategy.counts_metadata(&updated.body["metadata"], &last["metadata"]);
                let generation = last["metadata"]["generation"].as_i64().map(|n| n + i64::from(counted));
                assert_eq!(updated.body["metadata"]["generation"].as_i64(), generation, "{}", gvk.kind);
                assert_eq!(updated.body["metadata"]["labels"]["l"], turn.to_string());
                last = updated.body;
                if resource.has_status() {
                    let status = call(&api, "PUT", &format!("{path}/status"), form(&last)).await;
                    assert_eq!((status.code, &status.body), (200, &last), "{}", gvk.kind);
                }
            }
        }
    }
}

#[tokio::test]
async fn an_object_is_stored_as_a_typed_client_would_have_written_it() {
    let api = with_namespace().await;
    let mut wide = pod("p");
    wide["metadata"]["creationTimestamp"] = Value::Null;
    wide["spec"]["hostNetwork"] = json!(false);
    wide["spec"]["nodeSelector"] = json!({});
    wide["spec"]["nodeName"] = json!("");
    wide["spec"]["activeDeadlineSeconds"] = Value::Null;
    wide["spec"]["securityContext"] = json!({"runAsNonRoot": false, "runAsUser": 0});
    wide["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {"sizeLimit": "2048Mi", "medium": ""}}]);
    wide["spec"]["containers"][0]["env"] = json!([]);
    wide["spec"]["containers"][0]["args"] = json!([null, "a"]);
    wide["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/v", "readOnly": false}]);
    let made = call(&api, "POST", PODS, wide).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let spec = &made.body["spec"];
    for field in ["hostNetwork", "nodeSelector", "nodeName", "activeDeadlineSeconds"] {
        assert_eq!(spec.get(field), None, "{field}");
    }
    assert_eq!(spec["securityContext"], json!({"runAsNonRoot": false, "runAsUser": 0}), "pointers differ from nothing");
    assert_eq!(spec["volumes"][0]["emptyDir"], json!({"sizeLimit": "2Gi"}));
    assert_eq!(spec["containers"][0].get("env"), None);
    assert_eq!(spec["containers"][0]["args"], json!(["", "a"]), "as upstream's decoder reads null in a list");
    assert_eq!(spec["containers"][0]["volumeMounts"][0], json!({"name": "v", "mountPath": "/v"}));
}

#[tokio::test]
async fn quantities_and_times_are_checked_and_canonical_wherever_they_stand() {
    let api = with_namespace().await;
    let volume = |size: &str| json!({"metadata": {"name": "v"}, "spec": {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}});
    let refused = call(&api, "POST", "/api/v1/persistentvolumes", volume("much")).await;
    assert_eq!(refused.code, 400);
    assert!(refused.body["message"].as_str().unwrap().contains("quantities must match"), "{}", refused.body);
    let made = call(&api, "POST", "/api/v1/persistentvolumes", volume("1024Mi")).await;
    assert_eq!(made.body["spec"]["capacity"]["storage"], "1Gi");
    let path = "/api/v1/persistentvolumes/v";
    let patched = call(&api, "PATCH", path, json!({"spec": {"capacity": {"storage": "abc"}}})).await;
    assert_eq!((patched.code, patched.body["reason"].as_str()), (422, Some("Invalid")), "{}", patched.body);
    let mut limited = pod("p");
    limited["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {"sizeLimit": "abc"}}]);
    assert_eq!(call(&api, "POST", PODS, limited).await.code, 400);
    let leases = "/apis/coordination.k8s.io/v1/namespaces/n/leases";
    let lease = |time: &str| json!({"metadata": {"name": "l"}, "spec": {"renewTime": time}});
    assert_eq!(call(&api, "POST", leases, lease("2020-01-01 00:00:00Z")).await.code, 400);
    let made = call(&api, "POST", leases, lease("2020-01-01T02:00:00.5+02:00")).await;
    assert_eq!(made.body["spec"]["renewTime"], "2020-01-01T00:00:00.500000Z");
    // A secret in lines, as `base64` writes it.
    let secret = json!({"metadata": {"name": "s"}, "data": {"a": "eHh4\neHh4\n"}});
    let made = call(&api, "POST", "/api/v1/namespaces/n/secrets", secret).await;
    assert_eq!(made.body["data"]["a"], "eHh4eHh4", "{}", made.body);
}
