//! The latest events of one resource. Only what they keep alive besides the objects themselves counts: superseded
//! states, and the last states of deleted objects.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use super::Event;

/// Events younger than this are kept unless all histories together are above [`MAX_SUPERSEDED_BYTES`]; upstream's
/// watch cache grows until it holds as much (`eventFreshDuration`).
pub(crate) const MIN_AGE: Duration = Duration::from_secs(75);
/// Events older than this are dropped; the age is that of upstream's compaction.
pub(crate) const MAX_AGE: Duration = Duration::from_secs(300);
/// What one history may keep of events older than [`MIN_AGE`].
pub(crate) const AGED_BYTES: usize = 2 << 20;
/// What all histories together may keep.
pub(crate) const MAX_SUPERSEDED_BYTES: usize = 24 << 20;
/// What an event costs besides its objects, about.
const EVENT_BYTES: usize = 256;

/// Time between two notes of the [`RevisionClock`].
const CLOCK_INTERVAL: Duration = Duration::from_secs(10);

/// Which revision the store had at which time: pages of lists end with their revision's age, also where nothing of their
/// type was written since. Upstream compacts all revisions that are older than [`MAX_AGE`].
#[derive(Debug, Default)]
pub(crate) struct RevisionClock {
    notes: VecDeque<(Instant, u64)>,
}

impl RevisionClock {
    /// Notes the revision after a write.
    pub(crate) fn note(&mut self, revision: u64, now: Instant) {
        if self.notes.back().is_some_and(|(at, _)| now.saturating_duration_since(*at) < CLOCK_INTERVAL) {
            return;
        }
        self.notes.push_back((now, revision));
        while self.notes.get(1).is_some_and(|(at, _)| now.saturating_duration_since(*at) > MAX_AGE) {
            self.notes.pop_front();
        }
    }

    /// The earliest revision that is not too old; 0 where that is not known.
    pub(crate) fn oldest(&self, now: Instant) -> u64 {
        let is_old = |(at, _): &&(Instant, u64)| now.saturating_duration_since(*at) > MAX_AGE;
        self.notes.iter().take_while(is_old).last().map_or(0, |(_, revision)| *revision)
    }
}

/// Events in the order of their revisions.
#[derive(Debug, Default)]
pub(crate) struct History {
    events: VecDeque<Arc<Event>>,
    bytes: usize,
}

fn cost(event: &Event) -> usize {
    let last = if event.deleted { event.object.bytes.len() } else { 0 };
    EVENT_BYTES + last + event.previous.as_ref().map_or(0, |previous| previous.bytes.len())
}

impl History {
    /// What it keeps alive.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn push(&mut self, event: Arc<Event>) {
        self.bytes += cost(&event);
        self.events.push_back(event);
    }

    pub(crate) fn pop(&mut self) -> Option<Arc<Event>> {
        let event = self.events.pop_front()?;
        self.bytes -= cost(&event);
        if self.events.len() < self.events.capacity() / 4 {
            self.events.shrink_to(self.events.len() * 2);
        }
        Some(event)
    }

    /// The oldest event, when its age or the bytes of this history say that it goes.
    pub(crate) fn pop_aged(&mut self, now: Instant) -> Option<Arc<Event>> {
        let age = now.saturating_duration_since(self.events.front()?.at);
        let goes = age > MAX_AGE || (age > MIN_AGE && self.bytes > AGED_BYTES);
        if goes { self.pop() } else { None }
    }

    /// The events after a revision.
    pub(crate) fn after(&self, revision: u64) -> impl DoubleEndedIterator<Item = &Arc<Event>> {
        let start = self.events.partition_point(|event| event.object.revision <= revision);
        self.events.range(start..)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Event>> {
        self.events.iter()
    }
}
