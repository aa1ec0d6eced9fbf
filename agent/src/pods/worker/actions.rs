//! From a plan's actions to steps in flight.

use std::sync::Arc;

use futures::FutureExt as _;
use k8s_openapi::api::core::v1::{Container, Pod};
use tokio_util::sync::CancellationToken;
use windlass_kit::events::Severity;

use super::{Worker, metrics::StartTimes};
use crate::{
    engine::inspect::Instance,
    pods::{
        lifecycle::{
            action::Action, observed::ImageState, spec, step_key::StepKey, time::after_grace, volumes::VolumeState,
        },
        steps::{self, ContainerRef, outcome::Outcome, pidfd::InitProcess},
    },
    volumes::object_watch::{Freshness, ObjectReader},
};

impl Worker {
    /// Starts a step.
    pub(super) fn push(&mut self, key: StepKey, step: impl Future<Output = Outcome> + Send + 'static) {
        self.observed.in_flight.insert(key.clone());
        let timed = self.timed(&key);
        let step = async move {
            let outcome = step.await;
            drop(timed);
            (key, outcome)
        };
        self.steps.push(step.boxed());
    }

    /// The token that cancels a step.
    fn cancellation(&mut self, key: &StepKey) -> CancellationToken {
        let token = CancellationToken::new();
        self.cancellations.insert(key.clone(), token.clone());
        token
    }

    /// Starts a step that may be cancelled at any point.
    fn push_cancellable(&mut self, key: StepKey, step: impl Future<Output = Outcome> + Send + 'static) {
        let cancelled = self.cancellation(&key).cancelled_owned();
        self.push(key, async move {
            tokio::select! {
                biased;
                outcome = step => outcome,
                () = cancelled => Outcome::Cancelled,
            }
        });
    }

    /// Cancels the hooks of a container that has exited.
    pub(super) fn cancel_hooks(&mut self, id: &str) {
        self.cancel(&StepKey::PostStart(id.to_owned()));
        self.cancel(&StepKey::PreStop(id.to_owned()));
        if self.observed.in_flight.contains(&StepKey::PostStart(id.to_owned())) {
            // Later containers do not wait for a hook that can no longer run.
            self.observed.post_start_done.insert(id.to_owned());
        }
    }

    /// The ConfigMaps and Secrets that the pod references.
    fn contents(&self, need: Freshness) -> ObjectReader {
        ObjectReader::new(self.context.node.client.clone(), self.object_watches.clone(), need)
    }

    pub(super) fn container(&self, name: &str) -> Option<Container> {
        spec::container(self.pod.as_ref()?.spec.as_ref()?, name)
    }

    fn container_ref(&self, container: &str, id: String) -> Option<ContainerRef> {
        let pod = self.pod.clone()?;
        let host_network = pod.spec.as_ref().is_some_and(spec::host_network);
        let address = match host_network {
            true => Some(self.context.node.config.node_ips.first()),
            false => self.observed.addresses.first().copied(),
        };
        Some(ContainerRef { container: self.container(container)?, pod, id, address })
    }

    /// Starts the step of an action.
    pub(super) fn start(&mut self, action: Action) {
        let key = action.key();
        let context = Arc::clone(&self.context);
        let pod = match action {
            Action::StartSandbox { .. } | Action::Create { .. } | Action::Start { .. } => {
                self.pod_with_actual_resources()
            }
            _ => self.pod.clone(),
        };
        match (action, pod) {
            // Steps that terminate a pod need no object; those that run one have it.
            (
                action @ (Action::ShortenGrace { .. }
                | Action::PreStop { .. }
                | Action::ShortenPreStop { .. }
                | Action::CutPreStop { .. }
                | Action::Stop { .. }
                | Action::Remove { .. }
                | Action::RemoveSandbox { .. }
                | Action::ReleaseVolumes
                | Action::CleanUp),
                _,
            ) => self.start_termination(key, action),
            (_, None) => {}
            (Action::PrepareVolume { volume }, Some(pod)) => self.prepare_volume(key, pod, &volume, Freshness::Live),
            (Action::RefreshVolume { volume }, Some(pod)) => {
                if let Some(VolumeState::Ready { refresh_at, .. }) = self.observed.volumes.get_mut(&volume) {
                    *refresh_at = None;
                }
                self.prepare_volume(key, pod, &volume, Freshness::Watched);
            }
            (Action::EnsureImage { container, ahead }, Some(pod)) => {
                if let Some(container) = self.container(&container) {
                    self.start.iter_mut().for_each(StartTimes::image_requested);
                    let known = self.observed.doubtful_image(&container.name).map(str::to_owned);
                    self.push_cancellable(key, steps::ensure_image(context, pod, container, known, ahead));
                }
            }
            (Action::CreateSandbox { attempt }, Some(pod)) => {
                if attempt > 0 {
                    let message = "Pod sandbox changed, it will be killed and re-created.";
                    self.context.event(&pod, None, Severity::Normal, "SandboxChanged", message);
                }
                self.push(key, steps::create_sandbox(context, pod, attempt));
            }
            (Action::StartSandbox { id }, Some(pod)) => {
                if let Some(sandbox) = self.observed.instance(&id).cloned() {
                    self.push(key, steps::start_sandbox(context, pod, sandbox));
                }
            }
            (Action::Create { container, attempt, sandbox }, Some(pod)) => {
                self.create(key, pod, &container, attempt, sandbox);
            }
            (Action::Start { container, id }, Some(pod)) => self.push(key, steps::start(context, pod, container, id)),
            (Action::PostStart { container, id }, Some(_)) => {
                if let Some(target) = self.container_ref(&container, id) {
                    self.push_cancellable(key, steps::post_start(context, target));
                }
            }
            (Action::Probe { container, id, probe }, Some(_)) => {
                if let Some(target) = self.container_ref(&container, id) {
                    self.push(key, steps::probe(context, target, probe));
                }
            }
            (Action::Resize(step), Some(_)) => {
                if let Some(target) = self.container_ref(&step.container, step.id.clone()) {
                    self.push(key, steps::resize(context, target, step));
                }
            }
            (Action::ResizePod { resource }, Some(pod)) => self.push(key, steps::resize_pod(context, pod, resource)),
            (Action::DeleteFromApi, Some(pod)) => {
                self.release_reservation();
                self.push(key, steps::delete_from_api(context, pod));
            }
        }
    }

    fn prepare_volume(&mut self, key: StepKey, pod: Arc<Pod>, name: &str, freshness: Freshness) {
        let mut volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
        let Some(volume) = volumes.find(|v| v.name == name).cloned() else { return };
        let (cancelled, contents) = (self.cancellation(&key), self.contents(freshness));
        self.push(key, steps::prepare_volume(Arc::clone(&self.context), pod, volume, contents, cancelled));
    }

    /// Starts the step of an action that terminates a pod.
    fn start_termination(&mut self, key: StepKey, action: Action) {
        let (context, uid) = (Arc::clone(&self.context), self.uid.clone());
        match action {
            Action::ShortenGrace { id, grace } => {
                let deadline = after_grace(self.now(), grace);
                self.observed.stopping.insert(id.clone(), deadline);
                self.push(key, steps::stop(context, id, grace));
            }
            Action::PreStop { container, id, grace, message } => {
                self.begin_stop(&container, &id, grace, message);
                match self.container_ref(&container, id.clone()) {
                    Some(target) => {
                        let cut = self.cancellation(&key);
                        self.push(key, steps::pre_stop(context, target, cut));
                    }
                    None => self.push(key, async { Outcome::PreStopDone { id } }),
                }
            }
            Action::ShortenPreStop { id, grace } => {
                let deadline = after_grace(self.now(), grace);
                self.observed.stopping.insert(id, deadline);
            }
            Action::CutPreStop { id } => self.cancel(&StepKey::PreStop(id)),
            Action::Stop { container, id, grace, message } => {
                self.begin_stop(&container, &id, grace, message);
                self.push(key, steps::stop(context, id, grace));
            }
            Action::Remove { id } => self.push(key, steps::remove(context, id)),
            Action::RemoveSandbox { id } => {
                // The address belongs to the newest sandbox; an older one no longer has it.
                let newest = self.observed.sandbox().is_some_and(|s| s.id == id);
                self.push(key, steps::remove_sandbox(context, id, newest.then_some(uid)));
            }
            Action::ReleaseVolumes => self.push(key, steps::release_volumes(context, uid)),
            Action::CleanUp => self.push(key, steps::clean_up(context, uid)),
            _ => {}
        }
    }

    /// The grace period of a container begins, with its preStop hook or without one.
    fn begin_stop(&mut self, container: &str, id: &str, grace: i64, message: String) {
        let deadline = after_grace(self.now(), grace);
        let first = self.observed.stopping.insert(id.to_owned(), deadline).is_none();
        if let Some(pod) = self.pod.as_ref().filter(|_| first) {
            let message = if message.is_empty() { format!("Stopping container {container}") } else { message };
            self.context.event(pod, Some(container), Severity::Normal, "Killing", message);
        }
        self.watch_exit(id);
    }

    fn cancel(&self, key: &StepKey) {
        if let Some(token) = self.cancellations.get(key) {
            token.cancel();
        }
    }

    /// Waits for the kernel's report that the processes of a container have exited: the engine's comes a moment later,
    /// and the next sidecar or the sandbox need not wait for it.
    fn watch_exit(&mut self, id: &str) {
        let key = StepKey::WaitForExit(id.to_owned());
        let process = self.observed.instance(id).and_then(Instance::process);
        let process = process.filter(|_| !self.observed.in_flight.contains(&key));
        if let Some(init) = process.and_then(|process| InitProcess::of(&process)) {
            let id = id.to_owned();
            self.push(key, async move {
                init.exited().await;
                Outcome::ProcessesExited { id }
            });
        }
    }

    fn create(&mut self, key: StepKey, pod: Arc<Pod>, name: &str, attempt: u32, sandbox: String) {
        let Some(container) = pod.spec.as_ref().and_then(|s| spec::container(s, name)) else { return };
        let Some(ImageState::Present { id, shown, user }) = self.observed.images.get(name).cloned() else { return };
        let has_class = pod.spec.as_ref().and_then(|s| s.runtime_class_name.as_deref()).is_some_and(|c| !c.is_empty());
        let runtime = self.observed.instance(&sandbox).map(|instance| instance.runtime.clone());
        let request = steps::CreateRequest {
            container,
            attempt,
            runtime: runtime.filter(|runtime| has_class && !runtime.is_empty()),
            sandbox,
            image_id: id,
            image_shown: shown,
            image_user: user,
            volumes: Arc::clone(&self.volumes),
            contents: self.contents(Freshness::Live),
            target: self.ephemeral_target(name),
            addresses: self.observed.addresses.clone(),
        };
        self.push(key, steps::create(Arc::clone(&self.context), pod, request));
    }

    /// The id of the running container whose process namespace an ephemeral one joins.
    fn ephemeral_target(&self, name: &str) -> Option<String> {
        let target = spec::ephemeral_target(self.pod.as_ref()?.spec.as_ref()?, name)?;
        self.observed.newest(target).filter(|i| i.is_running()).map(|i| i.id.clone())
    }
}
