//! When what is done again: at once when something has changed, after a period, and after growing pauses when it has failed.
//! Pure; the time is a value.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;
use windlass_kit::backoff::Backoff;

#[derive(Debug)]
struct Item {
    due: Instant,
    backoff: Backoff,
    is_processing: bool,
    /// Something has changed while it ran.
    is_dirty: bool,
}

/// What is done again and again, by its key.
#[derive(Debug)]
pub(super) struct WorkQueue<K> {
    period: Duration,
    backoff: Backoff,
    items: BTreeMap<K, Item>,
}

impl<K: Ord + Clone> WorkQueue<K> {
    /// Repeats what has succeeded after `period`, and what has failed after pauses of `backoff`.
    pub(super) fn new(period: Duration, backoff: Backoff) -> Self {
        Self { period, backoff, items: BTreeMap::new() }
    }

    /// These are all that is done from now on; what is new is due.
    pub(super) fn keep(&mut self, keys: impl IntoIterator<Item = K>, now: Instant) {
        let mut old = std::mem::take(&mut self.items);
        for key in keys {
            let new = || Item { due: now, backoff: self.backoff.clone(), is_processing: false, is_dirty: false };
            let item = old.remove(&key).unwrap_or_else(new);
            self.items.insert(key, item);
        }
    }

    /// Something has changed for one of them.
    pub(super) fn add(&mut self, key: &K, now: Instant) {
        if let Some(item) = self.items.get_mut(key) {
            item.is_dirty = item.is_processing;
            if !item.is_processing {
                item.due = now;
            }
        }
    }

    /// The same for all.
    pub(super) fn add_all(&mut self, now: Instant) {
        let keys: Vec<K> = self.items.keys().cloned().collect();
        keys.iter().for_each(|key| self.add(key, now));
    }

    /// Begins what is due, as far as no more than `most` run at a time.
    pub(super) fn get(&mut self, now: Instant, most: usize) -> Vec<K> {
        let running = self.items.values().filter(|item| item.is_processing).count();
        let due = self.items.iter_mut().filter(|(_, item)| !item.is_processing && item.due <= now);
        let begun = due.take(most.saturating_sub(running)).map(|(key, item)| {
            item.is_processing = true;
            key.clone()
        });
        begun.collect()
    }

    /// One that ran has ended.
    pub(super) fn done(&mut self, key: &K, has_succeeded: bool, now: Instant) {
        let Some(item) = self.items.get_mut(key) else { return };
        let pause = if has_succeeded {
            item.backoff.reset();
            self.period
        } else {
            item.backoff.next_delay()
        };
        item.due = if std::mem::take(&mut item.is_dirty) { now } else { now + pause };
        item.is_processing = false;
    }

    /// When the next is due that does not run; `None` if there is none.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.items.values().filter(|item| !item.is_processing).map(|item| item.due).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_wait_longer_and_changes_do_not_wait() {
        let second = Duration::from_secs(1);
        let begin = Instant::now();
        let mut queue = WorkQueue::new(30 * second, Backoff::new(second, 4 * second));
        queue.keep(["a", "b", "c"], begin);
        assert_eq!(queue.get(begin, 2), ["a", "b"]);
        assert_eq!(queue.get(begin, 2), [""; 0]);
        queue.done(&"a", false, begin);
        assert_eq!(queue.get(begin, 2), ["c"]);
        queue.add(&"b", begin);
        queue.done(&"b", true, begin);
        assert_eq!(queue.get(begin, 9), ["b"], "it has changed meanwhile");
        queue.done(&"b", true, begin);
        queue.done(&"c", true, begin);
        assert_eq!(queue.next_due(), Some(begin + second), "a is retried");
        for wait in [2, 4, 4] {
            let now = queue.next_due().unwrap();
            assert_eq!(queue.get(now, 9), ["a"]);
            queue.done(&"a", false, now);
            assert_eq!(queue.next_due(), Some(now + wait * second));
        }
        queue.add(&"c", begin + second);
        assert_eq!(queue.get(begin + second, 9), ["c"]);
        queue.keep(["d"], begin);
        queue.done(&"c", true, begin);
        assert_eq!(queue.get(begin, 9), ["d"]);
        assert_eq!(queue.next_due(), None);
    }
}
