//! The machine is switched off: pods are ended in order before it is, each with the time that is set for it.
//!
//! `turns` decides and is pure; `logind` is how the machine's end is heard of and delayed; this module is the loop. Of
//! `pods` only what ends pods is imported.

mod logind;
mod turns;

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
use logind::{Lock, Logind, LogindError};
pub use turns::{Share, of_two, whole};

/// A turn of pods is given this much more than its time until the next begins, for Docker's own work.
const SETTLE: Duration = Duration::from_secs(1);

/// What a shutdown needs of the node's other parts.
#[derive(Debug)]
pub struct Parts {
    /// The node's name.
    pub node_name: String,
    /// Who has how much time; empty for nobody, and then nothing is listened for.
    pub shares: Vec<Share>,
    /// For events.
    pub recorder: Recorder,
    /// The pods of this node.
    pub pods: watch::Receiver<Arc<Vec<Arc<Pod>>>>,
    /// Ends pods.
    pub killer: PodKiller,
    /// Told whether the node is going down: no pod is taken in then, and the node is not ready.
    pub going_down: watch::Sender<bool>,
    /// Where begin and end are noted.
    pub metrics: Arc<Metrics>,
}

/// Listens for the machine's end until `shutdown`, and ends the pods before it.
pub async fn run(parts: Parts, shutdown: CancellationToken) {
    if parts.shares.is_empty() {
        return shutdown.cancelled().await;
    }
    let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
    let mut warned = false;
    loop {
        let listened = tokio::select! {
            () = shutdown.cancelled() => return,
            listened = listen(&parts, &mut backoff) => listened,
        };
        if let Err(error) = listened
            && !std::mem::replace(&mut warned, true)
        {
            tracing::warn!(%error, "pods are not ended before the machine is; it is tried again");
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(backoff.next_delay()) => {}
        }
    }
}

/// Keeps the machine waiting and listens, until the bus goes away.
async fn listen(parts: &Parts, backoff: &mut Backoff) -> Result<(), LogindError> {
    let mut logind = Logind::connect().await?;
    let whole = whole(&parts.shares);
    if logind.longest_delay().await? < whole {
        ask_for_more(&logind, whole).await?;
    }
    let mut lock: Option<Lock> = Some(logind.inhibit().await?);
    backoff.reset();
    tracing::info!(seconds = whole.as_secs(), "pods have this long to end before the machine does");
    while let Some(begins) = logind.next().await {
        parts.going_down.send_replace(begins);
        if begins {
            end_pods(parts).await;
            lock = None;
        } else {
            tracing::info!("the machine goes on after all");
            if lock.is_none() {
                lock = Some(logind.inhibit().await?);
            }
        }
    }
    drop(lock);
    Ok(())
}

/// The login manager waits for less than the pods may take: it is set to what they need.
async fn ask_for_more(logind: &Logind, whole: Duration) -> Result<(), LogindError> {
    let file = Path::new(logind::DROP_IN);
    if let Err(error) = logind::write_delay(file, whole) {
        tracing::warn!(%error, file = %file.display(), seconds = whole.as_secs(), "the machine does not wait long enough for its pods: set InhibitDelayMaxSec of logind.conf to that");
        return Ok(());
    }
    logind.reload().await?;
    // It reads its settings when it comes to it.
    for _ in 0..50 {
        if logind.longest_delay().await? >= whole {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    tracing::warn!(file = %file.display(), seconds = whole.as_secs(), "the machine does not wait long enough for its pods, though it was told to: does another file set InhibitDelayMaxSec?");
    Ok(())
}

/// Ends all pods, turn by turn.
async fn end_pods(parts: &Parts) {
    tracing::info!("the machine ends: so do its pods, the least important first");
    let node = object_ref::node(&parts.node_name);
    parts.recorder.record(&node, Severity::Normal, "NodeShutdown", "Shutdown manager detected shutdown event");
    parts.metrics.shutdown_begun();
    let pods = Arc::clone(&parts.pods.borrow());
    for turn in turns::turns(&parts.shares, pods.iter().map(AsRef::as_ref)) {
        let ends = turn.uids.iter().filter_map(|uid| pods.iter().find(|p| p.metadata.uid.as_ref() == Some(uid)));
        let ends = ends.map(|pod| {
            let reason = KillReason {
                reason: "Terminated".to_owned(),
                message: "Pod was terminated in response to imminent node shutdown.".to_owned(),
                grace: i64::try_from(turn.period.as_secs()).ok(),
                disruption: true,
            };
            let killer = parts.killer.clone();
            async move { killer.kill(runtime_uid(pod), reason).await }
        });
        let all = futures::future::join_all(ends);
        if tokio::time::timeout(turn.period + SETTLE, all).await.is_err() {
            tracing::warn!(seconds = turn.period.as_secs(), "some pods did not end in the time of their turn");
        }
    }
    // Their statuses are on their way to the API.
    let mut pods = parts.pods.clone();
    let told = pods.wait_for(|all| all.iter().all(|pod| crate::pods::is_terminal(pod)));
    let _ = tokio::time::timeout(SETTLE, told).await;
    parts.metrics.shutdown_ended();
    tracing::info!("pods have ended");
}
