//! An autoscaler through the API itself: what it serves in all versions and tables, and its own usage of pods.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{Extension, Router, routing::get};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    apps::v1::Deployment,
    autoscaling::v2::HorizontalPodAutoscaler,
    core::v1::{Event, Node, Pod},
};
use kube::{
    Api as KubeApi,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use windlass_kit::serve::{ClientIdentity, ReservedAddresses, serve_tls};

use super::cluster::Cluster;
use crate::metrics::{ContainerReading, Containers, Reading, Readings, Run, SampledAt, Scraper, tests::pages::KUBELET};

const PATH: &str = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers";

async fn request(cluster: &Cluster, method: &str, path: &str, accept: &str, body: &Value) -> Value {
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("accept", accept)
        .header("content-type", "application/json");
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    cluster.client.request(request.body(body).unwrap()).await.unwrap()
}

/// The cells of the only autoscaler but its age.
async fn cells(cluster: &Cluster) -> Vec<Value> {
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let table = request(cluster, "GET", PATH, accept, &Value::Null).await;
    table["rows"][0]["cells"].as_array().unwrap()[..6].to_vec()
}

/// What the node reports: the pods have run for an hour, and each uses this percentage of a twentieth of a core.
async fn run(cluster: &Cluster, percent: u64) {
    let ago = |seconds| Timestamp::now() - SignedDuration::from_secs(seconds);
    let mut samples = [Vec::new(), Vec::new()];
    for pod in cluster.until::<Pod>("pods", |pods| !pods.is_empty()).await {
        let name = pod["metadata"]["name"].as_str().unwrap();
        let hour = ago(3600).to_string();
        let conditions = json!([{"type": "Ready", "status": "True", "lastTransitionTime": hour}]);
        let patch = json!({"status": {"phase": "Running", "startTime": hour, "conditions": conditions}});
        // It may be replaced by now.
        let _ = cluster.api::<Pod>().patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        for (sample, at, cpu_ns) in [(0, ago(10), 1), (1, ago(0), 1 + percent * 5_000_000)] {
            samples[sample].push(ContainerReading {
                pod_uid: pod["metadata"]["uid"].as_str().unwrap().to_owned(),
                name: "nginx".to_owned(),
                run: Run::Started(None),
                reading: Reading { at: SampledAt::There(at), cpu_ns, memory_bytes: 1 << 20 },
            });
        }
    }
    for containers in samples.map(Containers::All) {
        cluster.plane.usage.record(&Readings { containers, ..Readings::default() });
    }
}

async fn patch_spec(cluster: &Cluster, most: i32) {
    let patch = Patch::Merge(json!({"spec": {"maxReplicas": most}}));
    let api = cluster.api::<HorizontalPodAutoscaler>();
    api.patch("hpa-demo", &PatchParams::default(), &patch).await.unwrap();
}

#[tokio::test]
async fn an_autoscaler_of_the_first_version_by_our_own_usage() {
    let cluster = Cluster::new().await;
    let deployment = |resources: Value| {
        json!({"metadata": {"name": "hpa-demo"}, "spec": {"selector": {"matchLabels": {"app": "nginx"}},
            "template": {"metadata": {"labels": {"app": "nginx"}},
                "spec": {"containers": [{"name": "nginx", "image": "nginx", "resources": resources}]}}}})
    };
    cluster.create::<Deployment>(deployment(json!({}))).await;
    run(&cluster, 1).await;
    // As `kubectl autoscale deployment hpa-demo --cpu-percent=10 --min=1 --max=9` creates it.
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "hpa-demo"});
    let spec =
        json!({"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 9, "targetCPUUtilizationPercentage": 10});
    let object = json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "hpa-demo"}, "spec": spec});
    request(&cluster, "POST", PATH, "application/json", &object).await;
    let missing = |all: &[Value]| {
        all.iter().any(|event| {
            let text = event["message"].as_str().unwrap_or_default();
            event["reason"] == "FailedGetResourceMetric"
                && text.starts_with(
                    "failed to get cpu utilization: missing request for cpu in container nginx of Pod hpa-demo-",
                )
        })
    };
    cluster.until::<Event>("no request", missing).await;
    let failed = |all: &[Value]| all[0]["status"]["conditions"][1]["reason"] == "FailedGetResourceMetric";
    cluster.until::<HorizontalPodAutoscaler>("the condition", failed).await;
    let shown = |targets: &str, most: i32, replicas: i32| {
        vec![json!("hpa-demo"), json!("Deployment/hpa-demo"), json!(targets), json!("1"), json!(most), json!(replicas)]
    };
    assert_eq!(cells(&cluster).await, shown("cpu: <unknown>/10%", 9, 1));
    let v1 = request(&cluster, "GET", &format!("{PATH}/hpa-demo"), "application/json", &Value::Null).await;
    let conditions = v1["metadata"]["annotations"]["autoscaling.alpha.kubernetes.io/conditions"].as_str().unwrap();
    let conditions: Value = serde_json::from_str(conditions).unwrap();
    assert_eq!((&conditions[0]["type"], &conditions[1]["type"]), (&json!("AbleToScale"), &json!("ScalingActive")));
    assert_eq!(v1["status"], json!({"currentReplicas": 1, "desiredReplicas": 0}));

    // With requests, it scales; the first version carries everything and is written back unchanged.
    let patch = Patch::Merge(deployment(json!({"requests": {"cpu": "50m", "memory": "50Mi"}})));
    cluster.api::<Deployment>().patch("hpa-demo", &PatchParams::default(), &patch).await.unwrap();
    let new =
        |pods: &[Value]| pods.len() == 1 && pods[0]["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "50m";
    for _ in 0..100 {
        // As much as the target: the size stays as it is until the old pod is gone.
        run(&cluster, 10).await;
        if new(&cluster.until::<Pod>("pods", |_| true).await) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    cluster.until::<Pod>("the new pod alone", new).await;
    run(&cluster, 310).await;
    patch_spec(&cluster, 10).await;
    cluster.until::<Deployment>("four", |all| all[0]["spec"]["replicas"] == 4).await;
    cluster.until::<HorizontalPodAutoscaler>("the status", |all| all[0]["status"]["desiredReplicas"] == 4).await;
    assert_eq!(cells(&cluster).await, shown("cpu: 310%/10%", 10, 1));
    let v1 = request(&cluster, "GET", &format!("{PATH}/hpa-demo"), "application/json", &Value::Null).await;
    assert_eq!(v1["status"]["currentCPUUtilizationPercentage"], 310);
    let stored = cluster.api::<HorizontalPodAutoscaler>().get("hpa-demo").await.unwrap();
    request(&cluster, "PUT", &format!("{PATH}/hpa-demo"), "application/json", &v1).await;
    let again = cluster.api::<HorizontalPodAutoscaler>().get("hpa-demo").await.unwrap();
    assert_eq!((again.spec, again.status), (stored.spec, stored.status));
    let rescaled = |all: &[Value]| {
        let text = "New size: 4; reason: cpu resource utilization (percentage of request) above target";
        all.iter().any(|event| event["reason"] == "SuccessfulRescale" && event["message"] == text)
    };
    cluster.until::<Event>("the event", rescaled).await;
    cluster.end().await;
}

/// Who registers an extension API server for the metrics has no others: while it is dead nothing is scaled, also where usage is
/// known here.
#[tokio::test]
async fn a_metrics_api_that_is_registered_and_dead_scales_nothing() {
    let cluster = Cluster::new().await;
    let stop = CancellationToken::new();
    tokio::spawn(cluster.plane.clone().aggregate(stop.clone()));
    let requests = json!({"requests": {"cpu": "50m"}});
    cluster
        .create::<Deployment>(
            json!({"metadata": {"name": "hpa-demo"}, "spec": {"selector": {"matchLabels": {"app": "nginx"}},
            "template": {"metadata": {"labels": {"app": "nginx"}},
                "spec": {"containers": [{"name": "nginx", "image": "nginx", "resources": requests}]}}}}),
        )
        .await;
    let registered = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": "v1beta1.metrics.k8s.io"},
        "spec": {"group": "metrics.k8s.io", "version": "v1beta1", "insecureSkipTLSVerify": true,
            "groupPriorityMinimum": 100, "versionPriority": 100,
            "service": {"namespace": "kube-system", "name": "metrics-server"}}});
    request(&cluster, "POST", "/apis/apiregistration.k8s.io/v1/apiservices", "application/json", &registered).await;
    let catalogs = cluster.plane.api.catalogs();
    let mut served = catalogs.subscribe();
    while catalogs.current().extensions.is_empty() {
        served.changed().await.unwrap();
    }
    run(&cluster, 310).await;
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "hpa-demo"});
    let spec =
        json!({"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 9, "targetCPUUtilizationPercentage": 10});
    let object = json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "hpa-demo"}, "spec": spec});
    request(&cluster, "POST", PATH, "application/json", &object).await;
    let failed = |all: &[Value]| all[0]["status"]["conditions"][1]["reason"] == "FailedGetResourceMetric";
    let all = cluster.until::<HorizontalPodAutoscaler>("the condition", failed).await;
    let why = "the HPA was unable to compute the replica count: failed to get cpu utilization: unable to get metrics for resource cpu: unable to fetch metrics from resource metrics API: the server is currently unable to handle the request (get pods.metrics.k8s.io)";
    assert_eq!(all[0]["status"]["conditions"][1]["message"], why);
    let deployments = cluster.until::<Deployment>("the deployment", |_| true).await;
    assert_eq!(deployments[0]["spec"]["replicas"], 1);
    stop.cancel();
    cluster.end().await;
}

/// The version of the tutorials, which is gone from Kubernetes.
#[tokio::test]
async fn an_autoscaler_of_the_beta_version() {
    let cluster = Cluster::new().await;
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "hpa-mem-demo"});
    let metric = json!({"type": "Resource", "resource": {"name": "memory", "targetAverageUtilization": 30}});
    let spec = json!({"maxReplicas": 5, "minReplicas": 1, "scaleTargetRef": target, "metrics": [metric]});
    let object = json!({"apiVersion": "autoscaling/v2beta1", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "hpa-mem-demo", "namespace": "default"}, "spec": spec});
    let beta = PATH.replace("v1", "v2beta1");
    request(&cluster, "POST", &beta, "application/json", &object).await;
    let no_target = |all: &[Value]| all[0]["status"]["conditions"][0]["reason"] == "FailedGetScale";
    let all = cluster.until::<HorizontalPodAutoscaler>("no target", no_target).await;
    let target = json!({"type": "Utilization", "averageUtilization": 30});
    assert_eq!(
        all[0]["spec"]["metrics"],
        json!([{"type": "Resource", "resource": {"name": "memory", "target": target}}])
    );
    let message =
        "the HPA controller was unable to get the target's current scale: deployments.apps \"hpa-mem-demo\" not found";
    assert_eq!(all[0]["status"]["conditions"][0]["message"], message);
    let shown = request(&cluster, "GET", &format!("{beta}/hpa-mem-demo"), "application/json", &Value::Null).await;
    assert_eq!(shown["spec"]["metrics"], json!([metric]));
    assert_eq!(shown["status"]["conditions"][0]["reason"], "FailedGetScale");
    cluster.end().await;
}

/// A node's API on a socket of this machine, with TLS as all nodes have it: each request for the resource page gets the
/// next of these pages.
async fn other_node(cluster: &Cluster, pages: Vec<String>, stop: CancellationToken) -> u16 {
    let asked = Arc::new(AtomicUsize::new(0));
    let page = async move |Extension(client): Extension<ClientIdentity>| {
        assert_eq!(
            (&*client.name, &*client.groups),
            ("kube-apiserver-kubelet-client", &["system:masters".to_owned()][..])
        );
        pages[asked.fetch_add(1, Ordering::Relaxed).min(pages.len() - 1)].clone()
    };
    let router = Router::new().route("/metrics/resource", get(page));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let tls = cluster.plane.node_tls();
    tokio::spawn(serve_tls("node", listener, tls, router, ReservedAddresses::default(), stop));
    port
}

/// Ten pods use two hundred percent of what they request. Two of them run in this process; usage of the others is known
/// to their node only.
#[tokio::test]
async fn an_autoscaler_scales_by_the_pods_of_all_nodes() {
    let cluster = Cluster::new().await;
    let stop = CancellationToken::new();
    let requests = json!({"requests": {"cpu": "100m"}});
    cluster
        .create::<Deployment>(json!({"metadata": {"name": "web"}, "spec": {"replicas": 10,
            "selector": {"matchLabels": {"app": "web"}}, "template": {"metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "c", "image": "nginx", "resources": requests}]}}}}))
        .await;
    let pods = cluster.until::<Pod>("ten pods", |pods| pods.len() == 10).await;
    // The recorded node's pods have the names of these, in order.
    let names: BTreeMap<usize, &str> =
        pods.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap()).enumerate().collect();
    let renamed = |page: &str| {
        let of = |page: String, (place, name): (&usize, &&str)| {
            page.replace(
                &format!("namespace=\"n\",pod=\"web-{place}\""),
                &format!("namespace=\"default\",pod=\"{name}\""),
            )
        };
        names.iter().fold(page.to_owned(), of)
    };
    let port = other_node(&cluster, KUBELET.map(renamed).to_vec(), stop.clone()).await;
    let dead = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let nodes: KubeApi<Node> = KubeApi::all(cluster.client.clone());
    for (name, port, ready) in
        [("n", 0, "True"), ("there", port, "True"), ("dead", dead, "True"), ("gone", port, "Unknown")]
    {
        let node = json!({"metadata": {"name": name}, "status": {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            "conditions": [{"type": "Ready", "status": ready}]}});
        nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
    }
    let _listener = cluster.plane.in_process_node_listener();
    let now = Timestamp::now();
    let hour = (now - SignedDuration::from_hours(1)).to_string();
    let mut own = [Vec::new(), Vec::new()];
    for (place, name) in &names {
        let node = if *place < 2 { "n" } else { "there" };
        let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": {"kind": "Node", "name": node}});
        let path = format!("/api/v1/namespaces/default/pods/{name}/binding");
        request(&cluster, "POST", &path, "application/json", &binding).await;
        let conditions = json!([{"type": "Ready", "status": "True", "lastTransitionTime": hour}]);
        let patch = json!({"status": {"phase": "Running", "startTime": hour, "conditions": conditions}});
        cluster.api::<Pod>().patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
        for (sample, seconds) in own.iter_mut().zip([0, 10]) {
            let at = SampledAt::There(now - SignedDuration::from_secs(10 - seconds));
            let reading = Reading { at, cpu_ns: 1 + seconds.unsigned_abs() * 200_000_000, memory_bytes: 1 << 20 };
            sample.extend((node == "n").then(|| ContainerReading {
                pod_uid: pods[*place]["metadata"]["uid"].as_str().unwrap().to_owned(),
                name: "c".to_owned(),
                run: Run::Id(format!("{place}")),
                reading,
            }));
        }
    }
    for containers in own.map(Containers::All) {
        cluster.plane.usage.record(&Readings { node: "n".to_owned(), machine: None, containers });
    }
    let scraper = Scraper::new(cluster.plane.store.clone(), cluster.plane.kubelet.clone(), cluster.plane.usage.clone());
    scraper.round().await;
    scraper.round().await;
    let list = request(&cluster, "GET", "/apis/metrics.k8s.io/v1beta1/pods", "application/json", &Value::Null).await;
    let used: Vec<_> =
        list["items"].as_array().unwrap().iter().map(|pod| &pod["containers"][0]["usage"]["cpu"]).collect();
    assert_eq!(used, vec!["200m"; 10], "{list}");
    let all = request(&cluster, "GET", "/apis/metrics.k8s.io/v1beta1/nodes", "application/json", &Value::Null).await;
    assert_eq!(
        all["items"].as_array().unwrap().iter().map(|node| &node["metadata"]["name"]).collect::<Vec<_>>(),
        ["there"]
    );

    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
    let spec =
        json!({"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 50, "targetCPUUtilizationPercentage": 100});
    let object = json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "web"}, "spec": spec});
    request(&cluster, "POST", PATH, "application/json", &object).await;
    cluster.until::<Deployment>("twice as many", |all| all[0]["spec"]["replicas"] == 20).await;
    stop.cancel();
    cluster.end().await;
}
