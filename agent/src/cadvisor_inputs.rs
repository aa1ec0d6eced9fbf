//! Starts cadvisor on the agent's containers, volumes and images.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_cadvisor::{Config, Target, Usage, Volume};

use crate::{
    ContainerRecord,
    engine::{Engine, unmanaged::UnmanagedContainer},
    images::StoredImage,
    volumes::registry::RegisteredVolume,
};

/// How often Docker counts writable layers at most, and for how long it does not after a count, as a multiple of the time
/// that it took.
const LAYER_BYTES_INTERVAL: Duration = Duration::from_secs(60);
const LAYER_BYTES_COST_FACTOR: u32 = 20;

/// What is measured.
pub(crate) struct Inputs {
    /// The running containers of pods.
    pub(crate) containers: watch::Receiver<Arc<Vec<ContainerRecord>>>,
    /// The other running containers.
    pub(crate) unmanaged: watch::Receiver<Arc<Vec<UnmanagedContainer>>>,
    /// The volumes of pods, by uid.
    pub(crate) volumes: watch::Receiver<Arc<BTreeMap<String, Vec<RegisteredVolume>>>>,
    /// The images of Docker's store.
    pub(crate) images: watch::Receiver<Arc<Vec<StoredImage>>>,
    /// Counts the writable layers that only it can.
    pub(crate) engine: Engine,
}

/// Starts measuring until `shutdown`.
pub(crate) fn start_usage(config: Config, inputs: Inputs, shutdown: &CancellationToken) -> Usage {
    let nothing = watch::channel(Arc::new(())).1;
    let targets =
        combine(inputs.containers, inputs.unmanaged, shutdown.clone(), |records, others| targets(records, others));
    let volumes = combine(inputs.volumes, nothing, shutdown.clone(), |pods, ()| volumes(pods));
    let usage = Usage::start(config, targets, volumes, shutdown.clone());
    tokio::spawn(publish_image_bytes(inputs.images, usage.clone(), shutdown.clone()));
    tokio::spawn(publish_layer_bytes(inputs.engine, usage.clone(), shutdown.clone()));
    usage
}

/// Computes `make` of the latest two values whenever one of them changes.
fn combine<A: Send + Sync + 'static, B: Send + Sync + 'static, T: Send + Sync + 'static>(
    mut first: watch::Receiver<Arc<A>>,
    mut second: watch::Receiver<Arc<B>>,
    shutdown: CancellationToken,
    make: impl Fn(&A, &B) -> Vec<T> + Send + 'static,
) -> watch::Receiver<Arc<Vec<T>>> {
    let (sender, receiver) = watch::channel(Arc::default());
    tokio::spawn(async move {
        loop {
            let (a, b) = (first.borrow_and_update().clone(), second.borrow_and_update().clone());
            sender.send_replace(Arc::new(make(&a, &b)));
            // A closed channel keeps its last value.
            tokio::select! {
                () = shutdown.cancelled() => return,
                Ok(()) = first.changed() => {}
                Ok(()) = second.changed() => {}
            }
        }
    });
    receiver
}

/// All running containers, of pods and others.
fn targets(records: &[ContainerRecord], unmanaged: &[UnmanagedContainer]) -> Vec<Target> {
    let pods_started_at: HashMap<&str, jiff::Timestamp> =
        records.iter().filter(|r| r.is_sandbox).map(|r| (r.pod_uid.as_str(), r.started_at)).collect();
    let of_pods = records.iter().map(|r| Target {
        container_id: r.id.clone(),
        pid: r.pid,
        name: r.docker_name.clone(),
        image: r.image.clone(),
        pod_name: r.pod_name.clone(),
        pod_namespace: r.pod_namespace.clone(),
        pod_uid: r.pod_uid.clone(),
        container_name: r.container_name.clone(),
        started_at: r.started_at,
        pod_started_at: pods_started_at.get(r.pod_uid.as_str()).copied().unwrap_or(r.started_at),
        cpu_shares: Some(r.cpu_shares).filter(|shares| *shares > 0),
        limits: r.limits.clone(),
        ..Target::default()
    });
    of_pods.chain(unmanaged.iter().map(unmanaged_target)).collect()
}

fn unmanaged_target(container: &UnmanagedContainer) -> Target {
    let mut labels = container.labels.clone();
    if container.restarts > 0 {
        labels.insert("restartcount".to_owned(), container.restarts.to_string());
    }
    Target {
        container_id: container.id.clone(),
        pid: container.pid,
        name: container.name.clone(),
        image: container.image.clone(),
        started_at: container.started_at,
        pod_started_at: container.started_at,
        labels,
        healthy: container.healthy,
        shares_network: container.shares_network,
        limits: container.limits.clone(),
        ..Target::default()
    }
}

/// The volumes of all pods.
fn volumes(pods: &BTreeMap<String, Vec<RegisteredVolume>>) -> Vec<Volume> {
    let volume = |uid: &String, volume: &RegisteredVolume| Volume {
        pod_uid: uid.clone(),
        name: volume.name.clone(),
        path: volume.path.clone(),
        claim: volume.claim.clone().map(|claim| (volume.namespace.clone(), claim)),
        of_pod: volume.of_pod,
    };
    pods.iter().flat_map(|(uid, all)| all.iter().map(move |one| volume(uid, one))).collect()
}

/// Publishes the sizes of writable layers that have no directory of their own (any storage driver but overlay), as Docker
/// counts them, which is expensive.
async fn publish_layer_bytes(engine: Engine, usage: Usage, shutdown: CancellationToken) {
    let mut pause = LAYER_BYTES_INTERVAL;
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        pause = LAYER_BYTES_INTERVAL;
        if !usage.has_uncounted_layers() {
            continue;
        }
        let begun = Instant::now();
        match engine.layer_bytes().await {
            Ok(bytes) => usage.set_layer_bytes(bytes),
            Err(error) => {
                tracing::warn!(%error, "failed to count the writable layers of containers; their sizes are unknown")
            }
        }
        pause = LAYER_BYTES_INTERVAL.max(begun.elapsed() * LAYER_BYTES_COST_FACTOR);
    }
}

/// Publishes the total size of images, as Docker counts them.
async fn publish_image_bytes(
    mut images: watch::Receiver<Arc<Vec<StoredImage>>>,
    usage: Usage,
    shutdown: CancellationToken,
) {
    loop {
        let bytes = images.borrow_and_update().iter().filter_map(|image| u64::try_from(image.size).ok()).sum();
        usage.set_image_bytes(bytes);
        tokio::select! {
            () = shutdown.cancelled() => return,
            changed = images.changed() => if changed.is_err() { return },
        }
    }
}
