//! Counters and histograms of a process, until its page of metrics is rendered.
//!
//! What can be derived from state at that time needs none of this: it is written to the page directly.

use std::{
    any::{Any, TypeId},
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::prometheus::{Format, Kind, Text};

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
        f.debug_struct("Registry").field("collectors", &lock(&self.collectors).len()).finish()
    }
}

impl Registry {
    /// Adds whole families, written by `collector` whenever the page is rendered. No two collectors write the same one.
    pub fn register(&self, collector: impl Fn(&mut Text) + Send + Sync + 'static) {
        lock(&self.collectors).push(Arc::new(collector));
    }

    /// The metrics of type `M`, which are registered when they are first asked for: a part that is started again goes on
    /// with those that it had.
    #[must_use]
    pub fn of<M: Metrics>(&self) -> Arc<M> {
        let mut parts = lock(&self.parts);
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

    /// The page, in the order of registration.
    #[must_use]
    pub fn page(&self, format: Format) -> String {
        // Rendered without the lock: a collector may take others.
        let collectors = lock(&self.collectors).clone();
        let mut page = Text::of(format);
        collectors.iter().for_each(|collect| collect(&mut page));
        page.finish()
    }
}

/// A counter with `N` labels. The values of labels must come from a bounded set.
#[derive(Debug)]
pub struct Counter<const N: usize> {
    name: &'static str,
    help: &'static str,
    labels: [&'static str; N],
    values: Mutex<BTreeMap<[String; N], f64>>,
}

impl<const N: usize> Counter<N> {
    /// A counter without samples.
    #[must_use]
    pub const fn new(name: &'static str, help: &'static str, labels: [&'static str; N]) -> Self {
        Self { name, help, labels, values: Mutex::new(BTreeMap::new()) }
    }

    /// Increments the counter.
    pub fn add(&self, labels: [&str; N]) {
        self.add_many(labels, 1);
    }

    /// Increments the counter by `n`.
    pub fn add_many(&self, labels: [&str; N], n: usize) {
        let mut values = lock(&self.values);
        #[allow(clippy::cast_precision_loss, reason = "a number of a metric")]
        let by = n as f64;
        *values.entry(labels.map(str::to_owned)).or_default() += by;
    }

    /// Writes the family; a counter without labels has a sample from the beginning.
    pub fn write(&self, page: &mut Text) {
        let values = lock(&self.values);
        page.family(self.name, self.help, Kind::Counter);
        if N == 0 && values.is_empty() {
            page.sample(self.name, &[], 0.0);
        }
        for (with, value) in values.iter() {
            page.sample(self.name, &pairs(&self.labels, with), *value);
        }
    }
}

/// A histogram with `N` labels.
#[derive(Debug)]
pub struct Histogram<const N: usize> {
    name: &'static str,
    help: &'static str,
    labels: [&'static str; N],
    bounds: &'static [f64],
    values: Mutex<BTreeMap<[String; N], Series>>,
}

#[derive(Debug, Default)]
struct Series {
    /// By bucket, not cumulative.
    counts: Vec<u64>,
    sum: f64,
    count: u64,
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
        Self { name, help, labels, bounds, values: Mutex::new(BTreeMap::new()) }
    }

    /// Adds a value.
    pub fn observe(&self, labels: [&str; N], value: f64) {
        let mut values = lock(&self.values);
        let series = values.entry(labels.map(str::to_owned)).or_default();
        series.counts.resize(self.bounds.len(), 0);
        if let Some(count) = self.bounds.iter().position(|bound| value <= *bound).and_then(|i| series.counts.get_mut(i))
        {
            *count += 1;
        }
        series.sum += value;
        series.count += 1;
    }

    /// Adds a duration, in seconds.
    pub fn observe_duration(&self, labels: [&str; N], time: Duration) {
        self.observe(labels, time.as_secs_f64());
    }

    /// Writes the family.
    pub fn write(&self, page: &mut Text) {
        page.family(self.name, self.help, Kind::Histogram);
        for (with, series) in lock(&self.values).iter() {
            let mut below = 0;
            let buckets: Vec<(f64, u64)> = self
                .bounds
                .iter()
                .zip(&series.counts)
                .map(|(bound, count)| {
                    below += count;
                    (*bound, below)
                })
                .collect();
            page.histogram(self.name, &pairs(&self.labels, with), &buckets, series.sum, series.count);
        }
    }
}

fn pairs<'a, const N: usize>(labels: &'a [&'static str; N], with: &'a [String; N]) -> Vec<(&'a str, &'a str)> {
    labels.iter().copied().zip(with.iter().map(String::as_str)).collect()
}

/// A value that a panicking thread left is consistent: each change is a single step.
fn lock<T>(values: &Mutex<T>) -> MutexGuard<'_, T> {
    values.lock().unwrap_or_else(PoisonError::into_inner)
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
