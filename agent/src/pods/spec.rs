//! Questions about a pod's spec that several decisions ask. Pure.

use k8s_openapi::api::core::v1::{Container, ObjectReference, Pod, PodSpec};
use windlass_kit::json;

use super::status::canonical;

/// What a container is among its pod's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Runs to its end before the next one starts.
    Init,
    /// An init container that goes on running beside the others.
    Sidecar,
    /// One of `spec.containers`.
    Main,
    /// Put into the running pod to look at it; run once.
    Ephemeral,
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
        Self::named(spec.restart_policy.as_deref().unwrap_or(""))
    }

    fn named(name: &str) -> Self {
        match name {
            "OnFailure" => Self::OnFailure,
            "Never" => Self::Never,
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

/// What follows the end of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// It has ended for good.
    Nothing,
    /// It is run again.
    Restart,
    /// The whole pod begins anew, its init containers first.
    RestartAll,
}

/// What follows an exit with `code`: the first of the container's own rules that fits, else its own policy, else the
/// pod's. A sidecar always comes back; an init container is run again unless the policy says Never.
pub(crate) fn after(spec: &PodSpec, container: &Container, role: Role, code: i64) -> After {
    if role == Role::Ephemeral {
        return After::Nothing;
    }
    let rules = container.restart_policy_rules.iter().flatten();
    for rule in rules {
        let Some(codes) = &rule.exit_codes else { continue };
        let among = codes.values.iter().flatten().any(|value| i64::from(*value) == code);
        if among == (codes.operator == "In") {
            return if rule.action == "RestartAllContainers" { After::RestartAll } else { After::Restart };
        }
    }
    if policy(spec, container, role).restarts(code) { After::Restart } else { After::Nothing }
}

/// The policy that counts for a container: its own, else the pod's. An init container that has ended well is done.
fn policy(spec: &PodSpec, container: &Container, role: Role) -> RestartPolicy {
    match (container.restart_policy.as_deref(), role) {
        (Some(own), _) => RestartPolicy::named(own),
        (None, Role::Init) if RestartPolicy::of(spec) == RestartPolicy::Always => RestartPolicy::OnFailure,
        (None, _) => RestartPolicy::of(spec),
    }
}

/// Whether a container that was ended since a probe or a hook failed is run again, whatever code it ended with.
pub(crate) fn restarts_after_failure(spec: &PodSpec, container: &Container, role: Role) -> bool {
    role != Role::Ephemeral && policy(spec, container, role) != RestartPolicy::Never
}

/// Containers that people put into a running pod to look at it.
pub(crate) fn ephemeral_containers(spec: &PodSpec) -> Vec<Container> {
    let all = spec.ephemeral_containers.iter().flatten();
    // Every field but the target is one of a container.
    all.filter_map(|e| json::from_slice(&serde_json::to_vec(e).ok()?).ok()).collect()
}

/// The container whose processes an ephemeral one wants to see.
pub(crate) fn target_of<'a>(spec: &'a PodSpec, ephemeral: &str) -> Option<&'a str> {
    let found = spec.ephemeral_containers.iter().flatten().find(|e| e.name == ephemeral)?;
    found.target_container_name.as_deref().filter(|name| !name.is_empty())
}

/// One of the containers that a pod has from its beginning.
pub(crate) fn permanent<'a>(spec: &'a PodSpec, name: &str) -> Option<&'a Container> {
    all_containers(spec).map(|(c, _)| c).find(|c| c.name == name)
}

/// A container of any kind.
pub(crate) fn container(spec: &PodSpec, name: &str) -> Option<Container> {
    permanent(spec, name).cloned().or_else(|| ephemeral_containers(spec).into_iter().find(|c| c.name == name))
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
    asked_grace(pod).unwrap_or(spec).max(0)
}

/// The grace that a deletion asks for. One of 0 asks for none: it is how the API forgets a pod at once, and kube-apiserver
/// shows it for a moment before it does; upstream's nodes give containers the time of the spec then.
pub(crate) fn asked_grace(pod: &Pod) -> Option<i64> {
    pod.metadata.deletion_grace_period_seconds.filter(|grace| *grace > 0)
}

/// Where a pod comes from: `file` for one of the node's own folder.
pub(crate) const SOURCE: &str = "kubernetes.io/config.source";
/// What stands for the content of a static pod's manifest.
pub(crate) const HASH: &str = "kubernetes.io/config.hash";
/// On the image of a static pod in the API: the hash of what it shows.
pub(crate) const MIRROR: &str = "kubernetes.io/config.mirror";

pub(crate) fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// A pod as the API has sent it, without what the agent never reads and every pod carries, and with its status in the
/// form in which statuses are compared. Which pods are the node's own is the node's to say: a source that somebody has
/// written into a pod of the API is not believed, as upstream's kubelet writes its own over it.
pub(crate) fn received(mut pod: Pod) -> Pod {
    pod.metadata.managed_fields = None;
    pod.status = pod.status.map(canonical);
    let mirror = is_mirror(&pod);
    if let Some(annotations) = &mut pod.metadata.annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
        if !mirror {
            annotations.remove(SOURCE);
        }
    }
    pod
}

/// A pod of the node's own folder, run whatever the API says.
pub(crate) fn is_static(pod: &Pod) -> bool {
    annotation(pod, SOURCE).is_some_and(|source| source != "api")
}

/// The image in the API of a static pod.
#[must_use]
pub fn is_mirror(pod: &Pod) -> bool {
    annotation(pod, MIRROR).is_some()
}

/// Pods that the node ends last and makes room for; upstream's.
pub(crate) fn is_critical(pod: &Pod) -> bool {
    is_static(pod) || is_mirror(pod) || pod.spec.as_ref().and_then(|s| s.priority).is_some_and(|p| p >= SYSTEM_CRITICAL)
}

/// The first priority that the system keeps to itself; upstream's.
pub(crate) const SYSTEM_CRITICAL: i32 = 2_000_000_000;

/// The uid that Docker's labels show of a pod that the API has: the image of a static pod has another than the pod.
pub(crate) fn uid_at_docker(pod: &Pod) -> &str {
    annotation(pod, HASH).filter(|_| is_mirror(pod)).unwrap_or_else(|| uid(pod))
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

/// The pod as events name it.
pub(crate) fn reference(pod: &Pod) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
        resource_version: pod.metadata.resource_version.clone(),
        field_path: None,
    }
}

/// `name_namespace(uid)`, as upstream's messages name a pod.
pub(crate) fn pod_full_name(pod: &Pod) -> String {
    format!("{}_{}({})", name(pod), namespace(pod), uid(pod))
}

pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("")
}

/// Whether a pod has ended for good.
pub(crate) fn is_over(pod: &Pod) -> bool {
    is_terminal(phase(pod))
}

pub(crate) fn is_terminal(phase: &str) -> bool {
    matches!(phase, "Succeeded" | "Failed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_makes_a_static_pod_by_an_annotation() {
        let pod = |annotations: serde_json::Value| -> Pod {
            serde_json::from_value(serde_json::json!({"metadata": {"annotations": annotations}})).unwrap()
        };
        let pretends = received(pod(serde_json::json!({(SOURCE): "file", (HASH): "0", "a": "b"})));
        assert!(!is_static(&pretends) && !is_critical(&pretends));
        assert_eq!(annotation(&pretends, "a"), Some("b"));
        let mirror = received(pod(serde_json::json!({(SOURCE): "file", (HASH): "0", (MIRROR): "0"})));
        assert!(is_static(&mirror) && is_critical(&mirror), "what the node itself has made");
    }
}
