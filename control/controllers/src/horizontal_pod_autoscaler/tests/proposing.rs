//! One metric each: what is asked for, what users read, and what stands in the status.

use k8s_openapi::api::autoscaling::v2::MetricSpec;
use serde_json::{Value, json};

use super::{now, pod, samples};
use crate::horizontal_pod_autoscaler::{
    metric_lists::{CustomMetric, PodUsage, of_containers, of_custom, of_pods},
    proposals::{Failure, Proposal, Query, Samples, propose, query},
    replica_calculator::{PodMetrics, Target, Tolerances},
};

fn spec(value: Value) -> MetricSpec {
    serde_json::from_value(value).unwrap()
}

fn cpu(target: &Value) -> MetricSpec {
    spec(json!({"type": "Resource", "resource": {"name": "cpu", "target": target}}))
}

fn container(target: &Value) -> MetricSpec {
    let of = json!({"name": "cpu", "container": "c", "target": target});
    spec(json!({"type": "ContainerResource", "containerResource": of}))
}

fn pods() -> MetricSpec {
    let target = json!({"type": "AverageValue", "averageValue": "50m"});
    spec(
        json!({"type": "Pods", "pods": {"metric": {"name": "qps", "selector": {"matchLabels": {"verb": "GET"}}}, "target": target}}),
    )
}

fn object(target: &Value) -> MetricSpec {
    let of = json!({"metric": {"name": "hits"}, "describedObject": {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "name": "front"},
        "target": target});
    spec(json!({"type": "Object", "object": of}))
}

fn external(target: &Value) -> MetricSpec {
    let metric = json!({"name": "queue", "selector": {"matchLabels": {"shard": "1"}}});
    spec(json!({"type": "External", "external": {"metric": metric, "target": target}}))
}

fn value(amount: &str) -> Value {
    json!({"type": "Value", "value": amount})
}

fn average(amount: &str) -> Value {
    json!({"type": "AverageValue", "averageValue": amount})
}

fn percent(amount: i32) -> Value {
    json!({"type": "Utilization", "averageUtilization": amount})
}

fn evaluate(spec: &MetricSpec, answer: Result<Samples, String>) -> Result<Proposal, Failure> {
    let pods = [pod("p0", &json!({})), pod("p1", &json!({}))];
    let of = Target { pods: &pods, current: 2, present: 2, tolerances: Tolerances::default(), now: now() };
    propose(spec, &of, "default", query(spec).map(|_| answer))
}

#[test]
fn each_type_asks_its_api() {
    for (spec, expected) in [
        (cpu(&percent(50)), Some("Resource { name: \"cpu\", container: None }")),
        (container(&average("1")), Some("Resource { name: \"cpu\", container: Some(\"c\") }")),
        (pods(), Some("Pods { metric: \"qps\", selector: \"verb=GET\" }")),
        (external(&value("5")), Some("External { metric: \"queue\", selector: \"shard=1\" }")),
        (cpu(&json!({"type": "Utilization"})), None),
        (object(&json!({"type": "Value"})), None),
        (external(&json!({"type": "Value"})), None),
        (spec(json!({"type": "Nothing"})), None),
        (spec(json!({"type": "Pods"})), None),
    ] {
        assert_eq!(query(&spec).map(|query| format!("{query:?}")).as_deref(), expected);
    }
    let spec = object(&value("5"));
    assert!(
        matches!(query(&spec), Some(Query::Object { metric: "hits", described, .. }) if described.kind == "Ingress")
    );
}

#[test]
fn what_a_metric_asks_for() {
    let of_pods = |values: &[i64]| Ok(Samples::OfPods(samples(values)));
    let selector =
        "&LabelSelector{MatchLabels:map[string]string{shard: 1,},MatchExpressions:[]LabelSelectorRequirement{},}";
    for (spec, answer, count, metric, current) in [
        (
            cpu(&percent(50)),
            of_pods(&[1000, 500]),
            3,
            "cpu resource utilization (percentage of request)".to_owned(),
            json!({"resource": {"name": "cpu", "current": {"averageUtilization": 75, "averageValue": "750m"}}}),
        ),
        (
            container(&percent(50)),
            of_pods(&[1000, 500]),
            3,
            "cpu container resource utilization (percentage of request)".to_owned(),
            json!({"containerResource": {"name": "cpu", "container": "c", "current": {"averageUtilization": 75, "averageValue": "750m"}}}),
        ),
        (
            cpu(&average("500m")),
            of_pods(&[1000, 500]),
            3,
            "cpu resource".to_owned(),
            json!({"resource": {"name": "cpu", "current": {"averageValue": "750m"}}}),
        ),
        (
            pods(),
            of_pods(&[100, 100]),
            4,
            "pods metric qps".to_owned(),
            json!({"pods": {"metric": {"name": "qps", "selector": {"matchLabels": {"verb": "GET"}}}, "current": {"averageValue": "100m"}}}),
        ),
        (
            object(&value("5")),
            Ok(Samples::Value(20_000)),
            8,
            "Ingress metric hits".to_owned(),
            json!({"object": {"metric": {"name": "hits"}, "current": {"value": "20"},
                "describedObject": {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "name": "front"}}}),
        ),
        (
            object(&average("5")),
            Ok(Samples::Value(20_000)),
            4,
            "external metric hits(nil)".to_owned(),
            json!({"object": {"metric": {"name": "hits"}, "current": {"averageValue": "10"},
                "describedObject": {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "name": "front"}}}),
        ),
        (
            external(&value("5")),
            Ok(Samples::Value(20_000)),
            8,
            format!("external metric queue({selector})"),
            json!({"external": {"metric": {"name": "queue", "selector": {"matchLabels": {"shard": "1"}}}, "current": {"value": "20"}}}),
        ),
        (
            external(&average("5")),
            Ok(Samples::Value(20_000)),
            4,
            format!("external metric queue({selector})"),
            json!({"external": {"metric": {"name": "queue", "selector": {"matchLabels": {"shard": "1"}}}, "current": {"averageValue": "10"}}}),
        ),
    ] {
        let proposal = evaluate(&spec, answer).unwrap();
        assert_eq!((proposal.count, proposal.metric), (count, metric));
        let mut expected = current;
        expected["type"] = json!(spec.type_);
        assert_eq!(serde_json::to_value(proposal.status).unwrap(), expected);
    }
}

#[test]
fn failures_have_upstreams_words() {
    let none = || Err("no metrics".to_owned());
    let selector =
        "&LabelSelector{MatchLabels:map[string]string{shard: 1,},MatchExpressions:[]LabelSelectorRequirement{},}";
    let queue = format!("unable to get external metric default/queue/{selector}: no metrics");
    for (spec, reason, text, error) in [
        (
            cpu(&percent(50)),
            "FailedGetResourceMetric",
            "failed to get cpu utilization: unable to get metrics for resource cpu: no metrics",
            "failed to get cpu resource metric value: failed to get cpu utilization: unable to get metrics for resource cpu: no metrics",
        ),
        (
            cpu(&average("1")),
            "FailedGetResourceMetric",
            "failed to get cpu usage: unable to get metrics for resource cpu: no metrics",
            "failed to get cpu resource metric value: failed to get cpu usage: unable to get metrics for resource cpu: no metrics",
        ),
        (
            cpu(&json!({"type": "Utilization"})),
            "FailedGetResourceMetric",
            "invalid resource metric source: neither an average utilization target nor an average value (usage) target was set",
            "failed to get cpu resource metric value: invalid resource metric source: neither an average utilization target nor an average value (usage) target was set",
        ),
        (
            container(&percent(50)),
            "FailedGetContainerResourceMetric",
            "failed to get cpu utilization: unable to get metrics for resource cpu: no metrics",
            "failed to get c container metric value: failed to get cpu utilization: unable to get metrics for resource cpu: no metrics",
        ),
        (
            pods(),
            "FailedGetPodsMetric",
            "unable to get metric qps: no metrics",
            "failed to get pods metric value: unable to get metric qps: no metrics",
        ),
        (
            object(&value("5")),
            "FailedGetObjectMetric",
            "unable to get metric hits: Ingress on default front/no metrics",
            "failed to get object metric value: unable to get metric hits: Ingress on default front/no metrics",
        ),
        (
            object(&average("5")),
            "FailedGetObjectMetric",
            "unable to get metric hits: Ingress on default front/no metrics",
            "failed to get object metric value: failed to get hits object metric: unable to get metric hits: Ingress on default front/no metrics",
        ),
        (
            object(&percent(5)),
            "FailedGetObjectMetric",
            "invalid object metric source: neither a value target nor an average value target was set",
            "failed to get object metric value: invalid object metric source: neither a value target nor an average value target was set",
        ),
        (
            external(&value("5")),
            "FailedGetExternalMetric",
            &queue,
            &format!("failed to get queue external metric value: failed to get external metric queue: {queue}"),
        ),
        (
            external(&average("5")),
            "FailedGetExternalMetric",
            &queue,
            &format!("failed to get queue external metric value: failed to get queue external metric: {queue}"),
        ),
        (
            spec(json!({"type": "Nothing"})),
            "InvalidMetricSourceType",
            "unknown metric source type \"Nothing\"",
            "unknown metric source type \"Nothing\"",
        ),
    ] {
        let failure = evaluate(&spec, none()).unwrap_err();
        assert_eq!((failure.reason, &*failure.text, &*failure.error), (reason, text, error));
        assert_eq!(failure.spec, reason == "InvalidMetricSourceType");
    }
}

#[test]
fn answers_of_the_metrics_apis() {
    let value_of =
        |metrics: &PodMetrics, pod: &str| metrics.get(pod).map(|metric| (metric.value, metric.window.as_millis()));
    let usage: Vec<PodUsage> = serde_json::from_value(json!([
        {"metadata": {"name": "p0", "namespace": "default"}, "timestamp": "2026-01-01T12:00:00Z", "window": "14.5s",
         "containers": [{"name": "c", "usage": {"cpu": "1500000n", "memory": "1Ki"}}, {"name": "side", "usage": {"cpu": "1m"}}]},
        {"metadata": {"name": "p1", "namespace": "default"}, "timestamp": "2026-01-01T12:00:00Z", "window": "14.5s",
         "containers": [{"name": "c", "usage": {"cpu": "0"}}]},
        {"metadata": {"name": "p2", "namespace": "default"}, "timestamp": "2026-01-01T12:00:00Z", "window": "14.5s", "containers": null},
    ]))
    .unwrap();
    let cpu = of_pods(&usage, "cpu");
    assert_eq!(["p0", "p1", "p2"].map(|pod| value_of(&cpu, pod)), [Some((3, 14_500)), Some((0, 14_500)), None]);
    assert_eq!(cpu["p0"].at, now());
    assert!(of_pods(&usage, "memory").is_empty(), "one container has none");
    assert_eq!(of_containers(&usage, "cpu", "side").len(), 1, "those that have the container");
    let of_c = of_containers(&usage[..2], "memory", "c");
    assert_eq!((value_of(&of_c, "p0"), value_of(&of_c, "p1")), (Some((1_024_000, 14_500)), None));

    let custom: Vec<CustomMetric> = serde_json::from_value(json!([
        {"describedObject": {"kind": "Pod", "name": "p0"}, "metricName": "qps", "timestamp": "2026-01-01T12:00:00Z", "window": 10, "value": "1500m"},
        {"describedObject": {"kind": "Pod", "name": "p1"}, "metric": {"name": "qps"}, "timestamp": "2026-01-01T12:00:00Z", "windowSeconds": 20, "value": "2"},
        {"describedObject": {"kind": "Pod", "name": "p2"}, "metric": {"name": "qps"}, "timestamp": null, "value": "3"},
    ]))
    .unwrap();
    let qps = of_custom(&custom);
    let expected = [Some((1500, 10_000)), Some((2000, 20_000)), Some((3000, 60_000))];
    assert_eq!(["p0", "p1", "p2"].map(|pod| value_of(&qps, pod)), expected);
    assert_eq!(custom[0].value(), 1500);
}
