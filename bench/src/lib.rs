//! Shared by the benchmarks: a client that costs little, measuring two sides in turn, creating many pods at once, and reading a node's metrics.

pub mod client;
mod pods;

pub use pods::{IMAGE, Pods, create, created_and_deleted, pod, wait_ready};

use std::time::{Duration, Instant};

use anyhow::Context as _;
use windlass_tests::{DEFAULT_TIMEOUT, Testbed, page};

/// Waits until the node reports the containers of so many pods; returns the time since `begun`. The measured process
/// shares the cores, so its response is only counted, not parsed.
///
/// # Errors
/// When it does not in time.
pub fn wait_until_measured(count: usize, begun: Instant) -> anyhow::Result<Duration> {
    loop {
        let pods = page(10255, "/stats/summary").map_or(0, |summary| summary.matches("\"containers\":[{").count());
        if pods >= count {
            return Ok(begun.elapsed());
        }
        anyhow::ensure!(begun.elapsed() < DEFAULT_TIMEOUT, "{pods} of {count} pods are looked after");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The duration of `work`.
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

/// The steal time of this machine during a measurement: CPU time that the hypervisor gave to others.
#[derive(Debug)]
pub struct Steal {
    begun: Instant,
    before: Duration,
}

impl Steal {
    /// Starts counting.
    ///
    /// # Errors
    /// When the kernel does not report it.
    pub fn begin() -> anyhow::Result<Self> {
        Ok(Self { begun: Instant::now(), before: stolen()? })
    }

    /// The steal time since [`begin`](Self::begin), as a sentence.
    ///
    /// # Errors
    /// When the kernel does not report it.
    pub fn summary(&self) -> anyhow::Result<String> {
        let share = (stolen()? - self.before).as_secs_f64() / self.begun.elapsed().as_secs_f64() * 100.0;
        Ok(format!("Meanwhile {share:.1} % of a core were taken by others on the same hardware (steal)."))
    }
}

/// The machine's steal time so far.
fn stolen() -> anyhow::Result<Duration> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let ticks: u64 = text.split_whitespace().nth(8).context("/proc/stat tells no stolen time")?.parse()?;
    Ok(Duration::from_millis(ticks * 10))
}

/// The result of a comparison.
#[derive(Debug)]
pub struct Comparison {
    /// Milliseconds; the median.
    pub ours: f64,
    /// Milliseconds; the median.
    pub raw: f64,
    /// The median of the pairs' ratios.
    pub ratio: f64,
}

/// Runs both sides alternately; the order changes each round.
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

/// The median.
///
/// # Panics
/// When there are no values.
#[must_use]
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The running containers with their start times.
#[must_use]
pub fn running(testbed: &Testbed) -> String {
    inspect_running(testbed, "{{.Id}} {{.State.StartedAt}}")
}

/// A line of this form for each container that runs.
#[must_use]
pub fn inspect_running(testbed: &Testbed, form: &str) -> String {
    let ids = testbed.docker(&["ps", "-q", "--no-trunc"]);
    let mut args = vec!["inspect", "-f", form];
    args.extend(ids.lines());
    testbed.docker(&args)
}
