//! What a worker publishes: the pod's status and its events in the API, and its running containers in the agent.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::api::{Api, Patch, PatchParams};
use serde_json::Value;
use windlass_cadvisor::Target;
use windlass_kit::events::Severity;

use super::Worker;
use crate::pods::{
    lifecycle::{
        patch::{batch_until, can_batch, merge, patch_of, running, version},
        reasons, spec,
        step_key::StepKey,
        view::PodView,
    },
    steps::outcome::Outcome,
};

impl Worker {
    /// Patches the status if it differs from what the API has; gives when to try again.
    pub(super) fn sync_status(&mut self, now: Timestamp) -> Option<Timestamp> {
        let pod = self.pod.clone().filter(|_| !self.deleted)?;
        let in_flight = &self.observed.in_flight;
        // A pod that is being deleted from the API needs no further status.
        if in_flight.contains(&StepKey::Status)
            || in_flight.contains(&StepKey::DeleteFromApi)
            || self.observed.deleted_from_api
        {
            return None;
        }
        let before = pod.status.clone().unwrap_or_default();
        let view = PodView::new(&pod, &self.observed, now);
        let wanted = view.map(|view| view.status(self.context.node.config.node_ips)).unwrap_or_default();
        if wanted.phase.as_deref().is_some_and(spec::is_phase_terminal) {
            self.release_reservation();
        }
        let (object, before, merged) = if spec::is_static(&pod) {
            self.store_local_status(&pod, &before, &wanted);
            let mirror = self.mirror.clone()?;
            let reported = mirror.status.clone().unwrap_or_default();
            let merged = merge(&reported, &wanted);
            (mirror, reported, merged)
        } else {
            let merged = merge(&before, &wanted);
            (pod, before, merged)
        };
        let Some(patch) = patch_of(&object, &before, &merged) else {
            self.batched_since = None;
            return None;
        };
        if let Some(at) = self.patch_after.filter(|at| *at > now) {
            return Some(at);
        }
        if can_batch(&before, &merged, self.is_terminating()) {
            let since = *self.batched_since.get_or_insert(now);
            let until = batch_until(since, self.observed.in_flight.iter().any(StepKey::is_engine_operation));
            if until > now {
                return Some(until);
            }
        }
        self.batched_since = None;
        if !spec::is_static(&object) {
            self.record_transitions(&object, &before, &wanted);
        }
        self.push_patch(object, patch);
        None
    }

    fn push_patch(&mut self, object: Arc<Pod>, patch: Value) {
        let (client, metrics) = (self.context.node.client.clone(), Arc::clone(&self.context.node.metrics));
        self.push(StepKey::Status, async move {
            let api: Api<Pod> = Api::namespaced(client, spec::namespace(&object));
            let started = tokio::time::Instant::now();
            let result = api.patch_status(spec::name(&object), &PatchParams::default(), &Patch::Strategic(patch)).await;
            metrics.status_sync.observe_duration([], started.elapsed());
            Outcome::StatusPatched { from: version(&object), result: result.map(|pod| Box::new(spec::sanitize(pod))) }
        });
    }

    /// Keeps the status of a static pod in the worker: the API may be unreachable, and its mirror pod there new.
    fn store_local_status(&mut self, pod: &Pod, before: &PodStatus, wanted: &PodStatus) {
        let merged = merge(before, wanted);
        if merged != *before {
            self.record_transitions(pod, before, wanted);
            self.pod = Some(Arc::new(Pod { status: Some(merged), ..pod.clone() }));
        }
    }

    /// Records the events of a pod that exceeds its deadline, and of containers that enter a back-off.
    fn record_transitions(&self, pod: &Pod, before: &PodStatus, wanted: &PodStatus) {
        if wanted.reason.as_deref() == Some(reasons::DEADLINE_EXCEEDED) && before.reason.is_none() {
            let message = wanted.message.clone().unwrap_or_default();
            self.context.event(pod, None, Severity::Normal, reasons::DEADLINE_EXCEEDED, message);
        }
        let reason = |status: &PodStatus, name: &str| {
            let all = status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten());
            all.filter(|c| c.name == name).find_map(|c| c.state.as_ref()?.waiting.as_ref()?.reason.clone())
        };
        for (container, _) in pod.spec.iter().flat_map(spec::all_containers) {
            let name = &container.name;
            let now = reason(wanted, name);
            if now == reason(before, name) {
                continue;
            }
            let (severity, message) = match now.as_deref() {
                Some(reasons::CRASH_LOOP_BACK_OFF) => {
                    let pod = spec::pod_full_name(pod);
                    (Severity::Warning, format!("Back-off restarting failed container {name} in pod {pod}"))
                }
                Some(reasons::IMAGE_PULL_BACK_OFF) => {
                    // Upstream also emits an event that the container is waiting.
                    let error = format!("Error: {}", reasons::IMAGE_PULL_BACK_OFF);
                    self.context.event(pod, Some(name), Severity::Warning, reasons::FAILED, error);
                    (Severity::Normal, format!("Back-off pulling image {:?}", spec::image_of(container)))
                }
                _ => continue,
            };
            self.context.event(pod, Some(name), severity, reasons::BACK_OFF, message);
        }
    }

    /// Gives the reservation back before the API shows that the pod is terminal: the next pod may come at once.
    pub(super) fn release_reservation(&mut self) {
        self.reservation_released = true;
        self.context.change_reservation(&self.uid, None);
    }

    /// Publishes the containers, and the running ones, where they have changed.
    pub(super) async fn publish_running(&mut self) {
        self.context.node.containers.set(&self.uid, &self.observed.instances);
        let mut running: Vec<Target> = self.observed.instances.iter().filter_map(running).collect();
        let pod_started_at = running.iter().find(|target| target.is_sandbox()).map(|sandbox| sandbox.started_at);
        for target in &mut running {
            target.pod_started_at = pod_started_at.unwrap_or(target.started_at);
            // Docker knows the image by its id, since containers are created from that.
            if let Some(container) = self.container(&target.container_name) {
                target.image = spec::image_of(&container).to_owned();
            }
        }
        if running.iter().ne(self.published.iter().map(Arc::as_ref)) {
            self.published = running.into_iter().map(Arc::new).collect();
            let _ = self.context.running.send((self.uid.clone(), self.published.clone())).await;
        }
    }
}
