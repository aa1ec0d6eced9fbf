//! Pods that are new to the node: admitted, rejected, or waiting for a preemption.

use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use windlass_kit::events::Severity;

use super::Dispatcher;
use crate::pods::{
    admission::{Admission, allocation_state, reservations::Reservation},
    lifecycle::{kill::KillReason, reasons, spec},
};

impl Dispatcher {
    /// Whether the node admits a pod; its resources are reserved then. A pod that has containers already was admitted
    /// before.
    pub(super) fn admit(&self, uid: &str, pod: &Pod, is_new: bool) -> Admission {
        // One that is deleted keeps its resources for as long as its containers run.
        if spec::is_terminal(pod) || (is_new && pod.metadata.deletion_timestamp.is_some()) {
            return Admission::Admitted;
        }
        if !is_new {
            // It has what was allocated to it, and not what its spec asks for since.
            let reservation = match allocation_state::read(&self.context.pod_dir(uid)) {
                Some(allocated) => Reservation::of(&allocated.applied_to(pod)),
                None => Reservation::of(pod),
            };
            self.context.reserve(uid, reservation);
            return Admission::Admitted;
        }
        let admission = self.context.admit(uid, pod, !self.preempted.contains(uid));
        if let Admission::Rejected(rejected) = &admission {
            self.context.node.metrics.rejections.add([rejected.reason.as_str()]);
            self.context.event(pod, None, Severity::Warning, &rejected.reason, rejected.message.clone());
        }
        admission
    }

    /// Kills the victims of a critical pod, which is admitted again once they are down.
    pub(super) fn preempt(&mut self, uid: &str, victims: Vec<String>) {
        let reason = KillReason {
            reason: reasons::PREEMPTING.to_owned(),
            message: "Preempted in order to admit critical pod".to_owned(),
            grace: None,
            disruption: true,
        };
        for pod in victims.iter().filter_map(|victim| self.sources.api.get(victim)) {
            self.context.node.metrics.preemptions.add(["resources"]);
            self.context.event(pod, None, Severity::Warning, &reason.reason, reason.message.clone());
        }
        self.preempting.insert(uid.to_owned());
        self.preempted.insert(uid.to_owned());
        let (killer, uid) = (self.killer.clone(), uid.to_owned());
        self.preemptions.spawn(async move {
            join_all(victims.iter().map(|victim| killer.kill(victim, reason.clone()))).await;
            uid
        });
    }

    /// The victims of a critical pod are down.
    pub(super) fn on_preempted(&mut self, uid: &str) {
        self.preempting.remove(uid);
        if let Some(update) = self.sources.update(uid) {
            self.dispatch(uid, update);
        }
    }
}
