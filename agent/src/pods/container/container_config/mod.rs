//! From a pod's spec to the request that creates its sandbox or one of its containers in Docker. Pure.

use std::{borrow::Cow, collections::HashMap, net::IpAddr, path::Path};

use bollard::models::{
    ContainerCreateBody, DeviceMapping, HealthConfig, HostConfig, HostConfigLogConfig, Mount, MountBindOptions,
    MountBindOptionsPropagationEnum, MountImageOptions, MountType, RestartPolicy, RestartPolicyNameEnum,
};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, VolumeMount};
use windlass_kit::objects::resources::class_of;

use super::{
    env::expand,
    mounts::{ContainerMount, Device, MountOrigin},
    qos,
    security::{SecurityContexts, UserFault, app_armor_annotation},
};
use crate::{
    LogLimits,
    cgroup::limits::{CPU_PERIOD, container_limits, pod_cgroup},
    engine::names::{self, Identity},
    pods::lifecycle::spec,
};

/// What the node contributes to every container.
#[derive(Debug, Clone)]
pub(crate) struct HostContext<'a> {
    pub(crate) systemd_cgroups: bool,
    /// Whether a negative OOM score can be set at all.
    pub(crate) negative_oom: bool,
    pub(crate) node_memory: i64,
    /// The pod's directory, with its `etc-hosts` and `resolv.conf`.
    pub(crate) pod_dir: &'a Path,
    /// The content of the Localhost seccomp profile that the container names.
    pub(crate) seccomp: Option<&'a str>,
    /// The runtime of the pod's RuntimeClass; Docker's default where it has none.
    pub(crate) runtime: Option<&'a str>,
    pub(crate) log_limits: LogLimits,
}

/// The image that a container is created from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ContainerImage<'a> {
    pub(crate) id: &'a str,
    /// The default user of its containers, perhaps with a group behind a colon.
    pub(crate) user: &'a str,
    /// Its `/etc/passwd`, where [`needs_passwd`](super::security::needs_passwd) says so.
    pub(crate) passwd: Option<&'a str>,
}

/// The identity of one attempt of a container, or of the sandbox.
pub(crate) fn identity(pod: &Pod, container: &str, attempt: u32) -> Identity {
    Identity {
        namespace: spec::namespace(pod).to_owned(),
        pod: spec::name(pod).to_owned(),
        uid: spec::uid(pod).to_owned(),
        container: container.to_owned(),
        attempt,
    }
}

fn allowed_score(score: i64, host: &HostContext<'_>) -> Option<i64> {
    (score >= 0 || host.negative_oom).then_some(score)
}

/// What one attempt of a sandbox is created from.
pub(crate) struct SandboxRequest<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) spec: &'a PodSpec,
    pub(crate) attempt: u32,
    /// The pod's IP addresses, where they are known before it is created.
    pub(crate) addresses: &'a [IpAddr],
    pub(crate) hostname: &'a str,
    /// The id of the pause image.
    pub(crate) image: &'a str,
}

/// The sandbox: a container whose only purpose is the pod's namespaces. Never privileged, whatever the pod's containers
/// are: the pause process needs nothing of it.
pub(crate) fn sandbox(request: &SandboxRequest<'_>, host: &HostContext<'_>) -> (String, ContainerCreateBody) {
    let SandboxRequest { pod, spec: pod_spec, attempt, addresses, hostname, image } = *request;
    let identity = identity(pod, names::SANDBOX_NAME, attempt);
    let mut labels = identity.labels();
    let of_pod = pod.metadata.labels.iter().flatten().map(|(key, value)| (key.clone(), value));
    let annotations = pod.metadata.annotations.iter().flatten();
    let annotations = annotations.map(|(key, value)| (format!("{}{key}", names::ANNOTATION), value));
    labels.extend(
        of_pod.chain(annotations).filter(|(key, _)| !names::is_reserved(key)).map(|(key, value)| (key, value.clone())),
    );
    if !addresses.is_empty() {
        let all: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
        labels.insert(names::POD_IP.to_owned(), all.join(","));
    }
    let host_network = spec::host_network(pod_spec);
    let sysctls = pod_spec.security_context.iter().flat_map(|c| c.sysctls.iter().flatten());
    let body = ContainerCreateBody {
        image: Some(image.to_owned()),
        hostname: (!host_network).then(|| hostname.to_owned()),
        labels: Some(labels),
        host_config: Some(HostConfig {
            network_mode: Some(if host_network { "host" } else { "none" }.to_owned()),
            ipc_mode: Some(if pod_spec.host_ipc == Some(true) { "host" } else { "shareable" }.to_owned()),
            pid_mode: (pod_spec.host_pid == Some(true)).then(|| "host".to_owned()),
            cgroup_parent: Some(pod_cgroup(class_of(pod), spec::uid(pod), host.systemd_cgroups)),
            cpu_shares: Some(2),
            oom_score_adj: allowed_score(-998, host),
            security_opt: Some(vec!["no-new-privileges".to_owned()]),
            sysctls: Some(sysctls.map(|s| (s.name.clone(), s.value.clone())).collect()),
            runtime: host.runtime.map(str::to_owned),
            restart_policy: Some(no_restart()),
            log_config: Some(HostConfigLogConfig { typ: Some("none".to_owned()), config: None }),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    };
    (identity.docker_name(), body)
}

/// Docker itself never restarts a pod's container: the agent decides.
fn no_restart() -> RestartPolicy {
    RestartPolicy { name: Some(RestartPolicyNameEnum::NO), maximum_retry_count: None }
}

/// What one attempt of a container is created from.
pub(crate) struct ContainerRequest<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) spec: &'a PodSpec,
    pub(crate) container: &'a Container,
    pub(crate) attempt: u32,
    /// The id of the sandbox that it joins.
    pub(crate) sandbox: &'a str,
    /// The id of the container whose process namespace an ephemeral one joins.
    pub(crate) target: Option<&'a str>,
    pub(crate) image: ContainerImage<'a>,
    pub(crate) variables: &'a [(String, String)],
    pub(crate) mounts: &'a [ContainerMount],
    pub(crate) devices: &'a [Device],
    /// The file on the host that receives its termination message.
    pub(crate) message_file: &'a Path,
}

/// The name and configuration of one container.
///
/// # Errors
/// The message of CreateContainerConfigError.
pub(crate) fn container(
    request: &ContainerRequest<'_>,
    host: &HostContext<'_>,
) -> Result<(String, ContainerCreateBody), String> {
    let ContainerRequest { pod, container, variables, .. } = *request;
    let identity = identity(pod, &container.name, request.attempt);
    let value_of = |name: &str| variables.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    let expanded = |list: &Option<Vec<String>>| -> Option<Vec<String>> {
        list.as_ref().filter(|l| !l.is_empty()).map(|l| l.iter().map(|text| expand(text, value_of)).collect())
    };
    let body = ContainerCreateBody {
        image: Some(request.image.id.to_owned()),
        user: SecurityContexts::of(request.spec, container).user(&request.image).map_err(|fault| match fault {
            UserFault::Root(why) => {
                let pod = spec::pod_full_name(pod);
                format!("{why} (pod: {pod:?}, container: {})", container.name)
            }
            UserFault::Unknown(why) => why,
        })?,
        entrypoint: expanded(&container.command),
        // A command without arguments drops the image's default arguments.
        cmd: expanded(&container.args)
            .or_else(|| container.command.as_ref().filter(|c| !c.is_empty()).map(|_| Vec::new())),
        env: Some(variables.iter().map(|(key, value)| format!("{key}={value}")).collect()),
        working_dir: container.working_dir.clone().filter(|d| !d.is_empty()),
        tty: Some(container.tty == Some(true)),
        open_stdin: Some(container.stdin == Some(true)),
        stdin_once: Some(container.stdin_once == Some(true)),
        stop_signal: container.lifecycle.as_ref().and_then(|l| l.stop_signal.clone()),
        // The image's health check would run alongside the pod's probes.
        healthcheck: Some(HealthConfig { test: Some(vec!["NONE".to_owned()]), ..HealthConfig::default() }),
        labels: Some(labels(request, &identity)),
        host_config: Some(host_config(request, host)),
        ..ContainerCreateBody::default()
    };
    Ok((identity.docker_name(), body))
}

/// A path in a container: one that is relative begins at the root, as upstream has it, and Docker takes no other.
fn absolute(path: &str) -> Cow<'_, str> {
    if path.starts_with('/') { Cow::Borrowed(path) } else { Cow::Owned(format!("/{path}")) }
}

/// Where a container writes its termination message.
fn message_path(container: &Container) -> Cow<'_, str> {
    absolute(container.termination_message_path.as_deref().filter(|p| !p.is_empty()).unwrap_or("/dev/termination-log"))
}

/// Labels that dockershim and cri-dockerd set too: a container is recognised by them after a restart.
fn labels(request: &ContainerRequest<'_>, identity: &Identity) -> HashMap<String, String> {
    let container = request.container;
    let mut labels = identity.labels();
    for (key, value) in [
        (names::SANDBOX_ID, request.sandbox.to_owned()),
        (names::HASH, names::container_hash(&container.name, spec::image_of(container))),
        (names::RESTART_COUNT, request.attempt.to_string()),
        (names::MESSAGE_PATH, message_path(container).into_owned()),
        (names::MESSAGE_POLICY, container.termination_message_policy.clone().unwrap_or_else(|| "File".to_owned())),
        (names::GRACE, request.spec.termination_grace_period_seconds.unwrap_or(30).to_string()),
    ] {
        labels.insert(key.to_owned(), value);
    }
    let described = [
        (names::PORTS, container.ports.as_ref().map(serde_json::to_string)),
        (names::PRE_STOP, spec::pre_stop(container).map(serde_json::to_string)),
    ];
    labels.extend(described.into_iter().filter_map(|(key, text)| Some((key.to_owned(), text?.ok()?))));
    labels
}

fn host_config(request: &ContainerRequest<'_>, host: &HostContext<'_>) -> HostConfig {
    let ContainerRequest { pod, spec: pod_spec, container, .. } = *request;
    let contexts = SecurityContexts::of(pod_spec, container);
    let limits = container_limits(request.spec.resources.as_ref(), container);
    let set = |value: i64| (value > 0).then_some(value);
    let joined = format!("container:{}", request.sandbox);
    let pid_mode = if pod_spec.host_pid == Some(true) {
        Some("host".to_owned())
    } else {
        let shared = (pod_spec.share_process_namespace == Some(true)).then(|| joined.clone());
        shared.or_else(|| request.target.map(|id| format!("container:{id}")))
    };
    let capabilities = contexts.own.and_then(|c| c.capabilities.as_ref());
    let caps = |list: Option<&Option<Vec<String>>>| {
        list.and_then(Option::as_ref).map(|l| l.iter().map(|c| c.trim_start_matches("CAP_").to_owned()).collect())
    };
    HostConfig {
        network_mode: Some(joined.clone()),
        ipc_mode: Some(if pod_spec.host_ipc == Some(true) { "host".to_owned() } else { joined }),
        pid_mode,
        uts_mode: spec::host_network(pod_spec).then(|| "host".to_owned()),
        cgroup_parent: Some(pod_cgroup(class_of(pod), spec::uid(pod), host.systemd_cgroups)),
        mounts: Some(mounts(request, host)),
        devices: Some(request.devices.iter().map(device).collect()),
        memory: set(limits.memory),
        memory_swap: set(limits.memory),
        cpu_shares: Some(limits.cpu_shares),
        cpu_quota: set(limits.cpu_quota),
        cpu_period: set(limits.cpu_quota).map(|_| CPU_PERIOD),
        oom_score_adj: allowed_score(qos::oom_score_adj(pod, pod_spec, container, host.node_memory), host),
        privileged: Some(contexts.privileged()),
        cap_add: caps(capabilities.map(|c| &c.add)),
        cap_drop: caps(capabilities.map(|c| &c.drop)),
        readonly_rootfs: contexts.own.and_then(|c| c.read_only_root_filesystem),
        security_opt: Some(contexts.options(host.seccomp, app_armor_annotation(pod, container))),
        masked_paths: contexts.hidden_paths(),
        readonly_paths: contexts.hidden_paths(),
        group_add: Some(contexts.groups()),
        runtime: host.runtime.map(str::to_owned),
        restart_policy: Some(no_restart()),
        log_config: Some(HostConfigLogConfig {
            typ: Some("json-file".to_owned()),
            config: Some(HashMap::from([
                // A bare number is bytes; Docker's own suffixes are powers of ten.
                ("max-size".to_owned(), host.log_limits.file_bytes.to_string()),
                ("max-file".to_owned(), host.log_limits.files.to_string()),
            ])),
        }),
        ..HostConfig::default()
    }
}

fn device(device: &Device) -> DeviceMapping {
    DeviceMapping {
        path_on_host: Some(device.path.to_string_lossy().into_owned()),
        path_in_container: Some(device.at.clone()),
        cgroup_permissions: Some(if device.read_only { "r" } else { "rwm" }.to_owned()),
    }
}

fn mounts(request: &ContainerRequest<'_>, host: &HostContext<'_>) -> Vec<Mount> {
    let message_path = message_path(request.container);
    let wanted = || request.container.volume_mounts.iter().flatten();
    let taken: Vec<Cow<'_, str>> = wanted().map(|m| absolute(m.mount_path.trim_end_matches('/'))).collect();
    let is_taken = |path: &str| taken.iter().any(|taken| taken == path);
    let volumes = wanted().zip(request.mounts);
    let mut out: Vec<Mount> = volumes.map(|(mount, source)| volume_mount(mount, source)).collect();
    for (file, target) in [("etc-hosts", "/etc/hosts"), ("resolv.conf", "/etc/resolv.conf")] {
        if !is_taken(target) {
            out.push(bind(&host.pod_dir.join(file), target, false, None));
        }
    }
    if !is_taken(&message_path) {
        out.push(bind(request.message_file, &message_path, false, None));
    }
    out
}

fn volume_mount(mount: &VolumeMount, source: &ContainerMount) -> Mount {
    let propagation = match mount.mount_propagation.as_deref() {
        Some("HostToContainer") => Some(MountBindOptionsPropagationEnum::RSLAVE),
        Some("Bidirectional") => Some(MountBindOptionsPropagationEnum::RSHARED),
        // Mounts below it that were made read-only must come along.
        _ if spec::is_recursive_read_only(mount) => Some(MountBindOptionsPropagationEnum::RPRIVATE),
        _ => None,
    };
    match &source.from {
        MountOrigin::Host(path) => bind(path, &absolute(&mount.mount_path), source.read_only, propagation),
        MountOrigin::Image { id, sub_path } => Mount {
            typ: Some(MountType::IMAGE),
            source: Some(id.clone()),
            target: Some(absolute(&mount.mount_path).into_owned()),
            read_only: Some(true),
            image_options: sub_path.clone().map(|part| MountImageOptions { subpath: Some(part) }),
            ..Mount::default()
        },
    }
}

fn bind(source: &Path, target: &str, read_only: bool, propagation: Option<MountBindOptionsPropagationEnum>) -> Mount {
    Mount {
        typ: Some(MountType::BIND),
        source: Some(source.to_string_lossy().into_owned()),
        target: Some(target.to_owned()),
        read_only: Some(read_only),
        bind_options: propagation.map(|p| MountBindOptions { propagation: Some(p), ..MountBindOptions::default() }),
        ..Mount::default()
    }
}

#[cfg(test)]
mod tests;
