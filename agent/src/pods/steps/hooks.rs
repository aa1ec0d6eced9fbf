//! Lifecycle hooks of containers: postStart and preStop.

use std::time::Duration;

use k8s_openapi::api::core::v1::{HTTPGetAction, LifecycleHandler, Pod};
use windlass_kit::events::Severity;

use super::{
    context::PodContext,
    prober::{self, ProbeResult, ProbeTarget},
};

/// Timeout of an `httpGet` hook. A command has none: it ends with its container.
const HTTP_HOOK_TIMEOUT: Duration = Duration::from_secs(120);

/// The User-Agent of hooks.
const HOOK_USER_AGENT: &str = "kube-lifecycle/1.36";

/// Runs a hook until it returns.
///
/// # Errors
/// The hook's own error.
pub(crate) async fn run(
    context: &PodContext,
    pod: &Pod,
    handler: &LifecycleHandler,
    target: ProbeTarget<'_>,
) -> Result<(), String> {
    let result = if let Some(action) = &handler.exec {
        prober::exec(&context.node.engine, target, action).await
    } else if let Some(action) = &handler.http_get {
        prober::with_timeout(HTTP_HOOK_TIMEOUT, http_hook(context, pod, action, target)).await
    } else if let Some(action) = &handler.sleep {
        tokio::time::sleep(Duration::from_secs(u64::try_from(action.seconds).unwrap_or(0))).await;
        ProbeResult::Success
    } else {
        // Upstream does not run tcpSocket hooks either.
        ProbeResult::Failure("invalid handler: a hook is one of exec, httpGet and sleep".to_owned())
    };
    match result {
        ProbeResult::Success | ProbeResult::Warning(_) => Ok(()),
        ProbeResult::Failure(why) | ProbeResult::Unknown(why) => Err(why),
    }
}

/// An HTTPS request to a server without TLS is retried over HTTP, as upstream does.
async fn http_hook(context: &PodContext, pod: &Pod, action: &HTTPGetAction, target: ProbeTarget<'_>) -> ProbeResult {
    let result = prober::http_get(target, action, HOOK_USER_AGENT).await;
    let plain = matches!(&result, ProbeResult::Failure(why) if why.contains("InvalidContentType"));
    if action.scheme.as_deref() != Some("HTTPS") || !plain {
        return result;
    }
    let action = HTTPGetAction { scheme: Some("HTTP".to_owned()), ..action.clone() };
    let result = prober::http_get(target, &action, HOOK_USER_AGENT).await;
    if result == ProbeResult::Success {
        let message = "request to HTTPS lifecycle hook got HTTP response, retry with HTTP succeeded";
        context.event(pod, Some(&target.container.name), Severity::Warning, "LifecycleHTTPFallback", message);
    }
    result
}
