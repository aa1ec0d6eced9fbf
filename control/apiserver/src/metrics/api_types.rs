//! The objects of `metrics.k8s.io/v1beta1`, which the crate of API types does not have.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::{
    api::resource::Quantity as Amount,
    apis::meta::v1::{ObjectMeta, Time},
};
use serde_json::Value;
use windlass_kit::{duration, quantity::Quantity};

use super::{PodRates, Rate};

/// The usage of a node.
#[derive(Debug, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeMetrics {
    kind: &'static str,
    api_version: &'static str,
    /// The node's name and labels.
    metadata: ObjectMeta,
    /// The end of the window.
    timestamp: Time,
    /// The length of the window.
    window: String,
    /// CPU over the window, memory at its end.
    usage: BTreeMap<&'static str, Amount>,
}

/// The usage of a pod's containers.
#[derive(Debug, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodMetrics {
    kind: &'static str,
    api_version: &'static str,
    /// The pod's name, namespace and labels.
    metadata: ObjectMeta,
    /// The end of the stretch that was measured.
    timestamp: Time,
    /// The length of the stretch.
    window: String,
    /// Each container.
    containers: Vec<ContainerMetrics>,
}

/// The usage of a container.
#[derive(Debug, serde::Serialize)]
struct ContainerMetrics {
    /// Its name in the pod.
    name: String,
    /// CPU over the stretch, memory at its end.
    usage: BTreeMap<&'static str, Amount>,
}

const API_VERSION: &str = "metrics.k8s.io/v1beta1";

/// The NodeMetrics of a stored node.
pub(crate) fn node_metrics(node: &Value, rate: &Rate, now: Timestamp) -> NodeMetrics {
    NodeMetrics {
        kind: "NodeMetrics",
        api_version: API_VERSION,
        metadata: metadata(node, now),
        timestamp: time(rate.at),
        window: duration::format(rate.window),
        usage: usage(rate),
    }
}

/// The PodMetrics of a stored pod.
pub(crate) fn pod_metrics(pod: &Value, rates: &PodRates, now: Timestamp) -> PodMetrics {
    let container = |(name, rate): &(String, Rate)| ContainerMetrics { name: name.clone(), usage: usage(rate) };
    PodMetrics {
        kind: "PodMetrics",
        api_version: API_VERSION,
        metadata: metadata(pod, now),
        timestamp: time(rates.at),
        window: duration::format(rates.window),
        containers: rates.containers.iter().map(container).collect(),
    }
}

fn usage(rate: &Rate) -> BTreeMap<&'static str, Amount> {
    let amount = |quantity: Quantity| Amount(quantity.to_string());
    BTreeMap::from([
        ("cpu", amount(Quantity::from_nano(rate.nano_cores))),
        ("memory", amount(Quantity::from_bytes(rate.memory_bytes))),
    ])
}

fn metadata(object: &Value, now: Timestamp) -> ObjectMeta {
    let metadata = &object["metadata"];
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let labels = metadata["labels"].as_object();
    ObjectMeta {
        name: text(&metadata["name"]),
        namespace: text(&metadata["namespace"]),
        labels: labels.map(|all| all.iter().filter_map(|(k, v)| Some((k.clone(), text(v)?))).collect()),
        creation_timestamp: Some(time(now)),
        ..ObjectMeta::default()
    }
}

/// Kubernetes times are whole seconds.
fn time(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}
