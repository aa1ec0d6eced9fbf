//! Carries out the actions of a plan: each is a future that ends in an [`Outcome`].

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use bollard::auth::DockerCredentials;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Container, Pod, PodSpec, Probe, Secret},
    node::v1::RuntimeClass,
};
use kube::api::{Api, DeleteParams, Preconditions};
use windlass_kit::events::Severity;

use super::{
    body::{self, Surroundings},
    cgroup, credentials,
    env::{self, Facts, Sources},
    files,
    handlers::{self, Answer, Target},
    hooks, mounts,
    observed::ImageState,
    outcome::{Outcome, Refusal},
    probes::{self, Kind},
    qos,
    shared::Shared,
    spec, traces,
};
use crate::{
    engine::{
        EngineError,
        instance::{Instance, Limits, State},
    },
    network::{Attach, Bandwidth, HostPort, Protocol},
    volumes::Place,
};

pub(crate) async fn prepare_volumes(shared: Arc<Shared>, pod: Arc<Pod>) -> Outcome {
    let result = async {
        write_pod_files(&shared, &pod, None).map_err(|e| Refusal::new("FailedMount", e))?;
        shared.volumes.prepare(&pod).await.map_err(|e| Refusal::new("FailedMount", e.to_string()))
    };
    Outcome::Volumes(result.await)
}

pub(crate) async fn refresh_volumes(shared: Arc<Shared>, pod: Arc<Pod>) -> Outcome {
    let result = shared.volumes.refresh(&pod).await;
    Outcome::Refreshed(result.map_err(|e| Refusal::new("FailedMount", e.to_string())))
}

/// `etc-hosts` and `resolv.conf` in the pod's folder.
fn write_pod_files(shared: &Shared, pod: &Pod, address: Option<IpAddr>) -> Result<(), String> {
    let dir = shared.pod_dir(spec::uid(pod));
    let host_network = pod.spec.as_ref().is_some_and(spec::host_network);
    let hosts = if host_network {
        files::host_network_hosts(pod, &shared.host_hosts)
    } else {
        files::hosts(pod, address, &shared.dns.domain)
    };
    let write = |name: &str, text: &str| {
        let path = dir.join(name);
        // Written in place: containers hold the file itself, not its name.
        if std::fs::read_to_string(&path).is_ok_and(|there| there == text) {
            return Ok(());
        }
        std::fs::write(&path, text).map_err(|e| format!("{} could not be written: {e}", path.display()))
    };
    std::fs::create_dir_all(&dir).map_err(|e| format!("the pod's folder {} could not be made: {e}", dir.display()))?;
    if address.is_some() || host_network || !dir.join("etc-hosts").exists() {
        write("etc-hosts", &hosts)?;
    }
    write("resolv.conf", &files::resolv_conf(pod, &shared.dns))
}

pub(crate) async fn ensure_image(shared: Arc<Shared>, pod: Arc<Pod>, container: Container) -> Outcome {
    let name = container.name.clone();
    let result = image(&shared, &pod, &container).await;
    Outcome::Image { container: name, result }
}

async fn image(shared: &Shared, pod: &Pod, container: &Container) -> Result<ImageState, Refusal> {
    let image = spec::image_of(container);
    let policy = container.image_pull_policy.as_deref().unwrap_or("IfNotPresent");
    let lookup = |e: &EngineError| Refusal::of("ImageInspectError", e);
    let event = |severity, reason: &str, message: String| {
        shared.event(pod, Some(&container.name), severity, reason, message);
    };
    if policy != "Always" {
        if let Some(found) = shared.engine.image(image).await.map_err(|e| lookup(&e))? {
            event(Severity::Normal, "Pulled", format!("Container image {image:?} already present on machine"));
            return Ok(ImageState::Present { id: found.id, user: found.user });
        }
        if policy == "Never" {
            let message = format!("Container image {image:?} is not present with pull policy of Never");
            event(Severity::Warning, "ErrImageNeverPull", message.clone());
            return Err(Refusal::new("ErrImageNeverPull", message));
        }
    }
    event(Severity::Normal, "Pulling", format!("Pulling image {image:?}"));
    let shown = credentials(shared, pod, image).await;
    let started = Instant::now();
    let pulled = async {
        shared.engine.pull(&shared.pulls, image, &shown).await?;
        shared.engine.image(image).await
    };
    match pulled.await {
        Ok(Some(found)) => {
            let took = format!("{:.3}s", started.elapsed().as_secs_f64());
            event(
                Severity::Normal,
                "Pulled",
                format!(
                    "Successfully pulled image {image:?} in {took} ({took} including waiting). Image size: {} bytes.",
                    found.size
                ),
            );
            Ok(ImageState::Present { id: found.id, user: found.user })
        }
        Ok(None) => {
            Err(Refusal::new("ErrImagePull", format!("image {image:?} was pulled but is not in Docker's store")))
        }
        Err(error) => {
            if !error.is_unreachable() {
                event(Severity::Warning, "Failed", format!("Failed to pull image {image:?}: {}", error.reason));
                event(Severity::Warning, "Failed", "Error: ErrImagePull".to_owned());
            }
            Err(Refusal { message: error.reason.clone(), ..Refusal::of("ErrImagePull", &error) })
        }
    }
}

/// What registries may be shown for an image: the pod's pull secrets, then the node's own.
async fn credentials(shared: &Shared, pod: &Pod, image: &str) -> Vec<DockerCredentials> {
    let api: Api<Secret> = Api::namespaced(shared.client.clone(), spec::namespace(pod));
    let names = pod.spec.iter().flat_map(|s| s.image_pull_secrets.iter().flatten()).map(|r| r.name.as_str());
    let (mut configs, mut missing) = (Vec::new(), Vec::new());
    for name in names {
        match api.get_opt(name).await {
            Ok(Some(secret)) => configs.extend(credentials::of_secret(&secret)),
            Ok(None) | Err(_) => missing.push(name),
        }
    }
    if !missing.is_empty() {
        let message = format!(
            "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
            missing.join(", ")
        );
        shared.event(pod, None, Severity::Warning, "FailedToRetrieveImagePullSecret", message);
    }
    configs.extend(super::host::docker_configs(&shared.config.data_dir));
    let shown = credentials::for_image(image, &configs).into_iter();
    shown
        .map(|c| DockerCredentials {
            username: Some(c.username),
            password: Some(c.password),
            serveraddress: Some(c.server),
            identitytoken: c.identity_token,
            ..DockerCredentials::default()
        })
        .collect()
}

pub(crate) async fn create_sandbox(shared: Arc<Shared>, pod: Arc<Pod>, attempt: u32) -> Outcome {
    Outcome::SandboxCreated(sandbox(&shared, &pod, attempt).await)
}

async fn sandbox(shared: &Shared, pod: &Pod, attempt: u32) -> Result<Instance, Refusal> {
    let Some(pod_spec) = pod.spec.as_ref() else {
        return Err(Refusal::new("CreatePodSandboxError", "the pod has no spec"));
    };
    let failed = |message: String| Refusal::new("CreatePodSandboxError", message);
    let address = if spec::host_network(pod_spec) {
        None
    } else {
        let address = shared.network.allocate(spec::uid(pod)).await.map_err(|e| failed(e.to_string()))?;
        write_pod_files(shared, pod, Some(IpAddr::V4(address))).map_err(failed)?;
        Some(address)
    };
    let pause = shared.pause().await.map_err(|e| Refusal::of("CreatePodSandboxError", &e))?;
    let dir = shared.pod_dir(spec::uid(pod));
    let hostname = files::shown_hostname(pod, &shared.dns.domain).map_err(failed)?;
    let runtime = runtime(shared, pod_spec).await?;
    let around = Surroundings { runtime: runtime.as_deref(), ..around(shared, &dir) };
    let (name, body) = body::sandbox(pod, pod_spec, attempt, address, &hostname, &pause, &around);
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
        address,
        grace: None,
        limits: Limits::default(),
    })
}

fn around<'a>(shared: &Shared, dir: &'a std::path::Path) -> Surroundings<'a> {
    Surroundings {
        systemd_cgroups: shared.info.borrow().systemd_cgroups,
        negative_oom: shared.negative_oom.load(Ordering::Relaxed),
        node_memory: shared.node_memory,
        pod_dir: dir,
        seccomp: None,
        runtime: None,
    }
}

/// Starts a sandbox and connects its network; both may be done already.
pub(crate) async fn start_sandbox(shared: Arc<Shared>, pod: Arc<Pod>, sandbox: Instance) -> Outcome {
    Outcome::SandboxStarted { result: connect(&shared, &pod, sandbox).await }
}

async fn connect(shared: &Shared, pod: &Pod, sandbox: Instance) -> Result<Instance, Refusal> {
    let failed = |e: &EngineError| Refusal::of("CreatePodSandboxError", e);
    let id = sandbox.id.clone();
    let running = {
        let _slot = shared.slots.acquire().await;
        if !sandbox.is_running() {
            shared.engine.start(&id).await.map_err(|e| failed(&e))?;
        }
        shared.engine.inspect(&id).await.map_err(|e| failed(&e))?
    };
    let gone = || Refusal::new("CreatePodSandboxError", "the sandbox ended as soon as it was started");
    let running = running.filter(Instance::is_running).ok_or_else(gone)?;
    if let (Some(address), Some(pid)) = (sandbox.address, running.pid()) {
        let annotation = |key: &str| pod.metadata.annotations.as_ref().and_then(|a| a.get(key)).map(String::as_str);
        let bandwidth = Bandwidth::read(
            annotation("kubernetes.io/ingress-bandwidth"),
            annotation("kubernetes.io/egress-bandwidth"),
        )
        .map_err(|why| Refusal::new("CreatePodSandboxError", why))?;
        let request =
            Attach { pod_uid: spec::uid(pod).to_owned(), pid, address, host_ports: host_ports(pod), bandwidth };
        shared.network.attach(request).await.map_err(|e| Refusal::new("CreatePodSandboxError", e.to_string()))?;
    }
    hold(shared, pod, false);
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

/// What creating a container needs to know beside the pod.
#[derive(Debug, Clone)]
pub(crate) struct CreateRequest {
    pub(crate) container: Container,
    pub(crate) attempt: u32,
    pub(crate) sandbox: String,
    pub(crate) image_id: String,
    pub(crate) image_user: String,
    pub(crate) volumes: Arc<BTreeMap<String, Place>>,
    /// Whose processes an ephemeral container sees.
    pub(crate) target: Option<String>,
    pub(crate) address: Option<IpAddr>,
}

pub(crate) async fn create(shared: Arc<Shared>, pod: Arc<Pod>, request: CreateRequest) -> Outcome {
    let container = request.container.name.clone();
    let result = create_container(&shared, &pod, request).await;
    match &result {
        Ok(_) => shared.event(&pod, Some(&container), Severity::Normal, "Created", "Container created"),
        Err(refusal) if !refusal.unreachable => {
            shared.event(&pod, Some(&container), Severity::Warning, "Failed", format!("Error: {}", refusal.message));
        }
        Err(_) => {}
    }
    Outcome::Created { container, result }
}

async fn create_container(shared: &Shared, pod: &Pod, request: CreateRequest) -> Result<Instance, Refusal> {
    let config = |message: String| Refusal::new("CreateContainerConfigError", message);
    let pod_spec: &PodSpec = pod.spec.as_ref().ok_or_else(|| config("the pod has no spec".to_owned()))?;
    let container = &request.container;
    let sources = fetch_sources(shared, pod, container).await?;
    let services = shared.services.borrow().clone();
    let pod_ip = if spec::host_network(pod_spec) { Some(shared.config.node_ip) } else { request.address };
    let facts = Facts {
        node_name: &shared.config.node_name,
        node_ip: shared.config.node_ip,
        pod_ip,
        allocatable: &shared.allocatable,
        services: &services,
    };
    let variables = env::environment(pod, container, &sources, &facts).map_err(config)?;
    let uid = spec::uid(pod);
    let message_file = shared.message_file(uid, &container.name, request.attempt);
    traces::make_message_file(&message_file).map_err(config)?;
    let seccomp = seccomp(shared, pod_spec, container).map_err(config)?;
    let runtime = runtime(shared, pod_spec).await?;
    let dir = shared.pod_dir(uid);
    let sources = mounts::sources(&dir, container, &request.volumes, &variables).map_err(config)?;
    let (name, body) = body::container(
        pod,
        pod_spec,
        container,
        request.attempt,
        (&request.sandbox, request.target.as_deref()),
        (&request.image_id, &request.image_user),
        &variables,
        &sources,
        &message_file,
        &Surroundings { seccomp: seccomp.as_deref(), runtime: runtime.as_deref(), ..around(shared, &dir) },
    )
    .map_err(config)?;
    // Its resources may be others than those of the one before it.
    hold(shared, pod, false);
    let id = {
        let _slot = shared.slots.acquire().await;
        shared.engine.create(&name, body).await.map_err(|e| Refusal::of("CreateContainerError", &e))?
    };
    Ok(Instance {
        id,
        identity: body::identity(pod, &container.name, request.attempt),
        state: State::Created,
        created_at: jiff::Timestamp::now(),
        image: spec::image_of(container).to_owned(),
        image_id: request.image_id,
        hash: crate::engine::names::container_hash(&container.name, spec::image_of(container)),
        sandbox: request.sandbox,
        log_path: String::new(),
        address: None,
        grace: pod_spec.termination_grace_period_seconds,
        limits: qos::limits(container),
    })
}

/// The runtime of Docker's that a pod's class names.
async fn runtime(shared: &Shared, spec: &PodSpec) -> Result<Option<String>, Refusal> {
    let Some(class) = spec.runtime_class_name.as_deref().filter(|name| !name.is_empty()) else { return Ok(None) };
    let failed = |why: String| Refusal::new("CreatePodSandboxError", why);
    let api: Api<RuntimeClass> = Api::all(shared.client.clone());
    let found =
        api.get_opt(class).await.map_err(|e| failed(format!("RuntimeClass {class:?} could not be read: {e}")))?;
    let found = found.ok_or_else(|| failed(format!("RuntimeClass {class:?} not found")))?;
    Ok(Some(found.handler).filter(|handler| !handler.is_empty()))
}

/// The node's own seccomp profile that a container asks for.
fn seccomp(shared: &Shared, spec: &PodSpec, container: &Container) -> Result<Option<String>, String> {
    let Some(name) = body::local_seccomp(spec, container) else { return Ok(None) };
    let inside = std::path::Path::new(name).components().all(|c| matches!(c, std::path::Component::Normal(_)));
    if !inside {
        return Err(format!("the seccomp profile {name:?} must be a path below the folder of profiles"));
    }
    let path = shared.config.data_dir.join("seccomp").join(name);
    let text = std::fs::read_to_string(&path)
        .map_err(|e| format!("the seccomp profile {} could not be read: {e}", path.display()))?;
    Ok(Some(text))
}

async fn fetch_sources(shared: &Shared, pod: &Pod, container: &Container) -> Result<Sources, Refusal> {
    let (maps, secrets) = env::references(container);
    let mut sources = Sources::default();
    let failed = |e: kube::Error| {
        Refusal::new("CreateContainerConfigError", format!("an object of the environment could not be read: {e}"))
    };
    for name in maps {
        let api: Api<ConfigMap> = Api::namespaced(shared.client.clone(), spec::namespace(pod));
        if let Some(map) = api.get_opt(name).await.map_err(failed)? {
            sources.config_maps.insert(name.to_owned(), map);
        }
    }
    for name in secrets {
        let api: Api<Secret> = Api::namespaced(shared.client.clone(), spec::namespace(pod));
        if let Some(secret) = api.get_opt(name).await.map_err(failed)? {
            sources.secrets.insert(name.to_owned(), secret);
        }
    }
    Ok(sources)
}

pub(crate) async fn start(shared: Arc<Shared>, pod: Arc<Pod>, container: String, id: String) -> Outcome {
    let result = {
        let _slot = shared.slots.acquire().await;
        let started = shared.engine.start(&id).await;
        let seen = shared.engine.inspect(&id).await;
        match (started, seen) {
            (Ok(()), Ok(seen)) => Ok(seen),
            (Ok(()), Err(error)) => Err((Refusal::of("RunContainerError", &error), None)),
            (Err(error), seen) => Err((Refusal::of("RunContainerError", &error), seen.ok().flatten())),
        }
    };
    match &result {
        Ok(seen) => {
            shared.event(&pod, Some(&container), Severity::Normal, "Started", "Container started");
            if let Some(instance) = seen {
                traces::link_log(&shared.config, instance);
            }
        }
        Err((refusal, _)) if !refusal.unreachable => {
            shared.event(&pod, Some(&container), Severity::Warning, "Failed", format!("Error: {}", refusal.message));
        }
        Err(_) => {}
    }
    let result = result.map(|seen| seen.map(|i| traces::with_message(&shared, i)));
    let result = result.map_err(|(refusal, seen)| (refusal, seen.map(|i| traces::with_message(&shared, i))));
    Outcome::Started { container, result }
}

pub(crate) async fn see(shared: Arc<Shared>, id: String) -> Outcome {
    let result = shared.engine.inspect(&id).await.map(|seen| seen.map(|i| traces::with_message(&shared, i)));
    Outcome::Seen { id, result }
}

/// One container of a pod whose hooks or ports are to be asked something.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) pod: Arc<Pod>,
    pub(crate) container: Container,
    pub(crate) id: String,
    pub(crate) address: Option<IpAddr>,
}

impl Asked {
    fn target(&self) -> Target<'_> {
        Target { container: &self.container, id: &self.id, address: self.address }
    }
}

/// Runs the hook before a container's end, if it has one, and then stops it. The hook's time is taken from the grace.
pub(crate) async fn stop(shared: Arc<Shared>, id: String, grace: i64, asked: Option<Asked>) -> Outcome {
    let mut grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
    let hook = asked.as_ref().and_then(|asked| Some((asked, hooks::pre_stop(&asked.container)?)));
    if let Some((asked, handler)) = hook.filter(|_| !grace.is_zero()) {
        let begun = Instant::now();
        let run = hooks::run(&shared, &asked.pod, handler, asked.target());
        let ended =
            tokio::time::timeout(grace, run).await.unwrap_or_else(|_| Err("it took the whole grace".to_owned()));
        if let Err(why) = ended {
            let message = format!("PreStopHook failed: {why}");
            shared.event(&asked.pod, Some(&asked.container.name), Severity::Warning, "FailedPreStopHook", message);
        }
        grace = grace.saturating_sub(begun.elapsed()).max(LEAST_GRACE.min(grace));
    }
    halt(shared, id, grace).await
}

/// What a container gets to end however long its hook took; upstream's.
const LEAST_GRACE: Duration = Duration::from_secs(2);

/// Stops a container that is being stopped already, sooner.
pub(crate) async fn hasten(shared: Arc<Shared>, id: String, grace: i64) -> Outcome {
    halt(shared, id, Duration::from_secs(u64::try_from(grace).unwrap_or(0))).await
}

async fn halt(shared: Arc<Shared>, id: String, grace: Duration) -> Outcome {
    let stopped = if grace.is_zero() { shared.engine.kill(&id).await } else { shared.engine.stop(&id, grace).await };
    if let Err(error) = stopped {
        return Outcome::Seen { id, result: Err(error) };
    }
    see(shared, id).await
}

/// Holds one container to what its spec says now, and all of the pod to the sum.
pub(crate) async fn resize(shared: Arc<Shared>, asked: Asked) -> Outcome {
    let wanted = qos::limits(&asked.container);
    let result = async {
        // More for the pod before more for the container, since a cgroup has no more than its parent; less after.
        hold(&shared, &asked.pod, true);
        shared.engine.update(&asked.id, &wanted, qos::CPU_PERIOD).await?;
        hold(&shared, &asked.pod, false);
        shared.engine.inspect(&asked.id).await
    };
    let result: Result<_, EngineError> = result.await;
    if let Err(error) = &result {
        let message = format!("Error resizing container {}: {error}", asked.container.name);
        shared.event(&asked.pod, Some(&asked.container.name), Severity::Warning, "ResizeError", message);
    }
    Outcome::Resized { id: asked.id, result: result.map_err(|e| Refusal::of("Error", &e)) }
}

/// Holds the pod's cgroup to what its spec says; without limits while its containers are on their way there.
fn hold(shared: &Shared, pod: &Pod, on_the_way: bool) {
    let Some(spec) = &pod.spec else { return };
    let mut limits = qos::pod_limits(spec);
    if on_the_way {
        limits = Limits { memory: 0, cpu_quota: 0, ..limits };
    }
    let systemd = shared.info.borrow().systemd_cgroups;
    cgroup::hold_pod(&qos::cgroup_parent(qos::class(spec), spec::uid(pod), systemd), &limits);
}

pub(crate) async fn post_start(shared: Arc<Shared>, asked: Asked) -> Outcome {
    let result = match hooks::post_start(&asked.container) {
        Some(handler) => hooks::run(&shared, &asked.pod, handler, asked.target()).await,
        None => Ok(()),
    };
    if let Err(why) = &result {
        let message = format!("PostStartHook failed: {why}");
        shared.event(&asked.pod, Some(&asked.container.name), Severity::Warning, "FailedPostStartHook", message);
    }
    Outcome::Hooked { id: asked.id, result }
}

pub(crate) async fn probe(shared: Arc<Shared>, asked: Asked, kind: Kind) -> Outcome {
    let answer = match kind.of(&asked.container) {
        Some(probe) => question(&shared, &asked, probe).await,
        None => Answer::Good,
    };
    match &answer {
        Answer::Good => {}
        Answer::Doubtful(why) => {
            let message = format!("{} probe warning: {why}", kind.name());
            shared.event(&asked.pod, Some(&asked.container.name), Severity::Warning, "ProbeWarning", message);
        }
        Answer::Bad(why) => {
            let message = format!("{} probe failed: {why}", kind.name());
            shared.event(&asked.pod, Some(&asked.container.name), Severity::Warning, "Unhealthy", message);
        }
    }
    Outcome::Probed { container: asked.container.name, id: asked.id, kind, answer }
}

async fn question(shared: &Shared, asked: &Asked, probe: &Probe) -> Answer {
    let target = asked.target();
    let limit = probes::timeout(probe);
    if let Some(action) = &probe.exec {
        handlers::within(limit, handlers::exec(&shared.engine, target, action)).await
    } else if let Some(action) = &probe.http_get {
        handlers::within(limit, handlers::http_get(target, action, "kube-probe/1.36")).await
    } else if let Some(action) = &probe.tcp_socket {
        handlers::within(limit, handlers::tcp(target, action)).await
    } else if let Some(action) = &probe.grpc {
        handlers::within(limit, handlers::grpc(target, action)).await
    } else {
        Answer::Bad("the probe names none of exec, httpGet, tcpSocket and grpc".to_owned())
    }
}

pub(crate) async fn remove(shared: Arc<Shared>, instance: Instance) -> Outcome {
    let _slot = shared.slots.acquire().await;
    let result = shared.engine.remove(&instance.id).await.map_err(|e| Refusal::of("KillContainerError", &e));
    if result.is_ok() {
        traces::unlink_log(&shared.config, &instance);
        let file = shared.message_file(&instance.identity.uid, &instance.identity.container, instance.identity.attempt);
        let _ = std::fs::remove_file(file);
    }
    Outcome::Removed { id: instance.id, result }
}

/// Removing kills: a sandbox has nothing to save, so it gets no grace.
pub(crate) async fn remove_sandbox(shared: Arc<Shared>, id: String, detach: Option<String>) -> Outcome {
    if let Some(uid) = detach
        && let Err(error) = shared.network.detach(&uid).await
    {
        return Outcome::Removed { id, result: Err(Refusal::new("KillPodSandboxError", error.to_string())) };
    }
    let _slot = shared.slots.acquire().await;
    let result = shared.engine.remove(&id).await.map_err(|e| Refusal::of("KillPodSandboxError", &e));
    Outcome::Removed { id, result }
}

pub(crate) async fn tear_down(shared: Arc<Shared>, uid: String) -> Outcome {
    let failed = |message: String| Refusal::new("FailedKillPod", message);
    let result = async {
        shared.network.detach(&uid).await.map_err(|e| failed(e.to_string()))?;
        shared.volumes.teardown(&uid).await.map_err(|e| failed(e.to_string()))?;
        traces::remove_pod_dir(&shared.pod_dir(&uid)).map_err(failed)?;
        traces::remove_log_dirs(&shared.config.pod_logs_dir, &uid);
        super::cgroup::remove_pod(&uid);
        Ok(())
    };
    Outcome::TornDown(result.await)
}

/// Tells the API that nothing is left of the pod.
pub(crate) async fn forget(shared: Arc<Shared>, pod: Arc<Pod>) -> Outcome {
    let api: Api<Pod> = Api::namespaced(shared.client.clone(), spec::namespace(&pod));
    let params = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions { uid: pod.metadata.uid.clone(), resource_version: None }),
        ..DeleteParams::default()
    };
    let result = match api.delete(spec::name(&pod), &params).await {
        Ok(_) => Ok(()),
        // Gone already, or a new pod of the same name.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        Err(error) => {
            Err(Refusal::new("FailedKillPod", format!("the API could not be told that the pod is gone: {error}")))
        }
    };
    Outcome::Forgotten(result)
}
