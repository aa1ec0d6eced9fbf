//! Questions about a pod's spec that several decisions ask. Pure.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

/// What a container is among its pod's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Runs to its end before the next one starts.
    Init,
    /// An init container that goes on running beside the others.
    Sidecar,
    /// One of `spec.containers`.
    Main,
}

/// When a container that ended is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

impl RestartPolicy {
    pub(crate) fn of(spec: &PodSpec) -> Self {
        match spec.restart_policy.as_deref() {
            Some("OnFailure") => Self::OnFailure,
            Some("Never") => Self::Never,
            _ => Self::Always,
        }
    }

    /// Whether an exit with `code` is followed by another run.
    pub(crate) fn restarts(self, code: i64) -> bool {
        match self {
            Self::Always => true,
            Self::OnFailure => code != 0,
            Self::Never => false,
        }
    }
}

pub(crate) fn init_containers(spec: &PodSpec) -> &[Container] {
    spec.init_containers.as_deref().unwrap_or(&[])
}

pub(crate) fn role_of_init(container: &Container) -> Role {
    if container.restart_policy.as_deref() == Some("Always") { Role::Sidecar } else { Role::Init }
}

/// The policy of one container: a sidecar always comes back, an init container is run again unless
/// the pod says Never.
pub(crate) fn policy_for(spec: &PodSpec, role: Role) -> RestartPolicy {
    match (role, RestartPolicy::of(spec)) {
        (Role::Sidecar, _) => RestartPolicy::Always,
        (Role::Init, RestartPolicy::Always) => RestartPolicy::OnFailure,
        (_, policy) => policy,
    }
}

/// All containers with their roles, init containers first.
pub(crate) fn all_containers(spec: &PodSpec) -> impl Iterator<Item = (&Container, Role)> {
    init_containers(spec).iter().map(|c| (c, role_of_init(c))).chain(spec.containers.iter().map(|c| (c, Role::Main)))
}

pub(crate) fn image_of(container: &Container) -> &str {
    container.image.as_deref().unwrap_or("")
}

pub(crate) fn host_network(spec: &PodSpec) -> bool {
    spec.host_network == Some(true)
}

/// Seconds of grace that a deletion leaves: what the deletion asked for, else the spec.
pub(crate) fn grace(pod: &Pod) -> i64 {
    let spec = pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds).unwrap_or(30);
    pod.metadata.deletion_grace_period_seconds.unwrap_or(spec).max(0)
}

pub(crate) fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or("")
}

pub(crate) fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or("")
}

pub(crate) fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or("default")
}

/// `name_namespace(uid)`, as upstream's messages name a pod.
pub(crate) fn pod_full_name(pod: &Pod) -> String {
    format!("{}_{}({})", name(pod), namespace(pod), uid(pod))
}

pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("")
}

pub(crate) fn is_terminal(phase: &str) -> bool {
    matches!(phase, "Succeeded" | "Failed")
}
