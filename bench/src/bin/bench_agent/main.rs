//! `make bench-agent`: the cost of a pod compared with the same two containers started through Docker's API in the same
//! run, and the cost of an idle node. Prints lines for docs/performance.md.

#![allow(clippy::print_stdout, reason = "the figures are the output")]

use std::time::{Duration, Instant};

use windlass_bench::{Pods, Steal, milliseconds, running, wait_until_measured};
use windlass_tests::{Testbed, Usage, resident_megabytes};

/// How many pods at once and how often. Docker and Windlass alternate, so that a change of the machine's speed affects
/// both.
const BATCHES: [(usize, usize); 3] = [(1, 15), (50, 3), (200, 1)];
const DELETIONS: usize = 10;
/// The number of pods on the idle node.
const HELD: usize = 100;
const IDLE: Duration = Duration::from_secs(60);

fn main() -> anyhow::Result<()> {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass().with(&["--max-pods", "250"]);
    windlass.up();
    let pid = windlass.daemon().pid();
    let steal = Steal::begin()?;
    std::thread::sleep(Duration::from_secs(30));
    let idle = resident_megabytes(pid)?;

    println!("| figure | windlass | raw Docker | ratio | goal |");
    println!("|---|---|---|---|---|");
    let pods = Pods::begin(&testbed, &windlass.kubeconfig())?;
    for (count, rounds) in BATCHES {
        println!("{}", pods.at_once(count, rounds, 1.2)?);
    }
    println!("{}", pods.deletion(DELETIONS, 100.0)?);
    pods.hold(HELD)?;
    std::thread::sleep(Duration::from_secs(30));
    let (own, engine) = (Usage::of(pid)?, Usage::of(testbed.docker_pid())?);
    std::thread::sleep(IDLE);
    let (own, with_us) = (Usage::of(pid)?.since(&own).cpu, Usage::of(testbed.docker_pid())?.since(&engine).cpu);
    let held = resident_megabytes(pid)?;
    let before = running(&testbed);
    windlass.kill();
    let engine = Usage::of(testbed.docker_pid())?;
    std::thread::sleep(IDLE);
    let without_us = Usage::of(testbed.docker_pid())?.since(&engine).cpu;
    let started = Instant::now();
    windlass.start();
    let taken_over = wait_until_measured(HELD, started)?;
    std::thread::sleep(Duration::from_secs(30));
    let untouched = running(&testbed) == before;
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
    println!("\n{}", steal.summary()?);
    Ok(())
}
