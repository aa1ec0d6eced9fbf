//! `eviction`: the deletion of a pod, with a DisruptionTarget condition.

use axum::{body::Bytes, http::StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    api::{
        ApiRequest, ApiResult,
        admission::node_restriction::Operation,
        commit::MAX_WRITE_ATTEMPTS,
        delete::DeleteOptions,
        error::ApiError,
        request_info::{RequestInfo, RequestOptions},
    },
    registry::Gvk,
};

const EVICTION: Gvk = Gvk { group: "policy", version: "v1", kind: "Eviction" };

impl ApiRequest {
    /// Deletes a pod with the options of an Eviction.
    pub(super) async fn evict(&self, info: &RequestInfo, options: &RequestOptions, body: &Bytes) -> ApiResult {
        let eviction = self.read_object(&EVICTION, options, body)?.value;
        let body = Bytes::from(serde_json::to_vec(&eviction["deleteOptions"]).unwrap_or_default());
        let body = if eviction["deleteOptions"].is_object() { body } else { Bytes::new() };
        let named = eviction["metadata"]["name"].as_str().filter(|name| !name.is_empty());
        if named.is_some_and(|name| info.name.as_deref() != Some(name)) {
            return Err(ApiError::bad_request("name in URL does not match name in Eviction object"));
        }
        self.check_node_restriction(Operation::Create, info, &self.fetch(info)?.value(), &eviction)?;
        let pod = RequestInfo { subresource: None, ..info.clone() };
        let mut delete_options = DeleteOptions::read(options, &body)?;
        if !delete_options.dry_run {
            self.write_disruption_condition(&pod, options, &delete_options).await?;
            // The precondition was checked against the revision before the condition was written.
            delete_options.revision.clear();
        }
        self.remove(&pod, &delete_options).await?;
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
        Ok(self.accept.write(StatusCode::CREATED, &status))
    }

    /// Sets the DisruptionTarget condition, in a write of its own as upstream.
    async fn write_disruption_condition(
        &self,
        info: &RequestInfo,
        options: &RequestOptions,
        delete_options: &DeleteOptions,
    ) -> Result<(), ApiError> {
        let name = info.name.as_deref().unwrap_or("");
        for _ in 0..MAX_WRITE_ATTEMPTS {
            let existing = self.fetch(info)?;
            let old = existing.value();
            delete_options.check(info.resource, name, &old)?;
            let object = with_disruption_condition(&old, Timestamp::now());
            if self.replace_stored(info, options, object, &old, existing.revision).await?.is_some() {
                return Ok(());
            }
        }
        Err(ApiError::modified(info.resource, name))
    }
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
