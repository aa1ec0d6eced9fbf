//! In-place resizes: evaluated, deferred, granted.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use windlass_kit::{
    events::Severity,
    objects::resources::{Class, class},
};

use super::Worker;
use crate::pods::{
    admission::{
        allocation_state,
        reservations::{Reservation, ResizeRequest},
    },
    lifecycle::{
        allocated::Allocated, observed::ResizeDecision, resize, resize_message::resize_message, spec,
        time::saturating_add, view::PodView,
    },
};

/// When a deferred resize is evaluated again, unless capacity is freed before.
const DEFERRED_RETRY: Duration = Duration::from_secs(5);

impl Worker {
    /// Evaluates a resize, and notices when it is completed; gives when to evaluate again.
    pub(super) fn sync_resize(&mut self, now: Timestamp) -> Option<Timestamp> {
        let pod = self.pod.clone().filter(|p| p.metadata.deletion_timestamp.is_none() && !self.deleted)?;
        let pod_spec = pod.spec.as_ref()?;
        let terminal = self.reservation_released || spec::is_terminal(&pod);
        if terminal || !PodView::new(&pod, &self.observed, now)?.is_resize_due() {
            if self.observed.resize.take() == Some(ResizeDecision::Granted) {
                let message = resize_message(&pod, "completed", "");
                self.context.event(&pod, None, Severity::Normal, "ResizeCompleted", message);
                self.context.node.metrics.completed_resizes.add([]);
            }
            self.resize_deferred_at = None;
            let reserves = !terminal && (self.observed.kill.is_none() || self.observed.runs_or_may_run());
            self.context.change_reservation(&self.uid, reserves.then(|| Reservation::of(&pod)));
            return None;
        }
        match &self.observed.resize {
            Some(ResizeDecision::Granted | ResizeDecision::Infeasible(_)) => return None,
            Some(ResizeDecision::Deferred(_)) if self.resize_retry_at.is_some_and(|at| at > now) => {
                return self.resize_retry_at;
            }
            _ => {}
        }
        let mut decision = self.evaluate_resize(&pod, now);
        if decision == ResizeDecision::Granted
            && let Err(why) = self.allocate(pod_spec)
        {
            self.context.change_reservation(&self.uid, Some(self.current_reservation(&pod)));
            decision = ResizeDecision::Deferred(why);
        }
        self.tell_resize(&pod, &decision);
        let deferred = matches!(decision, ResizeDecision::Deferred(_));
        if !deferred {
            self.resize_deferred_at = None;
        }
        self.observed.resize = Some(decision);
        self.resize_retry_at = deferred.then(|| saturating_add(now, DEFERRED_RETRY));
        self.resize_retry_at
    }

    /// What the pod has of the node now.
    fn current_reservation(&self, pod: &Pod) -> Reservation {
        Reservation::of(&resize::with_actual_resources(pod, &self.observed))
    }

    /// Asks whether the node can give the resources of the spec.
    fn evaluate_resize(&mut self, pod: &Pod, now: Timestamp) -> ResizeDecision {
        // A resize that was deferred before the agent started keeps its age.
        let since = *self.resize_deferred_at.get_or_insert(resize::pending_since(pod).unwrap_or(now));
        let request = ResizeRequest { reservation: Reservation::of(pod), since };
        self.context.evaluate_resize(&self.uid, request)
    }

    /// Records an event of a decision that is a new one.
    fn tell_resize(&self, pod: &Pod, decision: &ResizeDecision) {
        if self.observed.resize.as_ref() != Some(decision) {
            let (severity, reason, message) = match decision {
                ResizeDecision::Granted => (Severity::Normal, "ResizeStarted", resize_message(pod, "started", "")),
                ResizeDecision::Deferred(why) => {
                    (Severity::Warning, "ResizeDeferred", resize_message(pod, "Deferred", why))
                }
                ResizeDecision::Infeasible(why) => {
                    self.context.node.metrics.infeasible_resizes.add(["insufficient_node_allocatable"]);
                    (Severity::Warning, "ResizeInfeasible", resize_message(pod, "Infeasible", why))
                }
            };
            self.context.event(pod, None, severity, reason, message);
        }
    }

    /// Restores the allocated resources of a pod, or allocates those of a new one.
    pub(super) fn restore_allocated(&mut self, pod: &Pod) {
        let Some(pod_spec) = &pod.spec else { return };
        let recorded = allocation_state::read(&self.context.pod_dir(&self.uid));
        if recorded.is_some() {
            self.observed.allocated = recorded;
            return;
        }
        let allocates_nothing = self.observed.kill.is_some()
            || pod.metadata.deletion_timestamp.is_some()
            || spec::is_terminal(pod)
            || class(pod_spec) == Class::BestEffort;
        if allocates_nothing {
            return;
        }
        // A pod without a record that runs has its containers' limits; a new one was admitted with all of its spec.
        if let Some(actual) = &resize::with_actual_resources(pod, &self.observed).spec
            && let Err(why) = self.allocate(actual)
        {
            tracing::warn!(pod = spec::name(pod), "{why}; after a restart the limits of its containers count");
            self.observed.allocated = Some(Allocated::of(actual));
        }
    }

    /// Records what is allocated to the pod from now on.
    fn allocate(&mut self, pod_spec: &PodSpec) -> Result<(), String> {
        let allocated = Allocated::of(pod_spec);
        allocation_state::write(&self.context.pod_dir(&self.uid), &allocated)?;
        self.observed.allocated = Some(allocated);
        Ok(())
    }

    /// The pod with the resources that it has, while its resize is deferred or infeasible.
    pub(super) fn pod_with_actual_resources(&self) -> Option<Arc<Pod>> {
        let pod = self.pod.as_ref()?;
        if resize::is_resize_blocked(&self.observed) {
            return Some(Arc::new(resize::with_actual_resources(pod, &self.observed)));
        }
        Some(Arc::clone(pod))
    }
}
