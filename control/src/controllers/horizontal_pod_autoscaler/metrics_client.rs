//! Asks the metrics APIs, through the API server: `metrics.k8s.io`, `custom.metrics.k8s.io` and `external.metrics.k8s.io`.
//! Upstream's `pkg/controller/podautoscaler/metrics/client.go` and `k8s.io/metrics/pkg/client`.

use k8s_openapi::{api::autoscaling::v2::CrossVersionObjectReference, apimachinery::pkg::apis::meta::v1::APIGroup};
use kube::Client;
use serde::de::DeserializeOwned;
use windlass_kit::percent::encoded;

use super::{
    metric_lists::{CustomMetric, ExternalMetric, List, PodUsage, of_containers, of_custom, of_pods},
    proposals::{Query, Samples},
    scales::Scales,
    server_errors,
};
use crate::controllers::runtime::error;

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
    /// Why there are none, for an event.
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
        let list: List<PodUsage> = self
            .list(&path, &[("labelSelector", selector)], "pods.metrics.k8s.io")
            .await
            .map_err(|why| format!("unable to fetch metrics from resource metrics API: {why}"))?;
        if list.items.is_empty() {
            return Err("no metrics returned from resource metrics API".to_owned());
        }
        match container {
            Some(container) => of_containers(&list.items, resource, container),
            None => Ok(of_pods(&list.items, resource)),
        }
        .map(Samples::OfPods)
    }

    /// `GetRawMetric`.
    async fn of_pods(&self, namespace: &str, metric: &str, selector: &str, of_metric: &str) -> Result<Samples, String> {
        let below = format!("namespaces/{namespace}/pods/*/{}", encoded(metric, ""));
        let list = self.custom(&below, &[("labelSelector", selector), ("metricLabelSelector", of_metric)]).await?;
        if list.items.is_empty() {
            return Err("no metrics returned from custom metrics API".to_owned());
        }
        Ok(Samples::OfPods(of_custom(&list.items)))
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
        let below = if described.kind == "Namespace" && !api_version.contains('/') {
            // A reference cannot lead out of the namespace.
            format!("namespaces/{namespace}/metrics/{metric}")
        } else {
            let kind = scales.kind(api_version, &described.kind).map_err(|why| {
                let kind = &described.kind;
                format!("unable to fetch metrics from custom metrics API: unable to map kind {kind} to resource: {why}")
            })?;
            let resource = kind.group_resource();
            format!("namespaces/{namespace}/{resource}/{}/{metric}", encoded(&described.name, ""))
        };
        let list = self.custom(&below, &[("metricLabelSelector", of_metric)]).await?;
        match list.items.as_slice() {
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
        let what = format!("{metric}.external.metrics.k8s.io");
        let list: List<ExternalMetric> = self
            .list(&path, &[("labelSelector", selector)], &what)
            .await
            .map_err(|why| format!("unable to fetch metrics from external metrics API: {why}"))?;
        if list.items.is_empty() {
            return Err("no metrics returned from external metrics API".to_owned());
        }
        Ok(Samples::Value(list.items.iter().map(ExternalMetric::value).fold(0, i64::saturating_add)))
    }

    async fn custom(&self, below: &str, parameters: &[(&str, &str)]) -> Result<List<CustomMetric>, String> {
        let asked = async {
            let version = self.custom_version().await?;
            let what = format!("{}.{CUSTOM}", below.split('/').nth(2).unwrap_or_default());
            self.list(&format!("/apis/{CUSTOM}/{version}/{below}"), parameters, &what).await
        };
        asked.await.map_err(|why| format!("unable to fetch metrics from custom metrics API: {why}"))
    }

    /// The preferred version of the custom metrics API, or another one that can be read.
    async fn custom_version(&self) -> Result<&'static str, String> {
        let group: APIGroup = match self.get(&format!("/apis/{CUSTOM}")).await {
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

    async fn list<T: DeserializeOwned>(
        &self,
        path: &str,
        parameters: &[(&str, &str)],
        what: &str,
    ) -> Result<List<T>, String> {
        let given = parameters.iter().filter(|(_, value)| !value.is_empty());
        let given: Vec<String> = given.map(|(key, value)| format!("{key}={}", encoded(value, ""))).collect();
        let uri = if given.is_empty() { path.to_owned() } else { format!("{path}?{}", given.join("&")) };
        self.get(&uri).await.map_err(|error| server_errors::text(&error, Some(("get", what))))
    }

    async fn get<T: DeserializeOwned>(&self, uri: &str) -> Result<T, kube::Error> {
        let request = http::Request::get(uri).body(Vec::new()).map_err(kube::Error::HttpError)?;
        self.client.request(request).await
    }
}
