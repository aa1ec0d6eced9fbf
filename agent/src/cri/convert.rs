//! How a container, a sandbox and an image are shown. Pure.

use std::collections::HashMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container as SpecContainer, Pod};
use serde_json::json;

use super::messages::{
    Container, ContainerMetadata, ContainerResources, ContainerStatus, ContainerUser, Image, ImageSpec, Int64Value,
    LinuxContainerResources, LinuxContainerUser, LinuxPodSandboxStatus, Namespace, NamespaceOption, PodIp, PodSandbox,
    PodSandboxMetadata, PodSandboxNetworkStatus, PodSandboxStatus, Texts, container_state, namespace_mode,
    sandbox_state,
};
use crate::{
    cgroup::limits::CPU_PERIOD,
    engine::{
        images::ImageSummary,
        inspect::{Instance, State},
        names,
    },
    pods::{exit_reason, image_of, pre_stop, runtime_uid, spec_container},
};

/// kubelet's annotations of containers that the façade has; programs read them by these names. Its hash is not among them:
/// OpenKruise takes a hash of 0 to mean that images decide.
mod annotations {
    pub(super) const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
    pub(super) const GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";
    pub(super) const PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
    pub(super) const PORTS: &str = "io.kubernetes.container.ports";
}

/// Pods by the uid that their containers carry.
pub(super) struct PodsByUid<'a>(HashMap<&'a str, &'a Pod>);

impl<'a> PodsByUid<'a> {
    pub(super) fn of(pods: impl Iterator<Item = &'a Pod>) -> Self {
        Self(pods.map(|pod| (runtime_uid(pod), pod)).collect())
    }

    /// The pod of a container; `None` when no source has it any more.
    pub(super) fn get(&self, instance: &Instance) -> Option<&'a Pod> {
        self.0.get(instance.identity.uid.as_str()).copied()
    }
}

/// A container as its pod's spec has it.
fn of_spec(instance: &Instance, pod: Option<&Pod>) -> Option<SpecContainer> {
    spec_container(pod?.spec.as_ref()?, &instance.identity.container)
}

pub(super) fn container(instance: &Instance, pod: Option<&Pod>) -> Container {
    let spec = of_spec(instance, pod);
    Container {
        id: instance.id.clone(),
        pod_sandbox_id: instance.sandbox.clone(),
        metadata: Some(metadata(instance)),
        image: Some(image_spec(instance, spec.as_ref())),
        image_ref: instance.image_id.clone(),
        state: state(instance),
        created_at: nanoseconds(instance.created_at),
        labels: labels(instance),
        annotations: container_annotations(instance, spec.as_ref()),
        // Containers are created from an image's id.
        image_id: instance.image.clone(),
    }
}

pub(super) fn container_status(instance: &Instance, pod: Option<&Pod>) -> ContainerStatus {
    let Container { id, metadata, image, image_ref, state, created_at, labels, annotations, image_id, .. } =
        container(instance, pod);
    let exit = instance.exit();
    let started_at = match &instance.state {
        State::Created => None,
        State::Running { started_at, .. } => Some(*started_at),
        State::Exited(exit) => exit.started_at,
    };
    let message = exit.map(|exit| if exit.message.is_empty() { &exit.error } else { &exit.message });
    ContainerStatus {
        id,
        metadata,
        state,
        created_at,
        started_at: started_at.map_or(0, nanoseconds),
        finished_at: exit.map_or(0, |exit| nanoseconds(exit.finished_at)),
        exit_code: exit.map_or(0, |exit| i32::try_from(exit.code).unwrap_or(i32::MAX)),
        image,
        image_ref,
        reason: exit.map(exit_reason).unwrap_or_default().to_owned(),
        message: message.cloned().unwrap_or_default(),
        labels,
        annotations,
        log_path: instance.log_path.clone(),
        resources: Some(ContainerResources {
            linux: Some(LinuxContainerResources {
                cpu_period: if instance.limits.cpu_quota > 0 { CPU_PERIOD } else { 0 },
                cpu_quota: instance.limits.cpu_quota,
                cpu_shares: instance.limits.cpu_shares,
                memory_limit_in_bytes: instance.limits.memory,
            }),
        }),
        image_id,
        user: instance.user.as_ref().map(|user| ContainerUser {
            linux: Some(LinuxContainerUser { uid: user.uid.into(), gid: user.gid.into() }),
        }),
    }
}

/// What a client that asks for all gets besides, in the form that crictl prints and its templates read.
pub(super) fn container_info(instance: &Instance) -> Texts {
    let pid = match instance.state {
        State::Running { pid, .. } => pid,
        State::Created | State::Exited(_) => 0,
    };
    let info = json!({"sandboxID": instance.sandbox, "pid": pid, "image": instance.image, "runtime": instance.runtime});
    Texts::from([("info".to_owned(), info.to_string())])
}

pub(super) fn metadata(instance: &Instance) -> ContainerMetadata {
    ContainerMetadata { name: instance.identity.container.clone(), attempt: instance.identity.attempt }
}

/// The image as the spec writes it, while the container is of that spec: an image that was changed since is that of its next
/// attempt.
fn image_spec(instance: &Instance, spec: Option<&SpecContainer>) -> ImageSpec {
    let written = spec.map(image_of);
    let is_its = |image: &&str| instance.hash == names::container_hash(&instance.identity.container, image);
    ImageSpec { image: written.filter(is_its).unwrap_or(&instance.image_id).to_owned() }
}

fn state(instance: &Instance) -> i32 {
    match instance.state {
        State::Created => container_state::CREATED,
        State::Running { .. } => container_state::RUNNING,
        State::Exited(_) => container_state::EXITED,
    }
}

fn texts<const N: usize>(all: [(&str, &str); N]) -> Texts {
    all.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

pub(super) fn labels(instance: &Instance) -> Texts {
    let identity = &instance.identity;
    texts([
        (names::POD_NAME, &identity.pod),
        (names::POD_NAMESPACE, &identity.namespace),
        (names::POD_UID, &identity.uid),
        (names::CONTAINER_NAME, &identity.container),
    ])
}

fn container_annotations(instance: &Instance, spec: Option<&SpecContainer>) -> Texts {
    let described = [
        (annotations::RESTART_COUNT, Some(instance.identity.attempt.to_string())),
        (annotations::GRACE, instance.grace.map(|seconds| seconds.to_string())),
        (annotations::PRE_STOP, spec.and_then(pre_stop).and_then(|hook| serde_json::to_string(hook).ok())),
        (
            annotations::PORTS,
            spec.and_then(|spec| spec.ports.as_ref()).and_then(|ports| serde_json::to_string(ports).ok()),
        ),
    ];
    described.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
}

pub(super) fn sandbox(instance: &Instance, pod: Option<&Pod>) -> PodSandbox {
    let identity = &instance.identity;
    let metadata = pod.map(|pod| &pod.metadata);
    let copied = |all: Option<&Texts>| all.cloned().unwrap_or_default();
    let mut labels = copied(metadata.and_then(|m| m.labels.as_ref()));
    labels.extend(texts([
        (names::POD_NAME, &identity.pod),
        (names::POD_NAMESPACE, &identity.namespace),
        (names::POD_UID, &identity.uid),
    ]));
    let has_class = pod.and_then(|pod| pod.spec.as_ref()?.runtime_class_name.as_ref()).is_some();
    PodSandbox {
        id: instance.id.clone(),
        metadata: Some(PodSandboxMetadata {
            name: identity.pod.clone(),
            uid: identity.uid.clone(),
            namespace: identity.namespace.clone(),
            attempt: identity.attempt,
        }),
        state: if instance.is_running() { sandbox_state::READY } else { sandbox_state::NOT_READY },
        created_at: nanoseconds(instance.created_at),
        labels,
        annotations: copied(metadata.and_then(|m| m.annotations.as_ref())),
        // Empty is the runtime that pods without a class have.
        runtime_handler: if has_class { instance.runtime.clone() } else { String::new() },
    }
}

pub(super) fn sandbox_status(instance: &Instance, pod: Option<&Pod>) -> PodSandboxStatus {
    let PodSandbox { id, metadata, state, created_at, labels, annotations, runtime_handler } = sandbox(instance, pod);
    let spec = pod.and_then(|pod| pod.spec.as_ref());
    let is = |flag: Option<bool>| flag == Some(true);
    let of_node = |is_of_node: bool| if is_of_node { namespace_mode::NODE } else { namespace_mode::POD };
    let pid = match spec {
        Some(spec) if is(spec.host_pid) => namespace_mode::NODE,
        Some(spec) if is(spec.share_process_namespace) => namespace_mode::POD,
        _ => namespace_mode::CONTAINER,
    };
    let host_network = spec.is_some_and(|spec| is(spec.host_network));
    let reported = pod.and_then(|pod| pod.status.as_ref()?.pod_ips.as_ref());
    let reported = reported.map(|ips| ips.iter().map(|ip| ip.ip.clone()).collect::<Vec<String>>());
    let own = || instance.addresses.iter().map(ToString::to_string).collect();
    // As upstream: the node's addresses are not the sandbox's.
    let mut addresses = if host_network { Vec::new() } else { reported.unwrap_or_else(own) }.into_iter();
    PodSandboxStatus {
        id,
        metadata,
        state,
        created_at,
        network: Some(PodSandboxNetworkStatus {
            ip: addresses.next().unwrap_or_default(),
            additional_ips: addresses.map(|ip| PodIp { ip }).collect(),
        }),
        linux: Some(LinuxPodSandboxStatus {
            namespaces: Some(Namespace {
                options: Some(NamespaceOption {
                    network: of_node(host_network),
                    pid,
                    ipc: of_node(spec.is_some_and(|spec| is(spec.host_ipc))),
                }),
            }),
        }),
        labels,
        annotations,
        runtime_handler,
    }
}

/// An image of the store; its `user` is known of one that was looked up.
pub(super) fn image(summary: &ImageSummary, user: Option<&str>) -> Image {
    // Perhaps with a group behind a colon.
    let user = user.and_then(|user| user.split(':').next()).unwrap_or_default();
    let uid = user.parse::<u32>().ok();
    Image {
        id: summary.id.clone(),
        repo_tags: summary.tags.clone(),
        repo_digests: summary.digests.clone(),
        size: u64::try_from(summary.size).unwrap_or(0),
        uid: uid.map(|uid| Int64Value { value: uid.into() }),
        username: if uid.is_none() { user.to_owned() } else { String::new() },
        pinned: summary.tags.iter().any(|tag| tag == crate::engine::pause::NAME),
    }
}

pub(super) fn nanoseconds(at: Timestamp) -> i64 {
    i64::try_from(at.as_nanosecond()).unwrap_or(i64::MAX)
}
