//! Derived statistics: usage over a minute, an hour and a day.

use serde_json::{Value, json};

use super::Lookup;
use crate::{
    history::Point,
    rates::{Reading, nano_cores},
};

/// A percentile of a sorted list.
fn percentile(sorted: &[u64], share: usize) -> u64 {
    let at = (sorted.len() * share).div_ceil(100).saturating_sub(1);
    sorted.get(at).copied().unwrap_or(0)
}

fn spread(mut values: Vec<u64>) -> Value {
    values.sort_unstable();
    if values.is_empty() {
        return json!({"present": false, "mean": 0, "std": 0, "max": 0, "fifty": 0, "ninety": 0, "ninetyfive": 0, "count": 0});
    }
    let count = values.len() as u64;
    let mean = values.iter().sum::<u64>() / count;
    let variance = values.iter().map(|v| u128::from(v.abs_diff(mean)).pow(2)).sum::<u128>() / u128::from(count);
    json!({
        "present": true,
        "mean": mean,
        "std": u64::try_from(variance.isqrt()).unwrap_or(u64::MAX),
        "max": values.last(),
        "fifty": percentile(&values, 50),
        "ninety": percentile(&values, 90),
        "ninetyfive": percentile(&values, 95),
        "count": count,
    })
}

/// Millicores between neighbouring points.
fn milli_cores(past: &[Point]) -> Vec<u64> {
    let reading = |point: &Point| Reading { mono_ns: point.mono_ns, value_ns: point.cpu_ns };
    past.windows(2)
        .filter_map(|pair| match pair {
            [a, b] => nano_cores(reading(a), reading(b)).map(|rate| rate / 1_000_000),
            _ => None,
        })
        .collect()
}

fn usage(past: &[Point], seconds: u64) -> Value {
    let window = seconds * 1_000_000_000;
    let Some(newest) = past.last() else {
        return json!({"percent_complete": 0, "cpu": spread(Vec::new()), "memory": spread(Vec::new())});
    };
    let from = past.partition_point(|point| newest.mono_ns - point.mono_ns > window);
    let inside = past.get(from..).unwrap_or_default();
    let covered = inside.first().map_or(0, |first| newest.mono_ns - first.mono_ns);
    json!({
        "percent_complete": (covered * 100 / window).min(100),
        "cpu": spread(milli_cores(inside)),
        "memory": spread(inside.iter().map(|point| point.working_set_bytes).collect()),
    })
}

pub(super) fn summary(found: &Lookup<'_>, past: &[Point]) -> Value {
    let sample = match found {
        Lookup::Machine(view) => &view.snapshot.node.sample,
        Lookup::Row(row) => &row.sample,
    };
    json!({
        "timestamp": sample.moment.wall.to_string(),
        "latest_usage": {
            "cpu": milli_cores(past).last().copied().unwrap_or(0),
            "memory": sample.memory.map(|memory| memory.working_set_bytes()),
        },
        "minute_usage": usage(past, 60),
        "hour_usage": usage(past, 3600),
        "day_usage": usage(past, 86_400),
    })
}
