//! `make bench-cluster`: a node in a real Kubernetes cluster compared with plain Docker in the same run: pods, requests
//! at the API server (counted in its audit log) and memory. Prints lines for docs/performance.md; arguments select
//! parts.

#![allow(clippy::print_stdout, reason = "the figures are the output")]

mod requests;

use std::time::Duration;

use windlass_bench::{Pods, Steal};
use windlass_tests::{Testbed, resident_megabytes};

/// How many pods at once, how often, and the highest accepted difference to Docker.
const BATCHES: [(usize, usize, f64); 2] = [(1, 15, 1.3), (50, 5, 1.25)];
const DELETIONS: usize = 10;
/// Pods that are created one after the other while requests are counted.
const LIVES: usize = 10;
/// The number of pods on the idle node.
const HELD: usize = 100;

fn main() -> anyhow::Result<()> {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let parts = ["pods", "init", "deletion", "requests", "memory"];
    if let Some(unknown) = asked.iter().find(|part| !parts.contains(&part.as_str())) {
        anyhow::bail!("{unknown} is no part of this benchmark; parts are {}", parts.join(", "));
    }
    let wanted = |part: &str| asked.is_empty() || asked.iter().any(|a| a == part);
    let testbed = Testbed::on_cluster();
    // As in every cluster: without it each pod has an event about the missing cluster DNS.
    let config = testbed.dir().join("config.yaml");
    let settings =
        "apiVersion: windlass.io/v1alpha1\nkind: WindlassConfiguration\nclusterDNS: [10.96.0.10]\nmaxPods: 250\n";
    std::fs::write(&config, settings)?;
    let roomy = ["--eviction-hard", "memory.available<100Mi", "--image-gc-high-threshold", "100"];
    let mut windlass = testbed.windlass().with(&["--config", &config.to_string_lossy()]).with(&roomy);
    windlass.up();
    let steal = Steal::begin()?;
    let pods = Pods::begin(&testbed, &windlass.kubeconfig())?;
    println!("| figure | windlass | raw Docker | ratio | goal |");
    println!("|---|---|---|---|---|");
    if wanted("pods") {
        for (count, rounds, goal) in BATCHES {
            println!("{}", pods.at_once(count, rounds, goal)?);
        }
    }
    if wanted("init") {
        println!("{}", pods.with_init(15, 1.3)?);
    }
    if wanted("deletion") {
        println!("{}", pods.deletion(DELETIONS, 150.0)?);
        println!("{}", pods.deletion_by_force(2, 5, 150.0)?);
    }
    if wanted("requests") {
        requests::of_lives(&testbed, &pods, LIVES)?;
    }
    if wanted("requests") || wanted("memory") {
        pods.hold(HELD)?;
        std::thread::sleep(Duration::from_secs(30));
    }
    if wanted("requests") {
        println!("{}", requests::of_a_minute(&testbed, &format!("{HELD} pods"))?.row(1, "13"));
    }
    if wanted("memory") {
        let resident = resident_megabytes(windlass.daemon().pid())?;
        println!("| resident memory with {HELD} pods | {resident:.1} MB | | | 40 MB |");
    }
    println!("\n{}", steal.summary()?);
    Ok(())
}
