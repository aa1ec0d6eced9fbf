//! The sandbox of a pod: created, attached to its network, removed.

use std::{net::IpAddr, sync::Arc};

use k8s_openapi::api::core::v1::{ContainerPort, Pod};
use windlass_kit::{events::Severity, objects::requests::lasting_ports};

use super::{
    cgroups::{adopt_pod_cgroup, apply_pod_cgroup},
    container_files,
    containers::host_context,
    context::PodContext,
    host_facts,
    outcome::{Outcome, StepError},
    runtime_class::runtime,
};
use crate::{
    engine::{
        EngineError,
        inspect::{Instance, Limits, State},
        names::SANDBOX_NAME,
    },
    network::{Attach, Bandwidth, HostPort, NetworkNamespace, Protocol},
    pods::{
        container::{
            container_config::{self, HostContext, SandboxRequest, identity},
            hosts_and_dns,
        },
        lifecycle::{reasons, spec},
    },
};

/// Writes `etc-hosts` and `resolv.conf` in the pod's directory.
fn write_pod_files(context: &PodContext, pod: &Pod, addresses: &[IpAddr]) -> Result<(), String> {
    let dir = context.pod_dir(spec::uid(pod));
    let host_network = pod.spec.as_ref().is_some_and(spec::host_network);
    let hosts = if host_network {
        hosts_and_dns::host_network_hosts(pod, &host_facts::hosts())
    } else {
        hosts_and_dns::hosts(pod, addresses, &context.node.config.cluster_domain)
    };
    let write = |name: &str, text: &str| {
        let path = dir.join(name);
        container_files::ensure_text(&path, text).map_err(|e| format!("failed to write {}: {e}", path.display()))
    };
    std::fs::create_dir_all(&dir)
        .map_err(|e| format!("failed to create the pod's directory {}: {e}", dir.display()))?;
    if !addresses.is_empty() || host_network || !dir.join("etc-hosts").exists() {
        write("etc-hosts", &hosts)?;
    }
    write("resolv.conf", &hosts_and_dns::resolv_conf(pod, &context.dns()?).0)
}

/// Writes them again where one is gone: containers mount them.
pub(super) fn ensure_pod_files(context: &PodContext, pod: &Pod, addresses: &[IpAddr]) -> Result<(), String> {
    let dir = context.pod_dir(spec::uid(pod));
    match ["etc-hosts", "resolv.conf"].iter().all(|name| dir.join(name).exists()) {
        true => Ok(()),
        false => write_pod_files(context, pod, addresses),
    }
}

pub(crate) async fn create_sandbox(context: Arc<PodContext>, pod: Arc<Pod>, attempt: u32) -> Outcome {
    Outcome::SandboxCreated(create_and_describe(&context, &pod, attempt).await)
}

async fn create_and_describe(context: &PodContext, pod: &Pod, attempt: u32) -> Result<Instance, StepError> {
    let Some(pod_spec) = pod.spec.as_ref() else {
        return Err(StepError::new(reasons::CREATE_POD_SANDBOX_ERROR, "the pod has no spec"));
    };
    let failed = |message: String| StepError::new(reasons::CREATE_POD_SANDBOX_ERROR, message);
    let addresses = if spec::host_network(pod_spec) {
        write_pod_files(context, pod, &[]).map_err(failed)?;
        Vec::new()
    } else {
        if let Some(why) = context.node.network.readiness().borrow().problem() {
            return Err(StepError::new(reasons::NETWORK_NOT_READY, format!("network is not ready: {why}")));
        }
        let addresses = context.node.network.allocate(spec::uid(pod)).await.map_err(|e| failed(e.to_string()))?;
        write_pod_files(context, pod, &addresses).map_err(failed)?;
        addresses
    };
    for (reason, message) in hosts_and_dns::resolv_conf(pod, &context.dns().map_err(failed)?).1 {
        context.event(pod, None, Severity::Warning, reason, message);
    }
    let image = context.pause_image().await.map_err(|e| StepError::of(reasons::CREATE_POD_SANDBOX_ERROR, &e))?;
    let dir = context.pod_dir(spec::uid(pod));
    let hostname = hosts_and_dns::kernel_hostname(pod, &context.node.config.cluster_domain).map_err(failed)?;
    let runtime = runtime(context, pod_spec).await?;
    let request =
        SandboxRequest { pod, spec: pod_spec, attempt, addresses: &addresses, hostname: &hostname, image: &image };
    let host = HostContext { runtime: runtime.as_deref(), ..host_context(context, &dir) };
    let (name, body) = container_config::sandbox(&request, &host);
    let id = {
        let _permit = context.engine_calls.acquire().await;
        context
            .node
            .engine
            .create(&name, body)
            .await
            .map_err(|e| StepError::of(reasons::CREATE_POD_SANDBOX_ERROR, &e))?
    };
    Ok(Instance {
        id,
        identity: identity(pod, SANDBOX_NAME, attempt),
        state: State::Created,
        created_at: jiff::Timestamp::now(),
        image,
        image_id: String::new(),
        hash: String::new(),
        sandbox: String::new(),
        log_path: String::new(),
        addresses,
        grace: None,
        limits: Limits::default(),
        runtime: String::new(),
        message_from_log: false,
        user: None,
    })
}

/// Starts a sandbox and attaches its network; both may be done already.
pub(crate) async fn start_sandbox(context: Arc<PodContext>, pod: Arc<Pod>, sandbox: Instance) -> Outcome {
    Outcome::SandboxStarted(start_and_attach(&context, &pod, sandbox, None).await)
}

/// Makes sure of the network and the cgroup of an adopted sandbox, which was just seen running: it need not be inspected
/// again. `pod` has the resources that are allocated to it, `running` those that its containers have.
pub(crate) async fn reattach_sandbox(
    context: Arc<PodContext>,
    pod: Arc<Pod>,
    running: Pod,
    sandbox: Instance,
) -> Outcome {
    Outcome::SandboxStarted(start_and_attach(&context, &pod, sandbox, Some(&running)).await)
}

async fn start_and_attach(
    context: &PodContext,
    pod: &Pod,
    sandbox: Instance,
    adopted: Option<&Pod>,
) -> Result<Instance, StepError> {
    let failed = |e: &EngineError| StepError::of(reasons::CREATE_POD_SANDBOX_ERROR, e);
    let id = sandbox.id.clone();
    let running = if adopted.is_some() {
        Some(sandbox.clone())
    } else {
        let _permit = context.engine_calls.acquire().await;
        if !sandbox.is_running() {
            context.node.engine.start(&id).await.map_err(|e| failed(&e))?;
        }
        context.node.engine.inspect(&id).await.map_err(|e| failed(&e))?
    };
    let exited = || StepError::new(reasons::CREATE_POD_SANDBOX_ERROR, "the sandbox exited as soon as it was started");
    let mut running = running.filter(Instance::is_running).ok_or_else(exited)?;
    let own = !pod.spec.as_ref().is_some_and(spec::host_network);
    if own {
        let refused = |why: String| StepError::new(reasons::CREATE_POD_SANDBOX_ERROR, why);
        let process = running.process().ok_or_else(exited)?;
        let namespace = NetworkNamespace::of_container(&process).map_err(|e| refused(e.to_string()))?;
        let annotation = |key: &str| pod.metadata.annotations.as_ref().and_then(|a| a.get(key)).map(String::as_str);
        let bandwidth = Bandwidth::read(
            annotation("kubernetes.io/ingress-bandwidth"),
            annotation("kubernetes.io/egress-bandwidth"),
        )
        .map_err(refused)?;
        let request = Attach {
            pod_uid: spec::uid(pod).to_owned(),
            pod_name: spec::name(pod).to_owned(),
            pod_namespace: spec::namespace(pod).to_owned(),
            sandbox: id,
            namespace,
            addresses: sandbox.addresses.clone(),
            host_ports: open_host_ports(context, pod),
            bandwidth,
            labels: pod.metadata.labels.clone().unwrap_or_default(),
            named_ports: named_ports(pod),
        };
        running.addresses = context.node.network.attach(request).await.map_err(|e| refused(e.to_string()))?;
        if running.addresses != sandbox.addresses {
            // CNI plugins have just allocated them.
            write_pod_files(context, pod, &running.addresses).map_err(refused)?;
        }
    }
    match adopted {
        Some(has) => adopt_pod_cgroup(context, pod, has).await,
        None => apply_pod_cgroup(context, pod).await,
    }
    Ok(running)
}

/// The ports that have names, of containers and of sidecars: name, protocol, number.
fn named_ports(pod: &Pod) -> Vec<(String, String, u16)> {
    let Some(of) = &pod.spec else { return Vec::new() };
    let sidecars = of.init_containers.iter().flatten().filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let ports = of.containers.iter().chain(sidecars).flat_map(|container| container.ports.iter().flatten());
    let named = ports.filter_map(|port| {
        let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
        Some((port.name.clone()?, protocol, u16::try_from(port.container_port).ok()?))
    });
    named.collect()
}

/// The pod's host ports; those that cannot be opened are reported in an event.
fn open_host_ports(context: &PodContext, pod: &Pod) -> Vec<HostPort> {
    let (ports, unreadable) = host_ports(pod);
    for port in unreadable {
        let (ip, number) = (port.host_ip.as_deref().unwrap_or_default(), port.host_port.unwrap_or_default());
        let message = format!("host port {number} is not opened: its hostIP {ip:?} is no IP address");
        context.event(pod, None, Severity::Warning, "HostPortNotOpened", message);
    }
    ports
}

/// What the scheduler and admission reserved, each once, and the ports whose `hostIP` cannot be read: API servers of
/// others take any text there. Such a port is opened nowhere, rather than at all addresses.
fn host_ports(pod: &Pod) -> (Vec<HostPort>, Vec<&ContainerPort>) {
    let address = |port: &ContainerPort| match port.host_ip.as_deref().filter(|ip| !ip.is_empty()) {
        Some(ip) => ip.parse().map(Some),
        None => Ok(None),
    };
    let read = |port: &ContainerPort| {
        Some(HostPort {
            host_ip: address(port).ok()?,
            host_port: u16::try_from(port.host_port?).ok().filter(|p| *p != 0)?,
            container_port: u16::try_from(port.container_port).ok()?,
            protocol: match port.protocol.as_deref() {
                Some("UDP") => Protocol::Udp,
                Some("SCTP") => Protocol::Sctp,
                _ => Protocol::Tcp,
            },
        })
    };
    let lasting = || pod.spec.iter().flat_map(lasting_ports).filter(|port| port.host_port.is_some_and(|p| p != 0));
    let mut ports: Vec<HostPort> = Vec::new();
    for port in lasting().filter_map(read) {
        if !ports.contains(&port) {
            ports.push(port);
        }
    }
    (ports, lasting().filter(|port| address(port).is_err()).collect())
}

/// Removes a sandbox without grace, for its process has nothing to save, and detaches its network: CNI plugins before,
/// since DEL needs its namespace; the built-in network concurrently.
pub(crate) async fn remove_sandbox(context: Arc<PodContext>, id: String, detach: Option<String>) -> Outcome {
    let failed = |message: String| StepError::new(reasons::KILL_POD_SANDBOX_ERROR, message);
    let detached = async {
        let Some(uid) = detach else { return Ok(()) };
        context.node.cgroups.forget_pod(&uid);
        context.node.network.detach(&uid).await.map_err(|e| failed(e.to_string()))
    };
    let removed = async {
        let _permit = context.engine_calls.acquire().await;
        context.node.engine.remove(&id).await.map_err(|e| StepError::of(reasons::KILL_POD_SANDBOX_ERROR, &e))
    };
    let result = if context.node.network.precedes_removal() {
        match detached.await {
            Ok(()) => removed.await,
            Err(error) => Err(error),
        }
    } else {
        let (detached, removed) = tokio::join!(detached, removed);
        detached.and(removed)
    };
    Outcome::Removed { id: id.clone(), result }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_ports_are_those_that_were_reserved_each_once() {
        let pod: Pod = serde_json::from_str(
            r#"{"spec":{
                "initContainers":[
                    {"name":"init","ports":[{"containerPort":80,"hostPort":8080}]},
                    {"name":"sidecar","restartPolicy":"Always","ports":[{"containerPort":90,"hostPort":8090}]}],
                "containers":[{"name":"c","ports":[
                    {"containerPort":53,"hostPort":53,"protocol":"UDP"},
                    {"name":"again","containerPort":53,"hostPort":53,"protocol":"UDP"},
                    {"containerPort":53,"hostPort":53,"protocol":"TCP"},
                    {"containerPort":54,"hostPort":54,"hostIP":"2001:db8::1"},
                    {"containerPort":55,"hostPort":55,"hostIP":"all"},
                    {"containerPort":56}]}]}}"#,
        )
        .unwrap();
        let (ports, unreadable) = host_ports(&pod);
        let unreadable: Vec<_> = unreadable.iter().map(|port| (port.host_port, port.host_ip.as_deref())).collect();
        assert_eq!(unreadable, [(Some(55), Some("all"))]);
        let said: Vec<String> = ports
            .iter()
            .map(|p| {
                format!(
                    "{:?} {:?} {} {}",
                    p.protocol,
                    p.host_ip.map(|ip| ip.to_string()),
                    p.host_port,
                    p.container_port
                )
            })
            .collect();
        assert_eq!(said, ["Udp None 53 53", "Tcp None 53 53", "Tcp Some(\"2001:db8::1\") 54 54", "Tcp None 8090 90"]);
    }
}
