//! Containers of a pod: stopped and removed.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio_util::sync::CancellationToken;
use windlass_kit::events::Severity;

use super::{
    ContainerRef,
    context::PodContext,
    hooks, host_files, inspect,
    outcome::{Outcome, StepError},
};
use crate::{
    engine::inspect::Instance,
    pods::lifecycle::{reasons, spec},
};

/// What a container has left after its preStop hook, however long that took; upstream's.
const MIN_GRACE: Duration = Duration::from_secs(2);

fn grace_period(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

/// Runs the preStop hook of a container, if it has one, and then stops it. The hook uses up part of the grace period;
/// it is cut short when the container has exited, or must exit sooner.
pub(crate) async fn stop(
    context: Arc<PodContext>,
    id: String,
    grace: i64,
    target: Option<ContainerRef>,
    cut_hook: CancellationToken,
) -> Outcome {
    let mut grace = grace_period(grace);
    let hook = target.as_ref().and_then(|target| Some((target, spec::pre_stop(&target.container)?)));
    if let Some((target, handler)) = hook.filter(|_| !grace.is_zero()) {
        let started = Instant::now();
        let run = hooks::run(&context, &target.pod, handler, target.probe_target());
        let result = tokio::select! {
            result = tokio::time::timeout(grace, run) => {
                result.unwrap_or_else(|_| Err("it took the whole grace".to_owned()))
            }
            () = cut_hook.cancelled() => Ok(()),
        };
        if let Err(why) = result {
            let (reason, message) = (reasons::FAILED_PRE_STOP_HOOK, format!("PreStopHook failed: {why}"));
            context.event(&target.pod, Some(&target.container.name), Severity::Warning, reason, message);
        }
        grace = grace.saturating_sub(started.elapsed()).max(MIN_GRACE.min(grace));
    }
    stop_or_kill(context, id, grace).await
}

/// Cuts the grace period of a container that is being stopped already.
pub(crate) async fn shorten_grace(context: Arc<PodContext>, id: String, grace: i64) -> Outcome {
    stop_or_kill(context, id, grace_period(grace)).await
}

async fn stop_or_kill(context: Arc<PodContext>, id: String, grace: Duration) -> Outcome {
    let engine = &context.node.engine;
    let stopped = if grace.is_zero() { engine.kill(&id).await } else { engine.stop(&id, grace).await };
    if let Err(error) = stopped {
        return Outcome::Inspected { id, result: Err(error) };
    }
    inspect(context, id).await
}

/// Removes an exited container with its log links and its termination message.
pub(crate) async fn remove(context: Arc<PodContext>, instance: Instance) -> Outcome {
    let _permit = context.engine_calls.acquire().await;
    let removed = context.node.engine.remove(&instance.id).await;
    let result = removed.map_err(|e| StepError::of(reasons::KILL_CONTAINER_ERROR, &e));
    if result.is_ok() {
        host_files::unlink_log(&context.node.config, &instance);
        let who = &instance.identity;
        let _ = std::fs::remove_file(context.message_file(&who.uid, &who.container, who.attempt));
    }
    Outcome::Removed { id: instance.id, result }
}
