//! Containers of a pod: created, started, resized.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    path::{Component, Path},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use tokio::sync::watch;
use windlass_kit::events::Severity;

use super::{
    ContainerRef,
    cgroups::{apply_container_cgroup, apply_pod_cgroup, wanted_cgroup},
    context::PodContext,
    host_files, mounts,
    outcome::{Outcome, StepError},
    sandbox::ensure_pod_files,
};
use crate::{
    cgroup::{
        limits::container_limits,
        tree::{PodCgroup, Resource},
    },
    engine::{
        EngineError,
        inspect::{Instance, State},
        names,
    },
    pods::{
        container::{
            container_config::{self, ContainerImage, ContainerRequest, HostContext, identity},
            env::{self, EnvContext, EnvSources, ServiceEnv, ServiceList},
            mounts::devices,
            security::{local_seccomp, needs_passwd},
        },
        lifecycle::{
            reasons,
            resize::{self, ResizeStep, ShrinkingMemory},
            resize_message::resize_message,
            spec,
        },
    },
    volumes::{MountSource, call_pool::Call, object_watch::ObjectReader, subpath::read_subpath_file},
};

/// What creating a container needs besides the pod.
#[derive(Clone)]
pub(crate) struct CreateRequest {
    pub(crate) container: Container,
    pub(crate) attempt: u32,
    pub(crate) sandbox: String,
    /// Docker's runtime of the sandbox, where the pod has a RuntimeClass.
    pub(crate) runtime: Option<String>,
    pub(crate) image_id: String,
    pub(crate) image_shown: String,
    pub(crate) image_user: String,
    pub(crate) volumes: Arc<BTreeMap<String, MountSource>>,
    /// The objects that its environment references.
    pub(crate) contents: ObjectReader,
    /// The container whose process namespace an ephemeral one joins.
    pub(crate) target: Option<String>,
    pub(crate) addresses: Vec<IpAddr>,
}

fn config_error(message: String) -> StepError {
    StepError::new(reasons::CREATE_CONTAINER_CONFIG_ERROR, message)
}

/// Creates a container.
pub(crate) async fn create(context: Arc<PodContext>, pod: Arc<Pod>, request: CreateRequest) -> Outcome {
    let container = request.container.name.clone();
    let result = create_container(&context, &pod, request).await;
    match &result {
        Ok(_) => context.event(&pod, Some(&container), Severity::Normal, "Created", "Container created"),
        Err(error) => failed_event(&context, &pod, &container, error),
    }
    Outcome::Created { container, result }
}

fn failed_event(context: &PodContext, pod: &Pod, container: &str, error: &StepError) {
    if !error.unreachable {
        let message = format!("Error: {}", error.message);
        context.event(pod, Some(container), Severity::Warning, reasons::FAILED, message);
    }
}

async fn create_container(context: &PodContext, pod: &Pod, request: CreateRequest) -> Result<Instance, StepError> {
    let pod_spec: &PodSpec = pod.spec.as_ref().ok_or_else(|| config_error("the pod has no spec".to_owned()))?;
    let (container, uid) = (&request.container, spec::uid(pod));
    ensure_pod_files(context, pod, &request.addresses).map_err(config_error)?;
    let variables = environment(context, pod, pod_spec, &request).await?;
    let message_file = context.message_file(uid, &container.name, request.attempt);
    host_files::make_message_file(&message_file).map_err(config_error)?;
    let seccomp = seccomp(context, pod_spec, container).map_err(config_error)?;
    let dir = context.pod_dir(uid);
    let (mounts, variables) = {
        let (dir, container, volumes) = (dir.clone(), container.clone(), Arc::clone(&request.volumes));
        let mount = move |call: &Call| {
            mounts::resolve_mounts(&dir, &container, &volumes, &variables, call).map(|mounts| (mounts, variables))
        };
        let what = format!("mounts of container {:?}", request.container.name);
        context.volumes.on_thread(uid, &what, mount).await.map_err(config_error)?
    };
    let devices = devices(container, &request.volumes).map_err(config_error)?;
    let passwd = passwd(context, pod, pod_spec, &request).await?;
    let config = ContainerRequest {
        pod,
        spec: pod_spec,
        container,
        attempt: request.attempt,
        sandbox: &request.sandbox,
        target: request.target.as_deref(),
        image: ContainerImage { id: &request.image_id, user: &request.image_user, passwd: passwd.as_deref() },
        variables: &variables,
        mounts: &mounts,
        devices: &devices,
        message_file: &message_file,
    };
    let host =
        HostContext { seccomp: seccomp.as_deref(), runtime: request.runtime.as_deref(), ..host_context(context, &dir) };
    let (name, mut body) = container_config::container(&config, &host).map_err(config_error)?;
    let labels = body.labels.get_or_insert_default();
    labels.insert(names::IMAGE_SHOWN.to_owned(), request.image_shown.clone());
    let log = host_files::log_path(&context.node.config, &identity(pod, &container.name, request.attempt));
    labels.insert(names::LOG_PATH.to_owned(), log.to_string_lossy().into_owned());
    // Its resources may differ from those of the attempt before it.
    apply_pod_cgroup(context, pod).await;
    let id = {
        let _permit = context.engine_calls.acquire().await;
        let created = context.node.engine.create(&name, body).await;
        created.map_err(|e| StepError::of(reasons::CREATE_CONTAINER_ERROR, &e))?
    };
    Ok(created_instance(id, pod, pod_spec, request))
}

/// A container as it is right after it was created.
fn created_instance(id: String, pod: &Pod, spec: &PodSpec, request: CreateRequest) -> Instance {
    let container = &request.container;
    Instance {
        id,
        identity: identity(pod, &container.name, request.attempt),
        state: State::Created,
        created_at: jiff::Timestamp::now(),
        image: spec::image_of(container).to_owned(),
        image_id: request.image_shown,
        hash: names::container_hash(&container.name, spec::image_of(container)),
        sandbox: request.sandbox,
        log_path: String::new(),
        addresses: Vec::new(),
        grace: spec.termination_grace_period_seconds,
        limits: container_limits(spec.resources.as_ref(), container),
        runtime: String::new(),
        message_from_log: container.termination_message_policy.as_deref() == Some(names::FROM_LOG),
        user: None,
    }
}

/// What the node contributes to a container of the pod whose directory is `dir`.
pub(super) fn host_context<'a>(context: &PodContext, dir: &'a Path) -> HostContext<'a> {
    HostContext {
        systemd_cgroups: context.engine_info.borrow().systemd_cgroups,
        negative_oom: context.negative_oom.load(Ordering::Relaxed),
        node_memory: context.node_memory,
        pod_dir: dir,
        seccomp: None,
        runtime: None,
        log_limits: context.node.config.log_limits,
    }
}

/// The environment variables of a container.
async fn environment(
    context: &PodContext,
    pod: &Pod,
    pod_spec: &PodSpec,
    request: &CreateRequest,
) -> Result<Vec<(String, String)>, StepError> {
    let (container, config) = (&request.container, &context.node.config);
    let mut sources = fetch_sources(pod, container, &request.contents).await?;
    sources.files = files(context, pod, container, &request.volumes).await.map_err(config_error)?;
    let services = if spec::is_static(pod) {
        // The API itself may run in static pods.
        context.services.borrow().clone().unwrap_or_default()
    } else {
        wait_for_services(&context.services, SERVICES_TIMEOUT).await.map_err(config_error)?
    };
    let pod_ips =
        if spec::host_network(pod_spec) { config.node_ips.iter().collect() } else { request.addresses.clone() };
    let shown = EnvContext {
        node_name: &config.node_name,
        node_ips: config.node_ips,
        pod_ips: &pod_ips,
        allocatable: &config.allocatable,
        services: &services,
    };
    env::environment(pod, container, &sources, &shown).map_err(config_error)
}

/// How long creating a container waits for the first list of services.
const SERVICES_TIMEOUT: Duration = Duration::from_secs(5);

/// The services that a container's environment shows, once they were listed.
///
/// # Errors
/// When they are not within `timeout`, in upstream's words.
async fn wait_for_services(
    services: &watch::Receiver<ServiceList>,
    timeout: Duration,
) -> Result<Arc<Vec<ServiceEnv>>, String> {
    let mut services = services.clone();
    let first = tokio::time::timeout(timeout, services.wait_for(Option::is_some)).await;
    let first = first.ok().and_then(|listed| listed.ok()?.clone());
    first.ok_or_else(|| "services have not yet been read at least once, cannot construct envvars".to_owned())
}

/// The files in volumes that a container's environment takes values from.
async fn files(
    context: &PodContext,
    pod: &Pod,
    container: &Container,
    volumes: &BTreeMap<String, MountSource>,
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
            if let Some(text) = read_subpath_file(&place, &path)? {
                all.insert((volume, path), text);
            }
        }
        Ok(all)
    };
    let what = format!("environment of container {:?}", container.name);
    context.volumes.on_thread(spec::uid(pod), &what, read).await
}

/// The ConfigMaps and Secrets that a container's environment references.
async fn fetch_sources(pod: &Pod, container: &Container, contents: &ObjectReader) -> Result<EnvSources, StepError> {
    let (maps, secrets) = env::references(container);
    let mut sources = EnvSources::default();
    let failed = |e: Arc<kube::Error>| {
        config_error(format!("failed to get an object of the environment: {}", windlass_kit::client::message(&e)))
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

/// The content of the Localhost seccomp profile that a container names.
fn seccomp(context: &PodContext, spec: &PodSpec, container: &Container) -> Result<Option<String>, String> {
    let Some(name) = local_seccomp(spec, container) else { return Ok(None) };
    let inside = Path::new(name).components().all(|c| matches!(c, Component::Normal(_)));
    if !inside {
        return Err(format!("seccomp profile {name:?} must be a path below the directory of profiles"));
    }
    let path = context.node.config.data_dir.join("seccomp").join(name);
    let text = std::fs::read_to_string(&path)
        .map_err(|e| format!("failed to read seccomp profile {}: {e}", path.display()))?;
    Ok(Some(text))
}

/// The image's `/etc/passwd`, where the container's user depends on it.
async fn passwd(
    context: &PodContext,
    pod: &Pod,
    pod_spec: &PodSpec,
    request: &CreateRequest,
) -> Result<Option<String>, StepError> {
    if !needs_passwd(pod_spec, &request.container, &request.image_user) {
        return Ok(None);
    }
    let name = format!("windlass-passwd-{}-{}", spec::uid(pod), request.container.name);
    let read = context.node.engine.file_of_image(&request.image_id, &name, "/etc/passwd").await;
    read.map_err(|e| StepError::of(reasons::CREATE_CONTAINER_ERROR, &e))
}

/// Starts a container.
pub(crate) async fn start(context: Arc<PodContext>, pod: Arc<Pod>, container: String, id: String) -> Outcome {
    let failed = |error: &EngineError| StepError::of(reasons::RUN_CONTAINER_ERROR, error);
    let (started, inspected) = {
        let _permit = context.engine_calls.acquire().await;
        (context.node.engine.start(&id).await, context.node.engine.inspect(&id).await)
    };
    let result = match (started, inspected) {
        (Ok(()), Ok(instance)) => Ok(instance),
        (Ok(()), Err(error)) => Err((failed(&error), None)),
        // It runs, or has run to its end, whatever became of the answer.
        (Err(_), Ok(Some(instance))) if instance.has_run() => Ok(Some(instance)),
        (Err(error), Ok(None)) => {
            // Somebody has removed it: another one is created.
            failed_event(&context, &pod, &container, &failed(&error));
            return Outcome::Inspected { id, result: Ok(None) };
        }
        (Err(error), instance) => Err((failed(&error), instance.ok().flatten())),
    };
    match &result {
        Ok(_) => context.event(&pod, Some(&container), Severity::Normal, "Started", "Container started"),
        Err((error, _)) => failed_event(&context, &pod, &container, error),
    }
    let with_message = async |instance: Option<Instance>| match instance {
        Some(instance) => Some(host_files::with_message(&context, instance).await),
        None => None,
    };
    let result = match result {
        Ok(instance) => Ok(with_message(instance).await),
        Err((error, instance)) => Err((error, with_message(instance).await)),
    };
    Outcome::Started { container, result }
}

/// Does what is left to do once a container was started: the links to its log, and the limits that Docker has no option
/// for. All of it may be done already.
pub(crate) fn begun(context: &PodContext, pod: &Pod, instance: &Instance) {
    host_files::link_log(&context.node.config, instance);
    apply_container_cgroup(context, pod, &instance.identity.container, &instance.id);
}

/// Removes what the host has for a container alone that the engine no longer has: the links to its log, and its termination
/// message. `keeps_number` says that the link in the pod's directory stays, which has the number of its attempt.
pub(crate) fn gone(context: &PodContext, instance: &Instance, keeps_number: bool) {
    host_files::unlink_log(&context.node.config, instance, keeps_number);
    let who = &instance.identity;
    host_files::remove_message(&context.message_file(&who.uid, &who.container, who.attempt));
}

/// Applies one resource of the spec to one running container, and their sum to the pod's cgroup.
pub(crate) async fn resize(context: Arc<PodContext>, target: ContainerRef, step: ResizeStep) -> Outcome {
    let result = resize_container(&context, &target, &step).await;
    if let Err(error) = &result {
        let message = resize_message(&target.pod, "error", &error.message);
        context.event(&target.pod, None, Severity::Warning, "ResizeError", message);
    }
    Outcome::Resized { id: target.id, result }
}

async fn resize_container(
    context: &PodContext,
    target: &ContainerRef,
    step: &ResizeStep,
) -> Result<Option<Instance>, StepError> {
    let failed = |error: EngineError| StepError::of(reasons::ERROR, &error);
    let (engine, uid) = (&context.node.engine, spec::uid(&target.pod));
    if let Some(wanted) = wanted_cgroup(context, &target.pod) {
        if let Some(why) = refused(context, uid, &wanted, step.resource, &step.shrinking) {
            return Err(StepError::new(reasons::ERROR, why));
        }
        // More for the pod before more for the container, since a cgroup gets no more than its parent; less when all
        // containers have less.
        context.node.cgroups.set_resource(uid, &wanted, step.resource, true).await;
    }
    let whole = target.pod.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    engine.update(&target.id, &container_limits(whole, &target.container), step.resource).await.map_err(failed)?;
    // Docker has set the container's swap, too.
    apply_container_cgroup(context, &target.pod, &target.container.name, &target.id);
    Ok(match engine.inspect(&target.id).await.map_err(failed)? {
        Some(instance) => Some(host_files::with_message(context, instance).await),
        None => None,
    })
}

/// Applies one resource of the spec to the pod's own cgroup: after its containers have theirs.
pub(crate) async fn resize_pod(context: Arc<PodContext>, pod: Arc<Pod>, resource: Resource) -> Outcome {
    let Some(wanted) = wanted_cgroup(&context, &pod) else { return Outcome::PodResized(Ok(())) };
    let uid = spec::uid(&pod);
    if let Some(why) = refused(&context, uid, &wanted, resource, &[]) {
        let message = resize_message(&pod, "error", &why);
        context.event(&pod, None, Severity::Warning, "ResizeError", message);
        return Outcome::PodResized(Err(StepError::new(reasons::ERROR, why)));
    }
    context.node.cgroups.set_resource(uid, &wanted, resource, false).await;
    Outcome::PodResized(Ok(()))
}

/// Why the memory limits of a pod may not shrink now, if so.
fn refused(
    context: &PodContext,
    uid: &str,
    wanted: &PodCgroup,
    resource: Resource,
    shrinking: &[ShrinkingMemory],
) -> Option<String> {
    if resource != Resource::Memory {
        return None;
    }
    let is = context.node.cgroups.pod(uid).and_then(|is| is.values.memory).unwrap_or(0);
    let limit = wanted.values.memory.filter(|limit| *limit > 0 && (is == 0 || *limit < is));
    if limit.is_none() && shrinking.is_empty() {
        return None;
    }
    let ids: Vec<&str> = shrinking.iter().map(|s| s.id.as_str()).collect();
    let (pod, each) = context.node.cgroups.memory_in_use(&wanted.name, &ids);
    let containers: Vec<_> =
        shrinking.iter().zip(each).map(|(s, used)| (s.container.as_str(), s.limit, used)).collect();
    resize::refused_shrinking(limit.map(|limit| (limit, pod)), &containers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_container_waits_for_the_first_list_and_not_for_ever() {
        let (services_tx, services) = watch::channel(None);
        let short = wait_for_services(&services, Duration::from_millis(20)).await;
        assert!(short.unwrap_err().contains("not yet been read"));
        let waiting = tokio::spawn(async move { wait_for_services(&services, Duration::from_secs(60)).await });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        services_tx.send_replace(Some(Arc::default()));
        assert_eq!(waiting.await.unwrap().map(|all| all.len()), Ok(0));
    }
}
