//! One metric of an autoscaler: what is asked for, and what the answer makes of it. Upstream's
//! `computeReplicasForMetric` and the `computeStatusFor…` that it calls. Pure: may not import tokio or kube's client.

use k8s_openapi::{
    api::autoscaling::v2::{
        ContainerResourceMetricStatus, CrossVersionObjectReference, ExternalMetricSource, ExternalMetricStatus,
        MetricIdentifier, MetricSpec, MetricStatus, MetricTarget, MetricValueStatus, ObjectMetricSource,
        ObjectMetricStatus, PodsMetricStatus, ResourceMetricStatus,
    },
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};
use windlass_kit::{objects::label_selector, quantity::Quantity};

use super::{
    messages,
    replica_calculator::{
        PodMetrics, Replicas, Target, per_pod_replicas, plain_replicas, resource_replicas, value_replicas,
    },
};

/// What is asked of a metrics API.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Query<'a> {
    /// A resource of the pods, or of one of their containers.
    Resource {
        name: &'a str,
        container: Option<&'a str>,
    },
    /// A custom metric of the pods.
    Pods {
        metric: &'a str,
        selector: String,
    },
    /// A custom metric of another object.
    Object {
        metric: &'a str,
        described: &'a CrossVersionObjectReference,
        selector: String,
    },
    External {
        metric: &'a str,
        selector: String,
    },
}

/// What a metrics API has answered, in thousandths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Samples {
    OfPods(PodMetrics),
    /// The sum of all series.
    Value(i64),
}

/// What a metric asks for.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Proposal {
    pub(super) count: i32,
    /// For users.
    pub(super) metric: String,
    pub(super) status: MetricStatus,
}

/// Why a metric asks for nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    /// Of the event and the condition.
    pub(super) reason: &'static str,
    /// Their text.
    pub(super) text: String,
    /// The same with what was attempted, for `FailedComputeMetricsReplicas`.
    pub(super) error: String,
    /// No other attempt can succeed before the spec changes.
    pub(super) spec: bool,
}

/// A metric that can be evaluated.
enum Source<'a> {
    Resource { name: &'a str, container: Option<&'a str>, target: &'a MetricTarget },
    Pods { metric: &'a MetricIdentifier, target: &'a MetricTarget },
    Object(&'a ObjectMetricSource),
    External(&'a ExternalMetricSource),
}

fn source(spec: &MetricSpec) -> Option<Source<'_>> {
    Some(match spec.type_.as_str() {
        "Resource" => {
            let of = spec.resource.as_ref()?;
            Source::Resource { name: &of.name, container: None, target: &of.target }
        }
        "ContainerResource" => {
            let of = spec.container_resource.as_ref()?;
            Source::Resource { name: &of.name, container: Some(&of.container), target: &of.target }
        }
        "Pods" => spec.pods.as_ref().map(|of| Source::Pods { metric: &of.metric, target: &of.target })?,
        "Object" => Source::Object(spec.object.as_ref()?),
        "External" => Source::External(spec.external.as_ref()?),
        _ => return None,
    })
}

const MILLI_PER_KIBIBYTE: i64 = 1024 * 1000;

fn milli(quantity: &ApiQuantity) -> i64 {
    quantity.0.parse::<Quantity>().map_or(0, Quantity::milli)
}

fn quantity(milli: i64) -> ApiQuantity {
    ApiQuantity(Quantity::from_milli(milli).to_string())
}

fn selector_of(metric: &MetricIdentifier) -> String {
    metric.selector.as_ref().map_or_else(String::new, label_selector::text)
}

/// What to ask for a metric; nothing where it cannot be evaluated anyhow.
pub(super) fn query(spec: &MetricSpec) -> Option<Query<'_>> {
    let has_target = |target: &MetricTarget| target.average_value.is_some() || target.average_utilization.is_some();
    match source(spec)? {
        Source::Resource { name, container, target } => {
            has_target(target).then_some(Query::Resource { name, container })
        }
        Source::Pods { metric, .. } => Some(Query::Pods { metric: &metric.name, selector: selector_of(metric) }),
        Source::Object(of) => object_target(of).map(|_| Query::Object {
            metric: &of.metric.name,
            described: &of.described_object,
            selector: selector_of(&of.metric),
        }),
        Source::External(of) => {
            external_target(of).map(|_| Query::External { metric: &of.metric.name, selector: selector_of(&of.metric) })
        }
    }
}

/// A target, as a value or for each pod.
enum Amount {
    Value(i64),
    PerPod(i64),
}

fn object_target(of: &ObjectMetricSource) -> Option<Amount> {
    match of.target.type_.as_str() {
        "Value" => of.target.value.as_ref().map(|value| Amount::Value(milli(value))),
        "AverageValue" => of.target.average_value.as_ref().map(|value| Amount::PerPod(milli(value))),
        _ => None,
    }
}

fn external_target(of: &ExternalMetricSource) -> Option<Amount> {
    let average = of.target.average_value.as_ref().map(|value| Amount::PerPod(milli(value)));
    average.or_else(|| of.target.value.as_ref().map(|value| Amount::Value(milli(value))))
}

/// Evaluates a metric by what its [`query`] was answered with, if there was one.
///
/// # Errors
/// Why it asks for no count.
pub(super) fn propose(
    spec: &MetricSpec,
    of: &Target<'_>,
    namespace: &str,
    answer: Option<Result<Samples, String>>,
) -> Result<Proposal, Failure> {
    let Some(source) = source(spec) else {
        let text = format!("unknown metric source type {:?}", spec.type_);
        let error = text.clone();
        return Err(Failure { reason: messages::INVALID_METRIC_SOURCE_TYPE, text, error, spec: true });
    };
    let answered = match &source {
        Source::Resource { name, container, target } => resource(of, name, *container, target, answer),
        Source::Pods { metric, target } => pods_metric(of, metric, target, answer),
        Source::Object(object) => object_metric(of, object, namespace, answer),
        Source::External(external) => external_metric(of, external, namespace, answer),
    };
    let Answered { count, current, metric } = answered?;
    let mut status = MetricStatus { type_: spec.type_.clone(), ..MetricStatus::default() };
    match source {
        Source::Resource { name, container: None, .. } => {
            status.resource = Some(ResourceMetricStatus { name: name.to_owned(), current });
        }
        Source::Resource { name, container: Some(container), .. } => {
            let (name, container) = (name.to_owned(), container.to_owned());
            status.container_resource = Some(ContainerResourceMetricStatus { container, name, current });
        }
        Source::Pods { metric, .. } => {
            status.pods = Some(PodsMetricStatus { metric: metric.clone(), current });
        }
        Source::Object(ObjectMetricSource { metric, described_object, .. }) => {
            let (metric, described_object) = (metric.clone(), described_object.clone());
            status.object = Some(ObjectMetricStatus { metric, described_object, current });
        }
        Source::External(external) => {
            status.external = Some(ExternalMetricStatus { metric: external.metric.clone(), current });
        }
    }
    Ok(Proposal { count, metric, status })
}

/// What a metric asks for, what it is now, and its name for users.
struct Answered {
    count: i32,
    current: MetricValueStatus,
    metric: String,
}

impl Answered {
    /// For a target of an average, or of a percentage.
    fn average(replicas: Replicas, metric: String) -> Self {
        let current = MetricValueStatus {
            average_utilization: replicas.utilization,
            average_value: Some(quantity(replicas.usage)),
            value: None,
        };
        Self { count: replicas.count, current, metric }
    }

    /// The same of a resource; upstream writes memory, and nothing else, with binary suffixes where it is whole kibibytes.
    fn of_resource(replicas: Replicas, resource: &str, metric: String) -> Self {
        let mut answered = Self::average(replicas, metric);
        if resource == "memory" && replicas.usage % MILLI_PER_KIBIBYTE == 0 {
            let average = Quantity::from_milli(replicas.usage).binary();
            answered.current.average_value = Some(ApiQuantity(average.to_string()));
        }
        answered
    }

    /// For a target of the value as a whole.
    fn value(replicas: Replicas, metric: String) -> Self {
        let current = MetricValueStatus { value: Some(quantity(replicas.usage)), ..MetricValueStatus::default() };
        Self { count: replicas.count, current, metric }
    }
}

/// The samples of pods; an answer of another form is an error.
fn of_pods(answer: Option<Result<Samples, String>>) -> Result<PodMetrics, String> {
    match answer {
        Some(Ok(Samples::OfPods(metrics))) => Ok(metrics),
        Some(Err(why)) => Err(why),
        Some(Ok(Samples::Value(_))) | None => Ok(PodMetrics::new()),
    }
}

fn value_of(answer: Option<Result<Samples, String>>) -> Result<i64, String> {
    match answer {
        Some(Ok(Samples::Value(value))) => Ok(value),
        Some(Err(why)) => Err(why),
        Some(Ok(Samples::OfPods(_))) | None => Ok(0),
    }
}

/// `computeStatusForResourceMetric` and `computeStatusForContainerResourceMetric`.
fn resource(
    of: &Target<'_>,
    name: &str,
    container: Option<&str>,
    target: &MetricTarget,
    answer: Option<Result<Samples, String>>,
) -> Result<Answered, Failure> {
    usage_of_resource(of, name, container, target, answer).map_err(|text| {
        let (reason, what) = match container {
            None => (messages::FAILED_GET_RESOURCE_METRIC, format!("{name} resource")),
            Some(container) => (messages::FAILED_GET_CONTAINER_RESOURCE_METRIC, format!("{container} container")),
        };
        let error = format!("failed to get {what} metric value: {text}");
        Failure { reason, text, error, spec: false }
    })
}

/// `computeStatusForResourceMetricGeneric`.
fn usage_of_resource(
    of: &Target<'_>,
    name: &str,
    container: Option<&str>,
    target: &MetricTarget,
    answer: Option<Result<Samples, String>>,
) -> Result<Answered, String> {
    let metrics = of_pods(answer).map_err(|why| format!("unable to get metrics for resource {name}: {why}"));
    if let Some(average) = &target.average_value {
        let replicas = metrics.and_then(|metrics| plain_replicas(of, metrics, milli(average), name));
        let replicas = replicas.map_err(|why| format!("failed to get {name} usage: {why}"))?;
        return Ok(Answered::of_resource(replicas, name, format!("{name} resource")));
    }
    let utilization = target.average_utilization.ok_or(messages::NO_RESOURCE_TARGET)?;
    let replicas = metrics.and_then(|metrics| resource_replicas(of, metrics, utilization, name, container));
    let replicas = replicas.map_err(|why| format!("failed to get {name} utilization: {why}"))?;
    let what = if container.is_some() { "container resource" } else { "resource" };
    Ok(Answered::of_resource(replicas, name, format!("{name} {what} utilization (percentage of request)")))
}

/// `computeStatusForPodsMetric`.
fn pods_metric(
    of: &Target<'_>,
    metric: &MetricIdentifier,
    target: &MetricTarget,
    answer: Option<Result<Samples, String>>,
) -> Result<Answered, Failure> {
    let name = &metric.name;
    let metrics = of_pods(answer).map_err(|why| format!("unable to get metric {name}: {why}"));
    let average = target.average_value.as_ref().map_or(0, milli);
    let replicas = metrics.and_then(|metrics| plain_replicas(of, metrics, average, "")).map_err(|text| {
        let error = format!("failed to get pods metric value: {text}");
        Failure { reason: messages::FAILED_GET_PODS_METRIC, text, error, spec: false }
    })?;
    Ok(Answered::average(replicas, format!("pods metric {name}")))
}

/// `computeStatusForObjectMetric`.
fn object_metric(
    of: &Target<'_>,
    object: &ObjectMetricSource,
    namespace: &str,
    answer: Option<Result<Samples, String>>,
) -> Result<Answered, Failure> {
    let (name, described) = (&object.metric.name, &object.described_object);
    let failure = |text: String, attempt: &str| Failure {
        reason: messages::FAILED_GET_OBJECT_METRIC,
        error: format!("failed to get object metric value: {attempt}{text}"),
        text,
        spec: false,
    };
    // Upstream's order.
    let told = |why| format!("unable to get metric {name}: {} on {namespace} {}/{why}", described.kind, described.name);
    let usage = value_of(answer).map_err(told);
    match object_target(object) {
        Some(Amount::Value(target)) => {
            let replicas = usage.and_then(|usage| value_replicas(of, usage, target));
            let replicas = replicas.map_err(|why| failure(why, ""))?;
            Ok(Answered::value(replicas, format!("{} metric {name}", described.kind)))
        }
        Some(Amount::PerPod(target)) => {
            let usage = usage.map_err(|why| failure(why, &format!("failed to get {name} object metric: ")))?;
            Ok(Answered::average(per_pod_replicas(of, usage, target), external_name(&object.metric)))
        }
        None => Err(failure(messages::NO_OBJECT_TARGET.to_owned(), "")),
    }
}

/// `computeStatusForExternalMetric`.
fn external_metric(
    of: &Target<'_>,
    external: &ExternalMetricSource,
    namespace: &str,
    answer: Option<Result<Samples, String>>,
) -> Result<Answered, Failure> {
    let name = &external.metric.name;
    let failure = |text: String, attempt: &str| Failure {
        reason: messages::FAILED_GET_EXTERNAL_METRIC,
        error: format!("failed to get {name} external metric value: {attempt}{text}"),
        text,
        spec: false,
    };
    let selector = label_selector::go_selector(external.metric.selector.as_ref());
    let told = |why| format!("unable to get external metric {namespace}/{name}/{selector}: {why}");
    let usage = value_of(answer).map_err(told);
    match external_target(external) {
        Some(Amount::PerPod(target)) => {
            let usage = usage.map_err(|why| failure(why, &format!("failed to get {name} external metric: ")))?;
            Ok(Answered::average(per_pod_replicas(of, usage, target), external_name(&external.metric)))
        }
        Some(Amount::Value(target)) => {
            let replicas = usage.and_then(|usage| value_replicas(of, usage, target));
            let replicas = replicas.map_err(|why| failure(why, &format!("failed to get external metric {name}: ")))?;
            Ok(Answered::value(replicas, external_name(&external.metric)))
        }
        None => Err(failure(messages::NO_EXTERNAL_TARGET.to_owned(), "")),
    }
}

/// Upstream's words for metrics with a target for each pod, be they of objects.
fn external_name(metric: &MetricIdentifier) -> String {
    format!("external metric {}({})", metric.name, label_selector::go_selector(metric.selector.as_ref()))
}
