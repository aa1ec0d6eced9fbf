//! What benchmarks share: both sides measured in turn, many pods at once, and what a node tells of them.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams, WatchEvent, WatchParams},
    config::{KubeConfigOptions, Kubeconfig},
};

use crate::{PATIENCE, RawDocker, World, page};

/// The image of pods that are measured.
pub const IMAGE: &str = "windlass/busybox:1";
/// What they run.
pub const COMMAND: [&str; 2] = ["sleep", "100000"];
/// Ends as soon as it is asked to.
const OBEDIENT: [&str; 3] = ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 100000 & wait; done"];

/// Enters a world's network namespace, where the API's port is.
///
/// # Errors
/// Without root.
pub fn enter(world: &World) -> anyhow::Result<()> {
    let namespace = std::fs::File::open(world.namespace())?;
    nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNET).context("the world's network namespace")
}

/// Waits until the node measures the containers of so many pods; answers how long that was after `begun`. What is measured
/// shares the cores, so its answer is not taken apart, only counted.
///
/// # Errors
/// When it does not come to that.
pub fn looked_after(count: usize, begun: Instant) -> anyhow::Result<Duration> {
    loop {
        let pods = page(10255, "/stats/summary").map_or(0, |told| told.matches("\"containers\":[{").count());
        if pods >= count {
            return Ok(begun.elapsed());
        }
        anyhow::ensure!(begun.elapsed() < PATIENCE, "{pods} of {count} pods are looked after");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// How long something took.
///
/// # Errors
/// Those of `work`.
pub fn timed(work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Duration> {
    let started = Instant::now();
    work()?;
    Ok(started.elapsed())
}

/// A time in milliseconds.
#[must_use]
pub fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// What others on the same hardware take of this machine while something is measured.
#[derive(Debug)]
pub struct Steal {
    begun: Instant,
    before: Duration,
}

impl Steal {
    /// Begins to watch.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn begin() -> anyhow::Result<Self> {
        Ok(Self { begun: Instant::now(), before: stolen()? })
    }

    /// What was taken since then, as a sentence.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn told(&self) -> anyhow::Result<String> {
        let share = (stolen()? - self.before).as_secs_f64() / self.begun.elapsed().as_secs_f64() * 100.0;
        Ok(format!("Meanwhile {share:.1} % of a core were taken by others on the same hardware (steal)."))
    }
}

/// CPU time that the hypervisor has given to others while something here wanted to run, so far.
fn stolen() -> anyhow::Result<Duration> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let ticks: u64 = text.split_whitespace().nth(8).context("/proc/stat tells no stolen time")?.parse()?;
    Ok(Duration::from_millis(ticks * 10))
}

/// Both sides of a figure.
#[derive(Debug)]
pub struct Comparison {
    /// Milliseconds; the median.
    pub ours: f64,
    /// Milliseconds; the median.
    pub raw: f64,
    /// The median of the pairs' ratios.
    pub ratio: f64,
}

/// Runs both sides in turn, the first one changing each round.
///
/// # Errors
/// Those of either side.
pub fn compare(
    rounds: usize,
    mut raw: impl FnMut() -> anyhow::Result<Duration>,
    mut ours: impl FnMut() -> anyhow::Result<Duration>,
) -> anyhow::Result<Comparison> {
    let (mut raws, mut all_ours, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        let (a, b) = if round % 2 == 0 {
            let a = raw()?;
            (a, ours()?)
        } else {
            let b = ours()?;
            (raw()?, b)
        };
        raws.push(milliseconds(a));
        all_ours.push(milliseconds(b));
        ratios.push(b.as_secs_f64() / a.as_secs_f64());
    }
    Ok(Comparison { ours: median(all_ours), raw: median(raws), ratio: median(ratios) })
}

/// The value in the middle.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A client of the API.
///
/// # Errors
/// When the file cannot be used.
pub async fn client(kubeconfig: &std::path::Path) -> anyhow::Result<Client> {
    let config =
        kube::Config::from_custom_kubeconfig(Kubeconfig::read_from(kubeconfig)?, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

/// A pod of one container.
///
/// # Errors
/// Never.
pub fn pod(name: &str) -> anyhow::Result<Pod> {
    Ok(serde_json::from_value(serde_json::json!({
        "metadata": {"name": name, "labels": {"bench": "yes"}},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [{"name": "main", "image": IMAGE, "command": COMMAND}]},
    }))?)
}

/// Creates many pods side by side.
///
/// # Errors
/// When the API refuses one.
pub async fn create(pods: &Api<Pod>, count: usize, prefix: &str) -> anyhow::Result<()> {
    create_each(pods, count, prefix, pod).await
}

/// The same for pods of another kind.
///
/// # Errors
/// When the API refuses one.
pub async fn create_each(
    pods: &Api<Pod>,
    count: usize,
    prefix: &str,
    pod: impl Fn(&str) -> anyhow::Result<Pod>,
) -> anyhow::Result<()> {
    futures::stream::iter((0..count).map(|i| pod(&format!("{prefix}-{i}"))))
        .map_ok(|pod| async move { pods.create(&PostParams::default(), &pod).await.map_err(anyhow::Error::from) })
        .try_buffer_unordered(count)
        .try_collect::<Vec<_>>()
        .await?;
    Ok(())
}

/// Waits until so many pods are Ready.
///
/// # Errors
/// When they are not in time.
pub async fn wait_ready(pods: &Api<Pod>, count: usize) -> anyhow::Result<()> {
    let mut ready = BTreeSet::new();
    let mut events = pods.watch(&WatchParams::default(), "0").await?.boxed();
    while ready.len() < count {
        let event = tokio::time::timeout(PATIENCE, events.try_next()).await.context("the pods are not Ready")??;
        let Some(WatchEvent::Added(pod) | WatchEvent::Modified(pod)) = event else { continue };
        let is_ready = pod
            .status
            .iter()
            .flat_map(|s| s.conditions.iter().flatten())
            .any(|c| c.type_ == "Ready" && c.status == "True");
        if is_ready {
            ready.insert(pod.metadata.name.unwrap_or_default());
        }
    }
    Ok(())
}

/// The containers that run, each with since when.
#[must_use]
pub fn running(world: &World) -> String {
    inspect_running(world, "{{.Id}} {{.State.StartedAt}}")
}

/// A line of this form for each container that runs.
#[must_use]
pub fn inspect_running(world: &World, form: &str) -> String {
    let ids = world.docker(&["ps", "-q", "--no-trunc"]);
    let mut args = vec!["inspect", "-f", form];
    args.extend(ids.lines());
    world.docker(&args)
}

/// How long Docker takes to stop a container that obeys.
///
/// # Errors
/// When Docker refuses.
pub fn raw_stop(world: &World, pause: &str) -> anyhow::Result<Duration> {
    let mut docker = RawDocker::connect(&world.docker_socket())?;
    let ids = docker.two_containers("stopped", pause, IMAGE, &OBEDIENT)?;
    std::thread::sleep(Duration::from_millis(500));
    let started = Instant::now();
    docker.stop(&ids[1])?;
    let took = started.elapsed();
    world.docker(&["rm", "-f", &ids[0], &ids[1]]);
    Ok(took)
}

/// How long a pod that obeys takes from its deletion until the API has forgotten it.
///
/// # Errors
/// When the API refuses, or the pod is not gone in time.
pub async fn deleted(client: &Client) -> anyhow::Result<Duration> {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let mut obedient = pod("obedient")?;
    if let Some(spec) = &mut obedient.spec {
        spec.termination_grace_period_seconds = Some(30);
        spec.containers[0].command = Some(OBEDIENT.map(str::to_owned).into());
    }
    let made = pods.create(&PostParams::default(), &obedient).await?;
    wait_ready(&pods, 1).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let version = made.metadata.resource_version.unwrap_or_default();
    let mut events = pods.watch(&WatchParams::default(), &version).await?.boxed();
    let started = Instant::now();
    pods.delete("obedient", &DeleteParams::default()).await?;
    loop {
        let event = tokio::time::timeout(PATIENCE, events.try_next()).await.context("the pod is not gone")??;
        if matches!(event, Some(WatchEvent::Deleted(_))) {
            return Ok(started.elapsed());
        }
    }
}

/// The same containers without Kubernetes, `count` pairs side by side.
///
/// # Errors
/// When Docker refuses.
///
/// # Panics
/// When a thread of it has panicked.
pub fn raw(world: &World, pause: &str, count: usize) -> anyhow::Result<Duration> {
    let socket = world.docker_socket();
    let started = Instant::now();
    let made: Vec<anyhow::Result<[String; 2]>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..count)
            .map(|i| {
                let socket = &socket;
                scope.spawn(move || {
                    RawDocker::connect(socket)?.two_containers(&format!("raw-{i}"), pause, IMAGE, &COMMAND)
                })
            })
            .collect();
        workers.into_iter().map(|w| w.join().expect("a worker thread")).collect()
    });
    let took = started.elapsed();
    let mut args = vec!["rm".to_owned(), "-f".to_owned()];
    for pair in made {
        args.extend(pair?);
    }
    world.docker(&args.iter().map(String::as_str).collect::<Vec<_>>());
    Ok(took)
}

/// Creates pods and waits until all are Ready, then removes them.
///
/// # Errors
/// When the API refuses, or they are not Ready or gone in time.
pub async fn ours(
    client: &Client,
    count: usize,
    pod: impl Fn(&str) -> anyhow::Result<Pod>,
) -> anyhow::Result<Duration> {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let started = Instant::now();
    create_each(&pods, count, "pod", pod).await?;
    wait_ready(&pods, count).await?;
    let took = started.elapsed();
    pods.delete_collection(&DeleteParams::default().grace_period(0), &ListParams::default()).await?;
    let deadline = Instant::now() + PATIENCE;
    while !pods.list(&ListParams::default()).await?.items.is_empty() {
        anyhow::ensure!(Instant::now() < deadline, "the pods are not gone");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // The containers' removal must not be paid by the next round.
    tokio::time::sleep(Duration::from_millis(500)).await;
    Ok(took)
}
