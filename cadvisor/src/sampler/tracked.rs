//! What is known of one cgroup from look to look.

use std::{path::PathBuf, sync::Arc};

use windlass_kit::duration;

use super::{
    LIMITS_NS, RARELY_NS,
    reading::{Look, Seen, Whose},
};
use crate::{
    config::Subject,
    history::{History, Point},
    model::{Limits, Row, Sample, Seldom},
    source::{ContainerFiles, SourceError, Totals},
};

/// Whose row it is: a container's by its id, a pod's own by its uid.
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
pub(super) struct Tracked {
    pub(super) key: Key,
    /// Nothing else has had this number, nor will.
    pub(super) serial: u64,
    pub(super) subject: Arc<Subject>,
    /// Not here while a look is under way.
    pub(super) files: Option<Box<ContainerFiles>>,
    pub(super) under_way: bool,
    /// A look at it was late: others go first.
    pub(super) slow: bool,
    pub(super) cgroup: Arc<str>,
    pub(super) layer: Option<PathBuf>,
    pub(super) history: History,
    pub(super) limits: Limits,
    pub(super) seldom: Arc<Seldom>,
    /// When what is read now and then is due again; 0 before its first time.
    pub(super) seldom_due: u64,
    pub(super) limits_due: u64,
    pub(super) row: Option<Arc<Row>>,
    pub(super) complained: bool,
}

impl Tracked {
    pub(super) fn new(key: Key, serial: u64, subject: Arc<Subject>) -> Self {
        Self {
            key,
            serial,
            subject,
            files: None,
            under_way: false,
            slow: false,
            cgroup: Arc::from(""),
            layer: None,
            history: History::default(),
            limits: Limits::default(),
            seldom: Arc::default(),
            seldom_due: 0,
            limits_due: 0,
            row: None,
            complained: false,
        }
    }

    pub(super) fn of(subject: &Subject, serial: u64) -> Self {
        Self::new(Key::Container(Arc::from(subject.container_id.as_str())), serial, Arc::new(subject.clone()))
    }

    /// The look that is due. Its answer is awaited from then on.
    pub(super) fn look(&mut self, mono_ns: u64, totals: &Arc<Totals>) -> Look {
        self.under_way = true;
        let whose = match &self.key {
            Key::Container(_) => Whose::Container(Arc::clone(&self.subject)),
            Key::Pod(_) => Whose::Pod(Arc::clone(&self.cgroup)),
        };
        let (seldom, limits) = (mono_ns >= self.seldom_due, mono_ns >= self.limits_due);
        Look { whose, files: self.files.take(), seldom, limits, totals: Arc::clone(totals) }
    }

    /// Takes what a look has seen. What is gone loses its row; what cannot be read keeps its last, marked stale.
    pub(super) fn take(&mut self, seen: Seen, mono_ns: u64) {
        self.under_way = false;
        self.files = seen.files;
        if let Some(layer) = seen.opened {
            self.layer = layer;
            self.complained = false;
        }
        if let (Some(files), Key::Container(_)) = (&self.files, &self.key)
            && *self.cgroup != *files.cgroup
        {
            self.cgroup = Arc::from(files.cgroup.as_str());
        }
        if let Some(limits) = seen.limits {
            self.limits = *limits;
            if let Some(shares) = self.subject.cpu_shares {
                self.limits.cpu_shares = shares;
            }
            // Of a pod's own cgroup the engine tells nothing.
            let every = if let Key::Container(_) = self.key { LIMITS_NS } else { RARELY_NS };
            self.limits_due = self.due_after(self.limits_due, every, mono_ns);
        }
        if let Some(seldom) = seen.seldom {
            if *self.seldom != *seldom {
                self.seldom = Arc::from(seldom);
            }
            self.seldom_due = self.due_after(self.seldom_due, RARELY_NS, mono_ns);
        }
        match seen.result {
            Ok(sample) => {
                self.history.push(point(&sample));
                self.row = Some(Arc::new(Row {
                    subject: Arc::clone(&self.subject),
                    cgroup: Arc::clone(&self.cgroup),
                    sample,
                    usage_nano_cores: self.history.nano_cores(),
                    limits: self.limits,
                    seldom: Arc::clone(&self.seldom),
                    host_network: self.files.as_ref().is_some_and(|files| files.host_network),
                    stale: false,
                }));
            }
            Err(SourceError::Gone { .. } | SourceError::NotThere { .. }) => {
                self.row = None;
                self.complain(|id| tracing::debug!(container = id, "no usage of this container for now"));
            }
            Err(error) => {
                self.mark_stale();
                self.complain(|id| tracing::warn!(container = id, %error, "usage of this container is stale"));
            }
        }
    }

    /// When what was due at `due` is due again. All that were there at the start would be due in the same round for ever: the
    /// first time between differs.
    fn due_after(&self, due: u64, every: u64, mono_ns: u64) -> u64 {
        let between = if due == 0 { duration::share_of(every, &self.key) } else { every };
        mono_ns.saturating_add(between).max(1)
    }

    pub(super) fn mark_stale(&mut self) {
        if let Some(row) = self.row.as_mut().filter(|row| !row.stale) {
            Arc::make_mut(row).stale = true;
        }
    }

    pub(super) fn complain(&mut self, say: impl FnOnce(&str)) {
        if !std::mem::replace(&mut self.complained, true) {
            say(&self.subject.container_id);
        }
    }
}

pub(super) fn point(sample: &Sample) -> Point {
    let sum = |of: fn(&Sample) -> u64| of(sample);
    Point {
        at_ms: sample.at.as_millisecond(),
        mono_ns: sample.mono_ns,
        cpu_ns: sample.cpu.usage_ns,
        user_ns: sample.cpu.user_ns,
        system_ns: sample.cpu.system_ns,
        usage_bytes: sample.memory.usage_bytes,
        rss_bytes: sample.memory.rss_bytes,
        working_set_bytes: sample.memory.working_set_bytes(),
        rx_bytes: sum(|s| s.network.iter().map(|i| i.rx_bytes).sum()),
        tx_bytes: sum(|s| s.network.iter().map(|i| i.tx_bytes).sum()),
        read_bytes: sum(|s| s.block.iter().map(|d| d.read_bytes).sum()),
        write_bytes: sum(|s| s.block.iter().map(|d| d.write_bytes).sum()),
    }
}
