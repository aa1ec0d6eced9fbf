//! Lifecycle hooks of containers: postStart and preStop. Their contract is not that of probes: whatever a server answers
//! is a success, and only what keeps a hook from being run, or a command's exit code, is a failure.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ExecAction, HTTPGetAction, LifecycleHandler, Pod};
use windlass_kit::events::Severity;

use super::{
    ContainerRef,
    context::PodContext,
    prober::{self, HttpFailure, ProbeTarget},
};
use crate::{engine::exec::ExecResult, pods::lifecycle::spec};

/// Timeout of an `httpGet` hook. A command has none: it ends with its container.
const HTTP_HOOK_TIMEOUT: Duration = Duration::from_secs(120);

/// The User-Agent of hooks.
const HOOK_USER_AGENT: &str = "kube-lifecycle/1.36";

/// Bytes of a command's output that are kept; those of a probe's.
const MAX_OUTPUT_BYTES: usize = 10 * 1024;

/// The result of a hook.
pub(crate) type HookResult = Result<(), HookError>;

/// Why a hook failed: upstream's message, which the container's status shows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct HookError(String);

impl HookError {
    /// Records an event; without the message, which may have secrets that a command printed. Events leave the cluster
    /// more often than statuses.
    pub(super) fn report(&self, context: &PodContext, target: &ContainerRef, what: &str, reason: &str) {
        let name = &target.container.name;
        tracing::info!(pod = spec::name(&target.pod), container = name, "{what} failed: {self}");
        context.event(&target.pod, Some(name), Severity::Warning, reason, format!("{what} failed"));
    }
}

/// Runs a hook until it returns.
///
/// # Errors
/// The hook's own error.
pub(crate) async fn run(
    context: &PodContext,
    pod: &Pod,
    handler: &LifecycleHandler,
    target: ProbeTarget<'_>,
) -> HookResult {
    let whose = format!("for Container {:?} in Pod {:?}", target.container.name, spec::pod_full_name(pod));
    if let Some(action) = &handler.exec {
        let command = action.command.clone().unwrap_or_default();
        let ran = match command.is_empty() {
            true => Err("the command is empty".to_owned()),
            false => {
                let ran = context.node.engine.exec(target.id, &command, MAX_OUTPUT_BYTES).await;
                ran.map_err(|e| e.to_string())
            }
        };
        exec_result(action, ran, &whose)
    } else if let Some(action) = &handler.http_get {
        http_hook(context, pod, action, target).await.map_err(|why| {
            let path = action.path.as_deref().unwrap_or_default();
            HookError(format!("HTTP lifecycle hook ({path}) {whose} failed - error: {why}"))
        })
    } else if let Some(action) = &handler.sleep {
        tokio::time::sleep(Duration::from_secs(u64::try_from(action.seconds).unwrap_or(0))).await;
        Ok(())
    } else {
        // Upstream does not run tcpSocket hooks either.
        Err(HookError("Cannot run handler: invalid handler: a hook is one of exec, httpGet and sleep".to_owned()))
    }
}

/// The result of a command, in upstream's words.
fn exec_result(action: &ExecAction, ran: Result<ExecResult, String>, whose: &str) -> HookResult {
    let words = action.command.as_deref().unwrap_or_default().join(" ");
    let (error, output) = match ran {
        Ok(exit) if exit.code == 0 => return Ok(()),
        Ok(exit) => (format!("command '{words}' exited with {}", exit.code), exit.output),
        Err(why) => (why, String::new()),
    };
    Err(HookError(format!("Exec lifecycle hook ([{words}]) {whose} failed - error: {error}, message: {output:?}")))
}

/// Only a failure of the transport is one of the hook. An HTTPS request to a server without TLS is retried over HTTP,
/// as upstream does.
async fn http_hook(
    context: &PodContext,
    pod: &Pod,
    action: &HTTPGetAction,
    target: ProbeTarget<'_>,
) -> Result<(), String> {
    let why = match ask(target, action).await {
        Ok(()) => return Ok(()),
        Err(why) => why,
    };
    if action.scheme.as_deref() != Some("HTTPS") || !why.contains(prober::PLAIN_ANSWER) {
        return Err(why);
    }
    let plain = HTTPGetAction { scheme: Some("HTTP".to_owned()), ..action.clone() };
    // Upstream keeps the first error.
    ask(target, &plain).await.map_err(|_| why)?;
    let message = "request to HTTPS lifecycle hook got HTTP response, retry with HTTP succeeded";
    context.node.metrics.hook_fallbacks.add([]);
    context.event(pod, Some(&target.container.name), Severity::Warning, "LifecycleHTTPFallback", message);
    Ok(())
}

/// Whether a server answered, whatever its status.
async fn ask(target: ProbeTarget<'_>, action: &HTTPGetAction) -> Result<(), String> {
    let answer = prober::http_answer(target, action, HOOK_USER_AGENT);
    match tokio::time::timeout(HTTP_HOOK_TIMEOUT, answer).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(HttpFailure::Impossible(why) | HttpFailure::Transport(why))) => Err(why),
        Err(_) => Err("context deadline exceeded (Client.Timeout exceeded while awaiting headers)".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{api::core::v1::Container, apimachinery::pkg::util::intstr::IntOrString};
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    /// nginx with a hook that asks for a page that it does not have.
    #[tokio::test]
    async fn any_answer_is_a_success() {
        let container = Container::default();
        let target = ProbeTarget { container: &container, id: "", address: Some("127.0.0.1".parse().unwrap()) };
        for status in ["200 OK", "401 Unauthorized", "404 Not Found", "500 Internal Server Error"] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            tokio::spawn(async move {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut asked = vec![0; 4096];
                let _ = stream.read(&mut asked).await;
                let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
                let _ = stream.write_all(answer.as_bytes()).await;
            });
            let action = HTTPGetAction { port: IntOrString::Int(port.into()), ..HTTPGetAction::default() };
            assert_eq!(ask(target, &action).await, Ok(()), "{status}");
            // The server has stopped listening.
            let refused = ask(target, &action).await.unwrap_err();
            assert!(refused.starts_with(&format!("Get \"http://127.0.0.1:{port}/\": ")), "{refused}");
        }
    }

    #[test]
    fn a_command_that_fails_is_named_with_its_output() {
        let action = ExecAction { command: Some(vec!["sh".to_owned(), "-c".to_owned(), "exit 3".to_owned()]) };
        let whose = r#"for Container "c" in Pod "p_n(u)""#;
        let ran = |code, output: &str| exec_result(&action, Ok(ExecResult { code, output: output.to_owned() }), whose);
        assert_eq!(ran(0, "done"), Ok(()));
        assert_eq!(
            ran(3, "password\n").unwrap_err().to_string(),
            r#"Exec lifecycle hook ([sh -c exit 3]) for Container "c" in Pod "p_n(u)" failed - error: command 'sh -c exit 3' exited with 3, message: "password\n""#
        );
    }
}
