//! Gauges that are counted when a page of metrics is rendered.

use std::collections::BTreeMap;

use windlass_kit::prometheus::{Kind, Text};

/// One gauge, which counts equal values of its labels.
pub(crate) fn counted<const N: usize>(
    page: &mut Text,
    name: &str,
    help: &str,
    labels: [&str; N],
    all: impl Iterator<Item = Vec<String>>,
) {
    let mut counts: BTreeMap<Vec<String>, usize> = BTreeMap::new();
    all.for_each(|values| *counts.entry(values).or_default() += 1);
    page.family(name, help, Kind::Gauge);
    page.declare(name, &labels);
    for (values, count) in counts {
        let pairs: Vec<(&str, &str)> = labels.into_iter().zip(values.iter().map(String::as_str)).collect();
        #[allow(clippy::cast_precision_loss, reason = "a gauge")]
        page.sample(name, &pairs, count as f64);
    }
}
