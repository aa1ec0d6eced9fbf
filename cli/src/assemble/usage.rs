//! What cadvisor is told of containers, volumes and images, and what the control plane is told of its numbers.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_agent::{
    ContainerRecord, engine::strangers::Stranger, images::StoredImage, volumes::placed::PlacedVolume,
};
use windlass_cadvisor::{
    Target, Usage, Volume,
    model::{Sample, Snapshot},
};
use windlass_control::metrics;

/// Gives what a function makes of the newest of two values, again whenever one of them changes.
fn follow<A: Send + Sync + 'static, B: Send + Sync + 'static, T: Send + Sync + 'static>(
    mut first: watch::Receiver<Arc<A>>,
    mut second: watch::Receiver<Arc<B>>,
    shutdown: CancellationToken,
    make: impl Fn(&A, &B) -> Vec<T> + Send + 'static,
) -> watch::Receiver<Arc<Vec<T>>> {
    let (tell, told) = watch::channel(Arc::default());
    tokio::spawn(async move {
        loop {
            let (a, b) = (first.borrow_and_update().clone(), second.borrow_and_update().clone());
            tell.send_replace(Arc::new(make(&a, &b)));
            // One that is closed has told its last; the other goes on.
            tokio::select! {
                () = shutdown.cancelled() => return,
                Ok(()) = first.changed() => {}
                Ok(()) = second.changed() => {}
            }
        }
    });
    told
}

/// Everything that runs in containers, of pods and not.
pub(super) fn subjects(
    containers: watch::Receiver<Arc<Vec<ContainerRecord>>>,
    strangers: watch::Receiver<Arc<Vec<Stranger>>>,
    shutdown: CancellationToken,
) -> watch::Receiver<Arc<Vec<Target>>> {
    follow(containers, strangers, shutdown, |records, strangers| {
        let begun: HashMap<&str, jiff::Timestamp> =
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
            pod_started_at: begun.get(r.pod_uid.as_str()).copied().unwrap_or(r.started_at),
            cpu_shares: Some(r.cpu_shares).filter(|shares| *shares > 0),
            limits: r.held_to.clone(),
            ..Target::default()
        });
        of_pods.chain(strangers.iter().map(stranger)).collect()
    })
}

fn stranger(s: &Stranger) -> Target {
    let mut labels = s.labels.clone();
    if s.restarts > 0 {
        labels.insert("restartcount".to_owned(), s.restarts.to_string());
    }
    Target {
        container_id: s.id.clone(),
        pid: s.pid,
        name: s.name.clone(),
        image: s.image.clone(),
        started_at: s.started_at,
        pod_started_at: s.started_at,
        labels,
        healthy: s.healthy,
        shares_network: s.shares_network,
        limits: s.held_to.clone(),
        ..Target::default()
    }
}

/// The volumes of all pods.
pub(super) fn volumes(
    placed: watch::Receiver<Arc<BTreeMap<String, Vec<PlacedVolume>>>>,
    shutdown: CancellationToken,
) -> watch::Receiver<Arc<Vec<Volume>>> {
    follow(placed, watch::channel(Arc::new(())).1, shutdown, |pods, ()| {
        let volume = |uid: &String, volume: &PlacedVolume| Volume {
            pod_uid: uid.clone(),
            name: volume.name.clone(),
            path: volume.path.clone(),
            claim: volume.claim.clone().map(|claim| (volume.namespace.clone(), claim)),
            of_pod: volume.of_pod,
        };
        pods.iter().flat_map(|(uid, all)| all.iter().map(move |one| volume(uid, one))).collect()
    })
}

/// Tells what all images take, as Docker counts each of them.
pub(super) async fn tell_image_bytes(
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

/// What the control plane needs to know of each round of cadvisor's.
pub(super) fn readings(
    usage: &Usage,
    node: &str,
    shutdown: CancellationToken,
) -> watch::Receiver<Arc<metrics::Readings>> {
    let mut rounds = usage.snapshots();
    let (tell, told) = watch::channel(Arc::default());
    let node = node.to_owned();
    tokio::spawn(async move {
        loop {
            let round = Arc::clone(&rounds.borrow_and_update());
            tell.send_replace(Arc::new(reading(&node, &round)));
            tokio::select! {
                () = shutdown.cancelled() => return,
                changed = rounds.changed() => if changed.is_err() { return },
            }
        }
    });
    told
}

fn reading(node: &str, round: &Snapshot) -> metrics::Readings {
    let of = |sample: &Sample| metrics::Reading {
        at: sample.at,
        cpu_ns: sample.cpu.usage_ns,
        memory_bytes: sample.memory.working_set_bytes(),
    };
    let of_pods = round.rows.iter().filter(|row| !row.target.pod_uid.is_empty() && !row.target.is_sandbox());
    metrics::Readings {
        node: node.to_owned(),
        machine: Some(of(&round.node.sample)),
        containers: of_pods
            .map(|row| metrics::ContainerReading {
                id: row.target.container_id.clone(),
                namespace: row.target.pod_namespace.clone(),
                pod: row.target.pod_name.clone(),
                name: row.target.container_name.clone(),
                reading: of(&row.sample),
            })
            .collect(),
    }
}
