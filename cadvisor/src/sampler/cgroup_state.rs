//! The state of one cgroup between its samples.

use std::{path::PathBuf, sync::Arc};

use windlass_kit::duration;

use super::{
    LIMITS_INTERVAL_NS, SLOW_INTERVAL_NS,
    reading::{CgroupRef, ReadJob, ReadResult},
};
use crate::{
    config::Target,
    history::{History, Point},
    model::{Limits, Row, Sample, SlowStats, Spot},
    source::{ContainerFiles, SourceError, Totals},
};

/// What a row is of: a container by its id, or a pod's own cgroup by its uid.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Container(Arc<str>),
    Pod(Arc<str>),
}

impl Key {
    pub(super) const fn id(&self) -> &Arc<str> {
        let (Self::Container(id) | Self::Pod(id)) = self;
        id
    }
}

#[derive(Debug)]
pub(super) struct CgroupState {
    pub(super) key: Key,
    /// Never used again for another cgroup.
    pub(super) serial: u64,
    pub(super) target: Arc<Target>,
    /// `None` while a read is in flight.
    pub(super) files: Option<Box<ContainerFiles>>,
    pub(super) in_flight: bool,
    /// Its last read was late: others go first.
    pub(super) late: bool,
    pub(super) cgroup: Arc<str>,
    pub(super) layer: Option<PathBuf>,
    pub(super) history: History,
    pub(super) limits: Limits,
    pub(super) slow: Arc<SlowStats>,
    /// When the slow counters are due again; 0 before the first time.
    pub(super) slow_due: u64,
    pub(super) limits_due: u64,
    pub(super) row: Option<Arc<Row>>,
    /// Where its row is in the snapshot.
    pub(super) spot: Spot,
    pub(super) failure_logged: bool,
}

impl CgroupState {
    pub(super) fn new(key: Key, serial: u64, target: Arc<Target>) -> Self {
        Self {
            key,
            serial,
            target,
            files: None,
            in_flight: false,
            late: false,
            cgroup: Arc::from(""),
            layer: None,
            history: History::default(),
            limits: Limits::default(),
            slow: Arc::default(),
            slow_due: 0,
            limits_due: 0,
            row: None,
            spot: Spot::default(),
            failure_logged: false,
        }
    }

    pub(super) fn of(target: &Arc<Target>, serial: u64) -> Self {
        Self::new(Key::Container(Arc::from(target.container_id.as_str())), serial, Arc::clone(target))
    }

    /// Prepares the read that is due, which is in flight from then on.
    pub(super) fn start_read(&mut self, mono_ns: u64, totals: &Arc<Totals>) -> ReadJob {
        self.in_flight = true;
        let cgroup = match &self.key {
            Key::Container(_) => CgroupRef::Container(Arc::clone(&self.target)),
            Key::Pod(_) => CgroupRef::Pod(Arc::clone(&self.cgroup)),
        };
        let (slow, limits) = (mono_ns >= self.slow_due, mono_ns >= self.limits_due);
        let wants_layer = self.layer.is_none() && matches!(self.key, Key::Container(_));
        ReadJob { cgroup, files: self.files.take(), slow, limits, wants_layer, totals: Arc::clone(totals) }
    }

    /// Applies the result of a read. A removed cgroup loses its row; one that cannot be read keeps its last, marked
    /// stale.
    pub(super) fn finish_read(&mut self, result: ReadResult, mono_ns: u64) {
        self.in_flight = false;
        self.files = result.files;
        if let Some(layer) = result.opened {
            self.layer = layer;
            self.failure_logged = false;
        }
        if result.layer.is_some() {
            self.layer = result.layer;
        }
        if let (Some(files), Key::Container(_)) = (&self.files, &self.key)
            && *self.cgroup != *files.cgroup
        {
            self.cgroup = Arc::from(files.cgroup.as_str());
        }
        if let Some(limits) = result.limits {
            self.limits = *limits;
            if let Some(shares) = self.target.cpu_shares {
                self.limits.cpu_shares = shares;
            }
            // The engine does not report changes of a pod's own cgroup.
            let every = if let Key::Container(_) = self.key { LIMITS_INTERVAL_NS } else { SLOW_INTERVAL_NS };
            self.limits_due = self.due_after(self.limits_due, every, mono_ns);
        }
        if let Some(slow) = result.slow {
            if *self.slow != *slow {
                self.slow = Arc::from(slow);
            }
            self.slow_due = self.due_after(self.slow_due, SLOW_INTERVAL_NS, mono_ns);
        }
        match result.result {
            Ok(sample) => {
                self.failure_logged = false;
                self.history.push(point(&sample));
                self.row = Some(Arc::new(Row {
                    target: Arc::clone(&self.target),
                    cgroup: Arc::clone(&self.cgroup),
                    sample,
                    usage_nano_cores: self.history.nano_cores(),
                    limits: self.limits,
                    slow: Arc::clone(&self.slow),
                    host_network: self.files.as_ref().is_some_and(|files| files.host_network),
                    stale: self.files.as_ref().is_some_and(|files| files.cut),
                }));
            }
            Err(SourceError::Removed { .. } | SourceError::NotInCgroup { .. }) => {
                self.row = None;
                self.log_once(|id| tracing::debug!(cgroup = id, "no usage of cgroup yet"));
            }
            Err(error) => {
                self.mark_stale();
                self.log_once(
                    |id| tracing::warn!(cgroup = id, %error, "failed to read usage of cgroup; reporting stale usage"),
                );
            }
        }
    }

    /// When something that was due at `due` is due again. The first interval is a random part of the whole one:
    /// otherwise all cgroups of the start would be due at the same time for ever.
    fn due_after(&self, due: u64, every: u64, mono_ns: u64) -> u64 {
        let between = if due == 0 { duration::stable_jitter(every, &self.key) } else { every };
        mono_ns.saturating_add(between).max(1)
    }

    pub(super) fn mark_stale(&mut self) {
        if let Some(row) = self.row.as_mut().filter(|row| !row.stale) {
            Arc::make_mut(row).stale = true;
        }
    }

    /// Logs the first of several failures in a row, of a container by its id, of a pod by its uid.
    pub(super) fn log_once(&mut self, log: impl FnOnce(&str)) {
        if !std::mem::replace(&mut self.failure_logged, true) {
            log(self.key.id());
        }
    }
}

pub(super) fn point(sample: &Sample) -> Point {
    let sum = |of: fn(&Sample) -> u64| of(sample);
    // Graphs have a line at zero where there is no memory controller.
    let memory = sample.memory.unwrap_or_default();
    Point {
        at_ms: sample.moment.wall.as_millisecond(),
        mono_ns: sample.moment.mono_ns,
        cpu_ns: sample.cpu.usage_ns,
        user_ns: sample.cpu.user_ns,
        system_ns: sample.cpu.system_ns,
        usage_bytes: memory.usage_bytes,
        rss_bytes: memory.rss_bytes,
        working_set_bytes: memory.working_set_bytes(),
        rx_bytes: sum(|s| s.network.iter().map(|i| i.rx_bytes).sum()),
        tx_bytes: sum(|s| s.network.iter().map(|i| i.tx_bytes).sum()),
        read_bytes: sum(|s| s.block.iter().map(|d| d.read_bytes).sum()),
        write_bytes: sum(|s| s.block.iter().map(|d| d.write_bytes).sum()),
    }
}
