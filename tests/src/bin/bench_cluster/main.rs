//! `make bench-cluster`: a node in a real Kubernetes, beside raw Docker in the same run: pods, requests at the API server (as
//! its audit log counts them) and memory. Prints lines for docs/performance.md.

#![allow(clippy::print_stdout, reason = "the figures are the output")]

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use serde_json::{Value, json};
use windlass_tests::{
    World,
    bench::{COMMAND, IMAGE, Steal, client, compare, create, deleted, enter, ours, pod, raw, raw_stop, wait_ready},
    resident_megabytes,
};

/// How many pods at once, how often, and the most that is wanted beside raw Docker.
const BATCHES: [(usize, usize, f64); 2] = [(1, 15, 1.3), (50, 3, 1.25)];
const DELETIONS: usize = 10;
/// Pods whose requests are counted one after the other.
const LIVES: usize = 10;
/// Pods that the idle node holds.
const HELD: usize = 100;

fn main() -> anyhow::Result<()> {
    let world = World::on_cluster();
    let mut windlass = world.windlass().with(&["--max-pods", "250"]);
    windlass.up();
    enter(&world)?;
    let steal = Steal::begin()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = runtime.block_on(client(&windlass.kubeconfig()))?;
    println!("| figure | windlass | raw Docker | ratio | goal |");
    println!("|---|---|---|---|---|");
    // Both sides once, unmeasured; the first pod brings the pause image.
    runtime.block_on(ours(&client, 1, pod))?;
    let pause = world.docker(&["images", "--format", "{{.Repository}}:{{.Tag}}", "windlass/pause"]).trim().to_owned();
    raw(&world, &pause, 1)?;
    for (count, rounds, goal) in BATCHES {
        let both = compare(rounds, || raw(&world, &pause, count), || runtime.block_on(ours(&client, count, pod)))?;
        println!(
            "| {count} created to Ready (median of {rounds}) | {:.0} ms | {:.0} ms | {:.2} | {goal} |",
            both.ours, both.raw, both.ratio
        );
    }
    // The init container is one more beside the two of a pod, and runs to its end before the last is made.
    let raw_init = || {
        let lone = raw(&world, &pause, 1)?;
        let mut docker = windlass_tests::RawDocker::connect(&world.docker_socket())?;
        let begun = std::time::Instant::now();
        let id = docker.lone_container("raw-init", IMAGE, &["true"])?;
        world.docker(&["wait", &id]);
        let took = begun.elapsed();
        world.docker(&["rm", "-f", &id]);
        Ok(lone + took)
    };
    let both = compare(15, raw_init, || runtime.block_on(ours(&client, 1, pod_with_init)))?;
    println!(
        "| one with an init container (median of 15) | {:.0} ms | {:.0} ms | {:.2} | 1.3 |",
        both.ours, both.raw, both.ratio
    );
    let gone = compare(DELETIONS, || raw_stop(&world, &pause), || runtime.block_on(deleted(&client)))?;
    println!(
        "| delete to gone; the container alone, stopped (median of {DELETIONS}) | {:.0} ms | {:.0} ms | +{:.0} ms | +150 ms |",
        gone.ours,
        gone.raw,
        gone.ours - gone.raw
    );

    // What a minute costs without pods is taken out of what lives cost.
    let idle = requests(&world, || {
        std::thread::sleep(Duration::from_secs(60));
        Ok(())
    })?;
    told("requests in an idle minute", &idle, 1, "13");
    let lives = requests(&world, || (0..LIVES).try_for_each(|_| runtime.block_on(ours(&client, 1, pod)).map(drop)))?;
    told("requests per pod's life", &lives, LIVES, "12");

    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    runtime.block_on(async {
        create(&pods, HELD, "held").await?;
        wait_ready(&pods, HELD).await
    })?;
    std::thread::sleep(Duration::from_secs(30));
    let resident = resident_megabytes(windlass.daemon().pid())?;
    println!("| resident memory with {HELD} pods | {resident:.1} MB | | | 40 MB |");
    println!("\n{}", steal.told()?);
    Ok(())
}

fn pod_with_init(name: &str) -> anyhow::Result<Pod> {
    Ok(serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"bench": "yes"}},
        "spec": {"terminationGracePeriodSeconds": 0,
                 "initContainers": [{"name": "init", "image": IMAGE, "command": ["true"]}],
                 "containers": [{"name": "main", "image": IMAGE, "command": COMMAND}]},
    }))?)
}

/// How often nodes asked for what while something was done.
fn requests(world: &World, work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<BTreeMap<String, usize>> {
    let before = world.cluster().requests().lines().count();
    work()?;
    let mut counts = BTreeMap::new();
    for line in world.cluster().requests().lines().skip(before) {
        let Ok(request) = serde_json::from_str::<Value>(line) else { continue };
        let text = |pointer: &str| request.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (of, sub) = (text("/objectRef/resource"), text("/objectRef/subresource"));
        // A watch is told when it begins and when it ends.
        if text("/verb") != "watch" || text("/stage") != "ResponseComplete" {
            *counts
                .entry(format!("{} {of}{}{sub}", text("/verb"), if sub.is_empty() { "" } else { "/" }))
                .or_default() += 1;
        }
    }
    Ok(counts)
}

fn told(what: &str, counts: &BTreeMap<String, usize>, per: usize, goal: &str) {
    let share = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX)) / per as f64;
    let parts: Vec<String> = counts.iter().map(|(of, count)| format!("{of} {:.1}", share(*count))).collect();
    println!("| {what}: {} | {:.1} | | | {goal} |", parts.join(", "), share(counts.values().sum()));
}
