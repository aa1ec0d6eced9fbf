//! Runs probes and postStart hooks, and reports them by events and metrics.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::{ExecAction, Probe};
use windlass_kit::events::Severity;

use super::{
    ContainerRef,
    context::PodContext,
    hooks,
    outcome::Outcome,
    prober::{self, PROBE_USER_AGENT, ProbeResult},
};
use crate::{
    pods::{
        container::env,
        lifecycle::{
            probes::{self, ProbeType},
            reasons, spec,
        },
    },
    probe_metrics::{ProbeLabels, ResultLabel},
};

/// How often a probe that could not be run is tried in a row; upstream's `maxProbeRetries`.
const MAX_PROBE_TRIES: usize = 3;
/// How long an exec probe counts as being started.
const EXEC_START: Duration = Duration::from_secs(1);

/// Runs the postStart hook of a container.
pub(crate) async fn post_start(context: Arc<PodContext>, target: ContainerRef) -> Outcome {
    let result = match spec::post_start(&target.container) {
        Some(handler) => hooks::run(&context, &target.pod, handler, target.probe_target()).await,
        None => Ok(()),
    };
    if let Err(error) = &result {
        error.report(&context, &target, "PostStartHook", reasons::FAILED_POST_START_HOOK);
    }
    Outcome::PostStartDone { id: target.id, result }
}

/// Runs one probe of a container.
pub(crate) async fn probe(context: Arc<PodContext>, target: ContainerRef, probe_type: ProbeType) -> Outcome {
    let started = Instant::now();
    let mut result = ProbeResult::Success;
    if let Some(probe) = probe_type.of(&target.container) {
        for _ in 0..MAX_PROBE_TRIES {
            result = run_probe(&context, &target, probe).await;
            if !matches!(result, ProbeResult::Unknown(_)) {
                break;
            }
        }
    }
    let labels = ProbeLabels {
        uid: spec::uid(&target.pod).to_owned(),
        namespace: spec::namespace(&target.pod).to_owned(),
        pod: spec::name(&target.pod).to_owned(),
        container: target.container.name.clone(),
        probe_type: probe_type.name(),
    };
    let label = match &result {
        ProbeResult::Success | ProbeResult::Warning(_) => ResultLabel::Successful,
        ProbeResult::Failure(_) => ResultLabel::Failed,
        ProbeResult::Unknown(_) => ResultLabel::Unknown,
    };
    context.node.probe_metrics.observe(labels, label, started.elapsed());
    let name = probe_type.name();
    let event = match &result {
        ProbeResult::Success => None,
        ProbeResult::Warning(why) => Some(("ProbeWarning", format!("{name} probe warning: {why}"))),
        ProbeResult::Failure(why) => Some((reasons::UNHEALTHY, format!("{name} probe failed: {why}"))),
        ProbeResult::Unknown(why) => {
            Some((reasons::UNHEALTHY, format!("{name} probe errored and resulted in unknown state: {why}")))
        }
    };
    if let Some((reason, message)) = event {
        context.event(&target.pod, Some(&target.container.name), Severity::Warning, reason, message);
    }
    Outcome::Probed { container: target.container.name, id: target.id, probe: probe_type, result }
}

async fn run_probe(context: &PodContext, target: &ContainerRef, probe: &Probe) -> ProbeResult {
    let (container, timeout) = (target.probe_target(), probes::timeout(probe));
    if let Some(action) = &probe.exec {
        let command = action.command.as_ref().map(|c| env::expand_static(c, &target.container));
        let action = ExecAction { command };
        // Starting a command is expensive for Docker; the wait for a permit does not count against the timeout.
        let permit = context.exec_probe_starts.acquire().await;
        let late = || prober::late(container, probe, timeout);
        let result = prober::with_timeout(timeout, late, prober::exec(&context.node.engine, container, &action));
        let mut result = std::pin::pin!(result);
        let early = tokio::time::timeout(EXEC_START, result.as_mut()).await;
        drop(permit);
        return match early {
            Ok(result) => result,
            Err(_) => result.await,
        };
    }
    if let Some(action) = &probe.grpc {
        // It says itself what it did not get to in time.
        return prober::grpc(container, action, timeout).await;
    }
    let result = async {
        if let Some(action) = &probe.http_get {
            prober::http_get(container, action, PROBE_USER_AGENT).await
        } else if let Some(action) = &probe.tcp_socket {
            prober::tcp(container, action).await
        } else {
            ProbeResult::Unknown("missing probe handler".to_owned())
        }
    };
    prober::with_timeout(timeout, || prober::late(container, probe, timeout), result).await
}
