//! The node's history for graphs: one column per line, with rates instead of counters.

use serde::{Deserialize, Serialize};
use windlass_cadvisor::history::Point;

/// Columns of equal length, oldest first. A rate covers the interval that ends at its time; `None` if the counter was
/// reset in it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Series {
    /// Seconds since 1970.
    pub at: Vec<f64>,
    /// Cores.
    pub cpu: Vec<Option<f64>>,
    /// Bytes.
    pub memory: Vec<u64>,
    /// Bytes a second.
    pub rx: Vec<Option<f64>>,
    /// Bytes a second.
    pub tx: Vec<Option<f64>>,
    /// Bytes a second.
    pub read: Vec<Option<f64>>,
    /// Bytes a second.
    pub write: Vec<Option<f64>>,
}

/// Computes rates from counters; the first point has no predecessor and is dropped.
#[must_use]
pub fn series(points: &[Point]) -> Series {
    let mut all = Series::default();
    for pair in points.windows(2) {
        let [before, now] = pair else { continue };
        #[allow(clippy::cast_precision_loss, reason = "graphs show three digits")]
        let seconds = now.mono_ns.saturating_sub(before.mono_ns) as f64 / 1e9;
        #[allow(clippy::cast_precision_loss, reason = "graphs show three digits")]
        let rate = |now: u64, before: u64| Some(now.checked_sub(before)? as f64 / seconds).filter(|r| r.is_finite());
        #[allow(clippy::cast_precision_loss, reason = "milliseconds since 1970 fit")]
        all.at.push(now.at_ms as f64 / 1e3);
        all.cpu.push(rate(now.cpu_ns, before.cpu_ns).map(|ns| ns / 1e9));
        all.memory.push(now.working_set_bytes);
        all.rx.push(rate(now.rx_bytes, before.rx_bytes));
        all.tx.push(rate(now.tx_bytes, before.tx_bytes));
        all.read.push(rate(now.read_bytes, before.read_bytes));
        all.write.push(rate(now.write_bytes, before.write_bytes));
    }
    all
}
