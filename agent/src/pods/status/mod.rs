//! From a pod, what runs of it and the time: the status that the API shows. Pure.

mod canonical;
mod conditions;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{
        Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
        ContainerStatus, ContainerUser, HostIP, LinuxContainerUser, Pod, PodIP, PodSpec, PodStatus,
        ResourceRequirements, VolumeMount, VolumeMountStatus,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use windlass_kit::{duration, net::NodeIps, objects::resources::class_of};

use super::{
    mounts::is_deep_read_only,
    observed::{ImageState, Observed, PULL_FAILURE_SHOWN, later},
    orders::Ended,
    plan::{
        Verdict, crashes, deadline_passed, has_started, is_passed, is_past, restart_at, restart_delay, restarts, round,
        shown_until, verdict,
    },
    probes::{self, Kind},
    resize,
    spec::{self, Role},
};
use crate::engine::instance::{Exit, Instance, State, User};
pub(crate) use canonical::canonical;
use conditions::{conditions, is_of_nodes};

/// The status of a pod on this node, in its [`canonical`] form.
pub(crate) fn status(pod: &Pod, observed: &Observed, node_ips: NodeIps, now: Timestamp) -> PodStatus {
    let Some(spec) = &pod.spec else { return PodStatus::default() };
    let before = pod.status.clone().unwrap_or_default();
    if never_taken_in(observed, &before) {
        return canonical(of_refused(pod, observed, before, now));
    }
    let mut init: Vec<ContainerStatus> = spec::init_containers(spec)
        .iter()
        .map(|c| container_status(pod, spec, c, spec::role_of_init(c), observed, &before, now))
        .collect();
    let mut main: Vec<ContainerStatus> =
        spec.containers.iter().map(|c| container_status(pod, spec, c, Role::Main, observed, &before, now)).collect();
    main.sort_by(|a, b| a.name.cmp(&b.name));
    let ephemeral: Vec<ContainerStatus> = spec::ephemeral_containers(spec)
        .iter()
        .map(|c| container_status(pod, spec, c, Role::Ephemeral, observed, &before, now))
        .collect();

    let each = MESSAGES / (main.len() + init.len()).max(1);
    main.iter_mut().chain(&mut init).for_each(|status| cut_messages(status, each));

    let phase = phase(pod, spec, observed, &before, now);
    let (mut reason, mut message) = (before.reason.clone(), before.message.clone());
    if phase == "Failed" && deadline_passed(pod, spec, now) && before.phase.as_deref() != Some("Succeeded") {
        reason = Some("DeadlineExceeded".to_owned());
        message = Some("Pod was active on the node longer than the specified deadline".to_owned());
    }
    // Told with the phase alone: a pod that still runs is not over yet.
    if let Some(ended) = ended(observed, &before, phase) {
        reason = Some(ended.reason.clone());
        message = Some(ended.message.clone());
    }
    let hosts = || node_ips.iter().map(|ip| ip.to_string());
    let addresses: Vec<PodIP> = if spec::host_network(spec) {
        hosts().map(|ip| PodIP { ip }).collect()
    } else if observed.addresses.is_empty() {
        before.pod_ips.clone().unwrap_or_default()
    } else {
        observed.addresses.iter().map(|a| PodIP { ip: a.to_string() }).collect()
    };
    canonical(PodStatus {
        conditions: Some(conditions(pod, spec, observed, &before, &init, &main, phase, now)),
        container_statuses: Some(main),
        init_container_statuses: Some(init),
        ephemeral_container_statuses: Some(ephemeral),
        host_ip: hosts().next(),
        host_ips: Some(hosts().map(|ip| HostIP { ip }).collect()),
        pod_ip: addresses.first().map(|a| a.ip.clone()),
        pod_ips: Some(addresses),
        phase: Some(phase.to_owned()),
        qos_class: Some(class_of(pod).name().to_owned()),
        reason,
        message,
        start_time: Some(before.start_time.unwrap_or(Time(now))),
        observed_generation: pod.metadata.generation,
        ..PodStatus::default()
    })
}

/// The node has refused the pod, now or before its own restart: it never had a container, nor a word on one.
fn never_taken_in(observed: &Observed, before: &PodStatus) -> bool {
    let over = before.phase.as_deref().is_some_and(spec::is_terminal);
    let told = [&before.init_container_statuses, &before.container_statuses].into_iter().flatten().flatten();
    (over || observed.ended.as_ref().is_some_and(|ended| !ended.disruption))
        && observed.instances.is_empty()
        && !observed.in_the_making()
        && told.count() == 0
}

/// As upstream's `rejectPod`: why, and nothing of containers, addresses and conditions that a node makes.
fn of_refused(pod: &Pod, observed: &Observed, before: PodStatus, now: Timestamp) -> PodStatus {
    let ended = ended(observed, &before, "Failed").cloned();
    let (reason, message) = ended.map_or((before.reason, before.message), |e| (Some(e.reason), Some(e.message)));
    let foreign = before.conditions.into_iter().flatten().filter(|c| !is_of_nodes(&c.type_)).collect();
    PodStatus {
        conditions: Some(foreign),
        phase: before.phase.filter(|phase| spec::is_terminal(phase)).or_else(|| Some("Failed".to_owned())),
        qos_class: Some(class_of(pod).name().to_owned()),
        reason,
        message,
        start_time: Some(before.start_time.unwrap_or(Time(now))),
        observed_generation: pod.metadata.generation,
        ..PodStatus::default()
    }
}

/// Bytes of all termination messages of a pod; upstream's.
const MESSAGES: usize = 12 << 10;

/// Cuts what a container has left to its share, at the end of a character.
fn cut_messages(status: &mut ContainerStatus, most: usize) {
    for state in [&mut status.state, &mut status.last_state].into_iter().flatten() {
        if let Some(message) = state.terminated.as_mut().and_then(|t| t.message.as_mut()) {
            message.truncate(message.floor_char_boundary(most));
        }
    }
}

/// The order of the node that has just made the pod fail.
fn ended<'a>(observed: &'a Observed, before: &PodStatus, phase: &str) -> Option<&'a Ended> {
    let over = before.phase.as_deref().is_some_and(spec::is_terminal);
    observed.ended.as_ref().filter(|_| phase == "Failed" && !over)
}

/// Upstream's order of decisions; a phase that is over never changes again.
fn phase<'a>(pod: &Pod, spec: &PodSpec, observed: &Observed, before: &'a PodStatus, now: Timestamp) -> &'a str {
    if let Some(over) = before.phase.as_deref().filter(|p| spec::is_terminal(p)) {
        return over;
    }
    let running = observed.runs();
    let ended = |c: &Container| observed.newest(&c.name).is_some_and(|i| matches!(i.state, State::Exited(_)));
    let failed =
        |c: &Container| observed.newest(&c.name).is_some_and(|i| matches!(&i.state, State::Exited(e) if e.code != 0));
    // What is over is told only when nothing runs any more.
    if observed.ended.is_some() {
        if !running && !observed.in_the_making() {
            return "Failed";
        }
    } else if !running {
        if deadline_passed(pod, spec, now) {
            return "Failed";
        }
        let deleted = pod.metadata.deletion_timestamp.is_some();
        let none_in_the_making = !observed.in_the_making();
        let none_is_made = !observed.instances.iter().any(|i| !i.is_sandbox() && i.state == State::Created);
        if verdict(spec, observed) == Verdict::Over
            || (deleted && none_in_the_making && none_is_made && spec.containers.iter().all(ended))
        {
            // How a sidecar ends, which it does when the others have, says nothing of the pod.
            let any_failed = spec::all_containers(spec).any(|(c, role)| role != Role::Sidecar && failed(c));
            return if any_failed { "Failed" } else { "Succeeded" };
        }
        if deleted && none_in_the_making && none_is_made {
            return "Failed";
        }
    }
    let initialized = spec::init_containers(spec).iter().all(|c| init_done(pod, c, observed));
    let started = |c: &Container| {
        observed.newest(&c.name).is_some_and(|i| i.identity.attempt > 0 || !matches!(i.state, State::Created))
            || had_run(before, &c.name)
    };
    // One that has run goes on being so, though its init containers may be at work again in a new sandbox.
    let has_run = before.phase.as_deref() == Some("Running");
    if has_run || (initialized && spec.containers.iter().all(started)) { "Running" } else { "Pending" }
}

fn had_run(before: &PodStatus, name: &str) -> bool {
    before.container_statuses.iter().flatten().any(|c| {
        c.name == name && (c.restart_count > 0 || c.last_state.as_ref().is_some_and(|s| s.terminated.is_some()))
    })
}

/// An init container has done its part: exited with 0, or, as a sidecar, has started; or what comes after it is there.
fn init_done(pod: &Pod, container: &Container, observed: &Observed) -> bool {
    if pod.spec.as_ref().is_some_and(|spec| is_behind(spec, container, observed)) {
        return true;
    }
    let began = pod.spec.as_ref().and_then(|spec| round(spec, observed));
    observed.newest(&container.name).filter(|i| !is_past(i, began)).is_some_and(|i| match &i.state {
        State::Exited(exit) => exit.code == 0 || spec::role_of_init(container) == Role::Sidecar,
        State::Running { .. } => {
            spec::role_of_init(container) == Role::Sidecar && has_started(pod, container, i, observed)
        }
        State::Created => false,
    })
}

/// Whether a container is an init container that others have come after.
fn is_behind(spec: &PodSpec, container: &Container, observed: &Observed) -> bool {
    let index = spec::init_containers(spec).iter().position(|c| c.name == container.name);
    index.is_some_and(|index| is_passed(spec, observed, index))
}

fn container_status(
    pod: &Pod,
    spec: &PodSpec,
    container: &Container,
    role: Role,
    observed: &Observed,
    before: &PodStatus,
    now: Timestamp,
) -> ContainerStatus {
    let earlier = before
        .container_statuses
        .iter()
        .flatten()
        .chain(before.init_container_statuses.iter().flatten())
        .chain(before.ephemeral_container_statuses.iter().flatten())
        .find(|c| c.name == container.name);
    let mut attempts = observed.attempts(&container.name).rev();
    let newest = attempts.next();
    let previous = attempts.find(|i| matches!(i.state, State::Exited(_)));
    let ending = pod.metadata.deletion_timestamp.is_some()
        || observed.ended.is_some()
        || spec::is_terminal(before.phase.as_deref().unwrap_or(""));
    let (mut state, mut last) = match newest {
        None => lost_or_waiting(spec, container, role, observed, earlier, ending, now),
        Some(instance) => match &instance.state {
            State::Running { started_at, .. } => (
                ContainerState {
                    running: Some(ContainerStateRunning { started_at: Some(Time(*started_at)) }),
                    ..ContainerState::default()
                },
                previous.map(terminated).or_else(|| lost(earlier, Some(instance))),
            ),
            State::Created => (
                waiting_state(spec, container, observed, now),
                previous.map(terminated).or_else(|| lost(earlier, Some(instance))),
            ),
            State::Exited(exit) => {
                let comes_back = !ending
                    && verdict(spec, observed) == Verdict::Goes
                    && !(role == Role::Init && exit.code == 0)
                    && restarts(spec, container, role, instance, exit, observed);
                let shown = observed.start_failures.get(&container.name).filter(|_| comes_back);
                let held = comes_back && restart_at(observed, instance, exit, container) > now;
                let stuck = comes_back && failure_of(container, observed, now).is_some();
                if let Some(failure) = shown.filter(|f| shown_until(f, exit) > now) {
                    (waiting(failure.reason, Some(failure.message.clone())), Some(terminated(instance)))
                } else if held {
                    (crash_loop(pod, container, observed, instance, exit), Some(terminated(instance)))
                } else if stuck {
                    (waiting_state(spec, container, observed, now), Some(terminated(instance)))
                } else {
                    (terminated(instance), previous.map(terminated))
                }
            }
        },
    };
    let attended = newest.filter(|i| i.is_running()).filter(|_| state.running.is_some());
    let started = attended.is_some_and(|i| has_started(pod, container, i, observed));
    let ready =
        attended.is_some_and(|i| started && probes::result(pod, container, Kind::Readiness, i, &observed.probes));
    for ended in [Some(&mut state), last.as_mut()].into_iter().flatten() {
        keep_message(ended, earlier);
    }
    let container_id =
        newest.map(|i| format!("docker://{}", i.id)).or_else(|| earlier.and_then(|e| e.container_id.clone()));
    // What was told first stays: a process may change who it is.
    let told = earlier.filter(|e| e.container_id == container_id).and_then(|e| e.user.clone());
    let user = told.or_else(|| newest.and_then(|i| i.user.as_ref()).map(user_status));
    let done_init = role == Role::Init && state.terminated.as_ref().is_some_and(|t| t.exit_code == 0);
    ContainerStatus {
        name: container.name.clone(),
        image: spec::image_of(container).to_owned(),
        image_id: newest
            .map(|i| i.image_id.clone())
            .or_else(|| earlier.map(|e| e.image_id.clone()))
            .unwrap_or_default(),
        container_id,
        user,
        ready: (ready || done_init) && role != Role::Ephemeral,
        started: Some(started),
        // Counts never go back, also when the newest instance is taken away before it was started.
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
            .filter(|_| resize::is_put_off(observed) && observed.allocated.is_none())
            .and_then(|i| resize::held(container, i.limits))
            .or_else(|| resize::as_allocated(container, observed).resources)
            .and_then(|r| r.requests)
            .filter(|r| !r.is_empty()),
        resources: newest
            .filter(|i| i.is_running())
            .and_then(|i| held_to(&resize::as_allocated(container, observed), i)),
        ..ContainerStatus::default()
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

/// Keeps the message that the API has of the same end: after a restart it takes a while to be read again.
fn keep_message(state: &mut ContainerState, earlier: Option<&ContainerStatus>) {
    let Some(ended) = state.terminated.as_mut().filter(|t| t.message.is_none()) else { return };
    let told = earlier.into_iter().flat_map(|e| [e.state.as_ref(), e.last_state.as_ref()]).flatten();
    let same = told.filter_map(|s| s.terminated.as_ref()).find(|t| t.container_id == ended.container_id);
    ended.message = same.and_then(|t| t.message.clone());
}

/// What a running container is held to: what was allocated to it, and while it is not there yet what Docker says.
fn held_to(container: &Container, instance: &Instance) -> Option<ResourceRequirements> {
    if resize::way(container, instance).is_some() {
        return resize::held(container, instance.limits);
    }
    container.resources.clone().filter(|r| *r != ResourceRequirements::default())
}

/// What became of each mount, as far as its read-only wish goes.
fn mount_statuses(container: &Container) -> Option<Vec<VolumeMountStatus>> {
    let one = |mount: &VolumeMount| VolumeMountStatus {
        name: mount.name.clone(),
        mount_path: mount.mount_path.clone(),
        read_only: mount.read_only,
        recursive_read_only: (mount.read_only == Some(true))
            .then(|| if is_deep_read_only(mount) { "Enabled" } else { "Disabled" }.to_owned()),
        ..VolumeMountStatus::default()
    };
    container.volume_mounts.as_ref().map(|mounts| mounts.iter().map(one).collect())
}

/// How the run before the newest one ended, where Docker has nothing of it any more: what the API knows of it.
fn lost(earlier: Option<&ContainerStatus>, newest: Option<&Instance>) -> Option<ContainerState> {
    let earlier = earlier?;
    let shown = earlier.container_id.as_deref().unwrap_or("").trim_start_matches("docker://");
    let state = earlier.state.as_ref().filter(|_| newest.is_none_or(|i| i.id != shown) && !shown.is_empty());
    match (state.and_then(|s| s.terminated.clone()), state.and_then(|s| s.running.clone())) {
        (Some(ended), _) => Some(ContainerState { terminated: Some(ended), ..ContainerState::default() }),
        (None, Some(running)) => Some(unknown(running.started_at)),
        (None, None) => earlier.last_state.clone(),
    }
}

/// A container that ran and vanished.
fn unknown(started_at: Option<Time>) -> ContainerState {
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code: 137,
            reason: Some("ContainerStatusUnknown".to_owned()),
            message: Some("The container could not be located when the pod was terminated".to_owned()),
            started_at,
            ..ContainerStateTerminated::default()
        }),
        ..ContainerState::default()
    }
}

/// The state, and the one before it, of a container of which Docker has nothing: not made yet, or lost behind our back.
fn lost_or_waiting(
    spec: &PodSpec,
    container: &Container,
    role: Role,
    observed: &Observed,
    earlier: Option<&ContainerStatus>,
    ending: bool,
    now: Timestamp,
) -> (ContainerState, Option<ContainerState>) {
    let before = earlier.and_then(|e| e.state.as_ref());
    let behind = role == Role::Init && is_behind(spec, container, observed);
    if let Some(terminated) = before.and_then(|s| s.terminated.clone())
        && (ending || behind || observed.torn_down)
    {
        let state = ContainerState { terminated: Some(terminated), ..ContainerState::default() };
        return (state, earlier.and_then(|e| e.last_state.clone()));
    }
    let last = lost(earlier, None);
    if behind {
        return (completed_unseen(), last);
    }
    if ending && before.is_some_and(|s| s.running.is_some()) {
        return (unknown(None), last);
    }
    (waiting_state(spec, container, observed, now), last)
}

/// An init container that must have ended well, since others have come after it.
fn completed_unseen() -> ContainerState {
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            reason: Some("Completed".to_owned()),
            message: Some(
                "Unable to get init container status from container runtime and pod has been initialized, treat it as exit normally"
                    .to_owned(),
            ),
            ..ContainerStateTerminated::default()
        }),
        ..ContainerState::default()
    }
}

/// Whether a failure is one of pulling, which is held back after it was shown.
fn is_of_pull(reason: &str) -> bool {
    matches!(reason, "ErrImagePull" | "RegistryUnavailable")
}

/// The failure that keeps a container from running, if any.
fn failure_of(container: &Container, observed: &Observed, now: Timestamp) -> Option<(&'static str, String)> {
    if let Some(ImageState::Failed(failure)) = observed.images.get(&container.name) {
        let held_back = is_of_pull(failure.reason) && later(failure.at, PULL_FAILURE_SHOWN) <= now;
        return Some(if held_back {
            let image = spec::image_of(container);
            ("ImagePullBackOff", format!("Back-off pulling image {image:?}: {}: {}", failure.reason, failure.message))
        } else {
            (failure.reason, failure.message.clone())
        });
    }
    observed.start_failures.get(&container.name).map(|f| (f.reason, f.message.clone()))
}

fn waiting_state(spec: &PodSpec, container: &Container, observed: &Observed, now: Timestamp) -> ContainerState {
    let (reason, message) = failure_of(container, observed, now).map_or_else(
        || {
            let reason = if spec::init_containers(spec).is_empty() { "ContainerCreating" } else { "PodInitializing" };
            (reason, None)
        },
        |(reason, message)| (reason, Some(message)),
    );
    waiting(reason, message)
}

fn waiting(reason: &str, message: Option<String>) -> ContainerState {
    ContainerState {
        waiting: Some(ContainerStateWaiting { reason: Some(reason.to_owned()), message }),
        ..ContainerState::default()
    }
}

fn crash_loop(
    pod: &Pod,
    container: &Container,
    observed: &Observed,
    instance: &Instance,
    exit: &Exit,
) -> ContainerState {
    let delay = restart_delay(crashes(observed, instance, exit, container));
    waiting("CrashLoopBackOff", Some(crash_message(pod, &container.name, delay)))
}

/// Upstream's words for a container that is held back.
pub(crate) fn crash_message(pod: &Pod, container: &str, delay: std::time::Duration) -> String {
    format!("back-off {} restarting failed container={container} pod={}", duration::go(delay), spec::pod_full_name(pod))
}

/// Upstream's word for how a container ended.
pub(crate) fn exit_reason(exit: &Exit) -> &'static str {
    match exit {
        Exit { oom_killed: true, .. } => "OOMKilled",
        Exit { code: 0, .. } => "Completed",
        Exit { started_at: None, .. } => "StartError",
        _ => "Error",
    }
}

fn terminated(instance: &Instance) -> ContainerState {
    let State::Exited(exit) = &instance.state else { return ContainerState::default() };
    let reason = exit_reason(exit);
    let never_ran = exit.started_at.is_none();
    let message = if exit.message.is_empty() && never_ran { exit.error.clone() } else { exit.message.clone() };
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code: i32::try_from(if reason == "StartError" { 128 } else { exit.code }).unwrap_or(255),
            reason: Some(reason.to_owned()),
            message: (!message.is_empty()).then_some(message),
            started_at: Some(Time(exit.started_at.unwrap_or(Timestamp::UNIX_EPOCH))),
            finished_at: Some(Time(exit.finished_at)),
            container_id: Some(format!("docker://{}", instance.id)),
            ..ContainerStateTerminated::default()
        }),
        ..ContainerState::default()
    }
}
