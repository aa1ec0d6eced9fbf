//! Lifecycle hooks: what a pod wants done in a container right after its start and before its end.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, HTTPGetAction, LifecycleHandler, Pod};
use windlass_kit::events::Severity;

use super::{
    handlers::{self, Answer, Target},
    shared::Shared,
};

/// How long whoever a hook calls may take to answer. A command takes the time that it takes: it ends with its container.
const CALL: Duration = Duration::from_secs(120);

/// How we name ourselves to those whom a hook calls.
const AGENT: &str = "kube-lifecycle/1.36";

pub(crate) fn post_start(container: &Container) -> Option<&LifecycleHandler> {
    container.lifecycle.as_ref()?.post_start.as_ref()
}

pub(crate) fn pre_stop(container: &Container) -> Option<&LifecycleHandler> {
    container.lifecycle.as_ref()?.pre_stop.as_ref()
}

/// Runs a hook to its end.
///
/// # Errors
/// What it said against it.
pub(crate) async fn run(
    shared: &Shared,
    pod: &Pod,
    handler: &LifecycleHandler,
    target: Target<'_>,
) -> Result<(), String> {
    let answer = if let Some(action) = &handler.exec {
        handlers::exec(&shared.engine, target, action).await
    } else if let Some(action) = &handler.http_get {
        handlers::within(CALL, call(shared, pod, action, target)).await
    } else if let Some(action) = &handler.sleep {
        tokio::time::sleep(Duration::from_secs(u64::try_from(action.seconds).unwrap_or(0))).await;
        Answer::Good
    } else {
        // Upstream never did tcpSocket hooks either.
        Answer::Bad("invalid handler: a hook is one of exec, httpGet and sleep".to_owned())
    };
    match answer {
        Answer::Good | Answer::Doubtful(_) => Ok(()),
        Answer::Bad(why) | Answer::Unknown(why) => Err(why),
    }
}

/// A server that speaks no TLS where HTTPS is asked for is asked again without, as upstream does it.
async fn call(shared: &Shared, pod: &Pod, action: &HTTPGetAction, target: Target<'_>) -> Answer {
    let answer = handlers::http_get(target, action, AGENT).await;
    let plain = matches!(&answer, Answer::Bad(why) if why.contains("InvalidContentType"));
    if action.scheme.as_deref() != Some("HTTPS") || !plain {
        return answer;
    }
    let action = HTTPGetAction { scheme: Some("HTTP".to_owned()), ..action.clone() };
    let answer = handlers::http_get(target, &action, AGENT).await;
    if answer == Answer::Good {
        let message = "request to HTTPS lifecycle hook got HTTP response, retry with HTTP succeeded";
        shared.event(pod, Some(&target.container.name), Severity::Warning, "LifecycleHTTPFallback", message);
    }
    answer
}
