//! The status of one container. Pure.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{
        Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
        ContainerStatus, ContainerUser, LinuxContainerUser, PodSpec, PodStatus, ResourceRequirements, VolumeMount,
        VolumeMountStatus,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use windlass_kit::duration;

use super::{
    super::{
        observed::{FAILURE_SHOWN_FOR, ImageState},
        probes::{self, ProbeType},
        reasons, resize,
        restarts::{crash_count, restart_delay, shown_until},
        spec::{self, Role},
        time::saturating_add,
        view::{PodOutcome, PodView},
    },
    ended::unknown_state,
};
use crate::engine::{
    inspect::{Exit, Instance, State, User},
    names::container_hash,
};

/// The state of a container, and its last one.
type States = (ContainerState, Option<ContainerState>);

impl PodView<'_> {
    /// The status of one container; `before` is the pod's as the API has it.
    pub(super) fn container_status(&self, container: &Container, role: Role, before: &PodStatus) -> ContainerStatus {
        let observed = self.observed;
        let earlier = before
            .container_statuses
            .iter()
            .flatten()
            .chain(before.init_container_statuses.iter().flatten())
            .chain(before.ephemeral_container_statuses.iter().flatten())
            .find(|c| c.name == container.name);
        let newest = observed.newest(&container.name);
        let terminating = self.is_deleted()
            || observed.kill.is_some()
            || spec::is_phase_terminal(before.phase.as_deref().unwrap_or(""));
        let (mut state, mut last) = match newest {
            None => self.states_without_instance(container, role, earlier, terminating),
            Some(instance) => self.states(container, role, instance, earlier, terminating),
        };
        let running = newest.filter(|i| i.is_running()).filter(|_| state.running.is_some());
        let started = running.is_some_and(|i| self.has_started(container, i));
        let ready = running
            .is_some_and(|i| started && probes::result(self.pod, container, ProbeType::Readiness, i, &observed.probes));
        for state in [Some(&mut state), last.as_mut()].into_iter().flatten() {
            carry_over_message(state, earlier);
        }
        let container_id = newest.map(Instance::container_id).or_else(|| earlier.and_then(|e| e.container_id.clone()));
        // The user that was reported first stays: a process may change its own.
        let reported_user = earlier.filter(|e| e.container_id == container_id).and_then(|e| e.user.clone());
        let user = reported_user.or_else(|| newest.and_then(|i| i.user.as_ref()).map(user_status));
        let (image, image_id) = self.images(container, earlier);
        let done_init = role == Role::Init && state.terminated.as_ref().is_some_and(|t| t.exit_code == 0);
        ContainerStatus {
            name: container.name.clone(),
            image,
            image_id,
            container_id,
            user,
            ready: (ready || done_init) && role != Role::Ephemeral,
            started: Some(started),
            // Counts never go back, also when the newest instance is removed before it was started.
            restart_count: newest
                .map(|i| i32::try_from(i.identity.attempt).unwrap_or(i32::MAX))
                .into_iter()
                .chain(earlier.map(|e| e.restart_count))
                .max()
                .unwrap_or(0),
            state: Some(state),
            last_state: last,
            volume_mounts: mount_statuses(container),
            allocated_resources: newest
                .filter(|_| resize::is_resize_blocked(observed) && observed.allocated.is_none())
                .and_then(|i| resize::actual_resources(self.spec.resources.as_ref(), container, i.limits))
                .or_else(|| resize::with_allocated_resources(container, observed).resources)
                .and_then(|r| r.requests)
                .filter(|r| !r.is_empty()),
            resources: newest
                .map(|i| resources(self.spec, &resize::with_allocated_resources(container, observed), i))
                .or_else(|| earlier?.resources.clone()),
            ..ContainerStatus::default()
        }
    }

    /// The image of a container and its id: of the attempt that runs, or was the last to run. A spec with another image, and an
    /// attempt that was created from it, are not shown before that attempt runs: who updates a pod in place takes the new name
    /// or the new id for the end of it.
    fn images(&self, container: &Container, earlier: Option<&ContainerStatus>) -> (String, String) {
        let written = spec::image_of(container);
        let before = earlier.filter(|e| !e.image.is_empty() && !e.image_id.is_empty());
        let Some(shown) = self.observed.attempts(&container.name).rev().find(|i| i.has_run()) else {
            let created = || self.observed.newest(&container.name).map(|i| i.image_id.clone()).unwrap_or_default();
            return before.map_or_else(|| (written.to_owned(), created()), |e| (e.image.clone(), e.image_id.clone()));
        };
        // Of another agent's container without a hash nothing else is known.
        let is_written = shown.hash.is_empty() || shown.hash == container_hash(&container.name, written);
        let name = before.filter(|_| !is_written).map_or(written, |e| &e.image);
        (name.to_owned(), shown.image_id.clone())
    }

    /// The states of a container that the engine has.
    fn states(
        &self,
        container: &Container,
        role: Role,
        instance: &Instance,
        earlier: Option<&ContainerStatus>,
        terminating: bool,
    ) -> States {
        let mut attempts = self.observed.attempts(&container.name).rev().skip(1);
        let previous = attempts.find(|i| i.exit().is_some()).map(terminated);
        let exit = match &instance.state {
            State::Running { started_at, .. } => {
                let running = ContainerStateRunning { started_at: Some(Time(*started_at)) };
                let state = ContainerState { running: Some(running), ..ContainerState::default() };
                return (state, previous.or_else(|| lost_state(earlier, Some(instance))));
            }
            State::Created => {
                return (self.waiting_state(container), previous.or_else(|| lost_state(earlier, Some(instance))));
            }
            State::Exited(exit) => exit,
        };
        let comes_back = !terminating
            && self.outcome == PodOutcome::Active
            && !(role == Role::Init && exit.code == 0)
            && self.restarts(container, role, instance, exit);
        if !comes_back {
            return (terminated(instance), previous);
        }
        let failure = self.observed.start_failures.get(&container.name);
        let state = if let Some(failure) = failure.filter(|f| shown_until(f, exit) > self.now) {
            waiting(failure.reason, Some(failure.message.clone()))
        } else if self.restart_at(container, instance, exit) > self.now {
            self.crash_loop(container, instance, exit)
        } else if self.failure(container).is_some() {
            self.waiting_state(container)
        } else {
            return (terminated(instance), previous);
        };
        (state, Some(terminated(instance)))
    }

    /// The states of a container that the engine does not have: not created yet, or removed behind our back.
    fn states_without_instance(
        &self,
        container: &Container,
        role: Role,
        earlier: Option<&ContainerStatus>,
        terminating: bool,
    ) -> States {
        let before = earlier.and_then(|e| e.state.as_ref());
        let passed = role == Role::Init && self.is_passed_init(&container.name);
        if let Some(terminated) = before.and_then(|s| s.terminated.clone())
            && (terminating || passed || self.observed.cleaned_up)
        {
            let state = ContainerState { terminated: Some(terminated), ..ContainerState::default() };
            return (state, earlier.and_then(|e| e.last_state.clone()));
        }
        let last = lost_state(earlier, None);
        if passed {
            return (completed_unobserved(), last);
        }
        if terminating && before.is_some_and(|s| s.running.is_some()) {
            return (unknown_state(None), last);
        }
        (self.waiting_state(container), last)
    }

    /// The failure that keeps a container from running, if any: its reason and message.
    fn failure(&self, container: &Container) -> Option<(&'static str, String)> {
        if let Some(ImageState::Failed(failure)) = self.observed.images.get(&container.name) {
            let is_pull = matches!(failure.reason, reasons::ERR_IMAGE_PULL | reasons::REGISTRY_UNAVAILABLE);
            if is_pull && saturating_add(failure.at, FAILURE_SHOWN_FOR) <= self.now {
                let image = spec::image_of(container);
                let message = format!("Back-off pulling image {image:?}: {}: {}", failure.reason, failure.message);
                return Some((reasons::IMAGE_PULL_BACK_OFF, message));
            }
            return Some((failure.reason, failure.message.clone()));
        }
        self.observed.start_failures.get(&container.name).map(|f| (f.reason, f.message.clone()))
    }

    fn waiting_state(&self, container: &Container) -> ContainerState {
        if let Some((reason, message)) = self.failure(container) {
            return waiting(reason, Some(message));
        }
        let has_inits = !spec::init_containers(self.spec).is_empty();
        waiting(if has_inits { reasons::POD_INITIALIZING } else { reasons::CONTAINER_CREATING }, None)
    }

    fn crash_loop(&self, container: &Container, instance: &Instance, exit: &Exit) -> ContainerState {
        let delay = restart_delay(crash_count(self.observed, container, instance, exit));
        waiting(reasons::CRASH_LOOP_BACK_OFF, Some(self.crash_loop_message(&container.name, delay)))
    }

    /// Upstream's message of a container that is backed off.
    fn crash_loop_message(&self, container: &str, delay: Duration) -> String {
        let pod = spec::pod_full_name(self.pod);
        format!("back-off {} restarting failed container={container} pod={pod}", duration::format(delay))
    }
}

fn user_status(user: &User) -> ContainerUser {
    let linux = LinuxContainerUser {
        uid: user.uid.into(),
        gid: user.gid.into(),
        supplemental_groups: Some(user.groups.iter().map(|gid| i64::from(*gid)).collect()),
    };
    ContainerUser { linux: Some(linux) }
}

/// Keeps the message that the API has of the same exit: after a restart of the agent it takes a while to be read again.
fn carry_over_message(state: &mut ContainerState, earlier: Option<&ContainerStatus>) {
    let Some(terminated) = state.terminated.as_mut().filter(|t| t.message.is_none()) else { return };
    let reported = earlier.into_iter().flat_map(|e| [e.state.as_ref(), e.last_state.as_ref()]).flatten();
    let same = reported.filter_map(|s| s.terminated.as_ref()).find(|t| t.container_id == terminated.container_id);
    terminated.message = same.and_then(|t| t.message.clone());
}

/// The resources of a container: the allocated ones, and while it runs with others those of its cgroup. Never
/// absent: the API takes a node that reports none for one that cannot resize.
fn resources(spec: &PodSpec, container: &Container, instance: &Instance) -> ResourceRequirements {
    let actual = resize::resize_path(spec, container, instance)
        .and_then(|_| resize::actual_resources(spec.resources.as_ref(), container, instance.limits));
    actual.or_else(|| container.resources.clone()).unwrap_or_default()
}

/// The status of each volume mount: how far it is read-only.
fn mount_statuses(container: &Container) -> Option<Vec<VolumeMountStatus>> {
    let one = |mount: &VolumeMount| VolumeMountStatus {
        name: mount.name.clone(),
        mount_path: mount.mount_path.clone(),
        read_only: mount.read_only,
        recursive_read_only: (mount.read_only == Some(true))
            .then(|| if spec::is_recursive_read_only(mount) { "Enabled" } else { "Disabled" }.to_owned()),
        ..VolumeMountStatus::default()
    };
    container.volume_mounts.as_ref().map(|mounts| mounts.iter().map(one).collect())
}

/// How the run before the newest one terminated, where the engine no longer has it: what the API knows of it.
fn lost_state(earlier: Option<&ContainerStatus>, newest: Option<&Instance>) -> Option<ContainerState> {
    let earlier = earlier?;
    let reported = earlier.container_id.as_deref().unwrap_or("").trim_start_matches("docker://");
    let state = earlier.state.as_ref().filter(|_| newest.is_none_or(|i| i.id != reported) && !reported.is_empty());
    match (state.and_then(|s| s.terminated.clone()), state.and_then(|s| s.running.clone())) {
        (Some(terminated), _) => Some(ContainerState { terminated: Some(terminated), ..ContainerState::default() }),
        (None, Some(running)) => Some(unknown_state(running.started_at)),
        (None, None) => earlier.last_state.clone(),
    }
}

/// The state of an init container that vanished and must have succeeded, since a later container exists.
fn completed_unobserved() -> ContainerState {
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            reason: Some(reasons::COMPLETED.to_owned()),
            message: Some(
                "Unable to get init container status from container runtime and pod has been initialized, treat it as exited normally"
                    .to_owned(),
            ),
            ..ContainerStateTerminated::default()
        }),
        ..ContainerState::default()
    }
}

fn waiting(reason: &str, message: Option<String>) -> ContainerState {
    ContainerState {
        waiting: Some(ContainerStateWaiting { reason: Some(reason.to_owned()), message }),
        ..ContainerState::default()
    }
}

/// Upstream's reason for how a container exited.
pub(crate) fn exit_reason(exit: &Exit) -> &'static str {
    match exit {
        Exit { oom_killed: true, .. } => reasons::OOM_KILLED,
        Exit { code: 0, .. } => reasons::COMPLETED,
        Exit { started_at: None, .. } => reasons::START_ERROR,
        _ => reasons::ERROR,
    }
}

fn terminated(instance: &Instance) -> ContainerState {
    let Some(exit) = instance.exit() else { return ContainerState::default() };
    let reason = exit_reason(exit);
    let never_ran = exit.started_at.is_none();
    let message = if exit.message.is_empty() && never_ran { exit.error.clone() } else { exit.message.clone() };
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code: i32::try_from(if reason == reasons::START_ERROR { 128 } else { exit.code }).unwrap_or(255),
            reason: Some(reason.to_owned()),
            message: (!message.is_empty()).then_some(message),
            started_at: Some(Time(exit.started_at.unwrap_or(Timestamp::UNIX_EPOCH))),
            finished_at: Some(Time(exit.finished_at)),
            container_id: Some(instance.container_id()),
            ..ContainerStateTerminated::default()
        }),
        ..ContainerState::default()
    }
}
