use super::*;
use crate::metrics::{ContainerReading, Containers, MeasuredCache, Reading, Readings, Run, SampledAt};

#[tokio::test]
async fn usage_covers_stored_objects_with_samples() {
    let api = with_namespace().await;
    call(&api, "POST", "/api/v1/namespaces", json!({"metadata": {"name": "m"}})).await;
    call(&api, "POST", "/api/v1/nodes", json!({"metadata": {"name": "here", "labels": {"disk": "fast"}}})).await;
    let mut uids = std::collections::BTreeMap::new();
    for (namespace, name, label) in [("n", "b", "web"), ("n", "a", "db"), ("m", "a", "web")] {
        let mut pod = pod(name);
        pod["spec"]["nodeName"] = json!("here");
        pod["metadata"]["labels"] = json!({"app": label});
        let made = call(&api, "POST", &format!("/api/v1/namespaces/{namespace}/pods"), pod).await;
        assert_eq!(made.code, 201, "{}", made.body);
        uids.insert((namespace, name), made.body["metadata"]["uid"].as_str().unwrap().to_owned());
    }
    let round = |second: i64| {
        let reading = |rate: u64| Reading {
            at: SampledAt::There(jiff::Timestamp::from_second(1_770_000_000 + second * 10).unwrap()),
            cpu_ns: 1 + rate * second.unsigned_abs(),
            memory_bytes: 5 << 20,
        };
        let one = |namespace: &'static str, pod: &'static str, name: &str, rate| ContainerReading {
            pod_uid: uids.get(&(namespace, pod)).cloned().unwrap_or_default(),
            name: name.into(),
            run: Run::Started(None),
            reading: reading(rate),
        };
        let containers = vec![
            one("n", "a", "c", 10_000_000),
            one("n", "b", "c", 20_000_000),
            one("n", "b", "side", 40_000_000),
            one("m", "a", "c", 0),
            // Runs still, while the API has forgotten it.
            one("n", "gone", "c", 0),
        ];
        Readings { node: "here".into(), machine: Some(reading(1_000_000_000)), containers: Containers::All(containers) }
    };
    const BASE: &str = "/apis/metrics.k8s.io/v1beta1";
    let names = |reply: &Reply| -> Vec<String> {
        let items = reply.body["items"].as_array().unwrap();
        let name = |i: &Value| {
            format!("{}/{}", i["metadata"]["namespace"].as_str().unwrap(), i["metadata"]["name"].as_str().unwrap())
        };
        items.iter().map(name).collect()
    };
    api.usage.record(&round(1));
    let none = call(&api, "GET", &format!("{BASE}/pods"), Value::Null).await;
    assert_eq!((none.code, names(&none)), (200, vec![]), "one reading is no rate");
    api.usage.record(&round(2));

    let node = call(&api, "GET", &format!("{BASE}/nodes/here"), Value::Null).await;
    assert_eq!(node.body["usage"], json!({"cpu": "100m", "memory": "5Mi"}), "{}", node.body);
    assert_eq!((&node.body["window"], &node.body["metadata"]["labels"]["disk"]), (&json!("10s"), &json!("fast")));
    let pods = call(&api, "GET", &format!("{BASE}/pods"), Value::Null).await;
    assert_eq!(names(&pods), ["m/a", "n/a", "n/b"]);
    assert_eq!(
        (&pods.body["kind"], &pods.body["apiVersion"]),
        (&json!("PodMetricsList"), &json!("metrics.k8s.io/v1beta1"))
    );
    for (path, wanted) in [
        ("namespaces/n/pods", vec!["n/a", "n/b"]),
        ("pods?labelSelector=app%3Dweb", vec!["m/a", "n/b"]),
        ("namespaces/n/pods?labelSelector=app+in+(db)", vec!["n/a"]),
        ("pods?fieldSelector=metadata.name%3Db", vec!["n/b"]),
        ("namespaces/x/pods", vec![]),
    ] {
        assert_eq!(names(&call(&api, "GET", &format!("{BASE}/{path}"), Value::Null).await), wanted, "{path}");
    }
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let user = User::internal("test");
    let table_row = send(&api, &user, "GET", &format!("{BASE}/namespaces/n/pods/b"), "", table, "").await;
    assert_eq!(table_row.body["rows"][0]["cells"], json!(["b", "6m", "10Mi", "10s"]));
    assert_eq!(table_row.body["columnDefinitions"].as_array().unwrap().len(), 4);

    for (method, path, code) in [
        ("GET", "namespaces/n/pods/gone", 404),
        ("GET", "nodes/elsewhere", 404),
        ("GET", "pods?watch=true", 405),
        ("GET", "pods?labelSelector=%3D%3D", 400),
        ("POST", "namespaces/n/pods", 405),
        ("DELETE", "namespaces/n/pods/a", 405),
        ("PATCH", "nodes/here", 405),
    ] {
        let reply = call(&api, method, &format!("{BASE}/{path}"), Value::Null).await;
        assert_eq!((reply.code, &reply.body["kind"]), (code, &json!("Status")), "{method} {path}: {}", reply.body);
    }
    let node = User::node("here");
    assert_eq!(send(&api, &node, "GET", &format!("{BASE}/pods"), "", "", "").await.code, 403);
    let listed = call(&api, "GET", BASE, Value::Null).await;
    assert_eq!(listed.body["resources"][1]["verbs"], json!(["get", "list"]));
}

/// Lists of usage are asked for by every autoscaler, so that they must not decode every pod of the namespace each time.
#[tokio::test]
async fn pods_are_decoded_once_for_each_revision() {
    let api = with_namespace().await;
    let mut made = pod("a");
    made["metadata"]["labels"] = json!({"app": "web"});
    assert_eq!(call(&api, "POST", "/api/v1/namespaces/n/pods", made).await.code, 201);
    let (cache, pods) = (MeasuredCache::default(), api.store().resource("pods"));
    let measured = || cache.of(&api.store().list(pods, Some("n")).0[0]);
    let first = measured();
    assert_eq!(first.object["metadata"]["labels"], json!({"app": "web"}));
    assert!(Arc::ptr_eq(&first, &measured()), "nothing has changed");
    let patch = json!({"metadata": {"labels": {"app": "db"}}}).to_string();
    let (user, path) = (User::internal("test"), "/api/v1/namespaces/n/pods/a");
    assert_eq!(send(&api, &user, "PATCH", path, "application/merge-patch+json", "", &patch).await.code, 200);
    assert_eq!(measured().object["metadata"]["labels"], json!({"app": "db"}));
}
