//! The last two samples of each container of a node, and the rates between them. Pure.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use jiff::Timestamp;
use tokio::time::Instant;
use windlass_kit::moment::Moment;

use super::scraper::SCRAPE_INTERVAL;

/// Samples of this process that are closer than this are dropped: rates cover the ten seconds between regular samples,
/// and a client that requests fresh numbers in between must not turn them into rates over one second. The second sample
/// of a new container is always used, so that its rate is available early.
const MIN_SAMPLE_INTERVAL: Duration = Duration::from_secs(9);
/// A scraped container that is younger than the interval and at least this old is measured from its start
/// (metrics-server's `freshContainerMinMetricsResolution`).
const MIN_FRESH_AGE: Duration = Duration::from_secs(10);
/// Samples of a node are served until they are this old: a scrape that fails now and then hides no pods.
const MAX_AGE: Duration = SCRAPE_INTERVAL.saturating_mul(3);

/// When counters were sampled, by the clocks of those who did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SampledAt {
    /// In this process.
    Here(Moment),
    /// On another machine, whose page has only wall-clock times.
    There(Timestamp),
}

impl SampledAt {
    /// The wall clock, for pages.
    fn wall(self) -> Timestamp {
        match self {
            Self::Here(moment) => moment.wall,
            Self::There(at) => at,
        }
    }

    /// The time since `earlier`; zero when that is not earlier, or is of another clock.
    fn since(self, earlier: Self) -> Duration {
        match (self, earlier) {
            (Self::Here(now), Self::Here(earlier)) => now.since(&earlier),
            (Self::There(now), Self::There(earlier)) => passed(earlier, now),
            _ => Duration::ZERO,
        }
    }
}

/// The time from `from` to `to`; zero when `to` is not later.
fn passed(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}

/// Counters of a container or machine at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// When they were sampled.
    pub at: SampledAt,
    /// Cumulative CPU time, in nanoseconds.
    pub cpu_ns: u64,
    /// Working set, in bytes.
    pub memory_bytes: u64,
}

/// What distinguishes a container from the one before its restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Run {
    /// The container's id.
    Id(String),
    /// Its start time, if pages have no id; `None` if they lack that, too.
    Started(Option<Timestamp>),
}

/// A container of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerReading {
    /// Of the pod.
    pub pod_uid: String,
    /// Its name in the pod.
    pub name: String,
    /// Which of the containers that have had the name.
    pub run: Run,
    /// Its counters.
    pub reading: Reading,
}

/// One sample of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Readings {
    /// Name of the node; empty before the first sample.
    pub node: String,
    /// The machine as a whole; `None` where that could not be read.
    pub machine: Option<Reading>,
    /// Containers of pods that run, without sandboxes. One that could not be read counts as 0, which no container that runs
    /// uses.
    pub containers: Containers,
}

/// Which containers a sample of a node is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Containers {
    /// All that run; others are gone.
    All(Vec<ContainerReading>),
    /// Those that were read since the sample before; the rest is as it was.
    Changed {
        /// New or read again.
        read: Vec<ContainerReading>,
        /// Gone: the pod's uid, the container's name, and which of those that had it.
        gone: Vec<(String, String, Run)>,
    },
}

impl Default for Containers {
    fn default() -> Self {
        Self::All(Vec::new())
    }
}

/// Usage between two readings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rate {
    /// The time of the later reading.
    pub(crate) at: Timestamp,
    /// The time between them.
    pub(crate) window: Duration,
    /// Average CPU usage, in nanocores.
    pub(crate) nano_cores: i64,
    /// Working set of the later reading, in bytes.
    pub(crate) memory_bytes: i64,
}

/// Usage of one pod's containers, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodRates {
    /// Those of the container with the earliest reading.
    pub(crate) at: Timestamp,
    pub(crate) window: Duration,
    pub(crate) containers: Vec<(String, Rate)>,
}

#[derive(Debug, Clone, Copy)]
struct SamplePair {
    last: Reading,
    before: Option<Reading>,
}

impl SamplePair {
    const fn first(last: Reading) -> Self {
        Self { last, before: None }
    }

    /// The pair after a further reading.
    fn advance(samples: Option<&Self>, now: Reading) -> Self {
        let Some(samples) = samples else { return Self::first(now) };
        // A counter that decreased was reset.
        if now.cpu_ns < samples.last.cpu_ns {
            return Self::first(now);
        }
        let elapsed = now.at.since(samples.last.at);
        match now.at {
            SampledAt::Here(_) => {
                let due = if samples.before.is_some() { MIN_SAMPLE_INTERVAL } else { Duration::from_nanos(1) };
                if elapsed >= due { Self { last: now, before: Some(samples.last) } } else { *samples }
            }
            SampledAt::There(_) if !elapsed.is_zero() => Self { last: now, before: Some(samples.last) },
            // Repeated, or the other machine's clock was set back: as metrics-server, take the sample and drop a
            // previous point that is not earlier; after two scrapes the rate is right again.
            SampledAt::There(_) => {
                let is_earlier = |before: &Reading| !now.at.since(before.at).is_zero();
                Self { last: now, before: samples.before.filter(is_earlier) }
            }
        }
    }

    fn rate(&self) -> Option<Rate> {
        let before = self.before?;
        let window = self.last.at.since(before.at);
        let used = u128::from(self.last.cpu_ns.checked_sub(before.cpu_ns)?);
        let nano_cores = (used * 1_000_000_000).checked_div(window.as_nanos())?;
        Some(Rate {
            at: self.last.at.wall(),
            window,
            nano_cores: i64::try_from(nano_cores).ok()?,
            memory_bytes: i64::try_from(self.last.memory_bytes).ok()?,
        })
    }
}

#[derive(Debug)]
struct ContainerSamples {
    run: Run,
    pair: SamplePair,
}

impl ContainerSamples {
    fn advance(samples: Option<&Self>, now: &ContainerReading) -> Self {
        let same = samples.filter(|samples| samples.is_run_of(&now.run));
        let mut pair = SamplePair::advance(same.map(|samples| &samples.pair), now.reading);
        if let (Run::Started(Some(start)), SampledAt::There(at)) = (&now.run, now.reading.at)
            && (MIN_FRESH_AGE..SCRAPE_INTERVAL).contains(&passed(*start, at))
        {
            pair.before = Some(Reading { at: SampledAt::There(*start), cpu_ns: 0, ..now.reading });
        }
        Self { run: now.run.clone(), pair }
    }

    /// Whether a sample is of the container that these are of.
    fn is_run_of(&self, run: &Run) -> bool {
        match (&self.run, run) {
            (Run::Id(own), Run::Id(other)) => own == other,
            // Start times are computed again for each page and may differ a little.
            (Run::Started(_), Run::Started(start)) => start.is_none_or(|start| start < self.pair.last.at.wall()),
            _ => false,
        }
    }
}

/// The samples of one node.
#[derive(Debug)]
pub(crate) struct NodeSamples {
    recorded: Instant,
    machine: Option<SamplePair>,
    /// By the pod's uid and the container's name.
    pods: HashMap<String, BTreeMap<String, ContainerSamples>>,
}

impl NodeSamples {
    pub(crate) fn new(now: Instant) -> Self {
        Self { recorded: now, machine: None, pods: HashMap::new() }
    }

    /// Adds a further sample.
    pub(crate) fn record(&mut self, readings: &Readings, now: Instant) {
        self.recorded = now;
        self.machine = readings.machine.map(|now| SamplePair::advance(self.machine.as_ref(), now));
        match &readings.containers {
            Containers::All(all) => {
                let before = std::mem::take(&mut self.pods);
                for container in last_of_each(all) {
                    let samples = before.get(&container.pod_uid).and_then(|of_pod| of_pod.get(&container.name));
                    self.set(container, ContainerSamples::advance(samples, container));
                }
            }
            Containers::Changed { read, gone } => {
                for (uid, name, run) in gone {
                    self.remove(uid, name, run);
                }
                for container in last_of_each(read) {
                    let samples = self.pods.get(&container.pod_uid).and_then(|of_pod| of_pod.get(&container.name));
                    self.set(container, ContainerSamples::advance(samples, container));
                }
            }
        }
    }

    fn set(&mut self, container: &ContainerReading, samples: ContainerSamples) {
        if let Some(known) = self.pods.get_mut(&container.pod_uid).and_then(|of_pod| of_pod.get_mut(&container.name)) {
            *known = samples;
            return;
        }
        let of_pod = self.pods.entry(container.pod_uid.clone()).or_default();
        of_pod.insert(container.name.clone(), samples);
    }

    /// Removes a container, unless another one has its name by now.
    fn remove(&mut self, uid: &str, name: &str, run: &Run) {
        let Some(of_pod) = self.pods.get_mut(uid) else { return };
        if of_pod.get(name).is_some_and(|samples| samples.run == *run) {
            of_pod.remove(name);
        }
        if of_pod.is_empty() {
            self.pods.remove(uid);
        }
    }

    /// Whether the last sample is recent.
    pub(crate) fn is_fresh(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.recorded) < MAX_AGE
    }

    /// The usage of the machine. Upstream leaves one out that uses nothing.
    pub(crate) fn machine(&self) -> Option<Rate> {
        self.machine.as_ref().filter(|pair| is_real(&pair.last))?.rate()
    }

    /// The usage of a pod, once each of its containers has a rate and non-zero counters: a partial sum would make an
    /// autoscaler believe that the other containers are idle.
    pub(crate) fn pod(&self, uid: &str) -> Option<PodRates> {
        let containers = self.pods.get(uid)?.iter().map(|(name, samples)| {
            let rate = samples.pair.rate().filter(|_| is_real(&samples.pair.last))?;
            Some((name.clone(), rate))
        });
        let containers = containers.collect::<Option<Vec<_>>>()?;
        let earliest = containers.iter().map(|(_, rate)| rate).min_by_key(|rate| rate.at)?;
        let (at, window) = (earliest.at, earliest.window);
        Some(PodRates { at, window, containers })
    }
}

/// The last of those that have one name in one pod, as while a container ends and its successor has started.
fn last_of_each(all: &[ContainerReading]) -> impl Iterator<Item = &ContainerReading> {
    fn name(reading: &ContainerReading) -> (&str, &str) {
        (&reading.pod_uid, &reading.name)
    }
    let last: HashMap<(&str, &str), usize> = all.iter().enumerate().map(|(at, one)| (name(one), at)).collect();
    all.iter().enumerate().filter(move |(at, one)| last.get(&name(one)) == Some(at)).map(|(_, one)| one)
}

fn is_real(reading: &Reading) -> bool {
    reading.cpu_ns > 0 && reading.memory_bytes > 0
}
