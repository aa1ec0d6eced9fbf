//! Containers of a pod: made, started, resized.

use super::*;
use crate::{engine::names, pods::services, volumes::threads::Call};

/// What creating a container needs to know beside the pod.
#[derive(Clone)]
pub(crate) struct CreateRequest {
    pub(crate) container: Container,
    pub(crate) attempt: u32,
    pub(crate) sandbox: String,
    pub(crate) image_id: String,
    pub(crate) image_shown: String,
    pub(crate) image_user: String,
    pub(crate) volumes: Arc<BTreeMap<String, Place>>,
    /// What its environment is made of.
    pub(crate) contents: Contents,
    /// Whose processes an ephemeral container sees.
    pub(crate) target: Option<String>,
    pub(crate) addresses: Vec<IpAddr>,
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
    let mut sources = fetch_sources(pod, container, &request.contents).await?;
    sources.files = files(shared, pod, container, &request.volumes).await.map_err(config)?;
    let services = if spec::is_static(pod) {
        // The node's own pods may be what the API itself is made of.
        shared.services.borrow().clone().unwrap_or_default()
    } else {
        services::listed(&shared.services).await.map_err(config)?
    };
    let pod_ips =
        if spec::host_network(pod_spec) { shared.config.node_ips.iter().collect() } else { request.addresses };
    let facts = Facts {
        node_name: &shared.config.node_name,
        node_ips: shared.config.node_ips,
        pod_ips: &pod_ips,
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
    let (sources, variables) = {
        let (dir, container, volumes) = (dir.clone(), container.clone(), Arc::clone(&request.volumes));
        let mount = move |call: &Call| {
            mounts::sources(&dir, &container, &volumes, &variables, call).map(|sources| (sources, variables))
        };
        let what = format!("mounts of container {:?}", request.container.name);
        shared.volumes.on_thread(uid, &what, mount).await.map_err(config)?
    };
    let devices = mounts::devices(container, &request.volumes).map_err(config)?;
    let passwd = if needs_passwd(pod_spec, container, &request.image_user) {
        let name = format!("windlass-passwd-{uid}-{}", container.name);
        let read = shared.engine.file_of_image(&request.image_id, &name, "/etc/passwd").await;
        read.map_err(|e| Refusal::of("CreateContainerError", &e))?
    } else {
        None
    };
    let (name, mut body) = body::container(
        pod,
        pod_spec,
        container,
        request.attempt,
        (&request.sandbox, request.target.as_deref()),
        &Image { id: &request.image_id, user: &request.image_user, passwd: passwd.as_deref() },
        &variables,
        (&sources, &devices),
        &message_file,
        &Surroundings { seccomp: seccomp.as_deref(), runtime: runtime.as_deref(), ..around(shared, &dir) },
    )
    .map_err(config)?;
    let labels = body.labels.get_or_insert_default();
    labels.insert(names::IMAGE_SHOWN.to_owned(), request.image_shown.clone());
    let log = traces::log_of(&shared.config, &body::identity(pod, &container.name, request.attempt));
    labels.insert(names::LOG_PATH.to_owned(), log.to_string_lossy().into_owned());
    // Its resources may be others than those of the one before it.
    hold(shared, pod, false).await;
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
        image_id: request.image_shown,
        hash: names::container_hash(&container.name, spec::image_of(container)),
        sandbox: request.sandbox,
        log_path: String::new(),
        addresses: Vec::new(),
        grace: pod_spec.termination_grace_period_seconds,
        limits: qos::limits(container),
        message_from_log: container.termination_message_policy.as_deref() == Some(names::FROM_LOG),
        user: None,
    })
}

/// The files in volumes that a container's environment takes values from.
async fn files(
    shared: &Shared,
    pod: &Pod,
    container: &Container,
    volumes: &BTreeMap<String, Place>,
) -> Result<BTreeMap<(String, String), String>, String> {
    let mut wanted = Vec::new();
    for (volume, path) in env::files(container) {
        let place = volumes.get(volume).ok_or_else(|| format!("fileKeyRef: the pod has no volume {volume:?}"))?;
        wanted.push((volume.to_owned(), path.to_owned(), place.path.clone()));
    }
    if wanted.is_empty() {
        return Ok(BTreeMap::new());
    }
    let read = move |_: &Call| {
        let mut all = BTreeMap::new();
        for (volume, path, place) in wanted {
            if let Some(text) = read_part(&place, &path)? {
                all.insert((volume, path), text);
            }
        }
        Ok(all)
    };
    let what = format!("environment of container {:?}", container.name);
    shared.volumes.on_thread(spec::uid(pod), &what, read).await
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

async fn fetch_sources(pod: &Pod, container: &Container, contents: &Contents) -> Result<Sources, Refusal> {
    let (maps, secrets) = env::references(container);
    let mut sources = Sources::default();
    let failed = |e: Arc<kube::Error>| {
        Refusal::new("CreateContainerConfigError", format!("an object of the environment could not be read: {e}"))
    };
    for name in maps {
        if let Some(map) = contents.config_map(spec::namespace(pod), name).await.map_err(failed)? {
            sources.config_maps.insert(name.to_owned(), map);
        }
    }
    for name in secrets {
        if let Some(secret) = contents.secret(spec::namespace(pod), name).await.map_err(failed)? {
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
                hold_container(&shared, &pod, &container, &instance.id);
            }
        }
        Err((refusal, _)) if !refusal.unreachable => {
            shared.event(&pod, Some(&container), Severity::Warning, "Failed", format!("Error: {}", refusal.message));
        }
        Err(_) => {}
    }
    let told = async |seen: Option<Instance>| match seen {
        Some(instance) => Some(traces::with_message(&shared, instance).await),
        None => None,
    };
    let result = match result {
        Ok(seen) => Ok(told(seen).await),
        Err((refusal, seen)) => Err((refusal, told(seen).await)),
    };
    Outcome::Started { container, result }
}

/// Holds a container that has just started to what Docker has no setting for.
fn hold_container(shared: &Shared, pod: &Pod, name: &str, id: &str) {
    if let Some(container) = pod.spec.as_ref().and_then(|spec| spec::container(spec, name)) {
        let together = !shared.config.single_process_oom_kill;
        cgroup::hold_container(&parent(shared, pod), id, &qos::huge_pages(&container), together);
    }
}

/// Holds one container to what its spec says now, and all of the pod to the sum.
pub(crate) async fn resize(shared: Arc<Shared>, asked: Asked) -> Outcome {
    let wanted = qos::limits(&asked.container);
    let result = async {
        // More for the pod before more for the container, since a cgroup has no more than its parent; less after.
        hold(&shared, &asked.pod, true).await;
        shared.engine.update(&asked.id, &wanted, qos::CPU_PERIOD).await?;
        hold(&shared, &asked.pod, false).await;
        let seen = shared.engine.inspect(&asked.id).await?;
        Ok(match seen {
            Some(instance) => Some(traces::with_message(&shared, instance).await),
            None => None,
        })
    };
    let result: Result<_, EngineError> = result.await;
    if let Err(error) = &result {
        let message = format!("Error resizing container {}: {error}", asked.container.name);
        shared.event(&asked.pod, Some(&asked.container.name), Severity::Warning, "ResizeError", message);
    }
    Outcome::Resized { id: asked.id, result: result.map_err(|e| Refusal::of("Error", &e)) }
}
