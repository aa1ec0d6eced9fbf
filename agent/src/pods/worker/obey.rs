//! Orders of the node to end the pod, and the answers to them.

use super::*;
use crate::pods::{
    orders::{Answer, Ended, patience},
    plan::verdict,
};

impl Worker {
    pub(super) fn obey(&mut self, order: Order) {
        let now = self.now();
        let Some(own) = self.grace_of_live_pod() else {
            let _ = order.answer.send(Answer::Over);
            return;
        };
        take_note(&mut self.observed.ended, order.ended);
        let grace = orders::grace(own, self.observed.ended.as_ref());
        let by = later(now, Duration::from_secs(u64::try_from(grace).unwrap_or(0)));
        self.observed.end_by = self.observed.end_by.into_iter().chain([by]).min();
        self.waiting.push((order.answer, later(now, patience(grace))));
    }

    /// The grace of a pod that is not over; `None` for one that there is nothing to end of.
    fn grace_of_live_pod(&self) -> Option<i64> {
        let pod = self.pod.as_deref().filter(|_| !self.gone)?;
        let pod_spec = pod.spec.as_ref()?;
        let over = spec::is_terminal(spec::phase(pod))
            || (!self.observed.runs() && verdict(pod_spec, &self.observed) == crate::pods::plan::Verdict::Over);
        (!over).then(|| spec::grace(pod))
    }

    /// Tells those who wait for the pod's end what came of it; gives when the next of them has waited too long.
    pub(super) fn answer(&mut self, now: Timestamp) -> Option<Timestamp> {
        if self.waiting.is_empty() {
            return None;
        }
        // The sandbox counts: a machine that goes down, or another pod, may want its network and its address.
        let runs = self.observed.instances.iter().any(Instance::is_running);
        if self.is_finished() || (!runs && !self.observed.in_the_making()) {
            for (answer, _) in self.waiting.drain(..) {
                let _ = answer.send(Answer::Down);
            }
            return None;
        }
        let (late, waiting): (Vec<_>, Vec<_>) = self.waiting.drain(..).partition(|(_, until)| *until <= now);
        self.waiting = waiting;
        if let Some(pod) = self.pod.as_ref().filter(|_| !late.is_empty()) {
            let message = "Container runtime did not kill the pod within specified grace period.";
            self.shared.event(pod, None, Severity::Warning, "ExceededGracePeriod", message);
        }
        for (answer, _) in late {
            let _ = answer.send(Answer::Late);
        }
        self.waiting.iter().map(|(_, until)| *until).min()
    }
}

/// The first order says why; a later one can only shorten the grace.
fn take_note(known: &mut Option<Ended>, order: Ended) {
    match known {
        Some(first) => first.grace = first.grace.into_iter().chain(order.grace).min(),
        None => *known = Some(order),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_order_says_why() {
        let order =
            |reason: &str, grace| Ended { reason: reason.to_owned(), message: String::new(), grace, disruption: true };
        let mut known = None;
        take_note(&mut known, order("Evicted", None));
        take_note(&mut known, order("Terminated", Some(5)));
        take_note(&mut known, order("Preempting", Some(20)));
        assert_eq!(known, Some(order("Evicted", Some(5))));
    }
}
