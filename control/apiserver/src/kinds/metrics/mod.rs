//! Kinds of the group `metrics.k8s.io`: usage of nodes and pods, computed from the latest samples on request.

use std::sync::Arc;

use async_trait::async_trait;
use axum::{body::Bytes, http::StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};
use windlass_kit::quantity::Quantity;

use super::shared::tables::{column, named};
use crate::{
    apiserver::{
        ApiError, ApiRequest, ApiResult, Selectors, Strategy, Target, VirtualResource,
        request::request_info::RequestOptions,
        types::{Definition, Resource, Storage, VersionSpec},
    },
    kinds::types,
    metrics::{Measured, MeasuredCache, NodeSamples, Usage, node_metrics, pod_metrics},
    store::{Object, Store},
};

const GROUP: &str = "metrics.k8s.io";

/// The resources.
pub(super) fn definitions(store: &Store, usage: &Usage) -> Vec<Definition> {
    let definition = |plural: &'static str, kind: &'static str, namespaced| {
        let mut resource = Resource::new(GROUP, plural, kind, Metrics);
        resource.singular = "".into();
        resource.namespaced = namespaced;
        resource.verbs = vec!["get", "list"];
        let (store, usage) = (store.clone(), usage.clone());
        let handler = MetricsHandler { plural, store, usage, measured: MeasuredCache::default() };
        resource.storage = Storage::computed(handler);
        let mut version = VersionSpec::new("v1beta1", types::built_in("metrics.k8s.io/v1beta1", kind));
        let columns = vec![
            column("cpu", "CPU in use."),
            column("memory", "Memory in use that cannot be freed easily."),
            column("Window", "The time that CPU was measured over."),
        ];
        version.table = named(columns, |object, _| {
            vec![json!(used(object, "cpu")), json!(used(object, "memory")), object["window"].clone()]
        });
        Definition::single(resource, version)
    };
    vec![definition("nodes", "NodeMetrics", false), definition("pods", "PodMetrics", true)]
}

/// An amount of a node's or a pod's metrics; a pod uses what its containers use.
fn used(object: &Value, resource: &str) -> String {
    let containers = object["containers"].as_array();
    let all = containers.into_iter().flatten().map(|c| &c["usage"]).chain([&object["usage"]]);
    let amounts = all.filter_map(|usage| usage[resource].as_str()?.parse::<Quantity>().ok());
    amounts.reduce(Quantity::plus).map(|sum| sum.to_string()).unwrap_or_default()
}

#[derive(Debug)]
struct Metrics;

impl Strategy for Metrics {}

#[derive(Debug)]
struct MetricsHandler {
    /// Of the measured objects, and of their metrics.
    plural: &'static str,
    store: Store,
    usage: Usage,
    measured: MeasuredCache,
}

#[async_trait]
impl VirtualResource for MetricsHandler {
    async fn handle(
        &self,
        request: &ApiRequest,
        target: &Target,
        options: &RequestOptions,
        _body: &Bytes,
    ) -> ApiResult {
        let (version, accept) = (&target.version, request.accept);
        let id = self.store.resource(self.plural);
        if target.name.is_some() {
            let found = self.store.get(id, &target.key()).and_then(|stored| self.metrics(&self.measured.of(&stored)));
            let found = found.ok_or_else(|| ApiError::not_found(version, target.name()))?;
            return Ok(accept.object(StatusCode::OK, version, found, &options.include_object));
        }
        let selectors = Selectors::read(target, options)?;
        self.measured.sweep(|key| self.store.get(id, key).is_some());
        // What is not selected costs a look at its labels.
        let selected = |stored: &Arc<Object>| {
            let measured = self.measured.of(stored);
            selectors.matches(&measured.object).then(|| self.metrics(&measured))?
        };
        let stored = self.store.list(id, target.namespace.as_deref()).0;
        let items: Vec<Value> = stored.iter().filter_map(selected).collect();
        Ok(accept.computed_list(version, items, &options.include_object))
    }
}

impl MetricsHandler {
    /// The metrics of a stored object that has samples: a pod's are those of its node.
    fn metrics(&self, measured: &Measured) -> Option<Value> {
        let now = Timestamp::now();
        let metrics = if self.plural == "nodes" {
            let node = measured.object["metadata"]["name"].as_str()?;
            let rate = self.usage.of_node(node, NodeSamples::machine)?;
            serde_json::to_value(node_metrics(&measured.object, &rate, now))
        } else {
            let rates = self.usage.of_node(&measured.node, |samples| samples.pod(&measured.uid))?;
            serde_json::to_value(pod_metrics(&measured.object, &rates, now))
        };
        metrics.ok()
    }
}
