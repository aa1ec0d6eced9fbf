//! `make bench`: what a pod costs beside the same two containers started raw, in the same run, and
//! what the process holds in memory. Prints lines for docs/performance.md.

#![allow(clippy::print_stdout, reason = "the figures are the output")]

use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams, WatchEvent, WatchParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use windlass_tests::{PATIENCE, RawDocker, World, eventually};

const IMAGE: &str = "windlass/busybox:1";
const COMMAND: [&str; 2] = ["sleep", "100000"];
/// Rounds of one pod; raw and ours take turns so that a change of the machine's speed meets both.
const ROUNDS: usize = 15;
/// Rounds of many pods at once.
const BATCH_ROUNDS: usize = 5;
const BATCH: usize = 20;

fn main() -> anyhow::Result<()> {
    let world = World::new();
    let mut windlass = world.windlass();
    windlass.up();
    // The API's port is in the world's network namespace, so this process must enter it.
    let namespace = std::fs::File::open(world.namespace())?;
    nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNET).context("the world's network namespace")?;
    let pid = windlass.daemon().pid();

    std::thread::sleep(Duration::from_secs(30));
    let idle = resident_megabytes(pid)?;

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = runtime.block_on(client(&windlass.kubeconfig()))?;

    // Both sides once, unmeasured; the first pod brings the pause image.
    runtime.block_on(ours(&client, 1))?;
    let pause = world.docker(&["images", "--format", "{{.Repository}}:{{.Tag}}", "windlass/pause"]).trim().to_owned();
    raw(&world, &pause, 1)?;
    let one = compare(ROUNDS, || raw(&world, &pause, 1), || runtime.block_on(ours(&client, 1)))?;
    let many = compare(BATCH_ROUNDS, || raw(&world, &pause, BATCH), || runtime.block_on(ours(&client, BATCH)))?;

    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    runtime.block_on(async {
        create(&pods, BATCH, "held").await?;
        wait_ready(&pods, BATCH).await
    })?;
    std::thread::sleep(Duration::from_secs(30));
    let loaded = resident_megabytes(pid)?;

    println!("| figure | windlass | raw Docker | ratio | goal |");
    println!("|---|---|---|---|---|");
    println!(
        "| one pod, created to Ready (median of {ROUNDS}) | {:.0} ms | {:.0} ms | {:.2} | 1.3 |",
        one.ours, one.raw, one.ratio
    );
    println!(
        "| {BATCH} pods at once, all Ready (median of {BATCH_ROUNDS}) | {:.0} ms | {:.0} ms | {:.2} | 1.3 |",
        many.ours, many.raw, many.ratio
    );
    println!("| resident memory, idle | {idle:.1} MB | | | 40 MB |");
    println!("| resident memory, {BATCH} pods | {loaded:.1} MB | | | 60 MB |");
    Ok(())
}

struct Comparison {
    ours: f64,
    raw: f64,
    ratio: f64,
}

/// Runs both sides in turn; medians in milliseconds, and the median of the pairs' ratios.
fn compare(
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
        raws.push(a.as_secs_f64() * 1000.0);
        all_ours.push(b.as_secs_f64() * 1000.0);
        ratios.push(b.as_secs_f64() / a.as_secs_f64());
    }
    Ok(Comparison { ours: median(all_ours), raw: median(raws), ratio: median(ratios) })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The same containers without Kubernetes, `count` pairs side by side.
fn raw(world: &World, pause: &str, count: usize) -> anyhow::Result<Duration> {
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

async fn client(kubeconfig: &std::path::Path) -> anyhow::Result<Client> {
    let config =
        kube::Config::from_custom_kubeconfig(Kubeconfig::read_from(kubeconfig)?, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

fn pod(name: &str) -> anyhow::Result<Pod> {
    Ok(serde_json::from_value(serde_json::json!({
        "metadata": {"name": name, "labels": {"bench": "yes"}},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [{"name": "main", "image": IMAGE, "command": COMMAND}]},
    }))?)
}

async fn create(pods: &Api<Pod>, count: usize, prefix: &str) -> anyhow::Result<()> {
    futures::stream::iter((0..count).map(|i| pod(&format!("{prefix}-{i}"))))
        .map_ok(|pod| async move { pods.create(&PostParams::default(), &pod).await.map_err(anyhow::Error::from) })
        .try_buffer_unordered(count)
        .try_collect::<Vec<_>>()
        .await?;
    Ok(())
}

/// Creates pods and waits until all are Ready, then removes them.
async fn ours(client: &Client, count: usize) -> anyhow::Result<Duration> {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let started = Instant::now();
    create(&pods, count, "pod").await?;
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

async fn wait_ready(pods: &Api<Pod>, count: usize) -> anyhow::Result<()> {
    let mut ready = std::collections::BTreeSet::new();
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

fn resident_megabytes(pid: u32) -> anyhow::Result<f64> {
    let status = eventually(Duration::from_secs(1), "the process runs", || {
        Ok(std::fs::read_to_string(format!("/proc/{pid}/status"))?)
    });
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).context("no VmRSS")?;
    let kilobytes: f64 = line.split_whitespace().nth(1).context("no number")?.parse()?;
    Ok(kilobytes / 1024.0)
}
