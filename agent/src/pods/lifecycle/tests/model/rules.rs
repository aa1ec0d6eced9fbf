//! What must hold at every step.

use super::*;

impl World {
    /// What an action must not do, by what is observed before it.
    pub(super) fn check(&self, action: &Action) -> Result<(), TestCaseError> {
        let spec = self.pod.spec.as_ref().unwrap();
        let deleted = self.pod.metadata.deletion_timestamp.is_some();
        let ended = deleted || self.observed.kill.is_some();
        match action {
            Action::CreateSandbox { .. } => prop_assert!(!ended, "no sandbox for a pod that terminates"),
            Action::Remove { id } if !deleted => {
                let stays = self.observed.instance(id).is_some_and(|i| i.state != State::Created);
                prop_assert!(
                    self.observed.kill.is_none() || !stays,
                    "exited containers of a killed pod stay: {action:?}"
                );
            }
            Action::Create { container, attempt, sandbox } => {
                prop_assert!(!ended, "nothing is created for a pod that terminates: {action:?}");
                let role = spec::all_containers(spec).find(|(c, _)| c.name == *container).map(|(_, r)| r).unwrap();
                let last = self.observed.newest(container);
                if let Some(last) = last {
                    prop_assert!(last.identity.attempt < *attempt, "attempts grow: {action:?} after {last:?}");
                    // The restart policy: a final exit is followed by another run only when all of the pod restarts.
                    let same = last.sandbox == *sandbox && !self.view().predates_restart(last);
                    if let (State::Exited(exit), true) = (&last.state, same) {
                        let found = spec::container(spec, container).unwrap();
                        let failed = self.observed.unhealthy.contains(&last.id);
                        prop_assert!(
                            spec::on_exit(spec, &found, role, exit.code) != OnExit::Nothing
                                || (failed && spec::restarts_after_failure(spec, &found, role)),
                            "{action:?} after {last:?}"
                        );
                    }
                }
                // Once a regular container was created, the init containers have done their part.
                let view = self.view();
                let is_of_now = |i: &Instance| i.sandbox == *sandbox && !view.predates_restart(i);
                let initialized = spec.containers.iter().any(|c| self.observed.newest(&c.name).is_some_and(is_of_now));
                prop_assert!(!(initialized && role == Role::Init), "{container} runs again under the others");
                if role == Role::Main && !initialized {
                    for before in spec::init_containers(spec) {
                        let mut later =
                            spec::init_containers(spec).iter().skip_while(|c| c.name != before.name).skip(1);
                        let done = match self.observed.newest(&before.name).map(|i| &i.state) {
                            Some(State::Exited(exit)) => exit.code == 0 && spec::role_of_init(before) == Role::Init,
                            Some(State::Running { .. }) => spec::role_of_init(before) == Role::Sidecar,
                            Some(State::Created) => false,
                            // Pruned: that the next one was created shows that it was done.
                            None => later.any(|c| self.observed.newest(&c.name).is_some_and(is_of_now)),
                        };
                        prop_assert!(done, "{container} is created before {} has done its part", before.name);
                    }
                }
            }
            Action::Stop { id, grace, .. } | Action::PreStop { id, grace, .. } => {
                let own = if deleted { spec::termination_grace(&self.pod) } else { 30 };
                // A container whose sandbox has changed gets upstream's two seconds.
                let most = kill_grace(own, self.observed.kill.as_ref()).max(if deleted { 2 } else { 0 });
                prop_assert!((0..=most).contains(grace), "{grace} s for {id}");
            }
            Action::DeleteFromApi => {
                prop_assert!(spec::is_terminal(&self.pod), "the API is to have the terminal phase");
            }
            Action::Remove { id } if deleted && !spec::is_terminal(&self.pod) => {
                let created = self.observed.instances.iter().any(|i| i.id == *id && i.state == State::Created);
                prop_assert!(created, "the API does not have the exit code of {id}");
            }
            Action::CleanUp => {
                let dead = |i: &Instance| matches!(i.state, State::Exited(_));
                prop_assert!(self.observed.instances.iter().all(dead), "nothing is removed under a container");
            }
            _ => {}
        }
        Ok(())
    }

    /// What a call must not do, by what Docker truly has.
    pub(super) fn check_truth(&self, call: &Call) -> Result<(), TestCaseError> {
        let Call::Plan(action) = call else { return Ok(()) };
        match action {
            Action::CleanUp | Action::ReleaseVolumes => {
                let running = self.docker.containers.iter().find(|c| c.is_running() && !c.is_sandbox());
                prop_assert!(running.is_none() || self.was_late, "{action:?} under {running:?}");
            }
            Action::Stop { id, .. } if self.is_in_grace() && self.is_sidecar(id) => {
                let main = |i: &&Instance| i.is_running() && !i.is_sandbox() && !self.is_sidecar(&i.id);
                let running = self.docker.containers.iter().find(main);
                prop_assert!(running.is_none() || self.was_late, "the sidecar of {running:?} is stopped");
            }
            Action::Remove { id } => {
                prop_assert!(!self.docker.runs(id) || self.was_late, "{id} runs and is removed");
            }
            // What has its name already makes way.
            Action::Create { container, attempt, .. } => {
                let same = |c: &&Instance| c.identity.container == *container && c.identity.attempt == *attempt;
                let same = self.docker.containers.iter().find(same);
                prop_assert!(same.is_none_or(|c| !c.has_run()), "{same:?} has run and makes way");
            }
            Action::StartSandbox { id } => {
                let created = self.observed.instance(id).is_some_and(|i| i.state == State::Created);
                let is = self.docker.get(id).map(|i| &i.state);
                prop_assert!(!created || !matches!(is, Some(State::Exited(_))), "{id} has exited and is started again");
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether the pod is deleted, and has time left to end in order.
    fn is_in_grace(&self) -> bool {
        let is_ahead = |end: Timestamp| at(self.now) < end;
        let deletion = self.pod.metadata.deletion_timestamp.as_ref();
        deletion.is_some_and(|end| is_ahead(end.0)) && self.observed.kill_deadline.is_none_or(is_ahead)
    }

    fn is_sidecar(&self, id: &str) -> bool {
        self.docker.get(id).is_some_and(|instance| instance.identity.container == "side")
    }

    /// Whatever its sidecars do, a container of a pod that has started is restarted when its back-off has passed.
    pub(super) fn check_supervision(&self) -> Result<(), TestCaseError> {
        let spec = self.pod.spec.as_ref().unwrap();
        let over = self.pod.metadata.deletion_timestamp.is_some() || self.observed.kill.is_some() || self.highest == 2;
        let sandbox = self.observed.sandbox().filter(|s| s.is_running() && self.observed.network_ready.contains(&s.id));
        let (Some(sandbox), false) = (sandbox, over || !self.observed.are_volumes_ready(spec)) else { return Ok(()) };
        let view = self.view();
        let runs_on = self.observed.running_containers().all(|i| i.sandbox == sandbox.id && !view.predates_restart(i));
        let plan = self.plan();
        for container in &spec.containers {
            let Some(last) = self.observed.newest(&container.name) else { continue };
            let State::Exited(exit) = &last.state else { continue };
            let due = last.sandbox == sandbox.id
                && !view.predates_restart(last)
                && runs_on
                && view.restarts(container, Role::Main, last, exit)
                && view.restart_at(container, last, exit) <= at(self.now)
                && view.outcome == PodOutcome::Active;
            let name = &container.name;
            let mut comes = plan.actions.iter().any(|a| match a {
                Action::Create { container, .. } | Action::EnsureImage { container, .. } => container == name,
                _ => false,
            });
            // It is under way, or was tried, and is tried again.
            let keys = [StepKey::Create(name.clone()), StepKey::Image(name.clone())];
            comes |= keys.iter().any(|key| self.observed.in_flight.contains(key));
            let later = |failure: &Failure| failure.retry_at > at(self.now);
            comes |= self.observed.start_failures.get(name).is_some_and(later);
            comes |= matches!(self.observed.images.get(name), Some(ImageState::Failed(failure)) if later(failure));
            // Later containers wait for a container's hook.
            let waits = spec.containers.iter().take_while(|c| c.name != *name).any(|c| {
                c.lifecycle.as_ref().is_some_and(|l| l.post_start.is_some())
                    && !self.observed.newest(&c.name).is_some_and(|i| self.observed.post_start_done.contains(&i.id))
            });
            prop_assert!(!due || comes || waits, "{name} is not restarted: {plan:?}");
        }
        Ok(())
    }

    /// Invariants that hold at any time.
    pub(super) fn holds(&mut self) -> Result<(), TestCaseError> {
        prop_assert!(self.docker.again.is_empty(), "{:?} run a second time", self.docker.again);
        for name in NAMES.into_iter().chain([SANDBOX_NAME]) {
            let alive =
                self.docker.containers.iter().filter(|c| c.identity.container == name && c.is_running()).count();
            prop_assert!(alive <= 1, "{alive} of {name} run");
        }
        let told = shown(&self.pod, &self.observed, self.now);
        let rank = match told.phase.as_deref() {
            Some("Pending") => 0,
            Some("Running") => 1,
            _ => 2,
        };
        prop_assert!(rank >= self.highest, "{:?} after rank {}", told.phase, self.highest);
        let before = self.pod.status.clone().unwrap_or_default();
        let counts = |status: &PodStatus| -> BTreeMap<String, i32> {
            let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
            all.map(|c| (c.name.clone(), c.restart_count)).collect()
        };
        let now = counts(&told);
        for (name, count) in counts(&before) {
            prop_assert!(
                now.get(&name).is_some_and(|n| *n >= count),
                "restarts of {name} went from {count} to {now:?}"
            );
        }
        let disrupted = told.conditions.iter().flatten().any(|c| c.type_ == "DisruptionTarget");
        prop_assert_eq!(disrupted, told.reason.as_deref() == Some("Evicted"), "the condition comes with the reason");
        if disrupted {
            prop_assert!(rank == 2 && !self.observed.has_running(), "shown before the end");
        }
        self.highest = rank;
        self.pod.status = Some(told);
        Ok(())
    }
}
