//! Starts cadvisor on the agent's containers, volumes and images.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_cadvisor::{Config, Target, Usage, Volume};
use windlass_kit::published_map::{Follower, Publisher};

use crate::{
    RunningContainers,
    engine::{
        Engine,
        unmanaged::{Unmanaged, UnmanagedContainer},
    },
    images::StoredImage,
    volumes::registry::{RegisteredVolume, RegisteredVolumes},
};

/// How often Docker counts writable layers at most, and for how long it does not after a count, as a multiple of the time
/// that it took.
const LAYER_BYTES_INTERVAL: Duration = Duration::from_secs(60);
const LAYER_BYTES_COST_FACTOR: u32 = 20;

/// What is measured.
pub(crate) struct Inputs {
    /// The running containers of pods.
    pub(crate) containers: RunningContainers,
    /// The other running containers.
    pub(crate) unmanaged: Unmanaged,
    /// The volumes of pods.
    pub(crate) volumes: RegisteredVolumes,
    /// The images of Docker's store.
    pub(crate) images: watch::Receiver<Arc<Vec<StoredImage>>>,
    /// Counts the writable layers that only it can.
    pub(crate) engine: Engine,
}

/// Starts measuring until `shutdown`.
pub(crate) fn start_usage(config: Config, inputs: Inputs, shutdown: &CancellationToken) -> Usage {
    let (running, volumes) = (Publisher::default(), Publisher::default());
    let (targets, of_pods) = (running.subscribe().follow(), volumes.subscribe().follow());
    let usage = Usage::start(config, targets, of_pods, shutdown.clone());
    let same = |_: &str, target: Arc<Target>| target;
    tokio::spawn(forward(inputs.containers.follow(), running.clone(), same, shutdown.clone()));
    tokio::spawn(forward(inputs.unmanaged.follow(), running, |_, found| unmanaged_target(&found), shutdown.clone()));
    let of_pod = |uid: &str, all: Arc<Vec<RegisteredVolume>>| volumes_of(uid, &all);
    tokio::spawn(forward(inputs.volumes, volumes, of_pod, shutdown.clone()));
    tokio::spawn(publish_image_bytes(inputs.images, usage.clone(), shutdown.clone()));
    tokio::spawn(publish_layer_bytes(inputs.engine, usage.clone(), shutdown.clone()));
    usage
}

/// Passes the differences of one map on to another, whose values `make` makes.
async fn forward<A, B: Clone + PartialEq>(
    mut from: Follower<Arc<str>, A>,
    to: Publisher<Arc<str>, B>,
    make: impl Fn(&str, A) -> B,
    shutdown: CancellationToken,
) {
    loop {
        let changes = tokio::select! {
            () = shutdown.cancelled() => return,
            changes = from.changed() => changes,
        };
        let Some(changes) = changes else { return };
        for (key, value) in changes {
            match value {
                Some(value) => {
                    let made = make(&key, value);
                    to.set(key, made);
                }
                None => to.remove(&key),
            }
        }
    }
}

fn unmanaged_target(container: &UnmanagedContainer) -> Arc<Target> {
    let mut labels = container.labels.clone();
    if container.restarts > 0 {
        labels.insert("restartcount".to_owned(), container.restarts.to_string());
    }
    Arc::new(Target {
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
    })
}

/// The volumes of a pod.
fn volumes_of(uid: &str, all: &[RegisteredVolume]) -> Arc<Vec<Volume>> {
    let volume = |volume: &RegisteredVolume| Volume {
        pod_uid: uid.to_owned(),
        name: volume.name.clone(),
        path: volume.path.clone(),
        claim: volume.claim.clone().map(|claim| (volume.namespace.clone(), claim)),
        of_pod: volume.of_pod,
    };
    Arc::new(all.iter().map(volume).collect())
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
