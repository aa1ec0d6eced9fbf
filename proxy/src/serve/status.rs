//! The state that the loop publishes to the servers, behind a lock that is never held across an await.

use std::{
    collections::BTreeMap,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};
use serde_json::json;

use crate::{
    model::Family,
    rules::{PerPolicy, Table},
};

/// Bounds of the duration histograms in seconds, kube-proxy's: 1 ms doubling to 16.384 s.
const BOUNDS: [f64; 15] =
    [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384];

/// Bounds of the network programming latency in seconds, kube-proxy's.
static PROGRAMMING_BOUNDS: LazyLock<Vec<f64>> = LazyLock::new(|| {
    let steps = (1..60).chain((60..120).step_by(5)).chain((120..=300).step_by(30));
    [0.25, 0.5].into_iter().chain(steps.map(f64::from)).collect()
});

/// Numbers of rules.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PerTable {
    pub(crate) filter: u64,
    pub(crate) nat: u64,
}

impl PerTable {
    pub(crate) const fn of_mut(&mut self, table: Table) -> &mut u64 {
        match table {
            Table::Filter => &mut self.filter,
            Table::Nat => &mut self.nat,
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Histogram {
    bounds: &'static [f64],
    counts: Box<[u64]>,
    pub(super) sum: f64,
    pub(super) count: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new(&BOUNDS)
    }
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len()].into(), sum: 0.0, count: 0 }
    }

    pub(crate) fn observe(&mut self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        if let Some(i) = self.bounds.iter().position(|b| seconds <= *b) {
            self.counts[i] += 1;
        }
        self.sum += seconds;
        self.count += 1;
    }

    pub(super) fn cumulative(&self) -> Vec<(f64, u64)> {
        let mut total = 0;
        self.bounds
            .iter()
            .zip(&self.counts)
            .map(|(bound, count)| {
                total += count;
                (*bound, total)
            })
            .collect()
    }
}

/// The result of one sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SyncOutcome {
    /// All rules are in the kernel. `full`: all were read back before.
    Done { full: bool },
    /// The sync failed.
    Failed { full: bool },
}

/// The status of one address family.
#[derive(Debug, Clone, Default)]
pub(crate) struct FamilyStatus {
    pub(crate) last_updated: Option<jiff::Timestamp>,
    /// Since when a change is pending that is not in the kernel.
    pub(crate) pending_since: Option<Instant>,
    pub(crate) last_queued: Option<jiff::Timestamp>,
    pub(crate) all: Histogram,
    pub(crate) full: Histogram,
    pub(crate) partial: Histogram,
    pub(crate) failures: u64,
    pub(crate) partial_failures: u64,
    /// Rules committed.
    pub(crate) rules: PerTable,
    /// Rules written by the last sync.
    pub(crate) last_lines: PerTable,
    /// Service ports without local endpoints.
    pub(crate) without_local: PerPolicy<usize>,
    pub(crate) repairs: u64,
    /// Service ports whose rules the kernel refuses.
    pub(crate) refused_ports: u64,
    /// Stale chains that cannot be deleted.
    pub(crate) undeletable: u64,
    pub(crate) conntrack: Histogram,
    pub(crate) deleted_conntrack_entries: u64,
    /// Network programming latency: from a change of endpoints to rules in the kernel.
    pub(crate) programming: Histogram,
}

impl FamilyStatus {
    pub(super) const fn all(&self) -> &Histogram {
        &self.all
    }

    pub(super) const fn full(&self) -> &Histogram {
        &self.full
    }

    pub(super) const fn partial(&self) -> &Histogram {
        &self.partial
    }

    pub(super) const fn conntrack(&self) -> &Histogram {
        &self.conntrack
    }

    pub(super) const fn programming(&self) -> &Histogram {
        &self.programming
    }
}

/// What a node that enforces NetworkPolicies has of them in one family.
#[derive(Debug, Clone, Default)]
pub(crate) struct PolicyStatus {
    /// Times of comparing and writing what is wanted.
    pub(crate) syncs: Histogram,
    pub(crate) failures: u64,
    /// Times that others had changed chains or sets.
    pub(crate) repairs: u64,
    /// The last write succeeded: new pods may start.
    pub(crate) in_force: bool,
    pub(crate) chains: usize,
    pub(crate) sets: usize,
    pub(crate) entries: usize,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) families: BTreeMap<Family, FamilyStatus>,
    /// Empty where NetworkPolicies are not enforced.
    pub(crate) policies: BTreeMap<Family, PolicyStatus>,
    /// Our Node is known and may take traffic.
    pub(crate) eligible: bool,
    pub(crate) service_changes: u64,
    pub(crate) endpoint_changes: u64,
    pub(crate) service_changes_pending: u64,
    pub(crate) endpoint_changes_pending: u64,
}

/// Shared with the servers.
#[derive(Debug)]
pub(crate) struct Status {
    state: Mutex<State>,
    sync_period: Duration,
    started: jiff::Timestamp,
    pub(super) healthz: [AtomicU64; 2],
    pub(super) livez: [AtomicU64; 2],
}

impl Status {
    pub(crate) fn new(sync_period: Duration) -> Self {
        Self {
            state: Mutex::default(),
            sync_period,
            started: jiff::Timestamp::now(),
            healthz: [AtomicU64::new(0), AtomicU64::new(0)],
            livez: [AtomicU64::new(0), AtomicU64::new(0)],
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Adds a family, which counts as healthy until a change is pending for too long.
    pub(crate) fn start(&self, family: Family) {
        let now = jiff::Timestamp::now();
        let programming = Histogram::new(&PROGRAMMING_BOUNDS);
        let status =
            FamilyStatus { last_updated: Some(now), last_queued: Some(now), programming, ..FamilyStatus::default() };
        self.lock().families.insert(family, status);
    }

    /// Records that a change is pending in the families that it `concerns`.
    pub(crate) fn queued(&self, concerns: impl Fn(Family) -> bool) {
        let now = jiff::Timestamp::now();
        let mut state = self.lock();
        let mut any = false;
        for (_, family) in state.families.iter_mut().filter(|(family, _)| concerns(**family)) {
            family.pending_since.get_or_insert_with(Instant::now);
            family.last_queued = Some(now);
            any = true;
        }
        if !any {
            // These will never be written: they concern a family that this node does not have.
            (state.service_changes_pending, state.endpoint_changes_pending) = (0, 0);
        }
    }

    /// Records the end of a sync.
    pub(crate) fn record_sync(
        &self,
        family: Family,
        took: Duration,
        outcome: SyncOutcome,
        note: impl FnOnce(&mut FamilyStatus),
    ) {
        let mut state = self.lock();
        let Some(status) = state.families.get_mut(&family) else { return };
        match outcome {
            SyncOutcome::Done { full } => {
                status.last_updated = Some(jiff::Timestamp::now());
                status.pending_since = None;
                status.all.observe(took);
                if full { &mut status.full } else { &mut status.partial }.observe(took);
            }
            SyncOutcome::Failed { full } => {
                status.pending_since.get_or_insert_with(Instant::now);
                status.failures += 1;
                status.partial_failures += u64::from(!full);
            }
        }
        note(status);
    }

    /// Records that rules for endpoints which changed at these times are in the kernel. Times before our start are left
    /// out, as kube-proxy does: they include the time in which no proxy ran.
    pub(crate) fn record_programming_latency(
        &self,
        family: Family,
        triggers: &[jiff::Timestamp],
        now: jiff::Timestamp,
    ) {
        let mut state = self.lock();
        let Some(status) = state.families.get_mut(&family) else { return };
        for at in triggers.iter().filter(|at| **at > self.started) {
            status.programming.observe(Duration::try_from(now.duration_since(*at)).unwrap_or_default());
        }
    }

    fn family_healthy(&self, status: &FamilyStatus, now: Instant) -> bool {
        status.pending_since.is_none_or(|since| now.saturating_duration_since(since) < self.sync_period * 2)
    }

    /// Whether changes reach the kernel in time, in every family: within twice the sync period, as in kube-proxy.
    pub(crate) fn is_healthy(&self) -> bool {
        let now = Instant::now();
        self.lock().families.values().all(|f| self.family_healthy(f, now))
    }

    /// The response of `/healthz` (with eligibility) or `/livez`; counts the responses.
    pub(crate) fn health(&self, eligibility: bool, now: jiff::Timestamp) -> (bool, String) {
        let instant = Instant::now();
        let (ok, body) = {
            let state = self.lock();
            let healthy = state.families.values().all(|f| self.family_healthy(f, instant));
            let ok = healthy && (!eligibility || state.eligible);
            let newest = state.families.values().filter_map(|f| f.last_updated).max();
            let last = if ok { Some(now) } else { newest };
            let families: serde_json::Map<String, serde_json::Value> = state
                .families
                .iter()
                .map(|(family, f)| {
                    let value = json!({
                        "lastUpdated": f.last_updated.map(|t| t.to_string()),
                        "healthy": self.family_healthy(f, instant),
                    });
                    (family.name().to_owned(), value)
                })
                .collect();
            let mut body = json!({
                "lastUpdated": last.map(|t| t.to_string()),
                "currentTime": now.to_string(),
                "healthy": healthy,
                "status": families,
            });
            if eligibility {
                body["nodeEligible"] = json!(state.eligible);
            }
            (ok, body.to_string())
        };
        let counters = if eligibility { &self.healthz } else { &self.livez };
        counters[usize::from(!ok)].fetch_add(1, Ordering::Relaxed);
        (ok, body)
    }
}
