//! Containers of a pod: their preStop hooks, stopped, removed.

use std::{sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use super::{
    ContainerRef,
    context::PodContext,
    hooks, inspect,
    outcome::{Outcome, StepError},
};
use crate::pods::lifecycle::{reasons, spec};

/// Runs the preStop hook of a container until it returns, or is cut: the container has exited, or must.
pub(crate) async fn pre_stop(context: Arc<PodContext>, target: ContainerRef, cut: CancellationToken) -> Outcome {
    if let Some(handler) = spec::pre_stop(&target.container) {
        let run = hooks::run(&context, &target.pod, handler, target.probe_target());
        let result = tokio::select! {
            result = run => result,
            () = cut.cancelled() => {
                if handler.sleep.is_some() {
                    context.node.metrics.sleeps_cut.add([]);
                }
                Ok(())
            }
        };
        if let Err(error) = result {
            error.report(&context, &target, "PreStopHook", reasons::FAILED_PRE_STOP_HOOK);
        }
    }
    Outcome::PreStopDone { id: target.id }
}

/// Stops a container, or cuts the grace period of one that is being stopped; `grace` is in seconds.
pub(crate) async fn stop(context: Arc<PodContext>, id: String, grace: i64) -> Outcome {
    let grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
    let engine = &context.node.engine;
    let stopped = if grace.is_zero() { engine.kill(&id).await } else { engine.stop(&id, grace).await };
    if let Err(error) = stopped {
        return Outcome::Inspected { id, result: Err(error) };
    }
    inspect(context, id).await
}

/// Removes an exited container.
pub(crate) async fn remove(context: Arc<PodContext>, id: String) -> Outcome {
    let _permit = context.engine_calls.acquire().await;
    let removed = context.node.engine.remove(&id).await;
    let result = removed.map_err(|e| StepError::of(reasons::KILL_CONTAINER_ERROR, &e));
    Outcome::Removed { id, result }
}
