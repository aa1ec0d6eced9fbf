//! What changes through each path may touch, and what they need.

use super::*;

#[tokio::test]
async fn objects_created_by_update_have_the_name_of_the_path() {
    let api = with_namespace().await;
    let service = |metadata: Value| json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": [{"port": 80}]}});
    let path = format!("{SERVICES}/a");
    let user = User::internal("t");
    for metadata in
        [json!({"name": "b"}), json!({}), json!({"generateName": "g"}), json!({"name": "a", "namespace": "x"})]
    {
        assert_eq!(call(&api, "PUT", &path, service(metadata.clone())).await.code, 400, "{metadata}");
        let (kind, body) = ("application/apply-patch+yaml", service(metadata).to_string());
        let applied = send(&api, &user, "PATCH", &format!("{path}?fieldManager=f"), kind, "*/*", &body).await;
        assert_eq!(applied.code, 400, "{body}: {}", applied.body);
    }
    assert!(call(&api, "GET", SERVICES, Value::Null).await.body["items"].as_array().unwrap().is_empty());
    assert_eq!(call(&api, "PUT", &path, service(json!({"name": "a", "uid": "other"}))).await.code, 409);
    assert_eq!(call(&api, "PUT", &path, service(json!({"name": "a", "resourceVersion": "77"}))).await.code, 201);
    // A node has no way around its own name.
    let node = User::node("n1");
    let other = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n2"}}).to_string();
    let applied =
        send(&api, &node, "PATCH", "/api/v1/nodes/n1?fieldManager=f", "application/apply-patch+yaml", "*/*", &other)
            .await;
    assert_eq!(applied.code, 400, "{}", applied.body);
    assert_eq!(call(&api, "GET", "/api/v1/nodes/n2", Value::Null).await.code, 404);
    // An apply names no field that its type does not have, as upstream's.
    let odd = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "colour": "red"}).to_string();
    let applied =
        send(&api, &user, "PATCH", &format!("{MAPS}/m?fieldManager=f"), "application/apply-patch+yaml", "*/*", &odd)
            .await;
    let message =
        "failed to create typed patch object (/m; /v1, Kind=ConfigMap): .colour: field not declared in schema";
    assert_eq!((applied.code, &applied.body["message"]), (500, &json!(message)));
}

#[tokio::test]
async fn a_status_takes_metadata_and_leaves_the_rest() {
    let api = with_namespace().await;
    for kind in
        ["Namespace", "Node", "PersistentVolume", "PersistentVolumeClaim", "Pod", "ReplicationController", "Service"]
    {
        let resource = version(kind);
        let (base, object) = (super::templates::collection(&resource), super::templates::object(&resource, "x"));
        let made = call(&api, "POST", &base, object).await.body;
        let path = format!("{base}/x/status");
        let patch = json!({
            "metadata": {"labels": {"s": "1"}, "annotations": {"s": "1"}, "finalizers": ["a/b"], "generation": 9, "uid": null,
                "ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "u"}]},
            "spec": {"nodeName": "x", "replicas": 5, "unschedulable": true, "finalizers": [], "type": "NodePort"},
            "status": {"conditions": [], "colour": "red", "message": null},
        });
        let patched = call(&api, "PATCH", &path, patch).await;
        assert_eq!(patched.code, 200, "{kind}: {}", patched.body);
        assert!(patched.warnings.iter().any(|w| w.contains("status.colour")), "{kind}: {:?}", patched.warnings);
        let metadata = &patched.body["metadata"];
        assert_eq!((&metadata["labels"]["s"], &metadata["annotations"]["s"]), (&json!("1"), &json!("1")), "{kind}");
        assert_eq!(metadata["finalizers"], json!(["a/b"]), "{kind}");
        assert_eq!(metadata.get("ownerReferences").is_some(), kind != "Pod", "{kind}");
        assert_eq!(
            (&metadata["generation"], &metadata["uid"]),
            (&made["metadata"]["generation"], &made["metadata"]["uid"])
        );
        assert_eq!(patched.body["spec"], made["spec"], "{kind}");
        assert_eq!(patched.body["status"].get("colour"), None, "{kind}");
        assert_eq!(patched.body["status"].get("message"), None, "{kind}");
        let wrong = call(&api, "PATCH", &path, json!({"metadata": {"labels": {"!": "1"}}})).await;
        assert_eq!(wrong.code, 422, "{kind}");
    }
    for (path, status) in [
        ("/api/v1/namespaces/x/status", json!({"phase": "Terminating"})),
        ("/api/v1/namespaces/n/pods/x/status", json!({"qosClass": "Guaranteed"})),
        ("/api/v1/namespaces/n/pods/x/status", json!({"podIP": "x"})),
        ("/api/v1/nodes/x/status", json!({"capacity": {"cpu": "-1"}})),
        ("/api/v1/nodes/x/status", json!({"capacity": {"cpu": "abc"}})),
        ("/api/v1/namespaces/n/replicationcontrollers/x/status", json!({"replicas": 1, "readyReplicas": 2})),
        ("/api/v1/namespaces/n/services/x/status", json!({"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}})),
    ] {
        let refused = call(&api, "PATCH", path, json!({"status": status})).await;
        assert_eq!(refused.code, 422, "{path} {status}: {}", refused.body);
    }
}

#[tokio::test]
async fn a_binding_is_for_the_pod_that_it_names() {
    let api = with_namespace().await;
    let mut labelled = pod("p");
    labelled["metadata"]["labels"] = json!({"l": "1"});
    let made = call(&api, "POST", PODS, labelled).await.body;
    let path = format!("{PODS}/p/binding");
    let binding = |metadata: Value, info: Value| json!({"metadata": metadata, "target": info});
    let node = json!({"kind": "Node", "name": "a"});
    for (metadata, info, code) in [
        (json!({"name": "other"}), node.clone(), 400),
        (json!({}), node.clone(), 400),
        (json!({"name": "p", "namespace": "other"}), node.clone(), 400),
        (json!({"name": "p", "uid": "other"}), node.clone(), 409),
        (json!({"name": "p", "resourceVersion": "1"}), node.clone(), 409),
        (json!({"name": "p", "labels": {"a": 1}}), node.clone(), 400),
        (json!({"name": "p"}), json!({"kind": "Pod", "name": "a"}), 400),
        (json!({"name": "p"}), json!({"name": ""}), 400),
    ] {
        let refused = call(&api, "POST", &path, binding(metadata.clone(), info)).await;
        assert_eq!(refused.code, code, "{metadata}: {}", refused.body);
    }
    let metadata = json!({"name": "p", "uid": made["metadata"]["uid"], "resourceVersion": made["metadata"]["resourceVersion"],
        "annotations": {"a": "b", "none": null}, "labels": {"l": "2", "m": "3"}});
    assert_eq!(call(&api, "POST", &path, binding(metadata, node.clone())).await.code, 201);
    let bound = call(&api, "GET", &format!("{PODS}/p"), Value::Null).await.body;
    assert_eq!((&bound["spec"]["nodeName"], &bound["metadata"]["generation"]), (&json!("a"), &json!(1)));
    assert_eq!(
        (&bound["metadata"]["labels"], &bound["metadata"]["annotations"]),
        (&json!({"l": "2", "m": "3"}), &json!({"a": "b", "none": ""}))
    );
    let mut gated = pod("g");
    gated["spec"]["schedulingGates"] = json!([{"name": "x/y"}]);
    let gated = call(&api, "POST", PODS, gated).await.body;
    assert_eq!(gated["status"]["conditions"][0]["reason"], "SchedulingGated");
    let refused = call(&api, "POST", &format!("{PODS}/g/binding"), binding(json!({"name": "g"}), node)).await;
    assert_eq!(refused.code, 409);
    assert!(refused.body["message"].as_str().unwrap().contains("non-empty .spec.schedulingGates"), "{}", refused.body);
}

#[tokio::test]
async fn an_update_without_a_version_does_not_lose_a_race() {
    let api = with_namespace().await;
    let nodes = "/api/v1/nodes";
    call(&api, "POST", nodes, json!({"metadata": {"name": "x"}})).await;
    let racer = api.clone();
    let statuses = tokio::spawn(async move {
        for turn in 0..200 {
            let patch = json!({"status": {"nodeInfo": {"bootID": turn.to_string()}}});
            assert_eq!(call(&racer, "PATCH", "/api/v1/nodes/x/status", patch).await.code, 200);
        }
    });
    for turn in 0..100 {
        let body = json!({"metadata": {"name": "x", "labels": {"turn": turn.to_string()}}});
        let replaced = call(&api, "PUT", &format!("{nodes}/x"), body).await;
        assert_eq!(replaced.code, 200, "{}", replaced.body);
    }
    statuses.await.unwrap();
}

#[tokio::test]
async fn a_pod_has_priority_and_qos_class_from_the_start() {
    let api = with_namespace().await;
    for (name, value) in [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)] {
        let class = json!({"metadata": {"name": name}, "value": value});
        assert_eq!(call(&api, "POST", "/apis/scheduling.k8s.io/v1/priorityclasses", class).await.code, 201);
    }
    let with = |fields: Value| {
        let mut pod = pod("p");
        for (field, value) in fields.as_object().unwrap() {
            pod["spec"][field] = value.clone();
        }
        pod
    };
    for (fields, wanted) in [
        (json!({"priority": 5}), Err("computed 0 from the given PriorityClass name")),
        (json!({"priorityClassName": "nope"}), Err("no PriorityClass with name nope was found")),
        (json!({"priorityClassName": "system-node-critical", "priority": 1}), Err("computed 2000001000")),
        (json!({"preemptionPolicy": "Never"}), Err("the string value of PreemptionPolicy (Never)")),
        (json!({}), Ok(0)),
        (json!({"priority": 0}), Ok(0)),
        (json!({"priorityClassName": "system-cluster-critical"}), Ok(2_000_000_000)),
        (json!({"priorityClassName": "system-node-critical", "priority": 2_000_001_000}), Ok(2_000_001_000)),
    ] {
        let reply = call(&api, "POST", &format!("{PODS}?dryRun=All"), with(fields.clone())).await;
        match wanted {
            Ok(priority) => assert_eq!(reply.body["spec"]["priority"], priority, "{fields}: {}", reply.body),
            Err(words) => {
                assert_eq!(reply.code, 403, "{fields}");
                assert!(reply.body["message"].as_str().unwrap().contains(words), "{fields}: {}", reply.body);
            }
        }
    }
    for (resources, class) in [
        (json!({}), "BestEffort"),
        (json!({"requests": {"cpu": "1"}}), "Burstable"),
        (json!({"limits": {"cpu": "1", "memory": "1Gi"}}), "Guaranteed"),
    ] {
        let containers = json!({"containers": [{"name": "c", "image": "i:1", "resources": resources}]});
        let made = call(&api, "POST", &format!("{PODS}?dryRun=All"), with(containers)).await.body;
        assert_eq!(made["status"]["qosClass"], class, "{made}");
    }
}

/// It is the storage that refuses a revision, which a dry run does not reach: clients try a changed copy of what they have read.
#[tokio::test]
async fn a_dry_run_creates_a_copy_of_a_stored_object() {
    let api = with_namespace().await;
    let pod = json!({
        "metadata": {"name": "copy", "resourceVersion": "5"}, "spec": {"containers": [{"name": "c", "image": "i:1"}]},
    });
    let made = call(&api, "POST", &format!("{PODS}?dryRun=All"), pod.clone()).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let refused = call(&api, "POST", PODS, pod).await;
    assert_eq!(refused.body["message"], "resourceVersion should not be set on objects to be created");
}

#[tokio::test]
async fn scale_is_read_as_what_it_is() {
    let api = with_namespace().await;
    let resource = &version("ReplicationController");
    let base = super::templates::collection(resource);
    call(&api, "POST", &base, super::templates::object(resource, "r")).await;
    let path = format!("{base}/r/scale");
    let scale = call(&api, "GET", &path, Value::Null).await.body;
    let scaled = |replicas: Value| {
        let mut scale = scale.clone();
        scale["spec"]["replicas"] = replicas;
        scale
    };
    let mut other = scaled(json!(2));
    other["metadata"]["name"] = json!("other");
    for (body, code) in [
        (scaled(json!("3")), 400),
        (scaled(json!(99_999_999_999_i64)), 400),
        (scaled(json!(-1)), 422),
        (other, 400),
        (scaled(json!(3)), 200),
        (scaled(json!(4)), 409),
    ] {
        assert_eq!(call(&api, "PUT", &path, body.clone()).await.code, code, "{body}");
    }
    for (body, code) in [
        (json!({"spec": {"replicas": 99_999_999_999_i64}}), 422),
        (json!({"kind": "X"}), 422),
        (json!({"spec": {"replicas": 1}}), 200),
    ] {
        assert_eq!(call(&api, "PATCH", &path, body.clone()).await.code, code, "{body}");
    }
    let none = call(&api, "PATCH", &path, json!({"spec": {"replicas": 0}})).await.body;
    assert_eq!((&none["spec"], &none["status"]["replicas"]), (&json!({}), &json!(0)), "as upstream's type writes it");
}

#[tokio::test]
async fn only_balanced_services_have_addresses_of_a_balancer() {
    let api = with_namespace().await;
    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}});
    call(&api, "POST", SERVICES, service).await;
    let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}});
    let refused = call(&api, "PATCH", &format!("{SERVICES}/s/status"), status).await;
    let causes = refused.body["details"]["causes"].as_array().unwrap();
    assert_eq!((refused.code, causes.len()), (422, 1), "{}", refused.body);
    assert_eq!(causes[0]["field"], "status.loadBalancer.ingress");
}

#[tokio::test]
async fn endpoints_are_deprecated() {
    let api = with_namespace().await;
    let path = "/api/v1/namespaces/n/endpoints";
    for (method, body, code) in [("GET", Value::Null, 200), ("POST", json!({"metadata": {"name": "e"}}), 201)] {
        let reply = call(&api, method, path, body).await;
        let warning = "299 - \"v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice\"";
        assert_eq!((reply.code, reply.warnings.as_slice()), (code, &[warning.to_owned()][..]), "{method}");
    }
}

#[tokio::test]
async fn owners_and_tolerations_follow_upstreams_rules() {
    let api = with_namespace().await;
    let owner = |name: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": name, "controller": true});
    let mut owned = map("m");
    owned["metadata"]["ownerReferences"] = json!([owner("a"), owner("b")]);
    let refused = call(&api, "POST", MAPS, owned).await;
    assert!(
        refused.body["message"].as_str().unwrap().contains("Only one reference can have Controller set to true"),
        "{}",
        refused.body
    );
    let mut tolerant = pod("p");
    tolerant["spec"]["tolerations"] =
        json!([{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 10}]);
    let mut made = call(&api, "POST", PODS, tolerant).await.body;
    made["spec"]["tolerations"][0]["tolerationSeconds"] = json!(20);
    let longer = call(&api, "PUT", &format!("{PODS}/p"), made.clone()).await;
    assert_eq!(longer.code, 200, "{}", longer.body);
    let mut other = longer.body;
    other["spec"]["tolerations"][0]["key"] = json!("z");
    assert_eq!(call(&api, "PUT", &format!("{PODS}/p"), other).await.code, 422);
}
