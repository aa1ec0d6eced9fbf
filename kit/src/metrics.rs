//! Counters and histograms of a process, until its page of metrics is rendered.
//!
//! What can be derived from state at that time needs none of this: it is written to the page directly.

use std::{
    any::{Any, TypeId},
    collections::{BTreeMap, HashMap},
    fmt,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, RwLock};

use crate::prometheus::{Described, Format, Kind, Text};

/// Buckets in seconds for work that takes between milliseconds and minutes: Prometheus's default buckets, and three
/// longer ones.
pub const DURATION_BUCKETS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// `N` buckets from `start`, each `factor` times the one before.
#[must_use]
pub const fn exponential_buckets<const N: usize>(start: f64, factor: f64) -> [f64; N] {
    let mut buckets = [start; N];
    let mut at = 1;
    while at < N {
        buckets[at] = buckets[at - 1] * factor;
        at += 1;
    }
    buckets
}

/// The parts of a process that write to one page of metrics; clones are the same registry.
#[derive(Clone, Default)]
pub struct Registry {
    collectors: Arc<Mutex<Vec<Collector>>>,
    parts: Arc<Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>>,
}

/// The metrics of one part of a process, as one type: its counters, gauges and histograms.
pub trait Metrics: Default + Send + Sync + 'static {
    /// Writes all families.
    fn write(&self, page: &mut Text);
}

type Collector = Arc<dyn Fn(&mut Text) + Send + Sync>;

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("collectors", &self.collectors.lock().len()).finish()
    }
}

impl Registry {
    /// Adds whole families, written by `collector` whenever the page is rendered. No two collectors write the same one.
    pub fn register(&self, collector: impl Fn(&mut Text) + Send + Sync + 'static) {
        self.collectors.lock().push(Arc::new(collector));
    }

    /// The metrics of type `M`, registered when first requested: a restarted component continues with those it had.
    #[must_use]
    pub fn of<M: Metrics>(&self) -> Arc<M> {
        let mut parts = self.parts.lock();
        if let Some(known) = parts.get(&TypeId::of::<M>())
            && let Ok(metrics) = Arc::clone(known).downcast::<M>()
        {
            return metrics;
        }
        let metrics = Arc::new(M::default());
        let written = Arc::clone(&metrics);
        self.register(move |page| written.write(page));
        parts.insert(TypeId::of::<M>(), Arc::<M>::clone(&metrics));
        metrics
    }

    /// The names of all families and of their labels, those of families without samples too.
    #[must_use]
    pub fn described(&self) -> Described {
        let collectors = self.collectors.lock().clone();
        let mut page = Text::describing();
        collectors.iter().for_each(|collect| collect(&mut page));
        page.described()
    }

    /// The page, in the order of registration.
    #[must_use]
    pub fn page(&self, format: Format) -> String {
        // Rendered without the lock: a collector may take others.
        let collectors = self.collectors.lock().clone();
        let mut page = Text::of(format);
        collectors.iter().for_each(|collect| collect(&mut page));
        page.finish()
    }
}

/// A series with the values of its labels.
type Labelled<const N: usize, S> = ([String; N], Arc<S>);

/// The series of a family by the values of their labels. What a known series counts takes no exclusive lock and no
/// memory.
#[derive(Debug)]
struct Family<const N: usize, S> {
    name: &'static str,
    help: &'static str,
    labels: [&'static str; N],
    /// By a hash of the labels' values; the values themselves resolve collisions.
    series: RwLock<BTreeMap<u64, Vec<Labelled<N, S>>>>,
}

impl<const N: usize, S> Family<N, S> {
    const fn new(name: &'static str, help: &'static str, labels: [&'static str; N]) -> Self {
        Self { name, help, labels, series: RwLock::new(BTreeMap::new()) }
    }

    fn with<R>(&self, labels: [&str; N], new: impl FnOnce() -> S, update: impl FnOnce(&S) -> R) -> R {
        let mut hasher = DefaultHasher::new();
        labels.hash(&mut hasher);
        let hash = hasher.finish();
        {
            let all = self.series.read();
            let mut of_hash = all.get(&hash).into_iter().flatten();
            if let Some((_, series)) = of_hash.find(|(with, _)| *with == labels) {
                return update(series);
            }
        }
        let mut all = self.series.write();
        let of_hash = all.entry(hash).or_default();
        // Somebody else may have made it meanwhile.
        if let Some((_, series)) = of_hash.iter().find(|(with, _)| *with == labels) {
            return update(series);
        }
        let series = Arc::new(new());
        let result = update(&series);
        of_hash.push((labels.map(str::to_owned), series));
        result
    }

    /// All series, in the order of their labels' values.
    fn all(&self) -> Vec<Labelled<N, S>> {
        let series = self.series.read();
        let mut all: Vec<_> = series.values().flatten().cloned().collect();
        drop(series);
        all.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        all
    }
}

/// A counter with `N` labels. The values of labels must come from a bounded set.
#[derive(Debug)]
pub struct Counter<const N: usize>(Family<N, AtomicU64>);

impl<const N: usize> Counter<N> {
    /// A counter without samples.
    #[must_use]
    pub const fn new(name: &'static str, help: &'static str, labels: [&'static str; N]) -> Self {
        Self(Family::new(name, help, labels))
    }

    /// Increments the counter.
    pub fn add(&self, labels: [&str; N]) {
        self.add_many(labels, 1);
    }

    /// Increments the counter by `n`.
    pub fn add_many(&self, labels: [&str; N], n: usize) {
        let by = u64::try_from(n).unwrap_or(u64::MAX);
        self.0.with(labels, AtomicU64::default, |value| value.fetch_add(by, Ordering::Relaxed));
    }

    /// Writes the family; a counter without labels has a sample from the beginning.
    pub fn write(&self, page: &mut Text) {
        let Family { name, help, labels, .. } = &self.0;
        page.family(name, help, Kind::Counter);
        page.declare(name, labels);
        let all = self.0.all();
        if N == 0 && all.is_empty() {
            page.sample(name, &[], 0.0);
        }
        for (with, value) in all {
            page.sample(name, &pairs(labels, &with), number(value.load(Ordering::Relaxed)));
        }
    }
}

/// A gauge with `N` labels: a number of things that come and go. The values of labels must come from a bounded set.
#[derive(Debug)]
pub struct Gauge<const N: usize>(Family<N, AtomicI64>);

impl<const N: usize> Gauge<N> {
    /// A gauge without samples.
    #[must_use]
    pub const fn new(name: &'static str, help: &'static str, labels: [&'static str; N]) -> Self {
        Self(Family::new(name, help, labels))
    }

    /// Changes the value by `n`.
    pub fn add(&self, labels: [&str; N], n: i64) {
        self.0.with(labels, AtomicI64::default, |value| value.fetch_add(n, Ordering::Relaxed));
    }

    /// Sets the value.
    pub fn set(&self, labels: [&str; N], n: i64) {
        self.0.with(labels, AtomicI64::default, |value| value.store(n, Ordering::Relaxed));
    }

    /// Writes the family; a gauge without labels has a sample from the beginning.
    pub fn write(&self, page: &mut Text) {
        let Family { name, help, labels, .. } = &self.0;
        page.family(name, help, Kind::Gauge);
        page.declare(name, labels);
        let all = self.0.all();
        if N == 0 && all.is_empty() {
            page.sample(name, &[], 0.0);
        }
        for (with, value) in all {
            #[allow(clippy::cast_precision_loss, reason = "a number of a metric")]
            page.sample(name, &pairs(labels, &with), value.load(Ordering::Relaxed) as f64);
        }
    }
}

/// A histogram with `N` labels.
#[derive(Debug)]
pub struct Histogram<const N: usize> {
    family: Family<N, Series>,
    bounds: &'static [f64],
}

#[derive(Debug)]
struct Series {
    /// By bucket, not cumulative; the last one is of what is above all bounds.
    counts: Box<[AtomicU64]>,
    /// The bits of a float.
    sum: AtomicU64,
}

impl<const N: usize> Histogram<N> {
    /// A histogram without samples. `bounds` ascend.
    #[must_use]
    pub const fn new(
        name: &'static str,
        help: &'static str,
        labels: [&'static str; N],
        bounds: &'static [f64],
    ) -> Self {
        Self { family: Family::new(name, help, labels), bounds }
    }

    /// Adds a value.
    pub fn observe(&self, labels: [&str; N], value: f64) {
        let new = || Series {
            counts: (0..=self.bounds.len()).map(|_| AtomicU64::default()).collect(),
            sum: AtomicU64::new(0.0_f64.to_bits()),
        };
        let at = self.bounds.partition_point(|bound| *bound < value);
        self.family.with(labels, new, |series| {
            if let Some(count) = series.counts.get(at) {
                count.fetch_add(1, Ordering::Relaxed);
            }
            let add = |sum| Some((f64::from_bits(sum) + value).to_bits());
            // It never gives up.
            let _ = series.sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        });
    }

    /// Adds a duration, in seconds.
    pub fn observe_duration(&self, labels: [&str; N], time: Duration) {
        self.observe(labels, time.as_secs_f64());
    }

    /// Writes the family; a histogram without labels has samples from the beginning.
    pub fn write(&self, page: &mut Text) {
        let Family { name, help, labels, .. } = &self.family;
        page.family(name, help, Kind::Histogram);
        page.declare(name, labels);
        let all = self.family.all();
        if N == 0 && all.is_empty() {
            let buckets: Vec<(f64, u64)> = self.bounds.iter().map(|bound| (*bound, 0)).collect();
            page.histogram(name, &[], &buckets, 0.0, 0);
        }
        for (with, series) in all {
            let (mut counts, mut below) = (series.counts.iter(), 0);
            let mut next = || {
                below += counts.next().map_or(0, |count| count.load(Ordering::Relaxed));
                below
            };
            let buckets: Vec<(f64, u64)> = self.bounds.iter().map(|bound| (*bound, next())).collect();
            let all = next();
            let sum = f64::from_bits(series.sum.load(Ordering::Relaxed));
            page.histogram(name, &pairs(labels, &with), &buckets, sum, all);
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "a number of a metric")]
fn number(value: u64) -> f64 {
    value as f64
}

fn pairs<'a, const N: usize>(labels: &'a [&'static str; N], with: &'a [String; N]) -> Vec<(&'a str, &'a str)> {
    labels.iter().copied().zip(with.iter().map(String::as_str)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_by_label_and_without() {
        let counter = Counter::new("ends_total", "Ends.", ["reason"]);
        counter.add(["b"]);
        counter.add(["a"]);
        counter.add(["b"]);
        let mut page = Text::new();
        counter.write(&mut page);
        Counter::new("none_total", "None.", []).write(&mut page);
        assert_eq!(
            page.finish(),
            "# HELP ends_total Ends.\n# TYPE ends_total counter\n\
             ends_total{reason=\"a\"} 1\nends_total{reason=\"b\"} 2\n\
             # HELP none_total None.\n# TYPE none_total counter\nnone_total 0\n"
        );
    }

    #[test]
    fn gauges_go_up_and_down() {
        let gauge = Gauge::new("open", "Open.", ["kind"]);
        gauge.add(["a"], 2);
        gauge.add(["a"], -1);
        gauge.set(["b"], 7);
        let mut page = Text::new();
        gauge.write(&mut page);
        assert_eq!(page.finish(), "# HELP open Open.\n# TYPE open gauge\nopen{kind=\"a\"} 1\nopen{kind=\"b\"} 7\n");
    }

    #[test]
    fn threads_count_together() {
        let (counter, histogram) = (Counter::new("n", "N.", ["of"]), Histogram::new("h", "H.", [], &[1.0]));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (counter, histogram) = (&counter, &histogram);
                scope.spawn(move || {
                    for n in 0..1000 {
                        counter.add([if n % 2 == thread % 2 { "even" } else { "odd" }]);
                        histogram.observe([], 0.5);
                    }
                });
            }
        });
        let mut page = Text::new();
        counter.write(&mut page);
        histogram.write(&mut page);
        let page = page.finish();
        for line in ["n{of=\"even\"} 2000", "n{of=\"odd\"} 2000", "h_sum 2000", "h_count 4000"] {
            assert!(page.contains(line), "{line} is not in\n{page}");
        }
    }

    #[test]
    fn a_page_is_written_by_all_that_are_registered() {
        let registry = Registry::default();
        for name in ["one_total", "two_total"] {
            registry.clone().register(move |page| {
                page.family(name, "N.", Kind::Counter);
                page.sample(name, &[], 1.0);
            });
        }
        let page = registry.page(Format::OpenMetrics);
        assert_eq!(
            page,
            "# HELP one N.\n# TYPE one counter\none_total 1\n# HELP two N.\n# TYPE two counter\ntwo_total 1\n# EOF\n"
        );
    }

    #[test]
    fn a_part_that_is_started_again_goes_on_with_its_metrics() {
        struct Starts(Counter<0>);
        impl Default for Starts {
            fn default() -> Self {
                Self(Counter::new("starts_total", "Starts.", []))
            }
        }
        impl Metrics for Starts {
            fn write(&self, page: &mut Text) {
                self.0.write(page);
            }
        }
        let registry = Registry::default();
        for _ in 0..2 {
            registry.of::<Starts>().0.add([]);
        }
        let page = registry.page(Format::Plain);
        assert_eq!(page, "# HELP starts_total Starts.\n# TYPE starts_total counter\nstarts_total 2\n");
    }

    #[test]
    fn buckets_that_grow() {
        assert_eq!(exponential_buckets::<4>(0.5, 2.0), [0.5, 1.0, 2.0, 4.0]);
        assert_eq!(exponential_buckets::<0>(1.0, 2.0), [] as [f64; 0]);
    }

    #[test]
    fn a_value_on_a_bound_is_below_it_and_one_above_all_counts_in_the_last() {
        let histogram = Histogram::new("t_seconds", "T.", [], &[0.5, 1.0]);
        for value in [0.5, 0.75, 3.0] {
            histogram.observe([], value);
        }
        let mut page = Text::new();
        histogram.write(&mut page);
        assert_eq!(
            page.finish(),
            "# HELP t_seconds T.\n# TYPE t_seconds histogram\n\
             t_seconds_bucket{le=\"0.5\"} 1\nt_seconds_bucket{le=\"1\"} 2\nt_seconds_bucket{le=\"+Inf\"} 3\n\
             t_seconds_sum 4.25\nt_seconds_count 3\n"
        );
    }
}
