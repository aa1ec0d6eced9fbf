//! `make bench-proxy`: the cost of the service proxy with many services, compared with loading the same rules alone in
//! the same run. Prints tables for docs/performance.md.
//!
//! The API is `windlass up --no-node`, the proxy a process of its own. Wrappers around iptables-restore record its
//! input; the lower bound is iptables-restore reading the same input from files. `SIZES=1000x10,10000x10`,
//! `BACK_ENDS=nf_tables,legacy` and `SECONDS_CHURN=60` change the amount of work.

#![allow(clippy::print_stdout, reason = "the figures are the output")]

mod cluster;
mod connects;
mod process;
mod restore;

use std::time::{Duration, Instant};

use anyhow::Context as _;
use windlass_tests::{Daemon, Testbed};

use cluster::Cluster;
use process::{Proxy, now};
use restore::Programs;

/// The number of services in a small cluster, the baseline of connection times.
const FEW: usize = 10;
/// Repetitions of one change.
const CHANGES: usize = 15;

fn main() -> anyhow::Result<()> {
    let sizes = std::env::var("SIZES").unwrap_or_else(|_| "1000x10,10000x10".to_owned());
    let back_ends = std::env::var("BACK_ENDS").unwrap_or_else(|_| "nf_tables,legacy".to_owned());
    let churn: u64 = std::env::var("SECONDS_CHURN").ok().and_then(|s| s.parse().ok()).unwrap_or(60);
    for size in sizes.split(',') {
        let (services, endpoints) = size.split_once('x').context("SIZES is like 1000x10")?;
        let (services, endpoints): (usize, usize) = (services.parse()?, endpoints.parse()?);
        for nft in [true, false].into_iter().filter(|nft| back_ends.split(',').any(|name| name == back_end(*nft))) {
            measure(services, endpoints, nft, Duration::from_secs(churn))?;
        }
    }
    Ok(())
}

const fn back_end(nft: bool) -> &'static str {
    if nft { "nf_tables" } else { "legacy" }
}

fn row(figure: &str, ours: &str, limit: &str, ratio: &str, goal: &str) {
    println!("| {figure} | {ours} | {limit} | {ratio} | {goal} |");
}

fn seconds(d: Duration) -> String {
    if d < Duration::from_secs(1) {
        format!("{:.0} ms", d.as_secs_f64() * 1e3)
    } else {
        format!("{:.2} s", d.as_secs_f64())
    }
}

fn ratio(ours: Duration, limit: Duration) -> String {
    format!("{:.2}", ours.as_secs_f64() / limit.as_secs_f64().max(1e-9))
}

fn median(mut values: Vec<Duration>) -> Duration {
    values.sort();
    values[values.len() / 2]
}

fn measure(services: usize, endpoints: usize, nft: bool, churn: Duration) -> anyhow::Result<()> {
    let testbed = Testbed::without_docker();
    let windlass = testbed.windlass();
    let mut command = windlass.command("up");
    command.arg("--no-node").env("WINDLASS_LOG", "warn");
    let _server = Daemon::start("windlass up --no-node", &mut command, &testbed.dir().join("server.log"))?;
    // The API's port is in the testbed's network namespace.
    nix::sched::setns(std::fs::File::open(testbed.namespace())?, nix::sched::CloneFlags::CLONE_NEWNET)?;
    let cluster = Cluster::create(&windlass.kubeconfig(), endpoints)?;
    let programs = Programs::new(&testbed, nft)?;
    let listener = connects::listen(cluster::LISTENER)?;

    // Connections with few services.
    cluster.add_services(0..FEW)?;
    let mut proxy = Proxy::start(&testbed, &windlass, &programs.plain(), "auto")?;
    proxy.wait_for_full()?;
    let (first, ..) = cluster.answering_services()?;
    proxy.settle()?;
    let few = connects::p50(&[&first, cluster::LISTENER])?;
    proxy.stop();
    windlass.command("proxy").arg("cleanup").env("PATH", programs.plain()).output()?;
    cluster.add_services(FEW..services)?;
    println!("\n### {services} services of {endpoints} endpoints, {}\n", back_end(nft));
    println!("| figure | windlass | limit | ratio | goal |\n|---|---|---|---|---|");

    // Recorded once: the input for a start, for one change and for one more service.
    let mut proxy = Proxy::start(&testbed, &windlass, &programs.recording(), "auto")?;
    proxy.wait_for_full()?;
    let cold = programs.take()?;
    let before = now();
    cluster.change_endpoint(services / 2, 0)?;
    proxy.written_after(before)?;
    let one_change = programs.take()?;
    std::thread::sleep(Duration::from_secs(2));
    let before = now();
    cluster.add_service(services)?;
    proxy.written_after(before)?;
    // Its slice comes first and causes no write.
    std::thread::sleep(Duration::from_secs(3));
    let one_service = programs.take()?;
    proxy.stop();
    let started = Instant::now();
    windlass.command("proxy").arg("cleanup").env("PATH", programs.plain()).output()?;
    let cleanup = started.elapsed();

    // The lower bound, into empty tables. Cleanup also removes the kernel's nfacct counters, which the rules use.
    Proxy::start(&testbed, &windlass, &programs.plain(), "auto")?.stop_when_full()?;
    programs.empty()?;
    let limit_cold: Duration = cold.iter().map(|f| programs.replay(f)).sum::<anyhow::Result<Duration>>()?;
    let again = |files: &[std::path::PathBuf]| -> anyhow::Result<Duration> {
        let times: anyhow::Result<Vec<Duration>> = (0..CHANGES)
            .map(|_| files.iter().map(|f| programs.replay_again(f)).sum::<anyhow::Result<Duration>>())
            .collect();
        Ok(median(times?))
    };
    let limit_change = again(&one_change)?;
    let limit_service = again(&one_service)?;
    programs.empty()?;

    let started = now();
    let mut proxy = Proxy::start(&testbed, &windlass, &programs.plain(), "auto")?;
    proxy.wait_for_full()?;
    let cold_load = proxy.written_after(started)?;
    row(
        "cold load, from the start of the process",
        &seconds(cold_load),
        &seconds(limit_cold),
        &ratio(cold_load, limit_cold),
        "1.15",
    );

    // Single changes with a pause before each, as in a quiet cluster.
    let rest = limit_change * 3 + Duration::from_millis(500);
    let timed = |what: &mut dyn FnMut(usize) -> anyhow::Result<()>,
                 proxy: &mut Proxy|
     -> anyhow::Result<(Duration, Duration)> {
        let (mut walls, mut cpus) = (Vec::new(), Vec::new());
        for i in 0..CHANGES {
            std::thread::sleep(Duration::from_millis(1500));
            let before = proxy.usage()?;
            what(i)?;
            // Measured from the API's response, so that the speed of its disk does not count.
            let answered = now();
            // Work after the write counts too.
            std::thread::sleep(rest);
            cpus.push(proxy.usage()?.since(&before).cpu);
            walls.push(proxy.written_after(answered)?);
        }
        Ok((median(walls), median(cpus)))
    };
    let (wall, cpu) = timed(&mut |i| cluster.change_endpoint(services / 3 + i, i + 1), &mut proxy)?;
    row("one endpoint changed", &seconds(wall), &seconds(limit_change), &ratio(wall, limit_change), "1.3");
    row("— our own CPU", &format!("{:.2} ms", cpu.as_secs_f64() * 1e3), "", "", "5 ms");
    let (wall, _) = timed(&mut |i| cluster.add_service(services + 1 + i), &mut proxy)?;
    row("one service added", &seconds(wall), &seconds(limit_service), &ratio(wall, limit_service), "");

    std::thread::sleep(Duration::from_secs(10));
    let before = proxy.usage()?;
    std::thread::sleep(Duration::from_secs(60));
    let idle = proxy.usage()?.since(&before);
    row("idle for a minute: pages that programs touched", &idle.children.to_string(), "", "", "0: none ran");
    row("— our own CPU", &format!("{:.2} ms", idle.cpu.as_secs_f64() * 1e3), "", "", "");
    row("resident memory", &format!("{:.1} MB", proxy.resident()?), "", "", "60 MB");

    let (before, syncs) = (proxy.usage()?, proxy.syncs()?);
    let started = Instant::now();
    let mut changes = 0usize;
    while started.elapsed() < churn {
        cluster.change_endpoint(changes % services, changes + 7)?;
        changes += 1;
        let due = Duration::from_millis(10) * u32::try_from(changes)?;
        std::thread::sleep(due.saturating_sub(started.elapsed()));
    }
    let took = started.elapsed();
    let used = proxy.usage()?.since(&before);
    row(
        &format!("{:.0} changes/s for {:.0} s: our own CPU", changes as f64 / took.as_secs_f64(), took.as_secs_f64()),
        &format!(
            "{:.1} % of a core, {} writes",
            used.cpu.as_secs_f64() / took.as_secs_f64() * 100.0,
            proxy.syncs()? - syncs
        ),
        "",
        "",
        "",
    );
    row("resident memory after that", &format!("{:.1} MB", proxy.resident()?), "", "", "60 MB");

    row("clean-up", &seconds(cleanup), "", "", if nft { "10 s" } else { "" });

    // Connections through chain trees and through flat chains, compared with none of our rules.
    let (first, middle, last) = cluster.answering_services()?;
    proxy.settle()?;
    let names = ["the first service", "the middle one", "the last one", "no service"];
    let targets = [first.as_str(), &middle, &last, cluster::LISTENER];
    let tree = connects::p50(&targets)?;
    proxy.stop();
    let mut proxy = Proxy::start(&testbed, &windlass, &programs.plain(), "flat")?;
    proxy.wait_for_full()?;
    let flat = connects::p50(&targets)?;
    proxy.stop();
    windlass.command("proxy").arg("cleanup").env("PATH", programs.plain()).output()?;
    let bare = connects::p50(&[cluster::LISTENER])?[0];
    let micros = |d: Duration| format!("{:.0} µs", d.as_secs_f64() * 1e6);
    println!(
        "\n| connect, p50 | trees | flat chains | with {FEW} services | without rules | trees to {FEW} services | goal |"
    );
    println!("|---|---|---|---|---|---|---|");
    for (i, (name, (tree, flat))) in names.into_iter().zip(tree.into_iter().zip(flat)).enumerate() {
        let few = few[usize::from(i == 3)];
        let cells = [tree, flat, few, bare].map(micros).join(" | ");
        println!("| {name} | {cells} | {} | 1.5 |", ratio(tree, few));
    }
    drop(listener);
    Ok(())
}
