//! `log`: the output of a container, from the pod's node.

use axum::{http::StatusCode, response::IntoResponse as _};
use windlass_kit::percent;

use super::container::pick_container;
use crate::api::{
    ApiRequest, ApiResult,
    error::ApiError,
    request_info::{RequestInfo, RequestOptions},
};

impl ApiRequest {
    pub(super) async fn log(&self, info: &RequestInfo, options: &RequestOptions) -> ApiResult {
        let pod = self.fetch(info)?.value();
        let name = info.name.as_deref().unwrap_or("");
        let container = pick_container(&pod, name, options.get("container").unwrap_or(""))?;
        if pod["spec"]["nodeName"].as_str().unwrap_or("").is_empty() {
            // As upstream: an unscheduled pod has no output.
            return Ok(StatusCode::NO_CONTENT.into_response());
        }
        let (kubelet, node) = self.kubelet_of(info, &pod)?;
        let namespace = info.namespace.as_deref().unwrap_or("");
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
        kubelet.get(&node, &path).await.map_err(|e| if e.code == 422 { invalid(e) } else { e })
    }
}
