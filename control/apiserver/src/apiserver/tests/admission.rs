//! What plugins add to new objects and refuse, through the whole API.

use super::*;

const CLASSES: &str = "/apis/scheduling.k8s.io/v1/priorityclasses";

async fn post(api: &Api, path: &str, object: Value) -> Value {
    let made = call(api, "POST", path, object).await;
    assert_eq!(made.code, 201, "{}", made.body);
    made.body
}

async fn refused(api: &Api, path: &str, object: Value, wanted: &str) {
    let reply = call(api, "POST", path, object).await;
    assert_eq!((reply.code, reply.body["message"].as_str().unwrap_or("")), (403, wanted));
}

#[tokio::test]
async fn a_pod_has_the_priority_of_its_class() {
    let api = with_namespace().await;
    let of = |pod: &Value| {
        let spec = &pod["spec"];
        (spec["priorityClassName"].clone(), spec["priority"].clone(), spec["preemptionPolicy"].clone())
    };
    let with = |name: &str, field: &str, value: Value| {
        let mut pod = pod(name);
        pod["spec"][field] = value;
        pod
    };
    let preempts = json!("PreemptLowerPriority");
    assert_eq!(of(&post(&api, PODS, pod("none")).await), (Value::Null, json!(0), preempts.clone()));
    let class =
        |name: &str, value: i64| json!({"metadata": {"name": name}, "value": value, "preemptionPolicy": "Never"});
    post(&api, CLASSES, class("high", 1000)).await;
    let high = post(&api, PODS, with("high", "priorityClassName", json!("high"))).await;
    assert_eq!(of(&high), (json!("high"), json!(1000), json!("Never")));
    let system = post(&api, PODS, with("system", "priorityClassName", json!("system-node-critical"))).await;
    assert_eq!(of(&system).1, json!(2_000_001_000));
    let missing = "pods \"x\" is forbidden: no PriorityClass with name x was found";
    refused(&api, PODS, with("x", "priorityClassName", json!("x")), missing).await;
    let mut own = with("x", "priorityClassName", json!("high"));
    own["spec"]["priority"] = json!(7);
    let number = "pods \"x\" is forbidden: the integer value of priority (7) must not be provided in pod spec; priority admission controller computed 1000 from the given PriorityClass name";
    refused(&api, PODS, own.clone(), number).await;
    own["spec"]["priority"] = json!(1000);
    own["spec"]["preemptionPolicy"] = json!("PreemptLowerPriority");
    let policy = "pods \"x\" is forbidden: the string value of PreemptionPolicy (PreemptLowerPriority) must not be provided in pod spec; priority admission controller computed Never from the given PriorityClass name";
    refused(&api, PODS, own, policy).await;

    // One class may be that of pods that name none.
    let mut default = class("default", 5);
    default["globalDefault"] = json!(true);
    post(&api, CLASSES, default.clone()).await;
    assert_eq!(of(&post(&api, PODS, pod("later")).await), (json!("default"), json!(5), json!("Never")));
    default["metadata"]["name"] = json!("second");
    let second = "priorityclasses.scheduling.k8s.io \"second\" is forbidden: PriorityClass default is already marked as default. Only one default can exist";
    refused(&api, CLASSES, default, second).await;
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    assert_eq!(call(&api, "PATCH", &format!("{CLASSES}/default"), label).await.code, 200);
    let marked = call(&api, "PATCH", &format!("{CLASSES}/high"), json!({"globalDefault": true})).await;
    assert_eq!(marked.code, 403, "{}", marked.body);
}

#[tokio::test]
async fn a_pod_gets_what_its_runtime_class_says() {
    let api = with_namespace().await;
    let class = json!({"metadata": {"name": "k"}, "handler": "h", "overhead": {"podFixed": {"cpu": "10m"}}, "scheduling": {"nodeSelector": {"a": "b"}}});
    post(&api, "/apis/node.k8s.io/v1/runtimeclasses", class).await;
    let with = |class: &str| {
        let mut pod = pod("p");
        pod["spec"]["runtimeClassName"] = json!(class);
        pod
    };
    let missing = "pods \"p\" is forbidden: pod rejected: RuntimeClass \"x\" not found";
    refused(&api, PODS, with("x"), missing).await;
    let spec = post(&api, PODS, with("k")).await["spec"].clone();
    assert_eq!((&spec["overhead"], &spec["nodeSelector"]), (&json!({"cpu": "10m"}), &json!({"a": "b"})));
    let mut alone = pod("q");
    alone["spec"]["overhead"] = json!({"cpu": "1"});
    let why =
        "pods \"q\" is forbidden: pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead";
    refused(&api, PODS, alone, why).await;
}

#[tokio::test]
async fn a_pod_has_the_zone_and_region_of_its_node() {
    let api = with_namespace().await;
    let labels = json!({"topology.kubernetes.io/zone": "z", "topology.kubernetes.io/region": "r", "other": "o"});
    post(&api, "/api/v1/nodes", json!({"metadata": {"name": "node", "labels": labels}})).await;
    post(&api, PODS, pod("bound")).await;
    let binding = json!({"metadata": {"name": "bound"}, "target": {"kind": "Node", "name": "node"}});
    post(&api, &format!("{PODS}/bound/binding"), binding).await;
    let mut placed = pod("placed");
    placed["spec"]["nodeName"] = json!("node");
    post(&api, PODS, placed).await;
    for name in ["bound", "placed"] {
        let pod = call(&api, "GET", &format!("{PODS}/{name}"), Value::Null).await.body;
        let wanted = json!({"topology.kubernetes.io/zone": "z", "topology.kubernetes.io/region": "r"});
        assert_eq!(pod["metadata"]["labels"], wanted, "{name}");
    }
    // Its resources are no more than the node has.
    let status = json!({"status": {"allocatable": {"cpu": "1", "memory": "1Gi"}}});
    assert_eq!(call(&api, "PATCH", "/api/v1/nodes/node/status", status).await.code, 200);
    let mut made = pod("requests");
    made["spec"]["nodeName"] = json!("node");
    made["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "100m"}});
    post(&api, PODS, made).await;
    let mut large = call(&api, "GET", &format!("{PODS}/requests"), Value::Null).await.body;
    large["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "9"}});
    let reply = call(&api, "PUT", &format!("{PODS}/requests/resize"), large).await;
    assert_eq!(
        reply.body["message"],
        "pods \"requests\" is forbidden: node didn't have enough allocatable resources: cpu, requested: 9000, allocatable: 1000"
    );
    assert_eq!(reply.body["details"]["causes"], json!([{"reason": "NodeCapacity"}]));
}

#[tokio::test]
async fn classes_and_finalizers_are_set_and_claims_grow_only_where_they_may() {
    let api = with_namespace().await;
    let finalizers = |object: Value| object["metadata"]["finalizers"].clone();
    let volume = json!({"metadata": {"name": "v"}, "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}});
    assert_eq!(
        finalizers(post(&api, "/api/v1/persistentvolumes", volume).await),
        json!(["kubernetes.io/pv-protection"])
    );
    let class = json!({"metadata": {"name": "v"}, "driverName": "d.e", "parameters": {"a": "b"}});
    let classes = "/apis/storage.k8s.io/v1/volumeattributesclasses";
    assert_eq!(finalizers(post(&api, classes, class).await), json!(["kubernetes.io/vac-protection"]));
    let storage = "/apis/storage.k8s.io/v1/storageclasses";
    for (name, expands) in [("grows", true), ("stays", false)] {
        let class = json!({"metadata": {"name": name}, "provisioner": "p.q/r", "allowVolumeExpansion": expands});
        post(&api, storage, class).await;
    }
    let claims = "/api/v1/namespaces/n/persistentvolumeclaims";
    let more = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    let pending = "spec is immutable after creation except resources.requests";
    let fixed = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize";
    for (class, phase, why) in
        [("grows", "Pending", Some(pending)), ("stays", "Bound", Some(fixed)), ("grows", "Bound", None)]
    {
        let name = format!("{class}-{}", phase.to_lowercase());
        let claim = json!({"metadata": {"name": name}, "spec": {"storageClassName": class, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
        assert_eq!(finalizers(post(&api, claims, claim).await), json!(["kubernetes.io/pvc-protection"]));
        let path = format!("{claims}/{name}");
        call(&api, "PATCH", &format!("{path}/status"), json!({"status": {"phase": phase}})).await;
        let reply = call(&api, "PATCH", &path, more.clone()).await;
        match why {
            None => assert_eq!(reply.code, 200, "{}", reply.body),
            Some(why) => {
                // Validation comes before it.
                let code = if phase == "Pending" { 422 } else { 403 };
                let told = reply.body["message"].as_str().unwrap();
                assert!(reply.code == code && told.contains(why), "{name}: {}", reply.body);
            }
        }
    }
    let ingresses = "/apis/networking.k8s.io/v1/namespaces/n/ingresses";
    let ingress = |name: &str| json!({"metadata": {"name": name}, "spec": {"defaultBackend": {"service": {"name": "s", "port": {"number": 1}}}}});
    assert!(post(&api, ingresses, ingress("before")).await["spec"]["ingressClassName"].is_null());
    let class = json!({"metadata": {"name": "i", "annotations": {"ingressclass.kubernetes.io/is-default-class": "true"}}, "spec": {"controller": "a.b/c"}});
    post(&api, "/apis/networking.k8s.io/v1/ingressclasses", class).await;
    assert_eq!(post(&api, ingresses, ingress("after")).await["spec"]["ingressClassName"], "i");
    let mut old = ingress("old");
    old["metadata"]["annotations"] = json!({"kubernetes.io/ingress.class": "x"});
    assert!(post(&api, ingresses, old).await["spec"]["ingressClassName"].is_null());
}

#[tokio::test]
async fn an_account_limits_the_secrets_of_its_pods() {
    let api = with_namespace().await;
    let annotation = "kubernetes.io/enforce-mountable-secrets";
    let account =
        json!({"metadata": {"name": "limited", "annotations": {annotation: "true"}}, "secrets": [{"name": "good"}]});
    let accounts = "/api/v1/namespaces/n/serviceaccounts";
    let made = call(&api, "POST", accounts, account).await;
    let warning = format!(
        "299 - \"metadata.annotations[{annotation}]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets\""
    );
    assert_eq!(made.warnings, [warning]);
    assert_eq!(call(&api, "PUT", &format!("{accounts}/limited"), made.body).await.warnings, [""; 0]);
    let with = |secret: &str| {
        let mut pod = pod("p");
        pod["spec"]["serviceAccountName"] = json!("limited");
        pod["spec"]["volumes"] = json!([{"name": "v", "secret": {"secretName": secret}}]);
        pod
    };
    let why = "is not allowed because service account limited does not reference that secret";
    refused(&api, PODS, with("bad"), &format!("pods \"p\" is forbidden: volume with secret.secretName=\"bad\" {why}"))
        .await;
    let mut debugged = post(&api, PODS, with("good")).await;
    let source = json!([{"secretRef": {"name": "bad"}}]);
    debugged["spec"]["ephemeralContainers"] = json!([{"name": "e", "image": "i", "envFrom": source}]);
    let answer = call(&api, "PUT", &format!("{PODS}/p/ephemeralcontainers"), debugged).await;
    let wanted = format!("ephemeral container e with envFrom referencing secret.secretName=\"bad\" {why}");
    assert_eq!((answer.code, answer.body["message"].as_str()), (500, Some(wanted.as_str())));
}

#[tokio::test]
async fn a_pod_on_a_node_changes_only_as_the_node_declares() {
    let api = with_namespace().await;
    let mut node = post(&api, "/api/v1/nodes", json!({"metadata": {"name": "nf"}})).await;
    let amounts =
        |cpu: &str| json!({"requests": {"cpu": cpu, "memory": "1Gi"}, "limits": {"cpu": "4", "memory": "2Gi"}});
    let allocatable = json!({"cpu": "64", "memory": "64Gi"});
    node["status"] = json!({"allocatable": allocatable});
    node = call(&api, "PUT", "/api/v1/nodes/nf/status", node).await.body;
    let mut running = pod("both");
    running["spec"]["nodeName"] = json!("nf");
    running["spec"]["resources"] = amounts("3");
    running["spec"]["initContainers"] = json!([{"name": "i", "image": "i", "resources": amounts("1")}]);
    let running = post(&api, PODS, running).await;
    let resized = |pod: bool| {
        let mut wanted = running.clone();
        wanted["spec"]["initContainers"][0]["resources"] = amounts("2");
        if pod {
            wanted["spec"]["resources"] = amounts("3500m");
        }
        wanted
    };
    let path = format!("{PODS}/both/resize?dryRun=All");
    let why = |features: &str| {
        format!(
            "pods \"both\" is forbidden: pod update requires features {features} which are not available on node \"nf\""
        )
    };
    let (level, init) = ("InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers");
    for (declared, pod, wanted) in [
        (json!([]), false, Some(why(init))),
        (json!([]), true, Some(why(&format!("{level}, {init}")))),
        (json!([init]), true, Some(why(level))),
        (json!([init]), false, None),
    ] {
        node["status"]["declaredFeatures"] = declared.clone();
        node = call(&api, "PUT", "/api/v1/nodes/nf/status", node).await.body;
        let answer = call(&api, "PUT", &path, resized(pod)).await;
        let refused = answer.body["message"].as_str().filter(|_| answer.code == 403).map(str::to_owned);
        assert_eq!(refused, wanted, "{declared} {pod}: {}", answer.body);
    }
}
