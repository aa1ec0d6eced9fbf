//! Shared by the benchmarks: measuring two sides in turn, creating many pods at once, and reading a node's metrics.

mod pods;

pub use pods::{IMAGE, Pods, create, created_and_deleted, pod, wait_ready};

use std::time::{Duration, Instant};

use anyhow::Context as _;
use windlass_tests::{DEFAULT_TIMEOUT, Testbed, page};

/// Waits until the node measures the containers of so many pods; answers how long that was after `begun`. What is measured
/// shares the cores, so its answer is not taken apart, only counted.
///
/// # Errors
/// When it does not come to that.
pub fn wait_until_measured(count: usize, begun: Instant) -> anyhow::Result<Duration> {
    loop {
        let pods = page(10255, "/stats/summary").map_or(0, |told| told.matches("\"containers\":[{").count());
        if pods >= count {
            return Ok(begun.elapsed());
        }
        anyhow::ensure!(begun.elapsed() < DEFAULT_TIMEOUT, "{pods} of {count} pods are looked after");
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

/// The containers that run, each with since when.
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
