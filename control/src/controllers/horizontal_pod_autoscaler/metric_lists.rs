//! The lists that the three metrics APIs answer with, as far as autoscalers read them. Pure.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::{api::resource::Quantity as ApiQuantity, apis::meta::v1::Time};
use serde::Deserialize;
use windlass_kit::{duration, quantity::Quantity};

use super::replica_calculator::{PodMetric, PodMetrics};

/// The window of custom metrics that have none (`metricServerDefaultMetricWindow`).
const DEFAULT_WINDOW: Duration = Duration::from_secs(60);

#[derive(Debug, Deserialize)]
pub(super) struct List<T> {
    #[serde(default = "Vec::new")]
    pub(super) items: Vec<T>,
}

#[derive(Debug, Default, Deserialize)]
struct Named {
    #[serde(default)]
    namespace: String,
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
    #[serde(default)]
    containers: Vec<ContainerUsage>,
}

#[derive(Debug, Deserialize)]
struct ContainerUsage {
    #[serde(default)]
    name: String,
    #[serde(default)]
    usage: BTreeMap<String, ApiQuantity>,
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
    value: Option<ApiQuantity>,
}

/// An object of `external.metrics.k8s.io`.
#[derive(Debug, Deserialize)]
pub(super) struct ExternalMetric {
    value: Option<ApiQuantity>,
}

/// Thousandths; what is no quantity counts as zero, as an absent one does.
fn milli(quantity: Option<&ApiQuantity>) -> i64 {
    quantity.and_then(|quantity| quantity.0.parse::<Quantity>().ok()).map_or(0, Quantity::milli)
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
        used.map(|used| used.map(|used| milli(Some(used)))).reduce(|sum, used| Some(sum?.saturating_add(used?)))?
    };
    items.iter().filter_map(|pod| Some(pod.sample(sum(pod)?))).collect()
}

/// `getContainerMetrics`.
///
/// # Errors
/// Names a pod that has no such container.
pub(super) fn of_containers(items: &[PodUsage], resource: &str, container: &str) -> Result<PodMetrics, String> {
    let mut metrics = PodMetrics::new();
    for pod in items {
        let Some(found) = pod.containers.iter().find(|one| one.name == container) else {
            let Named { namespace, name } = &pod.metadata;
            return Err(format!(
                "failed to get container metrics: container {container} not present in metrics for pod {namespace}/{name}"
            ));
        };
        metrics.extend(found.usage.get(resource).map(|used| pod.sample(milli(Some(used)))));
    }
    Ok(metrics)
}

/// `GetRawMetric`: a custom metric of pods.
pub(super) fn of_custom(items: &[CustomMetric]) -> PodMetrics {
    let sample = |metric: &CustomMetric| {
        let window = metric.window_seconds.map_or(DEFAULT_WINDOW, Duration::from_secs);
        let at = time(metric.timestamp.as_ref());
        (metric.described_object.name.clone(), PodMetric { at, window, value: milli(metric.value.as_ref()) })
    };
    items.iter().map(sample).collect()
}

impl CustomMetric {
    pub(super) fn value(&self) -> i64 {
        milli(self.value.as_ref())
    }
}

impl ExternalMetric {
    pub(super) fn value(&self) -> i64 {
        milli(self.value.as_ref())
    }
}
