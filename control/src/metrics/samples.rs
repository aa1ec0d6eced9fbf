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
    /// On another machine, whose wall clock is all that its page tells.
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

    /// The time since `earlier`; zero when that is not earlier, or was told by another clock.
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

/// What tells a container from the one before its restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Run {
    /// The container's id.
    Id(String),
    /// When it started, where pages tell no id; `None` if they do not tell that either.
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
    /// Every container of a pod that runs, without sandboxes. One that could not be read counts as 0, which no container
    /// that runs uses.
    pub containers: Vec<ContainerReading>,
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
            // Told again, or the other machine's clock was set back: metrics-server takes what is told, and drops a
            // previous point that is not earlier, so that all is right after two scrapes.
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
            // Start times are computed anew for each page and may differ a little.
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
    /// The samples after a further one; containers that it does not have are dropped.
    pub(crate) fn advance(samples: Option<&Self>, readings: &Readings, now: Instant) -> Self {
        let machine = samples.and_then(|samples| samples.machine.as_ref());
        let machine = readings.machine.map(|now| SamplePair::advance(machine, now));
        let mut pods: HashMap<String, BTreeMap<String, ContainerSamples>> = HashMap::new();
        for container in &readings.containers {
            let before = samples.and_then(|samples| samples.pods.get(&container.pod_uid)?.get(&container.name));
            let of_pod = pods.entry(container.pod_uid.clone()).or_default();
            of_pod.insert(container.name.clone(), ContainerSamples::advance(before, container));
        }
        Self { recorded: now, machine, pods }
    }

    /// Whether they tell of the present.
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

fn is_real(reading: &Reading) -> bool {
    reading.cpu_ns > 0 && reading.memory_bytes > 0
}
