//! The lists that the three metrics APIs answer with, as far as autoscalers read them. Pure.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::Value;
use windlass_kit::{duration, quantity::Quantity};

use super::{
    messages,
    replica_calculator::{PodMetric, PodMetrics},
    server_errors::Answer,
};

/// The window of custom metrics that have none (`metricServerDefaultMetricWindow`).
const DEFAULT_WINDOW: Duration = Duration::from_secs(60);

/// The APIs, whose clients of upstream are not equally strict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MetricsApi {
    Resource,
    Custom,
    External,
}

#[derive(Debug, Deserialize)]
#[serde(bound = "T: Deserialize<'de>")]
struct List<T> {
    #[serde(default, deserialize_with = "or_empty")]
    items: Vec<T>,
}

/// Reads an answer.
///
/// # Errors
/// What is wrong with it, in upstream's words.
pub(super) fn items<T: DeserializeOwned>(api: MetricsApi, answer: &Answer) -> Result<Vec<T>, String> {
    if api != MetricsApi::Custom {
        if !answer.is_json() {
            return Err(format!("serializer for {} doesn't exist", answer.content_type));
        }
        if answer.body.is_empty() {
            return Err(messages::no_body(answer.code, &answer.content_type));
        }
    } else if answer.body.is_empty() {
        return Err(messages::missing_member("Kind", ""));
    }
    let list: Value = serde_json::from_slice(&answer.body).map_err(|error| messages::no_json(&error))?;
    let member = |name: &str| list[name].as_str().filter(|text| !text.is_empty());
    let (kind, version) = (member("kind"), member("apiVersion"));
    let text = || String::from_utf8_lossy(&answer.body).into_owned();
    match api {
        MetricsApi::Resource => {
            let (kind, version) = (kind.unwrap_or("PodMetricsList"), version.unwrap_or("metrics.k8s.io/v1beta1"));
            if (kind, version) != ("PodMetricsList", "metrics.k8s.io/v1beta1") {
                return Err(messages::unregistered(kind, version, "clientset/versioned/scheme/register.go:31"));
            }
        }
        MetricsApi::Custom => {
            let kind = kind.ok_or_else(|| messages::missing_member("Kind", &text()))?;
            let version = version.ok_or_else(|| messages::missing_member("apiVersion", &text()))?;
            if kind != "MetricValueList" || !version.starts_with("custom.metrics.k8s.io/") {
                return Err(messages::unregistered(kind, version, "custom_metrics/scheme/register.go:36"));
            }
        }
        // Whatever it is, it is read as what was asked for.
        MetricsApi::External => {}
    }
    let list: List<T> = serde_json::from_value(list).map_err(|error| error.to_string())?;
    Ok(list.items)
}

/// A quantity in thousandths.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Milli(i64);

impl<'de> Deserialize<'de> for Milli {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = match Value::deserialize(deserializer)? {
            Value::Null => return Ok(Self(0)),
            Value::String(text) => text,
            other => other.to_string(),
        };
        let quantity = text.trim().parse::<Quantity>();
        quantity.map(|quantity| Self(quantity.milli())).map_err(|_| serde::de::Error::custom(messages::BAD_QUANTITY))
    }
}

/// Go writes lists and maps without content as null.
fn or_empty<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

#[derive(Debug, Default, Deserialize)]
struct Named {
    #[serde(default)]
    name: String,
}

/// An object of `metrics.k8s.io`.
#[derive(Debug, Deserialize)]
pub(super) struct PodUsage {
    #[serde(default)]
    metadata: Named,
    timestamp: Option<Time>,
    #[serde(default)]
    window: String,
    #[serde(default, deserialize_with = "or_empty")]
    containers: Vec<ContainerUsage>,
}

#[derive(Debug, Deserialize)]
struct ContainerUsage {
    #[serde(default)]
    name: String,
    #[serde(default, deserialize_with = "or_empty")]
    usage: BTreeMap<String, Milli>,
}

/// An object of `custom.metrics.k8s.io`, in either version.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CustomMetric {
    #[serde(default)]
    described_object: Named,
    timestamp: Option<Time>,
    #[serde(alias = "window")]
    window_seconds: Option<u64>,
    #[serde(default)]
    value: Milli,
}

/// An object of `external.metrics.k8s.io`.
#[derive(Debug, Deserialize)]
pub(super) struct ExternalMetric {
    #[serde(default)]
    value: Milli,
}

fn time(at: Option<&Time>) -> Timestamp {
    at.map_or(Timestamp::MIN, |time| time.0)
}

impl PodUsage {
    fn sample(&self, value: i64) -> (String, PodMetric) {
        let window = duration::parse(&self.window).unwrap_or_default();
        (self.metadata.name.clone(), PodMetric { at: time(self.timestamp.as_ref()), window, value })
    }
}

/// `getPodMetrics`: pods of which every container has the resource.
pub(super) fn of_pods(items: &[PodUsage], resource: &str) -> PodMetrics {
    let sum = |pod: &PodUsage| {
        let used = pod.containers.iter().map(|container| container.usage.get(resource));
        used.map(|used| used.map(|used| used.0)).reduce(|sum, used| Some(sum?.saturating_add(used?)))?
    };
    items.iter().filter_map(|pod| Some(pod.sample(sum(pod)?))).collect()
}

/// `getContainerMetrics`: pods whose container of this name has the resource.
pub(super) fn of_containers(items: &[PodUsage], resource: &str, container: &str) -> PodMetrics {
    let used = |pod: &PodUsage| pod.containers.iter().find(|one| one.name == container)?.usage.get(resource).copied();
    items.iter().filter_map(|pod| Some(pod.sample(used(pod)?.0))).collect()
}

/// `GetRawMetric`: a custom metric of pods.
pub(super) fn of_custom(items: &[CustomMetric]) -> PodMetrics {
    let sample = |metric: &CustomMetric| {
        let window = metric.window_seconds.map_or(DEFAULT_WINDOW, Duration::from_secs);
        let at = time(metric.timestamp.as_ref());
        (metric.described_object.name.clone(), PodMetric { at, window, value: metric.value.0 })
    };
    items.iter().map(sample).collect()
}

impl CustomMetric {
    pub(super) fn value(&self) -> i64 {
        self.value.0
    }
}

impl ExternalMetric {
    pub(super) fn value(&self) -> i64 {
        self.value.0
    }
}
