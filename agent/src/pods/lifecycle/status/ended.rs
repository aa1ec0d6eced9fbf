//! How the containers of a pod that has ended are shown: upstream's `TerminatePod`. Pure.

use k8s_openapi::{
    api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, PodSpec},
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::super::{
    reasons,
    spec::{self, Role},
};

/// The state of a container that ran and vanished.
pub(super) fn unknown_state(started_at: Option<Time>) -> ContainerState {
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code: 137,
            reason: Some(reasons::CONTAINER_STATUS_UNKNOWN.to_owned()),
            message: Some("The container could not be located when the pod was terminated".to_owned()),
            started_at,
            ..ContainerStateTerminated::default()
        }),
        ..ContainerState::default()
    }
}

/// Gives an end to each container that was run, or was to be run next: how it ended is unknown where nothing is known of it, and no
/// success. Later ones keep waiting: theirs was never the turn.
pub(crate) fn end_states(spec: &PodSpec, init: &mut [ContainerStatus], main: &mut [ContainerStatus]) {
    if is_initialized(spec, init, main) {
        main.iter_mut().for_each(end);
    }
    // What waits at the end was never begun; but the first one always was to be.
    let begun = init.iter().rposition(has_begun).unwrap_or(0);
    init.iter_mut().take(begun + 1).for_each(end);
}

fn end(status: &mut ContainerStatus) {
    if status.state.as_ref().is_none_or(|state| state.terminated.is_none()) {
        status.state = Some(unknown_state(None));
    }
}

/// Whether a container has ever done something else than waiting.
fn has_begun(status: &ContainerStatus) -> bool {
    let waits = status.state.as_ref().is_some_and(|state| state.waiting.is_some());
    !waits || status.last_state.as_ref().is_some_and(|last| last.terminated.is_some())
}

/// Whether it was the turn of the pod's own containers.
fn is_initialized(spec: &PodSpec, init: &[ContainerStatus], main: &[ContainerStatus]) -> bool {
    let (Some(container), Some(last)) = (spec::init_containers(spec).last(), init.last()) else { return true };
    let state = last.state.as_ref();
    let succeeded = |state: &ContainerState| state.terminated.as_ref().is_some_and(|end| end.exit_code == 0);
    let done = match spec::role_of_init(container) {
        Role::Sidecar => state.is_some_and(|state| state.running.is_some()) && last.started == Some(true),
        _ => state.into_iter().chain(&last.last_state).any(succeeded),
    };
    done || main.iter().any(has_begun)
}
