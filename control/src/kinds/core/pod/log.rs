//! `log`: the output of a container, from the pod's node.

use async_trait::async_trait;
use axum::{body::Bytes, http::StatusCode, response::IntoResponse as _};
use windlass_kit::percent;

use super::container::{node_of, pick_container};
use crate::apiserver::{
    ApiError, ApiRequest, ApiResult, KubeletClient, Target, request_info::RequestOptions,
    subresource::SubresourceHandler,
};

/// Passes the log on.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) kubelet: Option<KubeletClient>,
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
        let pod = request.read(target)?;
        let name = target.name();
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
