//! The metrics of probes, `/metrics/probes`: observed by `pods`, served by `server`; knows neither.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use windlass_kit::prometheus::{Format, Kind, Text};

/// Upper bounds of the duration histogram's buckets in seconds; upstream's.
const BOUNDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// The labels of one probe.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ProbeLabels {
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) container: String,
    /// `Startup`, `Liveness` or `Readiness`.
    pub(crate) probe_type: &'static str,
}

/// The label `result`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResultLabel {
    Successful,
    Failed,
    /// The probe could not be run.
    Unknown,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Counts {
    successful: u64,
    failed: u64,
    unknown: u64,
    /// Per bound, the probes that took no longer.
    buckets: [u64; BOUNDS.len()],
    seconds: f64,
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.successful += other.successful;
        self.failed += other.failed;
        self.unknown += other.unknown;
        self.seconds += other.seconds;
        for (sum, count) in self.buckets.iter_mut().zip(other.buckets) {
            *sum += count;
        }
    }

    fn observe(&mut self, result: ResultLabel, took: Duration) {
        *match result {
            ResultLabel::Successful => &mut self.successful,
            ResultLabel::Failed => &mut self.failed,
            ResultLabel::Unknown => &mut self.unknown,
        } += 1;
        let seconds = took.as_secs_f64();
        self.seconds += seconds;
        for (count, bound) in self.buckets.iter_mut().zip(BOUNDS) {
            *count += u64::from(seconds <= bound);
        }
    }
}

/// The probe metrics of all pods of the node. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct ProbeMetrics(Arc<Mutex<BTreeMap<ProbeLabels, Counts>>>);

impl ProbeMetrics {
    pub(crate) fn observe(&self, labels: ProbeLabels, result: ResultLabel, took: Duration) {
        self.0.lock().entry(labels).or_default().observe(result, took);
    }

    /// Drops the metrics of a pod that was deleted.
    pub(crate) fn forget(&self, uid: &str) {
        self.0.lock().retain(|labels, _| labels.uid != uid);
    }

    /// The page of `/metrics/probes`. `started` is when this process began, in seconds since 1970.
    #[must_use]
    pub fn page(&self, format: Format, started: f64) -> String {
        let all: Vec<(ProbeLabels, Counts)> = {
            let counts = self.0.lock();
            counts.iter().map(|(probed, counts)| (probed.clone(), *counts)).collect()
        };
        #[allow(clippy::cast_precision_loss, reason = "exact up to 2^53 probes")]
        let float = |count: u64| count as f64;
        let mut page = Text::of(format);
        page.family("process_start_time_seconds", "When this program began, in seconds since 1970", Kind::Gauge);
        page.sample("process_start_time_seconds", &[], started);
        page.family("prober_probe_duration_seconds", "How long probes took, in seconds", Kind::Histogram);
        // Upstream's labels have no uid: pods of one name are one series, for a page must not have two of equal labels.
        let mut by_name: BTreeMap<[&str; 4], Counts> = BTreeMap::new();
        for (probed, counts) in &all {
            let name = [&*probed.container, &*probed.namespace, &*probed.pod, probed.probe_type];
            by_name.entry(name).or_default().add(counts);
        }
        for ([container, namespace, pod, probe_type], counts) in by_name {
            let labels = [("container", container), ("namespace", namespace), ("pod", pod), ("probe_type", probe_type)];
            let buckets: Vec<(f64, u64)> = BOUNDS.into_iter().zip(counts.buckets).collect();
            let count = counts.successful + counts.failed + counts.unknown;
            page.histogram("prober_probe_duration_seconds", &labels, &buckets, counts.seconds, count);
        }
        page.family("prober_probe_total", "Probes of containers, by what came of them", Kind::Counter);
        for (probed, counts) in &all {
            let results = [("failed", counts.failed), ("successful", counts.successful), ("unknown", counts.unknown)];
            for (result, count) in results {
                if count > 0 {
                    let labels = [
                        ("container", probed.container.as_str()),
                        ("namespace", probed.namespace.as_str()),
                        ("pod", probed.pod.as_str()),
                        ("pod_uid", probed.uid.as_str()),
                        ("probe_type", probed.probe_type),
                        ("result", result),
                    ];
                    page.sample("prober_probe_total", &labels, float(count));
                }
            }
        }
        page.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probed(uid: &str, probe_type: &'static str) -> ProbeLabels {
        ProbeLabels {
            uid: uid.into(),
            namespace: "n".into(),
            pod: format!("p-{uid}"),
            container: "c".into(),
            probe_type,
        }
    }

    #[test]
    fn probes_are_counted_by_result_and_time_until_the_pod_is_deleted() {
        let counts = ProbeMetrics::default();
        counts.observe(probed("1", "Liveness"), ResultLabel::Successful, Duration::from_millis(7));
        counts.observe(probed("1", "Liveness"), ResultLabel::Successful, Duration::from_secs(60));
        counts.observe(probed("1", "Liveness"), ResultLabel::Failed, Duration::from_millis(700));
        counts.observe(probed("2", "Readiness"), ResultLabel::Unknown, Duration::ZERO);
        let page = counts.clone().page(Format::Plain, 5.5);
        assert_eq!(windlass_tests::metrics_table::differences("node/probes", &page, &[]), [""; 0]);
        let of_first = "container=\"c\",namespace=\"n\",pod=\"p-1\"";
        for line in [
            "process_start_time_seconds 5.5".to_owned(),
            format!("prober_probe_total{{{of_first},pod_uid=\"1\",probe_type=\"Liveness\",result=\"successful\"}} 2"),
            format!("prober_probe_total{{{of_first},pod_uid=\"1\",probe_type=\"Liveness\",result=\"failed\"}} 1"),
            format!("prober_probe_duration_seconds_bucket{{{of_first},probe_type=\"Liveness\",le=\"0.005\"}} 0"),
            format!("prober_probe_duration_seconds_bucket{{{of_first},probe_type=\"Liveness\",le=\"0.01\"}} 1"),
            format!("prober_probe_duration_seconds_bucket{{{of_first},probe_type=\"Liveness\",le=\"1\"}} 2"),
            format!("prober_probe_duration_seconds_bucket{{{of_first},probe_type=\"Liveness\",le=\"+Inf\"}} 3"),
            format!("prober_probe_duration_seconds_count{{{of_first},probe_type=\"Liveness\"}} 3"),
        ] {
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
        assert!(!page.contains("pod_uid=\"2\",probe_type=\"Readiness\",result=\"failed\""), "never failed: {page}");
        assert!(page.contains("pod_uid=\"2\",probe_type=\"Readiness\",result=\"unknown\"} 1"), "{page}");
        // As after a forced deletion: two pods have the same name, and share one series.
        let again = ProbeLabels { uid: "3".into(), pod: "p-1".into(), ..probed("3", "Liveness") };
        counts.observe(again, ResultLabel::Successful, Duration::ZERO);
        let both = counts.page(Format::Plain, 5.5);
        let line = format!("prober_probe_duration_seconds_count{{{of_first},probe_type=\"Liveness\"}}");
        assert_eq!(both.lines().filter(|found| found.starts_with(&line)).collect::<Vec<_>>(), [format!("{line} 4")]);
        counts.forget("3");
        counts.forget("1");
        let page = counts.page(Format::Plain, 5.5);
        assert!(!page.contains("p-1") && page.contains("p-2"), "{page}");
    }
}
