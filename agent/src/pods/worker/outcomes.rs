//! What a worker learns from the outcomes of its steps.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use windlass_kit::{backoff::delay_after, events::Severity};

use super::Worker;
use crate::{
    engine::{
        EngineError,
        inspect::{Instance, State},
    },
    metrics::WriteKind,
    pods::{
        lifecycle::{
            observed::{Failure, INITIAL_BACKOFF, ImageState, MAX_BACKOFF},
            patch::version,
            probes::{self, ProbeType},
            reasons,
            restarts::crash_count,
            spec,
            time::saturating_add,
        },
        steps::{
            HookResult,
            outcome::{Outcome, StepError},
            prober::ProbeResult,
        },
    },
    volumes::PreparedVolume,
};

/// The retry after the engine did not answer: nothing is wrong with the pod, so it comes soon.
const UNREACHABLE_RETRY: Duration = Duration::from_secs(1);
/// The first and the longest delay before a step is retried whose failure is not the container's.
const POD_STEP_RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// The retry of a request to the API.
pub(super) const API_RETRY: Duration = Duration::from_secs(1);
/// The retry of a status that the API accepts and does not store, and the longest delay after refusals.
pub(super) const UNCHANGED_STATUS_RETRY: Duration = Duration::from_secs(30);

impl Worker {
    pub(super) fn apply_outcome(&mut self, outcome: Outcome) {
        let now = self.now();
        match outcome {
            Outcome::Cancelled => {}
            Outcome::Image { container, ahead, result } => self.apply_image(container, ahead, result, now),
            Outcome::VolumePrepared { volume, result } => self.apply_volume(volume, result, now),
            Outcome::SandboxCreated(Ok(instance)) => {
                self.learn_addresses(&instance);
                self.upsert(instance);
            }
            Outcome::SandboxStarted(Ok(instance)) => {
                self.observed.network_ready.insert(instance.id.clone());
                self.observed.sandbox_failure = None;
                self.learn_addresses(&instance);
                self.upsert(instance);
            }
            Outcome::SandboxCreated(Err(error)) => self.sandbox_failed(error, now),
            Outcome::SandboxStarted(Err(error)) => {
                self.observed.network_failed();
                self.sandbox_failed(error, now);
            }
            Outcome::Created { container, result: Ok(instance) } => self.apply_created(&container, instance),
            Outcome::Created { container, result: Err(error) } => {
                // It may be gone, or another one by the next try.
                self.observed.images.remove(&container);
                self.start_failed(container, error, now);
            }
            Outcome::Started { result: Ok(instance), .. } => {
                if let Some(instance) = instance {
                    self.upsert(instance);
                }
            }
            Outcome::Started { container, result: Err((error, instance)) } => match instance {
                // The engine has made an exited container of it: the restart policy decides.
                Some(instance) if matches!(instance.state, State::Exited(_)) => {
                    self.upsert(instance);
                    self.run_failed(container, error, now);
                }
                Some(_) => self.start_failed(container, error, now),
                // It may run, or have run to its end, as far as anybody knows.
                None => {
                    self.observed.unread.extend(self.observed.newest(&container).map(|i| i.id.clone()));
                    self.start_failed(container, error, now);
                }
            },
            Outcome::ProcessesExited { id } => drop(self.observed.processes_exited.insert(id)),
            Outcome::PreStopDone { id } => drop(self.observed.pre_stop_done.insert(id)),
            Outcome::Inspected { id, result } => self.apply_inspected(&id, result, now),
            Outcome::PostStartDone { id, result } => self.apply_post_start(id, result, now),
            Outcome::Resized { id, result: Ok(instance) } => {
                self.observed.resize_failure = None;
                match instance {
                    Some(instance) => self.upsert(instance),
                    None => self.forget(&id),
                }
            }
            Outcome::PodResized(Ok(())) => self.observed.resize_failure = None,
            Outcome::Resized { result: Err(error), .. } | Outcome::PodResized(Err(error)) => {
                let count = self.observed.resize_failure.as_ref().map_or(1, |f| f.count + 1);
                self.observed.resize_failure = self.failure(error, count, now);
            }
            Outcome::Probed { container, id, probe, result } => {
                self.apply_probe(&container, &id, probe, &result, now);
            }
            Outcome::Removed { id, result: Ok(()) } => self.forget(&id),
            Outcome::VolumesReleased(Ok(())) => {
                self.observed.volumes_released = true;
                self.observed.volumes.clear();
            }
            Outcome::CleanedUp(Ok(())) => self.observed.cleaned_up = true,
            Outcome::DeletedFromApi(Ok(())) => self.observed.deleted_from_api = true,
            Outcome::Removed { result: Err(error), .. }
            | Outcome::VolumesReleased(Err(error))
            | Outcome::CleanedUp(Err(error))
            | Outcome::DeletedFromApi(Err(error)) => {
                let message = format!("error killing pod: {}", error.message);
                self.warn(reasons::FAILED_KILL_POD, &StepError { message, ..error });
                self.pause_until = Some(saturating_add(now, UNREACHABLE_RETRY));
            }
            Outcome::StatusPatched { from, result } => self.apply_patched(from, result, now),
        }
    }

    fn apply_image(&mut self, container: String, ahead: bool, result: Result<ImageState, StepError>, now: Timestamp) {
        let error = match result {
            Ok(state) => return drop(self.observed.images.insert(container, state)),
            Err(error) => error,
        };
        let count = match self.observed.images.get(&container) {
            Some(ImageState::Failed(earlier)) => earlier.count + 1,
            Some(ImageState::FailedAhead(earlier)) if ahead => earlier.count + 1,
            _ => 1,
        };
        if let Some(failure) = self.failure(error, count, now) {
            let failed = if ahead { ImageState::FailedAhead(failure) } else { ImageState::Failed(failure) };
            self.observed.images.insert(container, failed);
        }
    }

    /// What became of one volume, which was set up or refreshed.
    fn apply_volume(&mut self, volume: String, result: Result<PreparedVolume, (StepError, bool)>, now: Timestamp) {
        match result {
            Ok(PreparedVolume { place, renew_at }) => {
                if self.volumes.get(&volume) != Some(&place) {
                    Arc::make_mut(&mut self.volumes).insert(volume.clone(), place);
                    if let Some(pod) = &self.pod {
                        self.context.node.volumes.update(pod, &self.volumes);
                    }
                }
                self.observed.volume_prepared(volume, renew_at);
            }
            Err((error, _)) if error.unreachable => self.pause_until = Some(saturating_add(now, UNREACHABLE_RETRY)),
            Err((error, pending)) => {
                let (reason, message) = (error.reason, error.message.clone());
                if self.observed.volume_failed(volume, (reason, message), pending, now) {
                    self.warn(reasons::FAILED_MOUNT, &error);
                }
            }
        }
    }

    fn sandbox_failed(&mut self, error: StepError, now: Timestamp) {
        let reason = match error.reason {
            reasons::NETWORK_NOT_READY => reasons::NETWORK_NOT_READY,
            _ => reasons::FAILED_CREATE_POD_SANDBOX,
        };
        // Upstream's prefix of the event alone.
        let prefix = if reason == reasons::NETWORK_NOT_READY { "" } else { "Failed to create pod sandbox: " };
        self.warn(reason, &StepError { message: format!("{prefix}{}", error.message), ..error.clone() });
        let count = self.observed.sandbox_failure.as_ref().map_or(1, |f| f.count + 1);
        self.observed.sandbox_failure = self.pod_step_failure(error, count, now);
        if let Some(id) = self.observed.sandbox().map(|s| s.id.clone()) {
            self.inspect(id);
        }
    }

    fn apply_created(&mut self, container: &str, instance: Instance) {
        self.observed.start_failures.remove(container);
        if instance.identity.attempt > 0 {
            self.count_crash(container);
        }
        // Its name may refer to another one by the next start.
        self.observed.images.remove(container);
        self.upsert(instance);
    }

    fn apply_inspected(&mut self, id: &str, result: Result<Option<Instance>, EngineError>, now: Timestamp) {
        match result {
            Ok(Some(instance)) => {
                // The engine's state wins over the pidfd: a container that it still reports running is stopped again.
                self.observed.processes_exited.remove(&instance.id);
                if !instance.is_running() {
                    self.observed.network_ready.remove(&instance.id);
                }
                self.upsert(instance);
            }
            Ok(None) => self.forget(id),
            Err(error) => {
                self.observed.processes_exited.remove(id);
                // That the engine is down is logged once, by the engine watcher.
                if !error.is_unreachable() {
                    tracing::warn!(pod = self.uid, container = id, %error, "failed to inspect container; retrying");
                }
                self.pause_until = Some(saturating_add(now, UNREACHABLE_RETRY));
                self.observed.unread.insert(id.to_owned());
            }
        }
    }

    fn apply_post_start(&mut self, id: String, result: HookResult, now: Timestamp) {
        if let Err(error) = result {
            self.observed.unhealthy.insert(id.clone());
            let container = self.observed.instance(&id).map(|i| i.identity.container.clone());
            if let Some(container) = container {
                self.run_failed(container, StepError::new(reasons::POST_START_HOOK_ERROR, error.to_string()), now);
            }
        }
        self.observed.post_start_done.insert(id);
    }

    fn apply_probe(&mut self, container: &str, id: &str, probe: ProbeType, result: &ProbeResult, now: Timestamp) {
        let (Some(pod), Some(container)) = (self.pod.clone(), self.container(container)) else { return };
        // Another instance may have replaced it meanwhile.
        let Some(instance) = self.observed.newest(&container.name).filter(|i| i.id == id).cloned() else { return };
        if matches!(result, ProbeResult::Unknown(_)) {
            return probes::record_unknown(&pod, &container, probe, &instance, now, &mut self.observed.probes);
        }
        let success = !matches!(result, ProbeResult::Failure(_));
        probes::record_result(&pod, &container, probe, &instance, success, now, &mut self.observed.probes);
        if probes::failed_probe(&container, &instance, &self.observed.probes).is_some() {
            self.observed.unhealthy.insert(instance.id);
        }
    }

    fn apply_patched(&mut self, from: u64, result: Result<Box<Pod>, kube::Error>, now: Timestamp) {
        match result {
            Ok(pod) => {
                // A response that changed nothing would be followed by the same patch at once, for ever.
                let unchanged = version(&pod) == from;
                if unchanged {
                    let written = if self.mirror.is_some() { WriteKind::MirrorStatus } else { WriteKind::PodStatus };
                    self.context.node.metrics.count_empty_write(written, spec::name(&pod));
                }
                self.refused_patches.reset();
                self.patch_after = unchanged.then(|| saturating_add(now, UNCHANGED_STATUS_RETRY));
                match &mut self.mirror {
                    Some(mirror) => *mirror = Arc::new(*pod),
                    None => self.apply_response(&Arc::new(*pod)),
                }
            }
            // The pod was deleted, or its name belongs to another pod by now, here or on another node: the watch is
            // about to say so, and until then the same patch would be refused again.
            Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404 | 409 | 422) => {
                // An invalid status stays invalid: it is logged once.
                if status.code == 422 && self.logged_invalid.as_ref() != Some(&status.message) {
                    let error = &status.message;
                    tracing::warn!(
                        pod = self.uid,
                        error,
                        "the API rejects the pod's status as invalid and shows an old one"
                    );
                    self.logged_invalid = Some(status.message);
                } else {
                    let error = &status.message;
                    tracing::debug!(pod = self.uid, code = status.code, error, "the API refused a status patch");
                }
                self.patch_after = Some(saturating_add(now, self.refused_patches.next_delay()));
            }
            Err(error) => {
                tracing::warn!(pod = self.uid, error = %windlass_kit::client::message(&error), "failed to patch pod status; retrying");
                self.patch_after = Some(saturating_add(now, API_RETRY));
            }
        }
    }

    fn learn_addresses(&mut self, sandbox: &Instance) {
        if !sandbox.addresses.is_empty() {
            self.observed.addresses.clone_from(&sandbox.addresses);
        }
    }

    /// Counts a restart, so that the next back-off is longer.
    fn count_crash(&mut self, name: &str) {
        let Some(container) = self.container(name) else { return };
        let exited = self.observed.newest(name).and_then(|i| Some((i, i.exit()?)));
        let before = exited.map(|(instance, exit)| crash_count(&self.observed, &container, instance, exit));
        let known = before.or_else(|| self.observed.crash_counts.get(name).copied());
        let crashes = known.unwrap_or(0).saturating_add(1);
        self.observed.crash_counts.insert(name.to_owned(), crashes);
    }

    fn start_failed(&mut self, container: String, error: StepError, now: Timestamp) {
        let count = self.observed.start_failures.get(&container).map_or(1, |f| f.count + 1);
        if let Some(failure) = self.failure(error, count, now) {
            self.observed.start_failures.insert(container, failure);
        }
    }

    /// A run that failed at its start: the failure is shown, and the restart policy says when it is retried.
    fn run_failed(&mut self, container: String, error: StepError, now: Timestamp) {
        if let Some(failure) = self.failure_after(error, 1, now, Duration::ZERO) {
            self.observed.start_failures.insert(container, failure);
        }
    }

    /// A failure with the crash back-off; `None`, and a pause, when the engine did not answer.
    fn failure(&mut self, error: StepError, count: u32, now: Timestamp) -> Option<Failure> {
        self.failure_after(error, count, now, delay_after(INITIAL_BACKOFF, MAX_BACKOFF, count - 1))
    }

    /// A failure of a step that is not the container's fault, with a short back-off.
    fn pod_step_failure(&mut self, error: StepError, count: u32, now: Timestamp) -> Option<Failure> {
        let (first, max) = POD_STEP_RETRY;
        self.failure_after(error, count, now, delay_after(first, max, count - 1))
    }

    fn failure_after(&mut self, error: StepError, count: u32, now: Timestamp, delay: Duration) -> Option<Failure> {
        if error.unreachable {
            self.pause_until = Some(saturating_add(now, UNREACHABLE_RETRY));
            return None;
        }
        let StepError { reason, message, .. } = error;
        Some(Failure { reason, message, at: now, retry_at: saturating_add(now, delay), count })
    }

    fn warn(&self, reason: &str, error: &StepError) {
        if error.unreachable {
            return;
        }
        tracing::warn!(pod = self.pod.as_deref().map_or(self.uid.as_str(), spec::name), reason, "{}", error.message);
        if let Some(pod) = &self.pod {
            self.context.event(pod, None, Severity::Warning, reason, error.message.clone());
        }
    }
}
