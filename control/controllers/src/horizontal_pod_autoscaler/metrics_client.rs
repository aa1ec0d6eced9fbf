//! Asks the metrics APIs, through the API server: `metrics.k8s.io`, `custom.metrics.k8s.io` and `external.metrics.k8s.io`.
//! Upstream's `pkg/controller/podautoscaler/metrics/client.go` and `k8s.io/metrics/pkg/client`.

use http::header::CONTENT_TYPE;
use k8s_openapi::{api::autoscaling::v2::CrossVersionObjectReference, apimachinery::pkg::apis::meta::v1::APIGroup};
use kube::Client;
use serde::de::DeserializeOwned;
use windlass_kit::{percent::encoded, serve::headers};

use super::{
    metric_lists::{CustomMetric, ExternalMetric, MetricsApi, PodUsage, items, of_containers, of_custom, of_pods},
    proposals::{Query, Samples},
    scales::Scales,
    server_errors::Answer,
};
use crate::runtime::{
    error,
    rest_mapper::{group_of, with_group},
};

const CUSTOM: &str = "custom.metrics.k8s.io";
/// Versions of the custom metrics API that can be read.
const CUSTOM_VERSIONS: [&str; 2] = ["v1beta2", "v1beta1"];

pub(super) struct MetricsClient {
    client: Client,
}

impl MetricsClient {
    pub(super) const fn new(client: Client) -> Self {
        Self { client }
    }

    /// Asks for the samples of a metric. `selector` is that of the pods.
    ///
    /// # Errors
    /// Why the metric is unavailable, for an event.
    pub(super) async fn ask(
        &self,
        query: &Query<'_>,
        namespace: &str,
        selector: &str,
        scales: &Scales,
    ) -> Result<Samples, String> {
        match query {
            Query::Resource { name, container } => self.resource(namespace, selector, name, *container).await,
            Query::Pods { metric, selector: of_metric } => self.of_pods(namespace, metric, selector, of_metric).await,
            Query::Object { metric, described, selector } => {
                self.of_object(namespace, metric, described, selector, scales).await
            }
            Query::External { metric, selector } => self.external(namespace, metric, selector).await,
        }
    }

    /// `GetResourceMetric`.
    async fn resource(
        &self,
        namespace: &str,
        selector: &str,
        resource: &str,
        container: Option<&str>,
    ) -> Result<Samples, String> {
        let path = format!("/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods");
        let all: Vec<PodUsage> = self
            .list(MetricsApi::Resource, &path, &[("labelSelector", selector)], "get pods.metrics.k8s.io")
            .await
            .map_err(|why| format!("unable to fetch metrics from resource metrics API: {why}"))?;
        if all.is_empty() {
            return Err("no metrics returned from resource metrics API".to_owned());
        }
        Ok(Samples::OfPods(match container {
            Some(container) => of_containers(&all, resource, container),
            None => of_pods(&all, resource),
        }))
    }

    /// `GetRawMetric`.
    async fn of_pods(&self, namespace: &str, metric: &str, selector: &str, of_metric: &str) -> Result<Samples, String> {
        let below = format!("namespaces/{namespace}/pods/*/{}", encoded(metric, ""));
        let parameters = [("labelSelector", selector), ("metricLabelSelector", of_metric)];
        let all = self.custom(&below, &parameters, "pods", "*").await?;
        if all.is_empty() {
            return Err("no metrics returned from custom metrics API".to_owned());
        }
        Ok(Samples::OfPods(of_custom(&all)))
    }

    /// `GetObjectMetric`.
    async fn of_object(
        &self,
        namespace: &str,
        metric: &str,
        described: &CrossVersionObjectReference,
        of_metric: &str,
        scales: &Scales,
    ) -> Result<Samples, String> {
        let api_version = described.api_version.as_deref().unwrap_or_default();
        let metric = encoded(metric, "");
        let (resource, name) = if described.kind == "Namespace" && !api_version.contains('/') {
            // A reference cannot lead out of the namespace.
            ("metrics".to_owned(), None)
        } else {
            let kind = scales.kind(api_version, &described.kind).map_err(|why| {
                let kind = with_group(&described.kind, group_of(api_version));
                format!("unable to fetch metrics from custom metrics API: unable to map kind {kind} to resource: {why}")
            })?;
            (kind.group_resource(), Some(&described.name))
        };
        let of = name.map_or_else(String::new, |name| format!("{}/", encoded(name, "")));
        let below = format!("namespaces/{namespace}/{resource}/{of}{metric}");
        let parameters = [("metricLabelSelector", of_metric)];
        match &*self.custom(&below, &parameters, &resource, name.unwrap_or(&described.name)).await? {
            [one] => Ok(Samples::Value(one.value())),
            all => Err(format!(
                "unable to fetch metrics from custom metrics API: the custom metrics API server returned {} results when we asked for exactly one",
                all.len()
            )),
        }
    }

    /// `GetExternalMetric`, and the sum of what it gives.
    async fn external(&self, namespace: &str, metric: &str, selector: &str) -> Result<Samples, String> {
        let path = format!("/apis/external.metrics.k8s.io/v1beta1/namespaces/{namespace}/{}", encoded(metric, ""));
        let request = format!("get {metric}.external.metrics.k8s.io");
        let all: Vec<ExternalMetric> = self
            .list(MetricsApi::External, &path, &[("labelSelector", selector)], &request)
            .await
            .map_err(|why| format!("unable to fetch metrics from external metrics API: {why}"))?;
        if all.is_empty() {
            return Err("no metrics returned from external metrics API".to_owned());
        }
        Ok(Samples::Value(all.iter().map(ExternalMetric::value).fold(0, i64::saturating_add)))
    }

    /// Asks the custom metrics API about a resource and a name.
    async fn custom(
        &self,
        below: &str,
        parameters: &[(&str, &str)],
        resource: &str,
        name: &str,
    ) -> Result<Vec<CustomMetric>, String> {
        let asked = async {
            let version = self.custom_version().await?;
            let request = format!("get {resource}.{CUSTOM} {name}");
            self.list(MetricsApi::Custom, &format!("/apis/{CUSTOM}/{version}/{below}"), parameters, &request).await
        };
        asked.await.map_err(|why| format!("unable to fetch metrics from custom metrics API: {why}"))
    }

    /// The preferred version of the custom metrics API, or another one that can be read.
    async fn custom_version(&self) -> Result<&'static str, String> {
        let request =
            http::Request::get(format!("/apis/{CUSTOM}")).body(Vec::new()).map_err(|error| error.to_string())?;
        let group: APIGroup = match self.client.request(request).await {
            Err(error) if error::is_not_found(&error) => {
                return Err(format!("no custom metrics API ({CUSTOM}) registered"));
            }
            answer => answer.map_err(|error| error::message(&error))?,
        };
        let preferred = group.preferred_version.iter();
        let mut served = preferred.chain(&group.versions).map(|version| version.version.as_str());
        let known = served.find_map(|served| CUSTOM_VERSIONS.into_iter().find(|known| *known == served));
        known.ok_or_else(|| "no known available metric versions found".to_owned())
    }

    /// Gets a list; `request` names it where it is refused.
    async fn list<T: DeserializeOwned>(
        &self,
        api: MetricsApi,
        path: &str,
        parameters: &[(&str, &str)],
        request: &str,
    ) -> Result<Vec<T>, String> {
        let given = parameters.iter().filter(|(_, value)| !value.is_empty());
        let given: Vec<String> = given.map(|(key, value)| format!("{key}={}", encoded(value, ""))).collect();
        let uri = if given.is_empty() { path.to_owned() } else { format!("{path}?{}", given.join("&")) };
        let answer = self.get(&uri).await.map_err(|error| error.to_string())?;
        match answer.refusal(request) {
            Some(why) => Err(why),
            None => items(api, &answer),
        }
    }

    async fn get(&self, uri: &str) -> Result<Answer, kube::Error> {
        let request = http::Request::get(uri).body(Vec::new().into()).map_err(kube::Error::HttpError)?;
        let answer = self.client.send(request).await?;
        let content_type = headers::shown(answer.headers(), CONTENT_TYPE.as_str()).into_owned();
        let code = answer.status().as_u16();
        Ok(Answer { code, content_type, body: answer.into_body().collect_bytes().await?.to_vec() })
    }
}
