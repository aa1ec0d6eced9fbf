//! Requests of the node to kill the pod, and their results.

use windlass_kit::events::Severity;

use super::{
    Worker,
    pod_killer::{KillRequest, KillResult, kill_timeout},
};
use crate::{
    engine::inspect::Instance,
    pods::lifecycle::{
        kill::{KillReason, kill_grace},
        spec,
        time::{after_grace, saturating_add},
        view::{PodOutcome, PodView},
    },
};
use jiff::Timestamp;

impl Worker {
    pub(super) fn handle_kill(&mut self, request: KillRequest) {
        let now = self.now();
        let Some(own) = self.grace_if_active(now) else {
            let _ = request.result.send(KillResult::NotRunning);
            return;
        };
        merge_kill(&mut self.observed.kill, request.reason);
        let grace = kill_grace(own, self.observed.kill.as_ref());
        let deadline = after_grace(now, grace);
        self.observed.kill_deadline = self.observed.kill_deadline.into_iter().chain([deadline]).min();
        self.kill_waiters.push((request.result, saturating_add(now, kill_timeout(grace))));
    }

    /// The grace period in seconds of a pod that is not terminal; `None` where nothing is left to kill.
    fn grace_if_active(&self, now: Timestamp) -> Option<i64> {
        let pod = self.pod.as_deref().filter(|_| !self.deleted)?;
        let view = PodView::new(pod, &self.observed, now)?;
        let terminal =
            spec::is_terminal(pod) || (!self.observed.runs_or_may_run() && view.outcome == PodOutcome::Terminal);
        (!terminal).then(|| spec::termination_grace(pod))
    }

    /// Answers kill requests that have succeeded or timed out; gives when the next one times out.
    pub(super) fn answer_kills(&mut self, now: Timestamp) -> Option<Timestamp> {
        if self.kill_waiters.is_empty() {
            return None;
        }
        // The sandbox counts: a shutdown, or another pod, may need its network and its address.
        let runs = self.observed.instances.iter().any(Instance::is_running);
        if self.is_finished() || (!runs && !self.observed.may_start_container()) {
            for (result, _) in self.kill_waiters.drain(..) {
                let _ = result.send(KillResult::Killed);
            }
            return None;
        }
        let (late, waiting): (Vec<_>, Vec<_>) = self.kill_waiters.drain(..).partition(|(_, until)| *until <= now);
        self.kill_waiters = waiting;
        if let Some(pod) = self.pod.as_ref().filter(|_| !late.is_empty()) {
            let message = "Container runtime did not kill the pod within specified grace period.";
            self.context.event(pod, None, Severity::Warning, "ExceededGracePeriod", message);
        }
        for (result, _) in late {
            let _ = result.send(KillResult::TimedOut);
        }
        self.kill_waiters.iter().map(|(_, until)| *until).min()
    }
}

/// The first request gives the reason; a later one can only shorten the grace period.
fn merge_kill(known: &mut Option<KillReason>, kill: KillReason) {
    match known {
        Some(first) => first.grace = first.grace.into_iter().chain(kill.grace).min(),
        None => *known = Some(kill),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_request_gives_the_reason() {
        let kill = |reason: &str, grace| KillReason {
            reason: reason.to_owned(),
            message: String::new(),
            grace,
            disruption: true,
        };
        let mut known = None;
        merge_kill(&mut known, kill("Evicted", None));
        merge_kill(&mut known, kill("Terminated", Some(5)));
        merge_kill(&mut known, kill("Preempting", Some(20)));
        assert_eq!(known, Some(kill("Evicted", Some(5))));
    }
}
