//! `log`: the output of a container, from the pod's node.

use async_trait::async_trait;
use axum::{body::Bytes, http::StatusCode, response::IntoResponse as _};
use serde_json::json;
use windlass_kit::percent;

use super::container::{node_of, pick_container};
use crate::apiserver::{
    ApiError, ApiRequest, ApiResult, KubeletClient, Target, handlers::subresource::SubresourceHandler,
    pipeline::validation::errors::Errors, request::request_info::RequestOptions,
};

/// Passes the log on.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) kubelet: Option<KubeletClient>,
}

/// Checks the options. Upstream: `ValidatePodLogOptions`.
fn check(name: &str, options: &RequestOptions) -> Result<(), ApiError> {
    let mut errors = Errors::default();
    let number = |option: &str| options.get(option).and_then(|text| text.parse::<i64>().ok());
    if let Some(lines) = number("tailLines").filter(|lines| *lines < 0) {
        errors.at_least_0("tailLines", &json!(lines));
    }
    if let Some(bytes) = number("limitBytes").filter(|bytes| *bytes < 1) {
        errors.invalid("limitBytes", &json!(bytes), "must be greater than 0");
    }
    let is_set = |option: &str| options.get(option).is_some_and(|text| !text.is_empty());
    if is_set("sinceSeconds") && is_set("sinceTime") {
        // The path that upstream gives to an error of no field.
        errors.forbidden("[]", "at most one of `sinceTime` or `sinceSeconds` may be specified");
    } else if let Some(seconds) = number("sinceSeconds").filter(|seconds| *seconds < 1) {
        errors.invalid("sinceSeconds", &json!(seconds), "must be greater than 0");
    }
    if is_set("stream") {
        errors.forbidden("stream", "may not be specified");
    }
    if errors.0.is_empty() { Ok(()) } else { Err(ApiError::invalid_of("PodLogOptions", name, &errors.0)) }
}

#[async_trait]
impl SubresourceHandler for Log {
    fn is_long_running(&self) -> bool {
        true
    }

    async fn handle(
        &self,
        request: &ApiRequest,
        target: &Target,
        options: &RequestOptions,
        _body: &Bytes,
    ) -> ApiResult {
        let name = target.name();
        check(name, options)?;
        let pod = request.read(target)?;
        let container = pick_container(&pod, name, options.get("container").unwrap_or(""))?;
        if pod["spec"]["nodeName"].as_str().unwrap_or("").is_empty() {
            // As upstream: an unscheduled pod has no output.
            return Ok(StatusCode::NO_CONTENT.into_response());
        }
        let (kubelet, node) = node_of(request, self.kubelet.as_ref(), target, &pod)?;
        let namespace = target.namespace.as_deref().unwrap_or("");
        let mut path = format!("/containerLogs/{namespace}/{name}/{container}");
        let passed: Vec<String> = options
            .all
            .iter()
            .filter(|(k, _)| k != "container")
            .map(|(k, v)| format!("{}={}", percent::encoded(k, ":"), percent::encoded(v, ":")))
            .collect();
        if !passed.is_empty() {
            path.push('?');
            path.push_str(&passed.join("&"));
        }
        let invalid = |e: ApiError| ApiError::new(422, "Invalid", format!("PodLogOptions {name:?} is invalid: {e}"));
        // Asked before the node is, which has nothing to do with how its answer is passed on.
        let websocket = request.websocket()?;
        let answer = kubelet.get(&node, &path).await.map_err(|e| if e.code == 422 { invalid(e) } else { e })?;
        match websocket {
            Some(websocket) => websocket.send(answer),
            None => Ok(answer),
        }
    }
}
