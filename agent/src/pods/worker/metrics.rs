//! The metrics of a pod's steps and of its start.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use tokio::time::Instant;

use super::Worker;
use crate::{
    metrics::Metrics,
    pods::{
        lifecycle::{reasons, spec, status::exit_reason, step_key::StepKey},
        steps::outcome::Outcome,
    },
};

/// The times of a pod's start, until it has started.
#[derive(Debug)]
pub(super) struct StartTimes {
    /// When the agent first saw the pod.
    first_seen: Instant,
    /// When an image was first asked for, and when one was last present.
    images: Option<(Instant, Instant)>,
}

impl StartTimes {
    pub(super) fn new() -> Self {
        Self { first_seen: Instant::now(), images: None }
    }

    pub(super) fn image_requested(&mut self) {
        let now = Instant::now();
        self.images.get_or_insert((now, now));
    }
}

/// A step that is timed until this is dropped.
pub(super) struct Timed {
    metrics: Arc<Metrics>,
    operation: &'static str,
    began: Instant,
}

impl Drop for Timed {
    fn drop(&mut self) {
        self.metrics.worker_seconds.observe_duration([self.operation], self.began.elapsed());
    }
}

impl Worker {
    /// Times a step that begins, unless it waits for the pod itself.
    pub(super) fn timed(&self, key: &StepKey) -> Option<Timed> {
        let operation = match key {
            StepKey::WaitForExit(_) | StepKey::Probe(..) | StepKey::Inspect(_) | StepKey::Status => return None,
            _ if self.is_terminating() => "terminate",
            _ if self.start.is_some() => "create",
            _ => "sync",
        };
        Some(Timed { metrics: Arc::clone(&self.context.node.metrics), operation, began: Instant::now() })
    }

    /// Observes a step's outcome, before the worker applies it.
    pub(super) fn observe_outcome(&mut self, outcome: &Outcome) {
        let metrics = Arc::clone(&self.context.node.metrics);
        match outcome {
            Outcome::Image { result: Ok(_), .. } => {
                if let Some((_, last)) = self.start.as_mut().and_then(|start| start.images.as_mut()) {
                    *last = Instant::now();
                }
            }
            // A sandbox that ran already was only reattached.
            Outcome::SandboxStarted(Ok(sandbox)) if !self.ran(&sandbox.id) => {
                let took = Timestamp::now().duration_since(sandbox.created_at).unsigned_abs();
                metrics.sandbox_seconds.observe_duration([self.runtime_handler()], took);
                metrics.started_pods.add([]);
            }
            // No sandbox was tried.
            Outcome::SandboxCreated(Err(error)) if error.reason == reasons::NETWORK_NOT_READY => {}
            Outcome::SandboxCreated(Err(_)) | Outcome::SandboxStarted(Err(_)) => {
                metrics.started_pod_errors.add([]);
                metrics.sandbox_errors.add([self.runtime_handler()]);
            }
            Outcome::Started { container, result: Ok(_) } => {
                metrics.started_containers.add([self.container_type(container)]);
            }
            Outcome::Created { container, result: Err(error) }
            | Outcome::Started { container, result: Err((error, _)) } => {
                metrics.started_container_errors.add([self.container_type(container), error.reason]);
            }
            Outcome::Inspected { id, result: Ok(Some(instance)) } => {
                if let Some(exit) = instance.exit()
                    && self.ran(id)
                    && !instance.is_sandbox()
                {
                    let (code, reason) = (exit.code.to_string(), exit_reason(exit));
                    let container_type = self.container_type(&instance.identity.container);
                    metrics.terminated_containers.add([container_type, &code, reason]);
                }
            }
            Outcome::StatusPatched { result: Ok(pod), .. } => self.observe_start(pod),
            _ => {}
        }
    }

    /// Whether a container ran when it was last inspected.
    fn ran(&self, id: &str) -> bool {
        self.observed.instance(id).is_some_and(|i| i.is_running())
    }

    /// A pod has started once all of its containers have, by the status in the API.
    fn observe_start(&mut self, pod: &Pod) {
        let Some(start) = self.start.as_ref() else { return };
        let Some(status) = pod.status.as_ref() else { return };
        let waits =
            |c: &ContainerStatus| c.state.as_ref().is_none_or(|s| s.running.is_none() && s.terminated.is_none());
        if status.container_statuses.as_ref().is_none_or(|all| all.iter().any(waits)) {
            return;
        }
        let metrics = &self.context.node.metrics;
        metrics.pod_start.observe_duration([], start.first_seen.elapsed());
        let pulling = start.images.map_or(Duration::ZERO, |(first, last)| last - first);
        if let Some(created) = &pod.metadata.creation_timestamp {
            let age = Timestamp::now().duration_since(created.0).unsigned_abs();
            metrics.pod_start_sli.observe_duration([], age.saturating_sub(pulling));
        }
        self.start = None;
    }

    /// The label `container_type`.
    fn container_type(&self, container: &str) -> &'static str {
        let spec = self.pod.as_ref().and_then(|p| p.spec.as_ref());
        let is_init = spec.is_some_and(|s| spec::init_containers(s).iter().any(|c| c.name == container));
        let is_ephemeral = spec.is_some_and(|s| s.ephemeral_containers.iter().flatten().any(|c| c.name == container));
        match (is_init, is_ephemeral) {
            (true, _) => "init_container",
            (_, true) => "ephemeral_container",
            _ => "container",
        }
    }

    /// The label `runtime_handler`: the pod's RuntimeClass.
    fn runtime_handler(&self) -> &str {
        self.pod.as_ref().and_then(|p| p.spec.as_ref()?.runtime_class_name.as_deref()).unwrap_or_default()
    }
}
