//! What came of the steps: the worker learns from it.

use super::*;
use crate::metrics::Written;

impl Worker {
    pub(super) fn take(&mut self, outcome: Outcome) {
        let now = self.now();
        match outcome {
            Outcome::Image { container, result: Ok(state) } => drop(self.observed.images.insert(container, state)),
            Outcome::Image { container, result: Err(refusal) } => {
                let times = match self.observed.images.get(&container) {
                    Some(ImageState::Failed(earlier)) => earlier.times + 1,
                    _ => 1,
                };
                if let Some(failure) = self.failure(refusal, times, now) {
                    self.observed.images.insert(container, ImageState::Failed(failure));
                }
            }
            Outcome::Volumes(Ok(prepared)) => {
                if let Some(pod) = &self.pod {
                    self.shared.placed.tell(pod, &prepared.places);
                }
                self.volumes = Arc::new(prepared.places);
                self.renew_at(prepared.renew_at);
                self.observed.volumes = true;
                self.observed.volumes_failure = None;
            }
            Outcome::Volumes(Err(refusal)) => {
                self.warn("FailedMount", &refusal);
                let times = self.observed.volumes_failure.as_ref().map_or(1, |f| f.times + 1);
                self.observed.volumes_failure = self.failure_soon(refusal, times, now);
            }
            Outcome::Refreshed(Ok(at)) => self.renew_at(at),
            Outcome::Refreshed(Err(refusal)) => {
                // The files stay as they were until there is something to write.
                self.warn("FailedMount", &refusal);
                self.observed.stale.get_or_insert(later(now, CONTENTS_RETRY));
            }
            Outcome::SandboxCreated(Ok(instance)) => {
                self.know_addresses(&instance);
                self.put(instance);
            }
            Outcome::SandboxStarted { result: Ok(instance) } => {
                self.observed.attached.insert(instance.id.clone());
                self.observed.sandbox_failure = None;
                self.know_addresses(&instance);
                self.put(instance);
            }
            Outcome::SandboxCreated(Err(refusal)) | Outcome::SandboxStarted { result: Err(refusal) } => {
                let reason = match refusal.reason {
                    NETWORK_NOT_READY => NETWORK_NOT_READY,
                    _ => "FailedCreatePodSandBox",
                };
                self.warn(reason, &refusal);
                let times = self.observed.sandbox_failure.as_ref().map_or(1, |f| f.times + 1);
                self.observed.sandbox_failure = self.failure_soon(refusal, times, now);
                if let Some(id) = self.observed.sandbox().map(|s| s.id.clone()) {
                    self.look(id);
                }
            }
            Outcome::Created { container, result: Ok(instance) } => {
                self.observed.start_failures.remove(&container);
                let attempt = instance.identity.attempt;
                if attempt > 0 {
                    self.count_crash(&container, attempt);
                }
                // Policy Always pulls before every start.
                if self.container(&container).is_some_and(|c| c.image_pull_policy.as_deref() == Some("Always")) {
                    self.observed.images.remove(&container);
                }
                self.put(instance);
            }
            Outcome::Created { container, result: Err(refusal) } => self.start_failed(container, refusal, now),
            Outcome::Started { result: Ok(seen), .. } => {
                if let Some(instance) = seen {
                    self.put(instance);
                }
            }
            Outcome::Started { container, result: Err((refusal, seen)) } => {
                match seen {
                    // Docker has made an exited container of it: the restart policy decides.
                    Some(instance) if matches!(instance.state, State::Exited(_)) => {
                        self.put(instance);
                        self.run_failed(container, refusal, now);
                    }
                    _ => self.start_failed(container, refusal, now),
                }
            }
            Outcome::GivenUp => {}
            Outcome::Silent { id } => drop(self.observed.silent.insert(id)),
            Outcome::Seen { result: Ok(Some(instance)), .. } => {
                // Docker's word is the later one: what it still calls running is stopped again.
                self.observed.silent.remove(&instance.id);
                if !instance.is_running() {
                    self.observed.attached.remove(&instance.id);
                }
                self.put(instance);
            }
            Outcome::Seen { id, result: Ok(None) } => self.observed.forget(&id),
            Outcome::Seen { id, result: Err(error) } => {
                self.observed.silent.remove(&id);
                // That Docker is away is told once, for all.
                if !error.is_unreachable() {
                    tracing::warn!(pod = self.uid, container = id, %error, "a container could not be looked at; it is tried again");
                }
                self.pause_until = Some(later(now, UNREACHABLE_RETRY));
            }
            Outcome::Hooked { id, result } => {
                if let Err(why) = result {
                    self.observed.condemned.insert(id.clone());
                    let whose = self.observed.instances.iter().find(|i| i.id == id);
                    if let Some(container) = whose.map(|i| i.identity.container.clone()) {
                        self.run_failed(container, Refusal::new("PostStartHookError", why), now);
                    }
                }
                self.observed.hooked.insert(id);
            }
            Outcome::Resized { id, result: Ok(seen) } => {
                self.observed.resize_failure = None;
                match seen {
                    Some(instance) => self.put(instance),
                    None => self.observed.forget(&id),
                }
            }
            Outcome::Resized { result: Err(refusal), .. } => {
                let times = self.observed.resize_failure.as_ref().map_or(1, |f| f.times + 1);
                self.observed.resize_failure = self.failure(refusal, times, now);
            }
            Outcome::Probed { container, id, kind, answer } => self.probed(&container, &id, kind, &answer, now),
            Outcome::Removed { id, result: Ok(()) } => self.observed.forget(&id),
            Outcome::VolumesCleared(Ok(())) => {
                self.observed.cleared = true;
                self.observed.volumes = false;
            }
            Outcome::TornDown(Ok(())) => self.observed.torn_down = true,
            Outcome::Forgotten(Ok(())) => self.observed.forgotten = true,
            Outcome::Removed { result: Err(refusal), .. }
            | Outcome::VolumesCleared(Err(refusal))
            | Outcome::TornDown(Err(refusal))
            | Outcome::Forgotten(Err(refusal)) => {
                self.warn("FailedKillPod", &refusal);
                self.pause_until = Some(later(now, UNREACHABLE_RETRY));
            }
            Outcome::Patched { from, result: Ok(pod) } => {
                // An answer that changed nothing would be followed by the same patch at once, for ever.
                let stuck = version(&pod) == from;
                if stuck {
                    let written = if self.mirror.is_some() { Written::MirrorStatus } else { Written::PodStatus };
                    self.shared.metrics.empty_write(written, spec::name(&pod));
                }
                self.refused.reset();
                self.patch_after = stuck.then(|| later(now, STUCK_RETRY));
                match &mut self.mirror {
                    Some(mirror) => *mirror = Arc::new(*pod),
                    None => self.take_answer(&Arc::new(*pod)),
                }
            }
            // Gone, or its name is another pod's by now, here or on another node: the watch is about to tell, and until
            // then the same write would be refused again.
            Outcome::Patched { result: Err(kube::Error::Api(status)), .. }
                if matches!(status.code, 403 | 404 | 409 | 422) =>
            {
                // What is invalid stays so: somebody must hear of it, once.
                if status.code == 422 && self.told_invalid.as_ref() != Some(&status.message) {
                    tracing::warn!(
                        pod = self.uid,
                        "the API holds this pod's status to be invalid, so that it shows an old one: {}",
                        status.message
                    );
                    self.told_invalid = Some(status.message);
                } else {
                    tracing::debug!(pod = self.uid, code = status.code, "a status was refused: {}", status.message);
                }
                self.patch_after = Some(later(now, self.refused.next_delay()));
            }
            Outcome::Patched { result: Err(error), .. } => {
                tracing::warn!(pod = self.uid, %error, "a pod's status could not be written; it is tried again");
                self.patch_after = Some(later(now, API_RETRY));
            }
        }
    }

    fn probed(&mut self, container: &str, id: &str, kind: Kind, answer: &Answer, now: Timestamp) {
        let (Some(pod), Some(container)) = (self.pod.clone(), self.container(container)) else { return };
        // It may have been followed by another meanwhile.
        let Some(instance) = self.observed.newest(&container.name).filter(|i| i.id == id).cloned() else { return };
        if matches!(answer, Answer::Unknown(_)) {
            return probes::unanswered(&pod, &container, kind, &instance, now, &mut self.observed.probes);
        }
        let good = !matches!(answer, Answer::Bad(_));
        probes::note(&pod, &container, kind, &instance, good, now, &mut self.observed.probes);
        if probes::condemned(&container, &instance, &self.observed.probes).is_some() {
            self.observed.condemned.insert(instance.id);
        }
    }

    fn know_addresses(&mut self, sandbox: &Instance) {
        if !sandbox.addresses.is_empty() {
            self.observed.addresses.clone_from(&sandbox.addresses);
        }
    }

    /// Sees to it that what volumes hold is written anew by then.
    fn renew_at(&mut self, at: Option<Timestamp>) {
        self.observed.stale = self.observed.stale.into_iter().chain(at).min();
    }

    /// Remembers a restart, so that the next back-off is longer.
    fn count_crash(&mut self, container: &str, attempt: u32) {
        let Some(spec_of) = self.container(container) else { return };
        let before = self.observed.newest(container).and_then(|i| match &i.state {
            State::Exited(exit) => Some(crate::pods::plan::crashes(&self.observed, i, exit, &spec_of)),
            _ => None,
        });
        let crashes = before.unwrap_or(attempt.saturating_sub(1)).saturating_add(1);
        self.observed.crashes.insert(container.to_owned(), crashes);
    }

    fn start_failed(&mut self, container: String, refusal: Refusal, now: Timestamp) {
        let times = self.observed.start_failures.get(&container).map_or(1, |f| f.times + 1);
        if let Some(failure) = self.failure(refusal, times, now) {
            self.observed.start_failures.insert(container, failure);
        }
    }

    /// A run that ended before it had begun: what is shown of it. When it is tried again the restart policy says.
    fn run_failed(&mut self, container: String, refusal: Refusal, now: Timestamp) {
        if let Some(failure) = self.failure_after(refusal, 1, now, Duration::ZERO) {
            self.observed.start_failures.insert(container, failure);
        }
    }

    /// A failure with the crash back-off; `None`, and a pause, when Docker did not answer.
    fn failure(&mut self, refusal: Refusal, times: u32, now: Timestamp) -> Option<Failure> {
        self.failure_after(refusal, times, now, delay_after(BACKOFF_BASE, BACKOFF_CAP, times - 1))
    }

    /// The same with a quick first retry, for what the pod itself is not to blame for.
    fn failure_soon(&mut self, refusal: Refusal, times: u32, now: Timestamp) -> Option<Failure> {
        self.failure_after(refusal, times, now, delay_after(Duration::from_secs(1), Duration::from_secs(60), times - 1))
    }

    fn failure_after(&mut self, refusal: Refusal, times: u32, now: Timestamp, delay: Duration) -> Option<Failure> {
        if refusal.unreachable {
            self.pause_until = Some(later(now, UNREACHABLE_RETRY));
            return None;
        }
        Some(Failure { reason: refusal.reason, message: refusal.message, at: now, retry_at: later(now, delay), times })
    }

    fn warn(&self, reason: &str, refusal: &Refusal) {
        if refusal.unreachable {
            return;
        }
        tracing::warn!(pod = self.pod.as_deref().map_or(self.uid.as_str(), spec::name), reason, "{}", refusal.message);
        if let Some(pod) = &self.pod {
            self.shared.event(pod, None, Severity::Warning, reason, refusal.message.clone());
        }
    }
}
