//! What a worker counts of its pod for the agent's metrics.

use tokio::time::Instant;

use super::*;

/// What is known of a pod's start until it is over.
#[derive(Debug)]
pub(super) struct Start {
    /// When the agent first saw the pod.
    seen: Instant,
    /// When images were first asked for, and last had.
    images: Option<(Instant, Instant)>,
}

impl Start {
    pub(super) fn new() -> Self {
        Self { seen: Instant::now(), images: None }
    }

    pub(super) fn asks_for_image(&mut self) {
        let now = Instant::now();
        self.images.get_or_insert((now, now));
    }
}

impl Worker {
    /// Counts what came of a step, before it is taken in.
    pub(super) fn count(&mut self, outcome: &Outcome) {
        let metrics = Arc::clone(&self.shared.metrics);
        match outcome {
            Outcome::Image { result: Ok(_), .. } => {
                if let Some((_, last)) = self.start.as_mut().and_then(|start| start.images.as_mut()) {
                    *last = Instant::now();
                }
            }
            // One that ran already was only looked after again.
            Outcome::SandboxStarted { result: Ok(sandbox) } if !self.ran(&sandbox.id) => {
                let took = Timestamp::now().duration_since(sandbox.created_at).unsigned_abs();
                metrics.sandbox_seconds.took([self.handler()], took);
                metrics.started_pods.add([]);
            }
            // Nothing was tried.
            Outcome::SandboxCreated(Err(refusal)) if refusal.reason == NETWORK_NOT_READY => {}
            Outcome::SandboxCreated(Err(refusal)) | Outcome::SandboxStarted { result: Err(refusal) } => {
                metrics.started_pod_errors.add([refusal.reason]);
                metrics.sandbox_errors.add([self.handler()]);
            }
            Outcome::Started { container, result: Ok(_) } => metrics.started_containers.add([self.type_of(container)]),
            Outcome::Created { container, result: Err(refusal) }
            | Outcome::Started { container, result: Err((refusal, _)) } => {
                metrics.started_container_errors.add([self.type_of(container), refusal.reason]);
            }
            Outcome::Seen { id, result: Ok(Some(instance)) } => {
                if let State::Exited(exit) = &instance.state
                    && self.ran(id)
                    && !instance.is_sandbox()
                {
                    let code = exit.code.to_string();
                    let reason = status::exit_reason(exit);
                    metrics.terminated_containers.add([self.type_of(&instance.identity.container), &code, reason]);
                }
            }
            Outcome::Patched { result: Ok(pod), .. } => self.count_start(pod),
            _ => {}
        }
    }

    /// Whether a container ran when it was last looked at.
    fn ran(&self, id: &str) -> bool {
        self.observed.instances.iter().any(|i| i.id == id && i.is_running())
    }

    /// A pod all of whose containers have started has run through its start.
    fn count_start(&mut self, told: &Pod) {
        let Some(start) = self.start.as_ref() else { return };
        let Some(status) = told.status.as_ref() else { return };
        let waits = |c: &k8s_openapi::api::core::v1::ContainerStatus| {
            c.state.as_ref().is_none_or(|s| s.running.is_none() && s.terminated.is_none())
        };
        if status.container_statuses.as_ref().is_none_or(|all| all.iter().any(waits)) {
            return;
        }
        self.shared.metrics.pod_start.took([], start.seen.elapsed());
        let pulling = start.images.map_or(Duration::ZERO, |(first, last)| last - first);
        if let Some(created) = &told.metadata.creation_timestamp {
            let age = Timestamp::now().duration_since(created.0).unsigned_abs();
            self.shared.metrics.pod_start_sli.took([], age.saturating_sub(pulling));
        }
        self.start = None;
    }

    fn type_of(&self, container: &str) -> &'static str {
        let spec = self.pod.as_ref().and_then(|p| p.spec.as_ref());
        let is_init = spec.is_some_and(|s| spec::init_containers(s).iter().any(|c| c.name == container));
        let is_ephemeral = spec.is_some_and(|s| s.ephemeral_containers.iter().flatten().any(|c| c.name == container));
        match (is_init, is_ephemeral) {
            (true, _) => "init_container",
            (_, true) => "ephemeral_container",
            _ => "container",
        }
    }

    /// The class that the pod names.
    fn handler(&self) -> &str {
        self.pod.as_ref().and_then(|p| p.spec.as_ref()?.runtime_class_name.as_deref()).unwrap_or_default()
    }
}
