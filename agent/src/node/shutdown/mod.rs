//! Graceful node shutdown: terminates pods in order of priority before the machine shuts down, each group within its
//! grace period.
//!
//! `groups` decides and is pure; `logind` signals and delays the shutdown; this module is the loop. Of `pods` only the
//! killing of pods is imported.

mod logind;
mod priority_groups;

use std::{path::Path, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_kit::{
    backoff::Backoff,
    events::{Recorder, Severity},
    object_ref,
};

use crate::{
    metrics::Metrics,
    pods::{KillReason, PodKiller, runtime_uid},
};
use logind::{InhibitorLock, Logind, LogindError};
pub use priority_groups::{GracePeriod, from_two, total};

/// Added to the grace period of a group, for Docker's own work.
const SETTLE_DELAY: Duration = Duration::from_secs(1);

/// The longest that the end of pods may take to get to the API, which may be away.
const REPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// What the shutdown manager needs of the agent's other parts.
#[derive(Debug)]
pub struct ShutdownInputs {
    /// The node's name.
    pub node_name: String,
    /// Grace periods by priority; empty disables the manager.
    pub grace_periods: Vec<GracePeriod>,
    /// For events.
    pub recorder: Recorder,
    /// The pods of this node.
    pub pods: watch::Receiver<Arc<Vec<Arc<Pod>>>>,
    /// Kills pods.
    pub killer: PodKiller,
    /// Whether the node is shutting down: then no pod is admitted, and the node is not ready.
    pub shutting_down: watch::Sender<bool>,
    /// Metrics of shutdown start and end.
    pub metrics: Arc<Metrics>,
}

/// Waits for the machine's shutdown and terminates pods before it, until `shutdown`.
pub async fn run(inputs: ShutdownInputs, shutdown: CancellationToken) {
    if inputs.grace_periods.is_empty() {
        return shutdown.cancelled().await;
    }
    let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
    let mut warned = false;
    loop {
        let result = tokio::select! {
            () = shutdown.cancelled() => return,
            result = listen(&inputs, &mut backoff) => result,
        };
        if let Err(error) = result
            && !std::mem::replace(&mut warned, true)
        {
            tracing::warn!(%error, "failed to inhibit node shutdown, pods are not terminated gracefully; retrying");
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(backoff.next_delay()) => {}
        }
    }
}

/// Holds the inhibitor lock and listens for signals, until the bus connection is closed.
async fn listen(inputs: &ShutdownInputs, backoff: &mut Backoff) -> Result<(), LogindError> {
    let mut logind = Logind::connect().await?;
    let total = total(&inputs.grace_periods);
    if logind.max_delay().await? < total {
        raise_max_delay(&logind, total).await?;
    }
    let mut lock: Option<InhibitorLock> = Some(logind.inhibit().await?);
    backoff.reset();
    tracing::info!(seconds = total.as_secs(), "graceful node shutdown enabled");
    while let Some(begins) = logind.next().await {
        inputs.shutting_down.send_replace(begins);
        if begins {
            terminate_pods(inputs).await;
            lock = None;
        } else {
            tracing::info!("node shutdown cancelled");
            record(inputs, "Shutdown manager detected shutdown cancellation");
            if lock.is_none() {
                lock = Some(logind.inhibit().await?);
            }
        }
    }
    drop(lock);
    Ok(())
}

/// Raises logind's InhibitDelayMaxSec to the sum of the grace periods.
async fn raise_max_delay(logind: &Logind, total: Duration) -> Result<(), LogindError> {
    let file = Path::new(logind::DROP_IN);
    if let Err(error) = logind::write_delay(file, total) {
        tracing::warn!(%error, file = %file.display(), seconds = total.as_secs(), "failed to raise InhibitDelayMaxSec; set it to this many seconds in logind.conf");
        return Ok(());
    }
    logind.reload().await?;
    // logind reloads asynchronously.
    for _ in 0..50 {
        if logind.max_delay().await? >= total {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    tracing::warn!(file = %file.display(), seconds = total.as_secs(), "logind does not use the raised InhibitDelayMaxSec; does another drop-in file set it?");
    Ok(())
}

/// Records an event of the node.
fn record(inputs: &ShutdownInputs, message: &str) {
    inputs.recorder.record(&object_ref::node(&inputs.node_name), Severity::Normal, "Shutdown", message);
}

/// Terminates all pods, group by group.
async fn terminate_pods(inputs: &ShutdownInputs) {
    tracing::info!("node is shutting down; terminating pods");
    record(inputs, "Shutdown manager detected shutdown event");
    inputs.metrics.shutdown_started();
    let deadline = tokio::time::Instant::now() + total(&inputs.grace_periods);
    let pods = Arc::clone(&inputs.pods.borrow());
    for group in priority_groups::groups(&inputs.grace_periods, pods.iter().map(AsRef::as_ref)) {
        let ends = group.uids.iter().filter_map(|uid| pods.iter().find(|p| p.metadata.uid.as_ref() == Some(uid)));
        let ends = ends.map(|pod| {
            let reason = KillReason {
                reason: "Terminated".to_owned(),
                message: "Pod was terminated in response to imminent node shutdown.".to_owned(),
                grace: i64::try_from(group.period.as_secs()).ok(),
                disruption: true,
            };
            let killer = inputs.killer.clone();
            async move { killer.kill(runtime_uid(pod), reason).await }
        });
        let all = futures::future::join_all(ends);
        if tokio::time::timeout(group.period + SETTLE_DELAY, all).await.is_err() {
            tracing::warn!(
                seconds = group.period.as_secs(),
                "some pods did not terminate within the grace period of their group"
            );
        }
    }
    // A pod that was killed at the end of its period is known to have ended a moment later, and one that is not known to
    // would be started again after the boot: what is left of the time that logind gives is for that.
    let mut watched = inputs.pods.clone();
    let reported = watched.wait_for(|all| all.iter().all(|pod| crate::pods::is_terminal(pod)));
    let now = tokio::time::Instant::now();
    let until = deadline.clamp(now + SETTLE_DELAY, now + REPORT_TIMEOUT);
    let reported = tokio::time::timeout_at(until, reported).await;
    inputs.metrics.shutdown_ended();
    match reported {
        Ok(Ok(_)) => tracing::info!("all pods are terminated"),
        // Or the pods are no longer published.
        Ok(Err(_)) | Err(_) => {
            let running = inputs.pods.borrow().iter().filter(|pod| !crate::pods::is_terminal(pod)).count();
            tracing::warn!(running, "time is up before the end of all pods was reported; those go on after the boot");
        }
    }
}
