//! What is scanned, and when again. Pure: what is due is found without a look at the rest.

use std::{
    collections::{BTreeSet, HashMap},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::config::Volume;

/// While no process ran that could have written, files are scanned this often: other programs may write, too, such as
/// `docker cp`.
pub(super) const IDLE_SCAN_INTERVAL: Duration = Duration::from_secs(300);

/// What is scanned.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum ScanKey {
    /// The file systems of the node, of images and of logs.
    Spaces,
    /// The sizes of image layers, one file for each: read when images change.
    ImageLayers,
    Container(Arc<str>),
    /// By pod uid and volume name.
    Volume(Arc<str>, Arc<str>),
    /// By pod uid: its files besides volumes.
    PodFiles(Arc<str>),
}

#[derive(Debug, Clone)]
pub(super) enum Scanned {
    Spaces,
    ImageLayers,
    /// Its writable layer, where that is a directory.
    Container(Option<PathBuf>),
    Volume(Volume),
    PodFiles(PathBuf),
}

impl Scanned {
    /// Whether that is a walk over files, which is expensive, instead of a query of a file system.
    const fn is_walk(&self) -> bool {
        match self {
            Self::Spaces | Self::ImageLayers => false,
            Self::Container(_) | Self::PodFiles(_) => true,
            Self::Volume(volume) => volume.of_pod,
        }
    }
}

/// When something is scanned again, and the state of its last scan.
#[derive(Debug)]
pub(super) struct ScanSchedule {
    /// `None` while a scan is in flight.
    pub(super) at: Option<Instant>,
    /// When it was walked, and the CPU time that its writers had used before.
    pub(super) walked: Option<(Instant, Option<u64>)>,
    /// What is in flight is of before: it follows again at once.
    pub(super) outdated: bool,
}

impl ScanSchedule {
    /// Whether no writer has run since the last walk. `used` is their CPU time.
    pub(super) fn is_idle(&self, used: Option<u64>, now: Instant) -> bool {
        self.walked.is_some_and(|(walked, then)| then == used && now < walked + IDLE_SCAN_INTERVAL)
    }
}

/// All scans.
#[derive(Debug, Default)]
pub(super) struct Schedules {
    entries: HashMap<ScanKey, (Scanned, ScanSchedule)>,
    /// Those that wait, by the time when they are due.
    queue: BTreeSet<(Instant, ScanKey)>,
    in_flight: BTreeSet<ScanKey>,
    /// How many scans were looked at: what a change costs.
    #[cfg(test)]
    pub(super) visits: usize,
}

impl Schedules {
    /// Adds a scan, due now, or replaces what an earlier one scans.
    pub(super) fn set(&mut self, key: ScanKey, scanned: Scanned, now: Instant) {
        if let Some((known, _)) = self.entries.get_mut(&key) {
            *known = scanned;
            return;
        }
        self.queue.insert((now, key.clone()));
        self.entries.insert(key, (scanned, ScanSchedule { at: Some(now), walked: None, outdated: false }));
    }

    pub(super) fn remove(&mut self, key: &ScanKey) {
        if let Some((_, schedule)) = self.entries.remove(key)
            && let Some(at) = schedule.at
        {
            self.queue.remove(&(at, key.clone()));
        }
        self.in_flight.remove(key);
    }

    /// Lets these be scanned at once, whether their writers have run or not; those in flight when they have ended.
    pub(super) fn restart(&mut self, now: Instant, which: impl Fn(&ScanKey, &Scanned) -> bool) {
        for (key, (scanned, schedule)) in &mut self.entries {
            if !which(key, scanned) {
                continue;
            }
            schedule.outdated = schedule.at.is_none();
            if let Some(at) = schedule.at {
                self.queue.remove(&(at, key.clone()));
                self.queue.insert((now, key.clone()));
                *schedule = ScanSchedule { at: Some(now), walked: None, outdated: false };
            }
        }
    }

    /// Lets all walks run at once.
    pub(super) fn restart_walks(&mut self, now: Instant) {
        self.restart(now, |_, scanned| scanned.is_walk());
    }

    /// Starts what is due; it is in flight from then on. `used` is the CPU time of those who may write there, as long as they
    /// use none a walk is put off by `pause`.
    pub(super) fn start_due(
        &mut self,
        now: Instant,
        pause: Duration,
        used: impl Fn(&ScanKey) -> Option<u64>,
    ) -> Vec<(ScanKey, Scanned)> {
        let mut started = Vec::new();
        while let Some((at, key)) = self.queue.pop_first() {
            if at > now {
                self.queue.insert((at, key));
                break;
            }
            #[cfg(test)]
            {
                self.visits += 1;
            }
            let Some((scanned, schedule)) = self.entries.get_mut(&key) else { continue };
            let used = used(&key);
            if scanned.is_walk() && schedule.is_idle(used, now) {
                // Never now, or this would not end.
                let later = now + pause.max(Duration::from_nanos(1));
                schedule.at = Some(later);
                self.queue.insert((later, key));
            } else {
                *schedule = ScanSchedule { at: None, walked: Some((now, used)), outdated: false };
                started.push((key.clone(), scanned.clone()));
                self.in_flight.insert(key);
            }
        }
        started
    }

    /// Lets a scan that was started follow again at `at`. `found` is whether there was a result that a later scan could keep.
    /// Returns false for one that was dropped meanwhile.
    pub(super) fn finish(&mut self, key: &ScanKey, at: Instant, found: bool) -> bool {
        self.in_flight.remove(key);
        let Some((_, schedule)) = self.entries.get_mut(key) else { return false };
        let outdated = std::mem::take(&mut schedule.outdated);
        let at = if outdated { Instant::now().min(at) } else { at };
        if let Some(before) = schedule.at.replace(at) {
            self.queue.remove(&(before, key.clone()));
        }
        if !found || outdated {
            schedule.walked = None;
        }
        self.queue.insert((at, key.clone()));
        true
    }

    /// When the next scan is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.queue.first().map(|(at, _)| *at)
    }

    /// Those that have not ended.
    pub(super) const fn in_flight(&self) -> &BTreeSet<ScanKey> {
        &self.in_flight
    }
}
