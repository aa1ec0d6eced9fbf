//! The sandbox of a pod: made, connected, and taken away.

use super::*;

/// `etc-hosts` and `resolv.conf` in the pod's folder.
pub(super) fn write_pod_files(shared: &Shared, pod: &Pod, addresses: &[IpAddr]) -> Result<(), String> {
    let dir = shared.pod_dir(spec::uid(pod));
    let host_network = pod.spec.as_ref().is_some_and(spec::host_network);
    let hosts = if host_network {
        files::host_network_hosts(pod, &super::super::host::hosts())
    } else {
        files::hosts(pod, addresses, &shared.config.cluster_domain)
    };
    let write = |name: &str, text: &str| {
        let path = dir.join(name);
        container_files::keep_text(&path, text).map_err(|e| format!("{} could not be written: {e}", path.display()))
    };
    std::fs::create_dir_all(&dir).map_err(|e| format!("the pod's folder {} could not be made: {e}", dir.display()))?;
    if !addresses.is_empty() || host_network || !dir.join("etc-hosts").exists() {
        write("etc-hosts", &hosts)?;
    }
    write("resolv.conf", &files::resolv_conf(pod, &shared.dns()?).0)
}

pub(crate) async fn create_sandbox(shared: Arc<Shared>, pod: Arc<Pod>, attempt: u32) -> Outcome {
    Outcome::SandboxCreated(sandbox(&shared, &pod, attempt).await)
}

async fn sandbox(shared: &Shared, pod: &Pod, attempt: u32) -> Result<Instance, Refusal> {
    let Some(pod_spec) = pod.spec.as_ref() else {
        return Err(Refusal::new("CreatePodSandboxError", "the pod has no spec"));
    };
    let failed = |message: String| Refusal::new("CreatePodSandboxError", message);
    let addresses = if spec::host_network(pod_spec) {
        Vec::new()
    } else {
        if let Some(why) = shared.network.readiness().borrow().problem() {
            return Err(Refusal::new(NETWORK_NOT_READY, format!("network is not ready: {why}")));
        }
        let addresses = shared.network.allocate(spec::uid(pod)).await.map_err(|e| failed(e.to_string()))?;
        write_pod_files(shared, pod, &addresses).map_err(failed)?;
        addresses
    };
    for (reason, message) in files::resolv_conf(pod, &shared.dns().map_err(failed)?).1 {
        shared.event(pod, None, Severity::Warning, reason, message);
    }
    let pause = shared.pause().await.map_err(|e| Refusal::of("CreatePodSandboxError", &e))?;
    let dir = shared.pod_dir(spec::uid(pod));
    let hostname = files::shown_hostname(pod, &shared.config.cluster_domain).map_err(failed)?;
    let runtime = runtime(shared, pod_spec).await?;
    let around = Surroundings { runtime: runtime.as_deref(), ..around(shared, &dir) };
    let (name, body) = body::sandbox(pod, pod_spec, attempt, &addresses, &hostname, &pause, &around);
    let id = {
        let _slot = shared.slots.acquire().await;
        shared.engine.create(&name, body).await.map_err(|e| Refusal::of("CreatePodSandboxError", &e))?
    };
    Ok(Instance {
        id,
        identity: body::identity(pod, crate::engine::names::SANDBOX_NAME, attempt),
        state: State::Created,
        created_at: jiff::Timestamp::now(),
        image: pause,
        image_id: String::new(),
        hash: String::new(),
        sandbox: String::new(),
        log_path: String::new(),
        addresses,
        grace: None,
        limits: Limits::default(),
        message_from_log: false,
        user: None,
    })
}

/// Starts a sandbox and connects its network; both may be done already.
pub(crate) async fn start_sandbox(shared: Arc<Shared>, pod: Arc<Pod>, sandbox: Instance) -> Outcome {
    Outcome::SandboxStarted { result: connect(&shared, &pod, sandbox, false).await }
}

/// Makes sure of the network of a sandbox that was found running just now: Docker need not be asked again.
pub(crate) async fn reconnect_sandbox(shared: Arc<Shared>, pod: Arc<Pod>, sandbox: Instance) -> Outcome {
    Outcome::SandboxStarted { result: connect(&shared, &pod, sandbox, true).await }
}

async fn connect(shared: &Shared, pod: &Pod, sandbox: Instance, seen_now: bool) -> Result<Instance, Refusal> {
    let failed = |e: &EngineError| Refusal::of("CreatePodSandboxError", e);
    let id = sandbox.id.clone();
    let running = if seen_now {
        Some(sandbox.clone())
    } else {
        let _slot = shared.slots.acquire().await;
        if !sandbox.is_running() {
            shared.engine.start(&id).await.map_err(|e| failed(&e))?;
        }
        shared.engine.inspect(&id).await.map_err(|e| failed(&e))?
    };
    let gone = || Refusal::new("CreatePodSandboxError", "the sandbox ended as soon as it was started");
    let mut running = running.filter(Instance::is_running).ok_or_else(gone)?;
    let own = !pod.spec.as_ref().is_some_and(spec::host_network);
    if let Some(pid) = running.pid().filter(|_| own) {
        let annotation = |key: &str| pod.metadata.annotations.as_ref().and_then(|a| a.get(key)).map(String::as_str);
        let bandwidth = Bandwidth::read(
            annotation("kubernetes.io/ingress-bandwidth"),
            annotation("kubernetes.io/egress-bandwidth"),
        )
        .map_err(|why| Refusal::new("CreatePodSandboxError", why))?;
        let request = Attach {
            pod_uid: spec::uid(pod).to_owned(),
            pod_name: spec::name(pod).to_owned(),
            pod_namespace: spec::namespace(pod).to_owned(),
            sandbox: id,
            pid,
            addresses: sandbox.addresses.clone(),
            host_ports: host_ports(pod),
            bandwidth,
        };
        let refused = |why: String| Refusal::new("CreatePodSandboxError", why);
        running.addresses = shared.network.attach(request).await.map_err(|e| refused(e.to_string()))?;
        if running.addresses != sandbox.addresses {
            // Plugins chose them just now.
            write_pod_files(shared, pod, &running.addresses).map_err(refused)?;
        }
    }
    hold(shared, pod, false).await;
    Ok(running)
}

fn host_ports(pod: &Pod) -> Vec<HostPort> {
    let ports = pod.spec.iter().flat_map(spec::all_containers).flat_map(|(c, _)| c.ports.iter().flatten());
    ports
        .filter_map(|port| {
            Some(HostPort {
                host_ip: port.host_ip.as_deref().filter(|ip| !ip.is_empty()).and_then(|ip| ip.parse().ok()),
                host_port: u16::try_from(port.host_port?).ok().filter(|p| *p != 0)?,
                container_port: u16::try_from(port.container_port).ok()?,
                protocol: match port.protocol.as_deref() {
                    Some("UDP") => Protocol::Udp,
                    Some("SCTP") => Protocol::Sctp,
                    _ => Protocol::Tcp,
                },
            })
        })
        .collect()
}

/// Removing kills: a sandbox has nothing to save, so it gets no grace. Its network is taken off meanwhile.
pub(crate) async fn remove_sandbox(shared: Arc<Shared>, id: String, detach: Option<String>) -> Outcome {
    let failed = |message: String| Refusal::new("KillPodSandboxError", message);
    let detached = async {
        let Some(uid) = detach else { return Ok(()) };
        shared.network.detach(&uid).await.map_err(|e| failed(e.to_string()))
    };
    let removed = async {
        let _slot = shared.slots.acquire().await;
        shared.engine.remove(&id).await.map_err(|e| Refusal::of("KillPodSandboxError", &e))
    };
    let (detached, removed) = tokio::join!(detached, removed);
    Outcome::Removed { id, result: detached.and(removed) }
}
