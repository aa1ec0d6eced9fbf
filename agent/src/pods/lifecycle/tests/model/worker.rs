//! The worker in the model: what it starts, and what it makes of what it hears. As `pods::worker` does it, without the world
//! around.

use windlass_kit::backoff::delay_after;

use super::{
    docker::{Call, Fault, News, Reply},
    *,
};
use crate::pods::lifecycle::{
    observed::{INITIAL_BACKOFF, MAX_BACKOFF},
    reasons,
    restarts::crash_count,
    time::{normalize_times, saturating_add},
};

/// A step in flight.
#[derive(Debug, Clone)]
pub(super) struct Flight {
    pub(super) call: Call,
    /// How it ended, where the worker has not heard of it yet.
    pub(super) ended: Option<Reply>,
}

impl World {
    pub(super) fn desired(&self) -> Desired<'_> {
        if self.gone { Desired::Deleted { grace: 0, pod: None } } else { Desired::Run(&self.pod) }
    }

    /// Starts what is due.
    pub(super) fn start_due(&mut self) -> Result<(), TestCaseError> {
        if self.pause_until > self.now {
            return Ok(());
        }
        for id in self.observed.take_unread() {
            self.inspect(id);
        }
        let plan = plan(self.desired(), &self.observed, at(self.now));
        if plan.terminates {
            let cancelled = |flight: &Flight| matches!(flight.call.key(), StepKey::Image(_) | StepKey::PostStart(_));
            for flight in self.flights.extract_if(.., |flight| cancelled(flight)) {
                self.observed.in_flight.remove(&flight.call.key());
            }
        }
        for action in plan.actions {
            self.check(&action)?;
            self.start(action);
        }
        Ok(())
    }

    fn start(&mut self, action: Action) {
        let by = |grace: i64| at(self.now + grace.max(0));
        match &action {
            Action::ShortenPreStop { id, grace } => {
                self.observed.stopping.insert(id.clone(), by(*grace));
                return;
            }
            Action::CutPreStop { id } => {
                let is_hook = |flight: &&mut Flight| flight.call.key() == StepKey::PreStop(id.clone());
                if let Some(hook) = self.flights.iter_mut().find(is_hook) {
                    hook.ended = Some(Reply::PreStop(id.clone()));
                }
                return;
            }
            Action::ShortenGrace { id, grace } | Action::PreStop { id, grace, .. } | Action::Stop { id, grace, .. } => {
                self.observed.stopping.insert(id.clone(), by(*grace));
            }
            Action::RefreshVolume { volume } => {
                if let Some(VolumeState::Ready { refresh_at, .. }) = self.observed.volumes.get_mut(volume) {
                    *refresh_at = None;
                }
            }
            _ => {}
        }
        self.push(Call::Plan(action));
    }

    fn push(&mut self, call: Call) {
        self.observed.in_flight.insert(call.key());
        self.flights.push(Flight { call, ended: None });
    }

    fn inspect(&mut self, id: String) {
        if self.observed.in_flight.contains(&StepKey::Inspect(id.clone())) {
            self.observed.unread.insert(id);
        } else {
            self.push(Call::Inspect(id));
        }
    }

    /// The worker hears how a step ended.
    pub(super) fn hear(&mut self, call: &Call, reply: Reply) {
        self.observed.in_flight.remove(&call.key());
        self.learn(reply);
    }

    fn learn(&mut self, reply: Reply) {
        let now = at(self.now);
        match reply {
            Reply::Volume(volume, true) => self.observed.volume_prepared(volume, None),
            Reply::Volume(volume, false) => {
                let why = (reasons::FAILED_MOUNT, "not found".to_owned());
                self.observed.volume_failed(volume, why, false, now);
            }
            Reply::Image(container, Ok(())) => {
                let present = ImageState::Present { id: "x".into(), shown: "x".into(), user: String::new() };
                self.observed.images.insert(container, present);
            }
            Reply::Image(container, Err(fault)) => {
                let count = match self.observed.images.get(&container) {
                    Some(ImageState::Failed(earlier)) => earlier.count + 1,
                    _ => 1,
                };
                if let Some(failure) = self.failure(fault, reasons::ERR_IMAGE_PULL, count) {
                    self.observed.images.insert(container, ImageState::Failed(failure));
                }
            }
            Reply::SandboxCreated(Ok(instance)) => self.upsert(instance),
            Reply::SandboxStarted(Ok(instance)) => {
                self.observed.network_ready.insert(instance.id.clone());
                self.observed.sandbox_failure = None;
                self.upsert(instance);
            }
            Reply::SandboxStarted(Err(fault)) => {
                self.observed.network_failed();
                self.sandbox_failed(fault);
            }
            Reply::SandboxCreated(Err(fault)) => self.sandbox_failed(fault),
            Reply::Created(container, Ok(instance)) => {
                self.observed.start_failures.remove(&container);
                if instance.identity.attempt > 0 {
                    self.count_crash(&container);
                }
                self.observed.images.remove(&container);
                self.upsert(instance);
            }
            Reply::Created(container, Err(fault)) => {
                self.observed.images.remove(&container);
                self.start_failed(container, fault);
            }
            Reply::Started(_, Ok(instance)) => self.upsert(instance),
            Reply::Started(container, Err((fault, instance))) => match instance {
                Some(instance) if instance.exit().is_some() => {
                    self.upsert(instance);
                    if let Some(failure) = self.failure_after(fault, reasons::RUN_CONTAINER_ERROR, 1, 0) {
                        self.observed.start_failures.insert(container, failure);
                    }
                }
                Some(_) => self.start_failed(container, fault),
                None => {
                    self.observed.unread.extend(self.observed.newest(&container).map(|i| i.id.clone()));
                    self.start_failed(container, fault);
                }
            },
            Reply::Inspected(id, Ok(Some(instance))) => {
                self.observed.processes_exited.remove(&id);
                if !instance.is_running() {
                    self.observed.network_ready.remove(&id);
                }
                self.upsert(instance);
            }
            Reply::Inspected(id, Ok(None)) | Reply::Removed(id, Ok(())) => {
                if let Some(gone) = self.observed.remove(&id) {
                    self.links.remove(&gone.id);
                }
            }
            Reply::Inspected(id, Err(_)) => {
                self.observed.processes_exited.remove(&id);
                self.pause_until = self.now + 1;
                self.observed.unread.insert(id);
            }
            Reply::PostStart(id, good) => {
                if !good {
                    self.observed.unhealthy.insert(id.clone());
                }
                self.observed.post_start_done.insert(id);
            }
            Reply::PreStop(id) => drop(self.observed.pre_stop_done.insert(id)),
            Reply::Probed(container, id, probe, good) => self.probed(&container, &id, probe, good),
            Reply::VolumesReleased(Ok(())) => {
                self.observed.volumes_released = true;
                self.observed.volumes.clear();
            }
            Reply::CleanedUp(Ok(())) => self.observed.cleaned_up = true,
            Reply::DeletedFromApi(Ok(())) => self.observed.deleted_from_api = true,
            Reply::Removed(_, Err(_))
            | Reply::VolumesReleased(Err(_))
            | Reply::CleanedUp(Err(_))
            | Reply::DeletedFromApi(Err(_)) => self.pause_until = self.now + 1,
        }
    }

    fn upsert(&mut self, mut instance: Instance) {
        if self.observed.is_outdated(&instance) {
            return;
        }
        if self.observed.begins(&instance) && !self.gone {
            self.links.insert(instance.id.clone());
        }
        if instance.exit().is_some() {
            let key = StepKey::PostStart(instance.id.clone());
            if self.observed.in_flight.remove(&key) {
                self.flights.retain(|flight| flight.call.key() != key);
                self.observed.post_start_done.insert(instance.id.clone());
            }
        }
        instance =
            normalize_times(instance.clone(), self.observed.instance(&instance.id), self.clock_was_set, at(self.now));
        self.observed.upsert(instance);
    }

    fn sandbox_failed(&mut self, fault: Fault) {
        let count = self.observed.sandbox_failure.as_ref().map_or(1, |f| f.count + 1);
        self.observed.sandbox_failure = self.failure(fault, reasons::CREATE_POD_SANDBOX_ERROR, count);
        if let Some(id) = self.observed.sandbox().map(|s| s.id.clone()) {
            self.inspect(id);
        }
    }

    fn count_crash(&mut self, name: &str) {
        let Some(container) = spec::container(self.pod.spec.as_ref().unwrap(), name) else { return };
        let exited = self.observed.newest(name).and_then(|i| Some((i, i.exit()?)));
        let before = exited.map(|(instance, exit)| crash_count(&self.observed, &container, instance, exit));
        let known = before.or_else(|| self.observed.crash_counts.get(name).copied());
        self.observed.crash_counts.insert(name.to_owned(), known.unwrap_or(0) + 1);
    }

    fn start_failed(&mut self, container: String, fault: Fault) {
        let count = self.observed.start_failures.get(&container).map_or(1, |f| f.count + 1);
        if let Some(failure) = self.failure(fault, reasons::CREATE_CONTAINER_ERROR, count) {
            self.observed.start_failures.insert(container, failure);
        }
    }

    fn failure(&mut self, fault: Fault, reason: &'static str, count: u32) -> Option<Failure> {
        let delay = delay_after(INITIAL_BACKOFF, MAX_BACKOFF, count - 1).as_secs();
        self.failure_after(fault, reason, count, delay)
    }

    fn failure_after(&mut self, fault: Fault, reason: &'static str, count: u32, delay: u64) -> Option<Failure> {
        if fault == Fault::Unreachable {
            self.pause_until = self.now + 1;
            return None;
        }
        let now = at(self.now);
        let retry_at = saturating_add(now, std::time::Duration::from_secs(delay));
        Some(Failure { reason, message: "refused".to_owned(), at: now, retry_at, count })
    }

    fn probed(&mut self, name: &str, id: &str, kind: ProbeType, good: bool) {
        let container = spec::container(self.pod.spec.as_ref().unwrap(), name).unwrap();
        let Some(found) = self.observed.newest(name).filter(|i| i.id == id).cloned() else { return };
        probes::record_result(&self.pod, &container, kind, &found, good, at(self.now), &mut self.observed.probes);
        if probes::failed_probe(&container, &found, &self.observed.probes).is_some() {
            self.observed.unhealthy.insert(found.id);
        }
    }

    /// Handles an event from Docker.
    pub(super) fn on_news(&mut self, id: String, news: News) {
        let known = self.observed.instance(&id);
        let is_known = match news {
            News::Started => known.is_some_and(Instance::is_running),
            News::Died => known.is_some_and(|i| i.exit().is_some()),
            News::Destroyed => known.is_none(),
        };
        let terminates = self.gone || self.pod.metadata.deletion_timestamp.is_some();
        if news == News::Died
            && terminates
            && let Some(sandbox) = known.filter(|i| i.is_sandbox() && i.is_running()).cloned()
        {
            let state = State::Exited(Exit::killed(at(self.now)));
            self.upsert(Instance { state, ..sandbox });
            return;
        }
        let busy = self.observed.in_flight.contains(&StepKey::Container(id.clone()));
        if !is_known && (!busy || news == News::Died) {
            self.inspect(id);
        } else if !is_known && news == News::Destroyed {
            self.observed.unread.insert(id);
        }
    }

    /// A list of all containers, as after a lost connection.
    pub(super) fn on_list(&mut self) {
        self.observed.doubt_images();
        let listed = &self.docker.containers;
        let differs = |l: &&Instance| self.observed.instance(&l.id).is_none_or(|i| i.is_running() != l.is_running());
        let differing = listed.iter().filter(differs).map(|l| l.id.clone());
        let vanished =
            self.observed.instances.iter().filter(|i| self.docker.get(&i.id).is_none()).map(|i| i.id.clone());
        let ids: Vec<String> = differing.chain(vanished).collect();
        ids.into_iter().for_each(|id| self.inspect(id));
    }

    /// Drops everything that is not in Docker, as a new process does.
    pub(super) fn adopt(&mut self) {
        self.observed = Observed { adopted_at: Some(at(self.now)), ..Observed::default() };
        (self.pause_until, self.clock_was_set) = (self.now, false);
        self.docker.news.clear();
        self.docker.finish_starts(|_| true, self.now);
        // Dangling links are removed once all containers are listed.
        self.links.retain(|id| self.docker.get(id).is_some());
        for instance in self.docker.containers.clone() {
            if instance.is_running() && instance.is_sandbox() {
                self.observed.network_ready.insert(instance.id.clone());
            }
            self.upsert(instance);
        }
        let pod = (!self.gone).then_some(&self.pod);
        self.observed.adopt(pod);
        // The network of a sandbox that runs is made sure of.
        let deleted = self.gone || self.pod.metadata.deletion_timestamp.is_some();
        if let Some(sandbox) = self.observed.sandbox().filter(|s| s.is_running() && !deleted).map(|s| s.id.clone()) {
            self.push(Call::Plan(Action::StartSandbox { id: sandbox }));
        }
    }
}
