//! What a pod's object says, for all decisions that need it. Pure.

use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Pod, PodSpec, VolumeMount};
use windlass_kit::json;

use super::status::canonical;

/// The kind of a container within its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Runs to completion before the next one starts.
    Init,
    /// An init container with restart policy Always, which keeps running alongside the others.
    Sidecar,
    /// One of `spec.containers`.
    Main,
    /// Added to the running pod for debugging; run once.
    Ephemeral,
}

/// When a container that exited is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

impl RestartPolicy {
    pub(crate) fn of(spec: &PodSpec) -> Self {
        Self::named(spec.restart_policy.as_deref().unwrap_or(""))
    }

    fn named(name: &str) -> Self {
        match name {
            "OnFailure" => Self::OnFailure,
            "Never" => Self::Never,
            _ => Self::Always,
        }
    }

    /// Whether a container that exited with `code` is run again.
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

/// What follows the exit of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnExit {
    /// The container has exited for good.
    Nothing,
    /// The container is run again.
    Restart,
    /// All containers of the pod are run again, its init containers first.
    RestartAll,
}

/// What follows an exit with `code`: the first of the container's own rules that matches, else its own policy, else the
/// pod's. A sidecar is always restarted; an init container that failed is, unless the policy says Never.
pub(crate) fn on_exit(spec: &PodSpec, container: &Container, role: Role, code: i64) -> OnExit {
    if role == Role::Ephemeral {
        return OnExit::Nothing;
    }
    let rules = container.restart_policy_rules.iter().flatten();
    for rule in rules {
        let Some(codes) = &rule.exit_codes else { continue };
        let among = codes.values.iter().flatten().any(|value| i64::from(*value) == code);
        if among == (codes.operator == "In") {
            return if rule.action == "RestartAllContainers" { OnExit::RestartAll } else { OnExit::Restart };
        }
    }
    if policy(spec, container, role).restarts(code) { OnExit::Restart } else { OnExit::Nothing }
}

/// The effective policy of a container: its own, else the pod's. An init container that succeeded is done.
fn policy(spec: &PodSpec, container: &Container, role: Role) -> RestartPolicy {
    match (container.restart_policy.as_deref(), role) {
        (Some(own), _) => RestartPolicy::named(own),
        (None, Role::Init) if RestartPolicy::of(spec) == RestartPolicy::Always => RestartPolicy::OnFailure,
        (None, _) => RestartPolicy::of(spec),
    }
}

/// Whether a container that was killed since a probe or a hook failed is run again, whatever its exit code.
pub(crate) fn restarts_after_failure(spec: &PodSpec, container: &Container, role: Role) -> bool {
    role != Role::Ephemeral && policy(spec, container, role) != RestartPolicy::Never
}

/// The ephemeral containers, as containers.
pub(crate) fn ephemeral_containers(spec: &PodSpec) -> Vec<Container> {
    let all = spec.ephemeral_containers.iter().flatten();
    // Every field but the target is one of a container.
    all.filter_map(|e| json::from_slice(&serde_json::to_vec(e).ok()?).ok()).collect()
}

/// The container whose process namespace an ephemeral one joins.
pub(crate) fn ephemeral_target<'a>(spec: &'a PodSpec, ephemeral: &str) -> Option<&'a str> {
    let found = spec.ephemeral_containers.iter().flatten().find(|e| e.name == ephemeral)?;
    found.target_container_name.as_deref().filter(|name| !name.is_empty())
}

/// A container or init container by its name.
pub(crate) fn find_container<'a>(spec: &'a PodSpec, name: &str) -> Option<&'a Container> {
    all_containers(spec).map(|(c, _)| c).find(|c| c.name == name)
}

/// A container of any kind by its name, ephemeral ones included.
pub(crate) fn container(spec: &PodSpec, name: &str) -> Option<Container> {
    find_container(spec, name).cloned().or_else(|| ephemeral_containers(spec).into_iter().find(|c| c.name == name))
}

/// All containers but ephemeral ones, with their roles, init containers first.
pub(crate) fn all_containers(spec: &PodSpec) -> impl Iterator<Item = (&Container, Role)> {
    init_containers(spec).iter().map(|c| (c, role_of_init(c))).chain(spec.containers.iter().map(|c| (c, Role::Main)))
}

pub(crate) fn post_start(container: &Container) -> Option<&LifecycleHandler> {
    container.lifecycle.as_ref()?.post_start.as_ref()
}

pub(crate) fn pre_stop(container: &Container) -> Option<&LifecycleHandler> {
    container.lifecycle.as_ref()?.pre_stop.as_ref()
}

/// Whether what is mounted below a read-only mount is read-only too.
pub(crate) fn is_recursive_read_only(mount: &VolumeMount) -> bool {
    mount.read_only == Some(true) && matches!(mount.recursive_read_only.as_deref(), Some("Enabled" | "IfPossible"))
}

pub(crate) fn image_of(container: &Container) -> &str {
    container.image.as_deref().unwrap_or("")
}

pub(crate) fn host_network(spec: &PodSpec) -> bool {
    spec.host_network == Some(true)
}

/// The termination grace period in seconds: what the deletion asked for, else the spec's.
pub(crate) fn termination_grace(pod: &Pod) -> i64 {
    let spec = pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds).unwrap_or(30);
    deletion_grace(pod).unwrap_or(spec).max(0)
}

/// The grace period in seconds that a deletion asks for. 0 counts as unset: with it the API deletes a pod at once, and
/// kube-apiserver shows it for a moment before it does; upstream's kubelet gives containers the time of the spec then.
pub(crate) fn deletion_grace(pod: &Pod) -> Option<i64> {
    pod.metadata.deletion_grace_period_seconds.filter(|grace| *grace > 0)
}

/// Where a pod comes from: `file` for a static pod.
pub(crate) const CONFIG_SOURCE_ANNOTATION: &str = "kubernetes.io/config.source";
/// The uid of a static pod: the hash of its manifest, or the uid that the manifest gives.
pub(crate) const CONFIG_HASH_ANNOTATION: &str = "kubernetes.io/config.hash";
/// On a mirror pod: the uid of the static pod that it mirrors.
pub(crate) const CONFIG_MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

pub(crate) fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// A pod as the API has sent it, without fields that the agent never reads, and with its status in the form in which
/// statuses are compared. Only the node makes static pods: a source annotation that a client has set is dropped, as
/// upstream's kubelet overwrites it.
pub(crate) fn sanitize(mut pod: Pod) -> Pod {
    pod.metadata.managed_fields = None;
    pod.status = pod.status.map(canonical);
    let mirror = is_mirror_pod(&pod);
    if let Some(annotations) = &mut pod.metadata.annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
        if !mirror {
            annotations.remove(CONFIG_SOURCE_ANNOTATION);
        }
    }
    pod
}

/// A static pod, run from a manifest on the node whatever the API says, or its mirror pod.
pub(crate) fn is_static(pod: &Pod) -> bool {
    annotation(pod, CONFIG_SOURCE_ANNOTATION).is_some_and(|source| source != "api")
}

/// Whether this is the mirror pod of a static pod: the API's copy of it.
#[must_use]
pub fn is_mirror_pod(pod: &Pod) -> bool {
    annotation(pod, CONFIG_MIRROR_ANNOTATION).is_some()
}

/// Whether a pod may preempt others and is evicted last; upstream's `IsCriticalPod`.
pub(crate) fn is_critical(pod: &Pod) -> bool {
    is_static(pod)
        || is_mirror_pod(pod)
        || pod.spec.as_ref().and_then(|s| s.priority).is_some_and(|p| p >= SYSTEM_CRITICAL_PRIORITY)
}

/// The lowest priority of critical pods; upstream's.
pub(crate) const SYSTEM_CRITICAL_PRIORITY: i32 = 2_000_000_000;

/// The uid that the containers' labels carry: of a mirror pod that of its static pod.
pub(crate) fn runtime_uid(pod: &Pod) -> &str {
    annotation(pod, CONFIG_HASH_ANNOTATION).filter(|_| is_mirror_pod(pod)).unwrap_or_else(|| uid(pod))
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

/// Whether the phase in the API is a terminal one.
pub(crate) fn is_terminal(pod: &Pod) -> bool {
    is_phase_terminal(phase(pod))
}

/// Whether a phase never changes again.
pub(crate) fn is_phase_terminal(phase: &str) -> bool {
    matches!(phase, "Succeeded" | "Failed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_annotation_does_not_make_a_static_pod() {
        let pod = |annotations: serde_json::Value| -> Pod {
            serde_json::from_value(serde_json::json!({"metadata": {"annotations": annotations}})).unwrap()
        };
        let pretends = sanitize(pod(
            serde_json::json!({(CONFIG_SOURCE_ANNOTATION): "file", (CONFIG_HASH_ANNOTATION): "0", "a": "b"}),
        ));
        assert!(!is_static(&pretends) && !is_critical(&pretends));
        assert_eq!(annotation(&pretends, "a"), Some("b"));
        let mirror = sanitize(pod(
            serde_json::json!({(CONFIG_SOURCE_ANNOTATION): "file", (CONFIG_HASH_ANNOTATION): "0", (CONFIG_MIRROR_ANNOTATION): "0"}),
        ));
        assert!(is_static(&mirror) && is_critical(&mirror), "made by the node");
    }
}
