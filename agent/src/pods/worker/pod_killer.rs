//! Requests of the node to kill a pod that the API would let run: eviction, preemption, shutdown.
//!
//! A request passes through the dispatcher to the pod's worker, which remembers its reason; `lifecycle` terminates the
//! pod, and the status shows the reason once its containers have stopped.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::pods::lifecycle::kill::KillReason;

/// Requests that wait for the dispatcher at most.
const KILL_QUEUE_CAPACITY: usize = 64;
/// The shortest time that a request waits for its pod; upstream's.
const MIN_KILL_TIMEOUT_SECONDS: u64 = 10;

/// What became of a request to kill a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillResult {
    /// No container of the pod runs any more.
    Killed,
    /// The pod was terminal already, or is not on this node: nothing was done.
    NotRunning,
    /// A container still ran after one and a half times the grace period; it is being stopped.
    TimedOut,
    /// The agent shuts down.
    Aborted,
}

/// What others ask of the dispatcher.
#[derive(Debug)]
pub(crate) enum DispatcherRequest {
    Kill(KillRequest),
    /// Remove exited containers of terminal pods; answered when all workers have been notified.
    GcExited(oneshot::Sender<()>),
}

/// One request to kill a pod.
#[derive(Debug)]
pub(crate) struct KillRequest {
    pub(crate) uid: String,
    pub(crate) reason: KillReason,
    pub(crate) result: oneshot::Sender<KillResult>,
}

/// The receiving end of a [`PodKiller`].
#[derive(Debug)]
pub(crate) struct KillQueue(mpsc::Receiver<DispatcherRequest>);

impl KillQueue {
    pub(crate) async fn next(&mut self) -> Option<DispatcherRequest> {
        self.0.recv().await
    }
}

/// Kills pods of this node; upstream's `killPodNow`. Clones kill the same pods.
#[derive(Debug, Clone)]
pub struct PodKiller(mpsc::Sender<DispatcherRequest>);

impl PodKiller {
    /// The handle, and the queue that the dispatcher reads.
    pub(crate) fn new() -> (Self, KillQueue) {
        let (tx, rx) = mpsc::channel(KILL_QUEUE_CAPACITY);
        (Self(tx), KillQueue(rx))
    }

    /// Kills the pod with this uid and waits until its containers have exited, for one and a half times its grace
    /// period and at least ten seconds, as upstream does. A second request for the same pod can only shorten its grace
    /// period.
    pub async fn kill(&self, uid: &str, reason: KillReason) -> KillResult {
        let (result, killed) = oneshot::channel();
        let request = KillRequest { uid: uid.to_owned(), reason, result };
        if self.0.send(DispatcherRequest::Kill(request)).await.is_err() {
            return KillResult::Aborted;
        }
        killed.await.unwrap_or(KillResult::Aborted)
    }

    /// Removes the exited containers of terminal pods, with their logs: the disk is under pressure. Pods that run keep
    /// their exited containers, one each, since their statuses show them.
    pub async fn gc_exited_containers(&self) {
        let (done, all_told) = oneshot::channel();
        if self.0.send(DispatcherRequest::GcExited(done)).await.is_ok() {
            let _ = all_told.await;
        }
    }
}

/// How long a request waits for its pod whose grace period is `grace` seconds.
pub(super) fn kill_timeout(grace: i64) -> Duration {
    let seconds = u64::try_from(grace).unwrap_or(0);
    Duration::from_secs((seconds + seconds / 2).max(MIN_KILL_TIMEOUT_SECONDS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_waits_longer_than_the_grace_period() {
        assert_eq!((kill_timeout(0).as_secs(), kill_timeout(30).as_secs()), (10, 45));
    }
}
