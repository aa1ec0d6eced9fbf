//! The scheduler: binds unscheduled pods to nodes, as upstream's default profile does. Knows a `kube::Client` and nothing
//! else. This file is the loop, `watches` and `writer` are its two sides; all other modules are pure and may not import
//! kube's client. A pod's way: `queue` → `state` → `cycle` (once for the pod) → `filters` (for each node) → `scores`, or
//! `preemption`; what they look at are `cache`, `volumes` and `model`.

use futures::{StreamExt, stream::FuturesUnordered};
use kube::Client;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use windlass_kit::{
    metrics::Registry,
    repairs::{MainPath, Repair},
};

mod cache;
mod cycle;
mod filters;
mod messages;
mod metrics;
mod model;
mod preemption;
mod queue;
mod scores;
mod state;
#[cfg(test)]
mod tests;
mod volumes;
mod watches;
mod writer;

use metrics::SchedulerMetrics;
use queue::{Retries, UNSCHEDULABLE_FLUSH_INTERVAL};
use state::State;
use watches::Update;
use writer::{Outcome, Writer};

/// The scheduler's name: pods with this or no `spec.schedulerName` are scheduled. Also the source of events.
const SCHEDULER_NAME: &str = "default-scheduler";
/// Maximum number of decisions whose writes are under way.
const MAX_WRITES_IN_FLIGHT: usize = 64;

/// Why the scheduler ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A watch ended for good.
    #[error("the scheduler's watch of {0} ended; restart the control plane")]
    WatchEnded(&'static str),
}

/// Schedules pods until `shutdown`. Failed watches and writes are retried with back-off.
///
/// # Errors
/// Only when a watch ends for good, which no API server causes.
pub async fn run(client: Client, registry: Registry, shutdown: CancellationToken) -> Result<(), Error> {
    let metrics = registry.of::<SchedulerMetrics>();
    // Nothing is scheduled before all first lists are complete.
    let (mut updates, mut unlisted) = watches::all(&client);
    let writer = Writer::new(client);
    let mut state = State::new(Retries {
        flush: Repair::UnschedulableFlush.period(UNSCHEDULABLE_FLUSH_INTERVAL),
        on_changes: !MainPath::QueueingHints.is_off(),
    });
    let mut writes = FuturesUnordered::new();
    loop {
        let due = if unlisted.is_empty() {
            let due = state.advance(Instant::now());
            while writes.len() < MAX_WRITES_IN_FLIGHT {
                let began = Instant::now();
                let Some(decided) = state.next(began) else { break };
                let attempt = metrics.decided(&state, &decided, began);
                let write = writer.execute(decided);
                writes.push(async move { (write.await, attempt) });
            }
            // Failures of this pass set new times.
            due.into_iter().chain(state.advance(Instant::now())).min()
        } else {
            None
        };
        metrics.known(&state);
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            update = updates.next() => match update {
                Some(Update::Change(change)) => change(&mut state, Instant::now()),
                Some(Update::Synced(kind, change)) => {
                    change(&mut state, Instant::now());
                    unlisted.remove(kind);
                }
                Some(Update::Ended(kind)) => return Err(Error::WatchEnded(kind)),
                None => return Err(Error::WatchEnded("everything")),
            },
            Some((outcome, attempt)) = writes.next(), if !writes.is_empty() => {
                metrics.written(&outcome, &attempt);
                written(&mut state, outcome);
            }
            () = sleep_until(due) => {}
        }
    }
}

/// The writes of a decision have ended.
fn written(state: &mut State, outcome: Outcome) {
    let now = Instant::now();
    match outcome {
        Outcome::Done | Outcome::Bound => {}
        Outcome::NotBound(pod, constraints, why) => state.bind_failed(&pod, &constraints, &why, now),
        Outcome::VolumesWritten(pod, result) => state.volumes_written(&pod, result, now),
        Outcome::NotPreempted(pod, preemption) => state.preemption_failed(&pod, &preemption, now),
    }
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
