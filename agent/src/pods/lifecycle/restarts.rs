//! Which exits are followed by another run, and when: restart policy and crash back-off. Pure.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, PodSpec};
use windlass_kit::backoff::delay_after;

use super::{
    observed::{CRASH_COUNT_RESET_AFTER, FAILURE_SHOWN_FOR, Failure, INITIAL_BACKOFF, MAX_BACKOFF, Observed},
    spec::{self, OnExit},
    time::saturating_add,
};
use crate::engine::{
    inspect::{Exit, Instance},
    names::container_hash,
};

/// Whether a container has a rule that restarts all containers of the pod.
fn has_rule(container: &Container) -> bool {
    container.restart_policy_rules.iter().flatten().any(|rule| rule.action == "RestartAllContainers")
}

/// Whether the exit of a container may restart all of the pod.
pub(super) fn may_restart_all(spec: &PodSpec) -> bool {
    spec::all_containers(spec).any(|(container, _)| has_rule(container))
}

/// When a container last exited with a code whose rule restarts all containers of the pod.
pub(super) fn restart_all_since(spec: &PodSpec, observed: &Observed) -> Option<Timestamp> {
    // Few containers have such rules, and every plan needs this.
    spec::all_containers(spec)
        .filter(|(c, _)| has_rule(c))
        .flat_map(|(c, role)| observed.attempts(&c.name).map(move |i| (c, role, i)))
        .filter_map(|(c, role, instance)| {
            let exit = instance.exit()?;
            (spec::on_exit(spec, c, role, exit.code) == OnExit::RestartAll).then_some(exit.finished_at)
        })
        .max()
}

/// How many times in a row a container has crashed, since the agent was started: its attempts say nothing of that, as
/// they may be those of years.
pub(crate) fn crash_count(observed: &Observed, container: &Container, instance: &Instance, exit: &Exit) -> u32 {
    let ran_long = exit.started_at.is_some_and(|at| saturating_add(at, CRASH_COUNT_RESET_AFTER) <= exit.finished_at);
    let changed = instance.hash != container_hash(&container.name, spec::image_of(container));
    if ran_long || changed {
        return 0;
    }
    observed.crash_counts.get(&container.name).copied().unwrap_or(0)
}

/// The back-off before the next run: none after the first crash, then 10 s doubling to 5 min.
pub(crate) fn restart_delay(crashes: u32) -> Duration {
    match crashes.checked_sub(1) {
        None => Duration::ZERO,
        Some(earlier) => delay_after(INITIAL_BACKOFF, MAX_BACKOFF, earlier),
    }
}

/// When a container that exited may be started again.
pub(super) fn restart_at(observed: &Observed, container: &Container, instance: &Instance, exit: &Exit) -> Timestamp {
    saturating_add(exit.finished_at, restart_delay(crash_count(observed, container, instance, exit)))
}

/// Until when the failure of a start or a hook is shown as such, before its container is shown as being backed off.
pub(super) fn shown_until(failure: &Failure, exit: &Exit) -> Timestamp {
    saturating_add(failure.at.max(exit.finished_at), FAILURE_SHOWN_FOR)
}
