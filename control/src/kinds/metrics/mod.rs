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
        ApiError, ApiRequest, ApiResult, Representation, Selectors, Strategy, Target, VirtualResource, metadata_of,
        request_info::RequestOptions,
        table,
        types::{Definition, Resource, Storage, VersionSpec},
    },
    kinds::types,
    metrics::{Usage, node_metrics, pod_metrics},
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
        let handler = MetricsHandler { plural, store: store.clone(), usage: usage.clone() };
        resource.storage = Storage::Virtual(Arc::new(handler));
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
        let all = self.measured_objects(target);
        if target.name.is_some() {
            let found = all.into_iter().next();
            let found = found.ok_or_else(|| ApiError::not_found(version, target.name()))?;
            return Ok(accept.object(StatusCode::OK, version, found, &options.include_object));
        }
        let selectors = Selectors::read(target, options)?;
        let items: Vec<Value> = all.into_iter().filter(|object| selectors.matches(object)).collect();
        let list = match accept.representation {
            Representation::Table => table(version, &items, &options.include_object, json!({}), true),
            Representation::Metadata => {
                let items: Vec<Value> = items.iter().map(metadata_of).collect();
                json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": {}, "items": items})
            }
            Representation::Object => {
                json!({"kind": version.list_kind, "apiVersion": version.gvk.api_version(), "metadata": {}, "items": items})
            }
        };
        Ok(accept.write(StatusCode::OK, &list))
    }
}

impl MetricsHandler {
    /// The requested objects that are in the store and have samples.
    fn measured_objects(&self, target: &Target) -> Vec<Value> {
        let id = self.store.resource(self.plural);
        let stored: Vec<Arc<Object>> = match &target.name {
            Some(_) => self.store.get(id, &target.key()).into_iter().collect(),
            None => self.store.list(id, target.namespace.as_deref()).0,
        };
        let now = Timestamp::now();
        let usage = self.usage.read();
        if target.version.namespaced {
            let pods = usage.pods();
            let of = |pod: &Arc<Object>| {
                let rates = pods.get(&(pod.key.namespace.as_str(), pod.key.name.as_str()))?;
                serde_json::to_value(pod_metrics(&pod.value(), rates, now)).ok()
            };
            stored.iter().filter_map(of).collect()
        } else {
            let of = |node: &Arc<Object>| {
                serde_json::to_value(node_metrics(&node.value(), &usage.node(&node.key.name)?, now)).ok()
            };
            stored.iter().filter_map(of).collect()
        }
    }
}
