//! `metrics.k8s.io`: what nodes and pods use, made from the newest readings as it is asked for.

use std::sync::PoisonError;

use axum::http::StatusCode;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Answer, Call,
    error::ApiError,
    output::{Form, metadata_of, table},
    read::Selectors,
    target::{Options, Target},
};
use crate::{
    metrics::{node_metrics, pod_metrics},
    store::Key,
};

impl Call {
    pub(super) fn metrics(&self, target: &Target, options: &Options) -> Answer {
        let all = self.measured(target);
        if let Some(name) = &target.name {
            let found = all.into_iter().next().ok_or_else(|| ApiError::not_found(target.resource, name))?;
            return Ok(self.accept.object(StatusCode::OK, target.resource, found, &options.include_object));
        }
        let selectors = Selectors::read(target, options)?;
        let items: Vec<Value> = all.into_iter().filter(|object| selectors.matches(object)).collect();
        let kind = format!("{}List", target.resource.gvk.kind);
        let list = match self.accept.form {
            Form::Table => table(target.resource, &items, &options.include_object, json!({}), true),
            Form::Metadata => {
                let items: Vec<Value> = items.iter().map(metadata_of).collect();
                json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": {}, "items": items})
            }
            Form::Object => {
                json!({"kind": kind, "apiVersion": target.resource.gvk.api_version(), "metadata": {}, "items": items})
            }
        };
        Ok(self.accept.write(StatusCode::OK, &list))
    }

    /// The objects that the target names, of what the store has and somebody measured.
    fn measured(&self, target: &Target) -> Vec<Value> {
        let stored: Vec<(Key, Value)> = {
            let store = self.api.store();
            // The stored types have the same plural names, in the core group.
            let objects = match &target.name {
                Some(_) => {
                    store.get(target.resource.plural, &target.key()).map(|o| (target.key(), o)).into_iter().collect()
                }
                None => store.list(target.resource.plural, target.namespace.as_deref()).0,
            };
            objects.into_iter().map(|(key, object)| (key, object.value())).collect()
        };
        let now = Timestamp::now();
        let usage = self.api.inner.usage.read().unwrap_or_else(PoisonError::into_inner);
        if target.resource.namespaced {
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
