//! From a pod's spec to what Docker is asked to create. Pure.

mod security;

use std::{collections::HashMap, net::IpAddr, path::Path};

use bollard::models::{
    ContainerCreateBody, DeviceMapping, HealthConfig, HostConfig, HostConfigLogConfig, Mount, MountBindOptions,
    MountBindOptionsPropagationEnum, MountImageOptions, MountType, RestartPolicy, RestartPolicyNameEnum,
};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, VolumeMount};
use windlass_kit::objects::resources::class_of;

pub(crate) use security::{local_app_armor, local_seccomp, needs_passwd};

use self::security::Contexts;
use super::{
    env::expand,
    mounts::{Device, Origin, Source, is_deep_read_only},
    qos, spec,
};
use crate::{
    LogLimits,
    engine::names::{self, Identity},
};

/// What the node adds to a pod's spec.
#[derive(Debug, Clone)]
pub(crate) struct Surroundings<'a> {
    pub(crate) systemd_cgroups: bool,
    /// A negative score can be set at all.
    pub(crate) negative_oom: bool,
    pub(crate) node_memory: i64,
    /// The pod's folder, with its `etc-hosts` and `resolv.conf`.
    pub(crate) pod_dir: &'a Path,
    /// The content of the node's own seccomp profile that the container asks for.
    pub(crate) seccomp: Option<&'a str>,
    /// The runtime that the pod's class names; Docker's own default where it names none.
    pub(crate) runtime: Option<&'a str>,
    pub(crate) log_limits: LogLimits,
}

/// What a container is made from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Image<'a> {
    pub(crate) id: &'a str,
    /// The user that its containers run as unless told otherwise, perhaps with a group behind a colon.
    pub(crate) user: &'a str,
    /// Its `/etc/passwd`, where [`needs_passwd`] asks for it.
    pub(crate) passwd: Option<&'a str>,
}

/// Docker's id for a sandbox of a given attempt.
pub(crate) fn identity(pod: &Pod, container: &str, attempt: u32) -> Identity {
    Identity {
        namespace: spec::namespace(pod).to_owned(),
        pod: spec::name(pod).to_owned(),
        uid: spec::uid(pod).to_owned(),
        container: container.to_owned(),
        attempt,
    }
}

fn allowed_score(score: i64, around: &Surroundings<'_>) -> Option<i64> {
    (score >= 0 || around.negative_oom).then_some(score)
}

/// The sandbox: a container that does nothing but hold the pod's namespaces.
pub(crate) fn sandbox(
    pod: &Pod,
    pod_spec: &PodSpec,
    attempt: u32,
    addresses: &[IpAddr],
    hostname: &str,
    pause: &str,
    around: &Surroundings<'_>,
) -> (String, ContainerCreateBody) {
    let identity = identity(pod, names::SANDBOX_NAME, attempt);
    let mut labels = identity.labels();
    for (key, value) in pod.metadata.labels.iter().flatten() {
        labels.entry(key.clone()).or_insert_with(|| value.clone());
    }
    for (key, value) in pod.metadata.annotations.iter().flatten() {
        labels.entry(format!("{}{key}", names::ANNOTATION)).or_insert_with(|| value.clone());
    }
    if !addresses.is_empty() {
        let all: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
        labels.insert(names::POD_IP.to_owned(), all.join(","));
    }
    let host_network = spec::host_network(pod_spec);
    let sysctls = pod_spec.security_context.iter().flat_map(|c| c.sysctls.iter().flatten());
    let body = ContainerCreateBody {
        image: Some(pause.to_owned()),
        hostname: (!host_network).then(|| hostname.to_owned()),
        labels: Some(labels),
        host_config: Some(HostConfig {
            network_mode: Some(if host_network { "host" } else { "none" }.to_owned()),
            ipc_mode: Some(if pod_spec.host_ipc == Some(true) { "host" } else { "shareable" }.to_owned()),
            pid_mode: (pod_spec.host_pid == Some(true)).then(|| "host".to_owned()),
            cgroup_parent: Some(qos::cgroup_parent(class_of(pod), spec::uid(pod), around.systemd_cgroups)),
            cpu_shares: Some(2),
            oom_score_adj: allowed_score(-998, around),
            security_opt: Some(vec!["no-new-privileges".to_owned()]),
            sysctls: Some(sysctls.map(|s| (s.name.clone(), s.value.clone())).collect()),
            runtime: around.runtime.map(str::to_owned),
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

/// One container of the pod, joined to its sandbox.
///
/// # Errors
/// The message of CreateContainerConfigError.
#[allow(clippy::too_many_arguments, reason = "each is one fact that the body needs")]
pub(crate) fn container(
    pod: &Pod,
    pod_spec: &PodSpec,
    container: &Container,
    attempt: u32,
    (sandbox, target): (&str, Option<&str>),
    image: &Image<'_>,
    variables: &[(String, String)],
    (sources, devices): (&[Source], &[Device]),
    message_file: &Path,
    around: &Surroundings<'_>,
) -> Result<(String, ContainerCreateBody), String> {
    let identity = identity(pod, &container.name, attempt);
    let contexts = Contexts::of(pod_spec, container);
    let own = contexts.own;
    let value_of = |name: &str| variables.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    let expanded = |list: &Option<Vec<String>>| -> Option<Vec<String>> {
        list.as_ref().filter(|l| !l.is_empty()).map(|l| l.iter().map(|text| expand(text, value_of)).collect())
    };
    let user = contexts.user(image)?;

    let mut labels = identity.labels();
    let message_path =
        container.termination_message_path.as_deref().filter(|p| !p.is_empty()).unwrap_or("/dev/termination-log");
    for (key, value) in [
        (names::SANDBOX_ID, sandbox.to_owned()),
        (names::HASH, names::container_hash(&container.name, spec::image_of(container))),
        (names::RESTART_COUNT, attempt.to_string()),
        (names::MESSAGE_PATH, message_path.to_owned()),
        (names::MESSAGE_POLICY, container.termination_message_policy.clone().unwrap_or_else(|| "File".to_owned())),
        (names::GRACE, pod_spec.termination_grace_period_seconds.unwrap_or(30).to_string()),
    ] {
        labels.insert(key.to_owned(), value);
    }

    let pre_stop = container.lifecycle.as_ref().and_then(|l| l.pre_stop.as_ref());
    let described = [
        (names::PORTS, container.ports.as_ref().map(serde_json::to_string)),
        (names::PRE_STOP, pre_stop.map(serde_json::to_string)),
    ];
    labels.extend(described.into_iter().filter_map(|(key, text)| Some((key.to_owned(), text?.ok()?))));

    let limits = qos::limits(container);
    let set = |value: i64| (value > 0).then_some(value);
    let joined = format!("container:{sandbox}");
    let pid_mode = if pod_spec.host_pid == Some(true) {
        Some("host".to_owned())
    } else {
        let shared = (pod_spec.share_process_namespace == Some(true)).then(|| joined.clone());
        shared.or_else(|| target.map(|id| format!("container:{id}")))
    };
    let capabilities = own.and_then(|c| c.capabilities.as_ref());
    let caps = |list: Option<&Option<Vec<String>>>| {
        list.and_then(Option::as_ref).map(|l| l.iter().map(|c| c.trim_start_matches("CAP_").to_owned()).collect())
    };
    let body = ContainerCreateBody {
        image: Some(image.id.to_owned()),
        user,
        entrypoint: expanded(&container.command),
        // A command without arguments drops the image's own arguments.
        cmd: expanded(&container.args)
            .or_else(|| container.command.as_ref().filter(|c| !c.is_empty()).map(|_| Vec::new())),
        env: Some(variables.iter().map(|(key, value)| format!("{key}={value}")).collect()),
        working_dir: container.working_dir.clone().filter(|d| !d.is_empty()),
        tty: Some(container.tty == Some(true)),
        open_stdin: Some(container.stdin == Some(true)),
        stdin_once: Some(container.stdin_once == Some(true)),
        stop_signal: container.lifecycle.as_ref().and_then(|l| l.stop_signal.clone()),
        // The image's own health check would run beside the pod's probes.
        healthcheck: Some(HealthConfig { test: Some(vec!["NONE".to_owned()]), ..HealthConfig::default() }),
        labels: Some(labels),
        host_config: Some(HostConfig {
            network_mode: Some(joined.clone()),
            ipc_mode: Some(if pod_spec.host_ipc == Some(true) { "host".to_owned() } else { joined }),
            pid_mode,
            uts_mode: spec::host_network(pod_spec).then(|| "host".to_owned()),
            cgroup_parent: Some(qos::cgroup_parent(class_of(pod), spec::uid(pod), around.systemd_cgroups)),
            mounts: Some(mounts(container, sources, message_path, message_file, around)),
            devices: Some(devices.iter().map(device).collect()),
            memory: set(limits.memory),
            memory_swap: set(limits.memory),
            cpu_shares: Some(limits.cpu_shares),
            cpu_quota: set(limits.cpu_quota),
            cpu_period: set(limits.cpu_quota).map(|_| qos::CPU_PERIOD),
            oom_score_adj: allowed_score(qos::oom_score_adj(pod, pod_spec, container, around.node_memory), around),
            privileged: Some(contexts.privileged()),
            cap_add: caps(capabilities.map(|c| &c.add)),
            cap_drop: caps(capabilities.map(|c| &c.drop)),
            readonly_rootfs: own.and_then(|c| c.read_only_root_filesystem),
            security_opt: Some(contexts.options(around.seccomp)),
            masked_paths: contexts.hidden_paths(),
            readonly_paths: contexts.hidden_paths(),
            group_add: Some(contexts.groups()),
            runtime: around.runtime.map(str::to_owned),
            restart_policy: Some(no_restart()),
            log_config: Some(HostConfigLogConfig {
                typ: Some("json-file".to_owned()),
                config: Some(HashMap::from([
                    // A bare number is bytes; Docker's own suffixes are powers of ten.
                    ("max-size".to_owned(), around.log_limits.file_bytes.to_string()),
                    ("max-file".to_owned(), around.log_limits.files.to_string()),
                ])),
            }),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    };
    Ok((identity.docker_name(), body))
}

fn device(device: &Device) -> DeviceMapping {
    DeviceMapping {
        path_on_host: Some(device.path.to_string_lossy().into_owned()),
        path_in_container: Some(device.at.clone()),
        cgroup_permissions: Some(if device.read_only { "r" } else { "rwm" }.to_owned()),
    }
}

fn mounts(
    container: &Container,
    sources: &[Source],
    message_path: &str,
    message_file: &Path,
    around: &Surroundings<'_>,
) -> Vec<Mount> {
    let wanted = || container.volume_mounts.iter().flatten();
    let taken: Vec<&str> = wanted().map(|m| m.mount_path.trim_end_matches('/')).collect();
    let mut out: Vec<Mount> = wanted().zip(sources).map(|(mount, source)| volume_mount(mount, source)).collect();
    for (file, target) in [("etc-hosts", "/etc/hosts"), ("resolv.conf", "/etc/resolv.conf")] {
        if !taken.contains(&target) {
            out.push(bind(&around.pod_dir.join(file), target, false, None));
        }
    }
    if !taken.contains(&message_path) {
        out.push(bind(message_file, message_path, false, None));
    }
    out
}

fn volume_mount(mount: &VolumeMount, source: &Source) -> Mount {
    let propagation = match mount.mount_propagation.as_deref() {
        Some("HostToContainer") => Some(MountBindOptionsPropagationEnum::RSLAVE),
        Some("Bidirectional") => Some(MountBindOptionsPropagationEnum::RSHARED),
        // What was made read-only below must come along.
        _ if is_deep_read_only(mount) => Some(MountBindOptionsPropagationEnum::RPRIVATE),
        _ => None,
    };
    match &source.from {
        Origin::Host(path) => bind(path, &mount.mount_path, source.read_only, propagation),
        Origin::Image { id, sub_path } => Mount {
            typ: Some(MountType::IMAGE),
            source: Some(id.clone()),
            target: Some(mount.mount_path.clone()),
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
