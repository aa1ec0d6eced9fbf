//! Carries out the actions of a plan: each is a future that ends in an [`Outcome`].

mod containers;
mod images;
mod sandbox;

pub(crate) use containers::{CreateRequest, create, resize, start};
pub(crate) use images::ensure_image;
use sandbox::write_pod_files;
pub(crate) use sandbox::{create_sandbox, reconnect_sandbox, remove_sandbox, start_sandbox};

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use k8s_openapi::api::{
    core::v1::{Container, ExecAction, Pod, PodSpec, Probe, Secret},
    node::v1::RuntimeClass,
};
use kube::api::{Api, DeleteParams, Preconditions};
use tokio_util::sync::CancellationToken;
use windlass_kit::{events::Severity, objects::resources::class_of};

use super::{
    body::{self, Image, Surroundings, needs_passwd},
    cgroup, container_files,
    env::{self, Facts, Sources},
    files,
    handlers::{self, Answer, Target},
    hooks, mounts,
    observed::ImageState,
    outcome::{NETWORK_NOT_READY, Outcome, Refusal},
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
    node_authorizer::past_lag,
    probe_counts::{ProbeResult, Probed},
    volumes::{Place, VolumeImages, follow::Contents, subpath::read_part},
};

/// Pulls of images for volumes are given up when the pod ends; setting volumes up is not, since what it has mounted must
/// be known to whoever takes it away.
pub(crate) async fn prepare_volumes(
    shared: Arc<Shared>,
    pod: Arc<Pod>,
    contents: Contents,
    given_up: CancellationToken,
) -> Outcome {
    if let Err(why) = write_pod_files(&shared, &pod, &[]) {
        return Outcome::Volumes(Err(Refusal::new("FailedMount", why)));
    }
    let images = tokio::select! {
        biased;
        images = images::of_volumes(&shared, &pod) => images,
        () = given_up.cancelled() => return Outcome::GivenUp,
    };
    let result = async {
        let images = VolumeImages { ids: images?, mounted_by_engine: shared.health.borrow().mounts_images() };
        shared.volumes.prepare(&pod, &images, &contents).await.map_err(|e| Refusal::new("FailedMount", e.to_string()))
    };
    Outcome::Volumes(result.await)
}

pub(crate) async fn refresh_volumes(shared: Arc<Shared>, pod: Arc<Pod>, contents: Contents) -> Outcome {
    let result = shared.volumes.refresh(&pod, &contents).await;
    Outcome::Refreshed(result.map_err(|e| Refusal::new("FailedMount", e.to_string())))
}

fn around<'a>(shared: &Shared, dir: &'a std::path::Path) -> Surroundings<'a> {
    Surroundings {
        systemd_cgroups: shared.info.borrow().systemd_cgroups,
        negative_oom: shared.negative_oom.load(Ordering::Relaxed),
        node_memory: shared.node_memory,
        pod_dir: dir,
        seccomp: None,
        runtime: None,
        log_limits: shared.config.log_limits,
    }
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

pub(crate) async fn see(shared: Arc<Shared>, id: String) -> Outcome {
    let result = match shared.engine.inspect(&id).await {
        Ok(Some(instance)) => Ok(Some(traces::with_message(&shared, instance).await)),
        other => other,
    };
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

/// Runs the hook before a container's end, if it has one, and then stops it. The hook's time is taken from the grace; it is
/// cut short when the container has ended, or must end sooner.
pub(crate) async fn stop(
    shared: Arc<Shared>,
    id: String,
    grace: i64,
    asked: Option<Asked>,
    hook_over: CancellationToken,
) -> Outcome {
    let mut grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
    let hook = asked.as_ref().and_then(|asked| Some((asked, hooks::pre_stop(&asked.container)?)));
    if let Some((asked, handler)) = hook.filter(|_| !grace.is_zero()) {
        let begun = Instant::now();
        let run = hooks::run(&shared, &asked.pod, handler, asked.target());
        let ended = tokio::select! {
            ended = tokio::time::timeout(grace, run) => {
                ended.unwrap_or_else(|_| Err("it took the whole grace".to_owned()))
            }
            () = hook_over.cancelled() => Ok(()),
        };
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

/// Holds the pod's cgroup to what its spec says; without limits while its containers are on their way there.
async fn hold(shared: &Shared, pod: &Pod, on_the_way: bool) {
    let Some(spec) = &pod.spec else { return };
    let mut limits = qos::pod_limits(spec);
    if on_the_way {
        limits = Limits { memory: 0, cpu_quota: 0, ..limits };
    }
    let (parent, pages) = (parent(shared, pod), qos::pod_huge_pages(spec));
    cgroup::hold_pod(&parent, &limits, &pages, shared.config.pod_pids_limit).await;
}

/// The cgroup of a pod, as Docker names it.
fn parent(shared: &Shared, pod: &Pod) -> String {
    qos::cgroup_parent(class_of(pod), spec::uid(pod), shared.info.borrow().systemd_cgroups)
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
    let begun = Instant::now();
    let mut answer = Answer::Good;
    if let Some(probe) = kind.of(&asked.container) {
        for _ in 0..PROBE_TRIES {
            answer = question(&shared, &asked, probe).await;
            if !matches!(answer, Answer::Unknown(_)) {
                break;
            }
        }
    }
    let who = Probed {
        uid: spec::uid(&asked.pod).to_owned(),
        namespace: spec::namespace(&asked.pod).to_owned(),
        pod: spec::name(&asked.pod).to_owned(),
        container: asked.container.name.clone(),
        kind: kind.name(),
    };
    let result = match &answer {
        Answer::Good | Answer::Doubtful(_) => ProbeResult::Successful,
        Answer::Bad(_) => ProbeResult::Failed,
        Answer::Unknown(_) => ProbeResult::Unknown,
    };
    shared.probes.take(who, result, begun.elapsed());
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
        Answer::Unknown(why) => {
            let message = format!("{} probe errored and resulted in unknown state: {why}", kind.name());
            shared.event(&asked.pod, Some(&asked.container.name), Severity::Warning, "Unhealthy", message);
        }
    }
    Outcome::Probed { container: asked.container.name, id: asked.id, kind, answer }
}

/// How often a probe that could not be asked is asked again at once; upstream's.
const PROBE_TRIES: usize = 3;
/// How long a command counts as being started.
const EXEC_START: Duration = Duration::from_secs(1);

async fn question(shared: &Shared, asked: &Asked, probe: &Probe) -> Answer {
    let target = asked.target();
    if let Some(action) = &probe.exec {
        let command = action.command.as_ref().map(|c| env::expand_static(c, &asked.container));
        let action = ExecAction { command };
        // Starting a command is dear to Docker; waiting for its turn is not the container's fault.
        let turn = shared.exec_probes.acquire().await;
        let answer = handlers::within(probes::timeout(probe), handlers::exec(&shared.engine, target, &action));
        let mut answer = std::pin::pin!(answer);
        let early = tokio::time::timeout(EXEC_START, answer.as_mut()).await;
        drop(turn);
        return match early {
            Ok(answer) => answer,
            Err(_) => answer.await,
        };
    }
    let answer = async {
        if let Some(action) = &probe.http_get {
            handlers::http_get(target, action, handlers::PROBE).await
        } else if let Some(action) = &probe.tcp_socket {
            handlers::tcp(target, action).await
        } else if let Some(action) = &probe.grpc {
            handlers::grpc(target, action).await
        } else {
            Answer::Unknown("missing probe handler".to_owned())
        }
    };
    handlers::within(probes::timeout(probe), answer).await
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

/// Takes away what the volumes of a pod that is over hold; it stays in the API.
pub(crate) async fn clear_volumes(shared: Arc<Shared>, uid: String) -> Outcome {
    let cleared = shared.volumes.teardown(&uid).await;
    Outcome::VolumesCleared(cleared.map_err(|e| Refusal::new("FailedKillPod", e.to_string())))
}

pub(crate) async fn tear_down(shared: Arc<Shared>, uid: String) -> Outcome {
    let failed = |message: String| Refusal::new("FailedKillPod", message);
    let result = async {
        shared.network.detach(&uid).await.map_err(|e| failed(e.to_string()))?;
        shared.volumes.teardown(&uid).await.map_err(|e| failed(e.to_string()))?;
        let dir = shared.pod_dir(&uid);
        let removed =
            shared.volumes.on_thread(&format!("end of {uid}"), "folder", move |_| traces::remove_pod_dir(&dir)).await;
        removed.map_err(failed)?;
        traces::remove_log_dirs(&shared.config.pod_logs_dir, &uid);
        super::cgroup::remove_pod(&uid);
        Ok(())
    };
    Outcome::TornDown(result.await)
}

/// What NodeRestriction says of a pod that is another node's.
const ON_ANOTHER_NODE: &str = "can only delete pods with spec.nodeName set to itself";

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
        // A new pod of the same name, on another node: a pod's node never changes, so ours is gone.
        Err(kube::Error::Api(status)) if status.code == 403 && status.message.contains(ON_ANOTHER_NODE) => Ok(()),
        Err(error) => {
            Err(Refusal::new("FailedKillPod", format!("the API could not be told that the pod is gone: {error}")))
        }
    };
    Outcome::Forgotten(result)
}
