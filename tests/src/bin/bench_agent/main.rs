//! `make bench-agent`: what a pod costs beside the same two containers started raw, in the same run, and what the
//! node takes while nothing happens. Prints lines for docs/performance.md.

#![allow(clippy::print_stdout, reason = "the figures are the output")]

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use windlass_tests::{
    Usage, World,
    bench::{
        Steal, client, compare, create, deleted, enter, looked_after, milliseconds, ours, pod, raw, raw_stop, running,
        wait_ready,
    },
    resident_megabytes,
};

/// How many pods at once and how often; raw and ours take turns so that a change of the machine's speed meets both.
const BATCHES: [(usize, usize); 3] = [(1, 15), (50, 3), (200, 1)];
const DELETIONS: usize = 10;
/// Pods that the idle node holds.
const HELD: usize = 100;
const IDLE: Duration = Duration::from_secs(60);

fn main() -> anyhow::Result<()> {
    let world = World::new();
    let mut windlass = world.windlass().with(&["--max-pods", "250"]);
    windlass.up();
    enter(&world)?;
    let pid = windlass.daemon().pid();
    let steal = Steal::begin()?;
    std::thread::sleep(Duration::from_secs(30));
    let idle = resident_megabytes(pid)?;

    println!("| figure | windlass | raw Docker | ratio | goal |");
    println!("|---|---|---|---|---|");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = runtime.block_on(client(&windlass.kubeconfig()))?;
    // Both sides once, unmeasured; the first pod brings the pause image.
    runtime.block_on(ours(&client, 1, pod))?;
    let pause = world.docker(&["images", "--format", "{{.Repository}}:{{.Tag}}", "windlass/pause"]).trim().to_owned();
    raw(&world, &pause, 1)?;
    for (count, rounds) in BATCHES {
        let both = compare(rounds, || raw(&world, &pause, count), || runtime.block_on(ours(&client, count, pod)))?;
        let what = if count == 1 {
            "one pod, created to Ready".to_owned()
        } else {
            format!("{count} pods at once, all Ready")
        };
        println!(
            "| {what} (median of {rounds}) | {:.0} ms | {:.0} ms | {:.2} | 1.2 |",
            both.ours, both.raw, both.ratio
        );
    }
    let gone = compare(DELETIONS, || raw_stop(&world, &pause), || runtime.block_on(deleted(&client)))?;
    println!(
        "| delete to gone; the container alone, stopped (median of {DELETIONS}) | {:.0} ms | {:.0} ms | +{:.0} ms | +100 ms |",
        gone.ours,
        gone.raw,
        gone.ours - gone.raw
    );

    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    runtime.block_on(async {
        create(&pods, HELD, "held").await?;
        wait_ready(&pods, HELD).await
    })?;
    std::thread::sleep(Duration::from_secs(30));
    let (own, engine) = (Usage::of(pid)?, Usage::of(world.docker_pid())?);
    std::thread::sleep(IDLE);
    let (own, with_us) = (Usage::of(pid)?.since(&own).cpu, Usage::of(world.docker_pid())?.since(&engine).cpu);
    let held = resident_megabytes(pid)?;
    let before = running(&world);
    windlass.kill();
    let engine = Usage::of(world.docker_pid())?;
    std::thread::sleep(IDLE);
    let without_us = Usage::of(world.docker_pid())?.since(&engine).cpu;
    let started = Instant::now();
    windlass.start();
    let taken_over = looked_after(HELD, started)?;
    std::thread::sleep(Duration::from_secs(30));
    let untouched = running(&world) == before;
    let taken = resident_megabytes(windlass.daemon().pid())?;

    let percent = |used: Duration| used.as_secs_f64() / IDLE.as_secs_f64() * 100.0;
    println!("| {HELD} idle pods: our CPU | {:.2} % of a core | | | 0.5 % |", percent(own));
    println!(
        "| — caused in dockerd | {:.2} % of a core | {:.2} % without us | | 0.5 % |",
        percent(with_us.saturating_sub(without_us)),
        percent(without_us)
    );
    println!("| — resident memory, after all that | {held:.1} MB | | | 50 MB |");
    println!("| resident memory, no pods | {idle:.1} MB | | | 40 MB |");
    println!("| restart with {HELD} pods: all looked after | {:.0} ms | | | 1 s |", milliseconds(taken_over));
    println!("| — resident memory half a minute later | {taken:.1} MB | | | 50 MB |");
    println!("| — containers left alone | {} | | | all |", if untouched { "all" } else { "NOT all" });
    println!("\n{}", steal.told()?);
    Ok(())
}
