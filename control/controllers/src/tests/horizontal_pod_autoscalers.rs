//! Autoscalers with the controllers of what they scale. Time is tokio's: it passes when nothing else is to do.

use std::time::Duration;

use k8s_openapi::api::{apps::v1::Deployment, autoscaling::v2::HorizontalPodAutoscaler, core::v1::Pod};
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, Patch, PatchParams},
};
use serde_json::{Value, json};
use windlass_kit::prometheus::Format;
use windlass_test_api::widgets as resource_of_widgets;
use windlass_tests::api_faults::RequestFault;

use super::{Bed, put};
use crate::Config;

const METRICS: &str = "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods";
const HOUR_AGO: i64 = 3600;

fn ago(seconds: i64) -> String {
    (jiff::Timestamp::now() - jiff::SignedDuration::from_secs(seconds)).to_string()
}

/// Answers requests for `path` in place of the API, which has no such metrics.
fn answer(bed: &Bed, path: &str, answer: Option<Value>) {
    let text = answer.unwrap_or_default().to_string();
    bed.server.faults.answer(path, Some((200, "application/json", &text)));
}

/// Controllers with an API without metrics.
async fn bed_of(config: Config) -> Bed {
    let bed = Bed::new(config).await;
    bed.server.faults.answer(METRICS, Some((404, "text/plain", "404 page not found\n")));
    bed
}

async fn deployment(bed: &Bed, name: &str, app: &str, resources: Value) {
    let labels = json!({"app": app});
    let containers = json!([{"name": "nginx", "image": "v1", "resources": resources}]);
    let spec = json!({"replicas": 1, "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}}});
    let _: Deployment = put(&bed.api(), json!({"metadata": {"name": name}, "spec": spec})).await;
}

/// The target's pods are known by now.
async fn autoscaler(bed: &Bed, name: &str, target: Value, metrics: Value) -> HorizontalPodAutoscaler {
    tokio::time::sleep(Duration::from_secs(1)).await;
    let spec = json!({"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 10, "metrics": metrics});
    put(&bed.api(), json!({"metadata": {"name": name}, "spec": spec})).await
}

fn of_deployment(name: &str) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": name})
}

fn cpu(percent: i32) -> Value {
    let target = json!({"type": "Utilization", "averageUtilization": percent});
    json!([{"type": "Resource", "resource": {"name": "cpu", "target": target}}])
}

/// Lets all pods run, and use this much of CPU each.
async fn run_pods(bed: &Bed, used: &str) {
    let mut items = Vec::new();
    for pod in bed.server.all("pods") {
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        if pod["status"]["phase"] != "Running" {
            let conditions = json!([{"type": "Ready", "status": "True", "lastTransitionTime": ago(HOUR_AGO)}]);
            let patch = json!({"status": {"phase": "Running", "startTime": ago(HOUR_AGO), "conditions": conditions}});
            let _ = bed.api::<Pod>().patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
        }
        items.push(json!({"metadata": {"name": name, "namespace": "default"}, "timestamp": ago(0), "window": "15s",
            "containers": [{"name": "nginx", "usage": {"cpu": used, "memory": "1Mi"}}]}));
    }
    answer(bed, METRICS, Some(json!({"kind": "PodMetricsList", "metadata": {}, "items": items})));
}

fn messages(bed: &Bed, reason: &str) -> Vec<String> {
    let mut events: Vec<Value> = super::events(&bed.server, reason);
    assert!(events.iter().all(|e| e["source"]["component"] == "horizontal-pod-autoscaler"));
    let version = |event: &Value| event["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
    events.sort_by_key(version);
    events.iter().map(|event| event["message"].as_str().unwrap().to_owned()).collect()
}

fn reasons(autoscaler: &Value) -> Vec<String> {
    let conditions = autoscaler["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let reason = |condition: &Value| condition["reason"].as_str().unwrap().to_owned();
    conditions.iter().map(reason).collect()
}

#[tokio::test(start_paused = true)]
async fn a_load_comes_and_goes() {
    let config = Config::default();
    let metrics = config.metrics.clone();
    let bed = bed_of(config).await;
    deployment(&bed, "hpa-demo", "nginx", json!({"requests": {"cpu": "50m"}})).await;
    bed.server.until("pods", "a pod", |pods| pods.len() == 1).await;
    run_pods(&bed, "155m").await;
    // Others write the Deployment meanwhile, as in a rollout.
    bed.server.faults.fail(http::Method::PUT, "deploymentsscale", RequestFault::ComesSecond, 2);
    autoscaler(&bed, "hpa-demo", of_deployment("hpa-demo"), cpu(10)).await;
    let is = |size: i64| move |all: &[Value]| all[0]["spec"]["replicas"] == size;
    let status = bed
        .server
        .until("horizontalpodautoscalers", "the first visit", |a| a[0]["status"]["currentReplicas"] == 1)
        .await;
    let current = json!({"averageUtilization": 310, "averageValue": "155m"});
    assert_eq!(status[0]["status"]["currentMetrics"][0]["resource"]["current"], current);
    assert_eq!(status[0]["status"]["desiredReplicas"], 4);
    assert_eq!(reasons(&status[0]), ["SucceededRescale", "ValidMetricFound", "ScaleUpLimit"]);
    assert!(messages(&bed, "FailedRescale").is_empty());
    for seconds in 0..60 {
        run_pods(&bed, "155m").await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(seconds > 0 || bed.server.all("deployments")[0]["spec"]["replicas"] == 4, "one step in one visit");
    }
    bed.server.until("deployments", "all", is(10)).await;
    let all = bed.server.until("horizontalpodautoscalers", "at rest", |a| reasons(&a[0])[2] == "TooManyReplicas").await;
    assert!(!all[0]["status"]["lastScaleTime"].is_null());
    // The load ends; for five minutes nothing changes.
    for _ in 0..280 {
        run_pods(&bed, "0").await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(bed.server.all("deployments")[0]["spec"]["replicas"], 10);
    assert_eq!(reasons(&bed.server.all("horizontalpodautoscalers")[0])[0], "ScaleDownStabilized");
    for _ in 0..40 {
        run_pods(&bed, "0").await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    bed.server.until("deployments", "one", is(1)).await;
    let above = "reason: cpu resource utilization (percentage of request) above target";
    assert_eq!(
        messages(&bed, "SuccessfulRescale"),
        [
            format!("New size: 4; {above}"),
            format!("New size: 8; {above}"),
            format!("New size: 10; {above}"),
            "New size: 1; reason: All metrics below target".to_owned()
        ]
    );
    let page = metrics.page(Format::Plain);
    for line in [
        "horizontal_pod_autoscaler_controller_reconciliations_total{action=\"scale_up\",error=\"none\"} 3",
        "horizontal_pod_autoscaler_controller_reconciliations_total{action=\"scale_down\",error=\"none\"} 1",
        "horizontal_pod_autoscaler_controller_num_horizontal_pod_autoscalers 1",
        "horizontal_pod_autoscaler_controller_desired_replicas{namespace=\"default\",hpa_name=\"hpa-demo\"} 1",
        "horizontal_pod_autoscaler_controller_metric_computation_total{action=\"scale_up\",error=\"none\",metric_type=\"Resource\"}",
    ] {
        assert!(page.contains(line), "{line} is not in {page}");
    }
    // At rest nothing is written.
    run_pods(&bed, "5m").await;
    let rest = Duration::from_secs(40);
    tokio::time::sleep(rest).await;
    let before = bed.server.all("horizontalpodautoscalers");
    tokio::time::sleep(rest).await;
    assert_eq!(bed.server.all("horizontalpodautoscalers"), before);
    bed.api::<HorizontalPodAutoscaler>().delete("hpa-demo", &DeleteParams::default()).await.unwrap();
    tokio::time::sleep(rest).await;
    assert!(metrics.page(Format::Plain).contains("controller_num_horizontal_pod_autoscalers 0\n"));
    bed.end().await;
}

/// What is unknown is neither nothing nor much: the size stays as it is.
#[tokio::test(start_paused = true)]
async fn a_metrics_api_that_has_died_scales_nothing() {
    let bed = bed_of(Config::default()).await;
    deployment(&bed, "web", "nginx", json!({"requests": {"cpu": "50m"}})).await;
    bed.server.until("pods", "a pod", |pods| pods.len() == 1).await;
    run_pods(&bed, "155m").await;
    autoscaler(&bed, "web", of_deployment("web"), cpu(10)).await;
    bed.server.until("deployments", "four", |all| all[0]["spec"]["replicas"] == 4).await;
    let why = "failed to get cpu utilization: unable to get metrics for resource cpu: unable to fetch metrics from resource metrics API: the server is currently unable to handle the request (get pods.metrics.k8s.io)";
    let failed = |all: &[Value]| reasons(&all[0]).get(1).is_some_and(|reason| reason == "FailedGetResourceMetric");
    // As the aggregator answers when an extension API server is not available, and when it cannot be reached.
    for text in ["service unavailable\n", "error trying to reach service: dial tcp 10.0.0.1:443: connection refused\n"]
    {
        bed.server.faults.answer(METRICS, Some((503, "text/plain; charset=utf-8", text)));
        // Longer than a scaling down waits.
        for _ in 0..400 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert_eq!(bed.server.all("deployments")[0]["spec"]["replicas"], 4, "{text}");
        }
        let all = bed.server.until("horizontalpodautoscalers", "the condition", failed).await;
        assert_eq!(reasons(&all[0])[0], "SucceededGetScale");
        let active = &all[0]["status"]["conditions"][1];
        assert_eq!((&active["type"], &active["status"]), (&json!("ScalingActive"), &json!("False")));
        assert_eq!(active["message"], format!("the HPA was unable to compute the replica count: {why}"));
        assert_eq!(all[0]["status"]["desiredReplicas"], 4);
        assert_eq!(messages(&bed, "FailedGetResourceMetric").last().map(String::as_str), Some(why));
        // It comes back.
        run_pods(&bed, "5m").await;
        let valid = |all: &[Value]| reasons(&all[0]).get(1).is_some_and(|reason| reason == "ValidMetricFound");
        tokio::time::sleep(Duration::from_secs(16)).await;
        bed.server.until("horizontalpodautoscalers", "metrics again", valid).await;
    }
    bed.end().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_missing_is_told() {
    let bed = bed_of(Config::default()).await;
    deployment(&bed, "bare", "bare", json!({})).await;
    let pod = bed.server.until("pods", "a pod", |pods| pods.len() == 1).await[0]["metadata"]["name"].clone();
    autoscaler(&bed, "bare", of_deployment("bare"), cpu(10)).await;
    let told = |reason: &'static str, text: String| {
        move |all: &[Value]| all.iter().any(|e| e["reason"] == reason && e["message"] == text)
    };
    let no_api = "failed to get cpu utilization: unable to get metrics for resource cpu: unable to fetch metrics from resource metrics API: the server could not find the requested resource (get pods.metrics.k8s.io)";
    bed.server.until("events", "no API", told("FailedGetResourceMetric", no_api.to_owned())).await;
    answer(&bed, METRICS, Some(json!({"items": []})));
    tokio::time::sleep(Duration::from_secs(16)).await;
    let none = "failed to get cpu utilization: unable to get metrics for resource cpu: no metrics returned from resource metrics API";
    bed.server.until("events", "no metrics", told("FailedGetResourceMetric", none.to_owned())).await;
    run_pods(&bed, "5m").await;
    tokio::time::sleep(Duration::from_secs(16)).await;
    let pod = pod.as_str().unwrap();
    let missing = format!("failed to get cpu utilization: missing request for cpu in container nginx of Pod {pod}");
    bed.server.until("events", "no request", told("FailedGetResourceMetric", missing.clone())).await;
    let invalid = format!(
        "invalid metrics (1 invalid out of 1), first error is: failed to get cpu resource metric value: {missing}"
    );
    bed.server.until("events", "nothing computed", told("FailedComputeMetricsReplicas", invalid)).await;
    let all = bed.server.all("horizontalpodautoscalers");
    assert_eq!(reasons(&all[0]), ["SucceededGetScale", "FailedGetResourceMetric"]);
    let message = format!("the HPA was unable to compute the replica count: {missing}");
    assert_eq!(all[0]["status"]["conditions"][1]["message"], message);
    assert_eq!((&all[0]["status"]["currentReplicas"], &all[0]["status"]["desiredReplicas"]), (&json!(1), &json!(0)));

    // Targets that are not there.
    let target = json!({"apiVersion": "example.com/v1", "kind": "Nothing", "name": "x"});
    autoscaler(&bed, "nothing", target, cpu(10)).await;
    let no_kind = "no matches for kind \"Nothing\" in group \"example.com\"";
    bed.server.until("events", "no kind", told("FailedGetScale", no_kind.to_owned())).await;
    autoscaler(&bed, "gone", of_deployment("gone"), cpu(10)).await;
    bed.server
        .until("events", "no object", told("FailedGetScale", "deployments.apps \"gone\" not found".to_owned()))
        .await;
    bed.end().await;
}

#[tokio::test(start_paused = true)]
async fn two_autoscalers_of_the_same_pods_scale_nothing() {
    let bed = bed_of(Config::default()).await;
    deployment(&bed, "web", "nginx", json!({"requests": {"cpu": "50m"}})).await;
    bed.server.until("pods", "a pod", |pods| pods.len() == 1).await;
    run_pods(&bed, "5m").await;
    for name in ["one", "two"] {
        autoscaler(&bed, name, of_deployment("web"), cpu(10)).await;
    }
    let both = "pods by selector app=nginx are controlled by multiple HPAs: [default/one default/two]";
    let ambiguous = |all: &[Value]| all.iter().all(|a| reasons(a).get(1).is_some_and(|r| r == "AmbiguousSelector"));
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let all = bed.server.until("horizontalpodautoscalers", "both say so", ambiguous).await;
    assert_eq!(all[0]["status"]["conditions"][1]["message"], both);
    assert_eq!(messages(&bed, "AmbiguousSelector")[0], both);
    // One goes, the other works.
    bed.api::<HorizontalPodAutoscaler>().delete("two", &DeleteParams::default()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(16)).await;
    bed.server.until("horizontalpodautoscalers", "one", |all| reasons(&all[0])[1] == "ValidMetricFound").await;
    bed.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_custom_resource_scales_by_other_metrics() {
    let bed = bed_of(Config::default()).await;
    let _serving = bed.server.serve_custom_resources();
    bed.server.define_widgets().await;
    // Discovery is repeated every thirty seconds.
    tokio::time::sleep(Duration::from_secs(31)).await;
    let resource = resource_of_widgets();
    let widgets: Api<DynamicObject> = Api::namespaced_with(bed.client.clone(), "default", &resource);
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"},
        "spec": {"replicas": 2}, "status": {"replicas": 2, "selector": "app in (w)"}});
    put(&widgets, widget).await;
    for name in ["w-0", "w-1"] {
        let pod = json!({"metadata": {"name": name, "labels": {"app": "w"}}, "spec": {"containers": [{"name": "c", "image": "v1"}]}});
        let _: Pod = put(&bed.api(), pod).await;
    }
    run_pods(&bed, "0").await;
    let metric = |name: &str| json!({"name": name, "selector": {"matchLabels": {"verb": "GET"}}});
    let average = json!({"type": "AverageValue", "averageValue": "10"});
    let value = json!({"type": "Value", "value": "10"});
    let service = json!({"apiVersion": "v1", "kind": "Service", "name": "front"});
    let metrics = json!([
        {"type": "Pods", "pods": {"metric": metric("qps"), "target": average}},
        {"type": "Object", "object": {"metric": metric("hits"), "describedObject": service, "target": value}},
        {"type": "External", "external": {"metric": metric("queue"), "target": average}},
    ]);
    let target = json!({"apiVersion": "example.com/v1", "kind": "Widget", "name": "w"});
    autoscaler(&bed, "w", target, metrics).await;
    let no_api = "unable to get metric qps: unable to fetch metrics from custom metrics API: no custom metrics API (custom.metrics.k8s.io) registered";
    bed.server.until("events", "no API", |all| all.iter().any(|e| e["message"] == no_api)).await;

    let versions: Vec<Value> = ["v1beta1", "v1beta2"]
        .map(|version| json!({"groupVersion": format!("custom.metrics.k8s.io/{version}"), "version": version}))
        .to_vec();
    let group = json!({"kind": "APIGroup", "apiVersion": "v1", "name": "custom.metrics.k8s.io", "versions": versions,
        "preferredVersion": versions[1]});
    answer(&bed, "/apis/custom.metrics.k8s.io", Some(group));
    let item = |name: &str, value: &str| json!({"describedObject": {"name": name}, "timestamp": ago(0), "windowSeconds": 60, "value": value});
    let custom = "/apis/custom.metrics.k8s.io/v1beta2/namespaces/default";
    let list = |items: &[Value]| {
        Some(json!({"kind": "MetricValueList", "apiVersion": "custom.metrics.k8s.io/v1beta2", "items": items}))
    };
    answer(&bed, &format!("{custom}/pods/*/qps"), list(&[item("w-0", "20"), item("w-1", "10")]));
    answer(&bed, &format!("{custom}/services/front/hits"), list(&[item("front", "20")]));
    let queue = "/apis/external.metrics.k8s.io/v1beta1/namespaces/default/queue";
    answer(&bed, queue, Some(json!({"items": [{"value": "40"}, {"value": "9500m"}]})));
    tokio::time::sleep(Duration::from_secs(16)).await;
    let sizes = |all: &[Value]| all[0]["spec"]["replicas"] == 4;
    bed.server.until("widgets", "four", sizes).await;
    let selector =
        "&LabelSelector{MatchLabels:map[string]string{verb: GET,},MatchExpressions:[]LabelSelectorRequirement{},}";
    let above = format!("New size: 4; reason: external metric queue({selector}) above target");
    bed.server.until("events", "the reason", |all| all.iter().any(|e| e["message"] == above)).await;
    let all = bed
        .server
        .until("horizontalpodautoscalers", "the status", |all| all[0]["status"]["desiredReplicas"] == 4)
        .await;
    let current = |at: usize, of: &str| all[0]["status"]["currentMetrics"][at][of]["current"].clone();
    assert_eq!(current(0, "pods"), json!({"averageValue": "15"}));
    assert_eq!(current(1, "object"), json!({"value": "20"}));
    assert_eq!(current(2, "external"), json!({"averageValue": "24750m"}));
    bed.end().await;
}

#[tokio::test(start_paused = true)]
async fn another_spec_is_followed_at_once_and_a_status_is_not() {
    let bed = bed_of(Config::default()).await;
    deployment(&bed, "web", "nginx", json!({"requests": {"cpu": "50m"}})).await;
    bed.server.until("pods", "a pod", |pods| pods.len() == 1).await;
    run_pods(&bed, "155m").await;
    autoscaler(&bed, "web", of_deployment("web"), cpu(10)).await;
    let size = |size: i64| move |all: &[Value]| all[0]["spec"]["replicas"] == size;
    bed.server.until("deployments", "four", size(4)).await;
    // Within the period, although its own status changed.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(bed.server.all("deployments")[0]["spec"]["replicas"], 4);
    let api = bed.api::<HorizontalPodAutoscaler>();
    let patch = Patch::Merge(json!({"spec": {"maxReplicas": 2}}));
    api.patch("web", &PatchParams::default(), &patch).await.unwrap();
    bed.server.until("deployments", "two", size(2)).await;
    let above = "New size: 2; reason: Current number of replicas above Spec.MaxReplicas";
    bed.server.until("events", "the reason", |all| all.iter().any(|e| e["message"] == above)).await;
    bed.end().await;
}
