//! `eviction`: the deletion of a pod, with a DisruptionTarget condition.

use async_trait::async_trait;
use axum::body::Bytes;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    apiserver::{
        ApiError, ApiRequest, ApiResult, DeleteOptions, RequestOptions, Target, subresource::SubresourceHandler,
        types::Gvk,
    },
    kinds::shared::posted,
};

const EVICTION: Gvk = Gvk::of("policy", "v1", "Eviction");

/// Deletes a pod with the options of an Eviction.
#[derive(Debug)]
pub(super) struct Evict;

#[async_trait]
impl SubresourceHandler for Evict {
    async fn handle(&self, request: &ApiRequest, target: &Target, options: &RequestOptions, body: &Bytes) -> ApiResult {
        let eviction = posted::read(request, target, &EVICTION, options, body)?;
        let body = Bytes::from(serde_json::to_vec(&eviction["deleteOptions"]).unwrap_or_default());
        let body = if eviction["deleteOptions"].is_object() { body } else { Bytes::new() };
        let named = eviction["metadata"]["name"].as_str().filter(|name| !name.is_empty());
        if named.is_some_and(|name| name != target.name()) {
            return Err(ApiError::bad_request("name in URL does not match name in Eviction object"));
        }
        request.admit_posted(target, options, eviction, Some(&request.read(target)?)).await?;
        let pod = target.whole();
        let mut delete_options = DeleteOptions::read(request.api.delete_options_schema(), options, &body)?;
        if !delete_options.dry_run {
            write_disruption_condition(request, &pod, &delete_options).await?;
            // The precondition was checked against the revision before the condition was written.
            delete_options.revision.clear();
        }
        request.remove(&pod, &delete_options).await?;
        Ok(posted::done(request))
    }
}

/// Sets the DisruptionTarget condition, in a write of its own as upstream.
async fn write_disruption_condition(
    request: &ApiRequest,
    target: &Target,
    delete_options: &DeleteOptions,
) -> Result<(), ApiError> {
    let make = |old: &Value| {
        delete_options.check(&target.version, target.name(), old)?;
        Ok(with_disruption_condition(old, Timestamp::now()))
    };
    posted::change(request, target, false, &make).await
}

/// The pod with the condition of the eviction API. Pure.
fn with_disruption_condition(pod: &Value, now: Timestamp) -> Value {
    const TYPE: &str = "DisruptionTarget";
    let mut pod = pod.clone();
    let mut conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let at = Timestamp::from_second(now.as_second()).unwrap_or(now).to_string();
    let mut condition = json!({
        "type": TYPE, "status": "True", "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting",
        "lastTransitionTime": at,
    });
    match conditions.iter_mut().find(|condition| condition["type"] == TYPE) {
        Some(before) => {
            if before["status"] == "True" {
                condition["lastTransitionTime"] = before["lastTransitionTime"].take();
            }
            *before = condition;
        }
        None => conditions.push(condition),
    }
    pod["status"]["conditions"] = Value::Array(conditions);
    pod
}
