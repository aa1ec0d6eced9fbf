//! `metrics.k8s.io`: usage of nodes and pods, computed from the latest samples on request.

use std::sync::PoisonError;

use axum::http::StatusCode;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    ApiRequest, ApiResult,
    error::ApiError,
    negotiation::{Representation, metadata_of, table},
    read::Selectors,
    request_info::{RequestInfo, RequestOptions},
};
use crate::{
    metrics::{node_metrics, pod_metrics},
    store::Key,
};

impl ApiRequest {
    pub(super) fn metrics(&self, info: &RequestInfo, options: &RequestOptions) -> ApiResult {
        let all = self.measured_objects(info);
        if let Some(name) = &info.name {
            let found = all.into_iter().next().ok_or_else(|| ApiError::not_found(info.resource, name))?;
            return Ok(self.accept.object(StatusCode::OK, info.resource, found, &options.include_object));
        }
        let selectors = Selectors::read(info, options)?;
        let items: Vec<Value> = all.into_iter().filter(|object| selectors.matches(object)).collect();
        let kind = format!("{}List", info.resource.gvk.kind);
        let list = match self.accept.representation {
            Representation::Table => table(info.resource, &items, &options.include_object, json!({}), true),
            Representation::Metadata => {
                let items: Vec<Value> = items.iter().map(metadata_of).collect();
                json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": {}, "items": items})
            }
            Representation::Object => {
                json!({"kind": kind, "apiVersion": info.resource.gvk.api_version(), "metadata": {}, "items": items})
            }
        };
        Ok(self.accept.write(StatusCode::OK, &list))
    }

    /// The requested objects that are in the store and have samples.
    fn measured_objects(&self, info: &RequestInfo) -> Vec<Value> {
        let stored: Vec<(Key, Value)> = {
            let store = self.api.store();
            // The stored types of the core group have the same plural names.
            let resource = store.resource(info.resource.plural);
            let objects: Vec<_> = match &info.name {
                Some(_) => store.get(resource, &info.key()).into_iter().collect(),
                None => store.list(resource, info.namespace.as_deref()).0,
            };
            objects.into_iter().map(|object| (object.key.clone(), object.value())).collect()
        };
        let now = Timestamp::now();
        let usage = self.api.inner.usage.read().unwrap_or_else(PoisonError::into_inner);
        if info.resource.namespaced {
            let pods = usage.pods();
            let of = |(key, pod): &(Key, Value)| {
                let rates = pods.get(&(key.namespace.as_str(), key.name.as_str()))?;
                serde_json::to_value(pod_metrics(pod, rates, now)).ok()
            };
            stored.iter().filter_map(of).collect()
        } else {
            let of = |(key, node): &(Key, Value)| {
                serde_json::to_value(node_metrics(node, &usage.node(&key.name)?, now)).ok()
            };
            stored.iter().filter_map(of).collect()
        }
    }
}
