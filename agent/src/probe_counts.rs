//! How often probes were asked, what came of it and how long it took: counted where they are asked, told by the
//! server. Knows neither of the two.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use windlass_kit::expo::{Format, Kind, Text};

/// Upper bounds of the durations' buckets in seconds; upstream's.
const BOUNDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Whose probe, and which.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Probed {
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) container: String,
    /// `Startup`, `Liveness` or `Readiness`.
    pub(crate) kind: &'static str,
}

/// What came of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProbeResult {
    Successful,
    Failed,
    /// It could not be asked.
    Unknown,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Counts {
    successful: u64,
    failed: u64,
    unknown: u64,
    within: [u64; BOUNDS.len()],
    seconds: f64,
}

impl Counts {
    fn take(&mut self, result: ProbeResult, took: Duration) {
        *match result {
            ProbeResult::Successful => &mut self.successful,
            ProbeResult::Failed => &mut self.failed,
            ProbeResult::Unknown => &mut self.unknown,
        } += 1;
        let seconds = took.as_secs_f64();
        self.seconds += seconds;
        for (count, bound) in self.within.iter_mut().zip(BOUNDS) {
            *count += u64::from(seconds <= bound);
        }
    }
}

/// The counts of all pods of the node. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct ProbeCounts(Arc<Mutex<BTreeMap<Probed, Counts>>>);

impl ProbeCounts {
    pub(crate) fn take(&self, probed: Probed, result: ProbeResult, took: Duration) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(probed).or_default().take(result, took);
    }

    /// Nothing is left of the pod.
    pub(crate) fn forget(&self, uid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|probed, _| probed.uid != uid);
    }

    /// The page of `/metrics/probes`. `started` is when this process began, in seconds since 1970.
    #[must_use]
    pub fn page(&self, format: Format, started: f64) -> String {
        let all: Vec<(Probed, Counts)> = {
            let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            counts.iter().map(|(probed, counts)| (probed.clone(), *counts)).collect()
        };
        #[allow(clippy::cast_precision_loss, reason = "exact up to 2^53 probes")]
        let float = |count: u64| count as f64;
        let mut page = Text::of(format);
        page.family("process_start_time_seconds", "When this program began, in seconds since 1970", Kind::Gauge);
        page.sample("process_start_time_seconds", &[], started);
        page.family("prober_probe_duration_seconds", "How long probes took, in seconds", Kind::Histogram);
        for (probed, counts) in &all {
            let labels = [
                ("container", probed.container.as_str()),
                ("namespace", probed.namespace.as_str()),
                ("pod", probed.pod.as_str()),
                ("probe_type", probed.kind),
            ];
            let buckets: Vec<(f64, u64)> = BOUNDS.into_iter().zip(counts.within).collect();
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
                        ("probe_type", probed.kind),
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

    fn probed(uid: &str, kind: &'static str) -> Probed {
        Probed { uid: uid.into(), namespace: "n".into(), pod: format!("p-{uid}"), container: "c".into(), kind }
    }

    #[test]
    fn answers_are_counted_by_result_and_time_until_the_pod_is_gone() {
        let counts = ProbeCounts::default();
        counts.take(probed("1", "Liveness"), ProbeResult::Successful, Duration::from_millis(7));
        counts.take(probed("1", "Liveness"), ProbeResult::Successful, Duration::from_secs(60));
        counts.take(probed("1", "Liveness"), ProbeResult::Failed, Duration::from_millis(700));
        counts.take(probed("2", "Readiness"), ProbeResult::Unknown, Duration::ZERO);
        let page = counts.clone().page(Format::Plain, 5.5);
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
        counts.forget("1");
        let page = counts.page(Format::Plain, 5.5);
        assert!(!page.contains("p-1") && page.contains("p-2"), "{page}");
    }
}
