//! When what is done again: at once when something has changed, after a period, and after growing pauses when it has failed.
//! Pure; the time is a value.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;
use windlass_kit::backoff::Backoff;

#[derive(Debug)]
struct Item {
    due: Instant,
    backoff: Backoff,
    is_running: bool,
    /// Something has changed while it ran.
    is_touched: bool,
}

/// What is done again and again, by its key.
#[derive(Debug)]
pub(super) struct Schedule<K> {
    period: Duration,
    backoff: Backoff,
    items: BTreeMap<K, Item>,
}

impl<K: Ord + Clone> Schedule<K> {
    /// Repeats what has succeeded after `period`, and what has failed after pauses of `backoff`.
    pub(super) fn new(period: Duration, backoff: Backoff) -> Self {
        Self { period, backoff, items: BTreeMap::new() }
    }

    /// These are all that is done from now on; what is new is due.
    pub(super) fn keep(&mut self, keys: impl IntoIterator<Item = K>, now: Instant) {
        let mut old = std::mem::take(&mut self.items);
        for key in keys {
            let new = || Item { due: now, backoff: self.backoff.clone(), is_running: false, is_touched: false };
            let item = old.remove(&key).unwrap_or_else(new);
            self.items.insert(key, item);
        }
    }

    /// Something has changed for one of them.
    pub(super) fn touch(&mut self, key: &K, now: Instant) {
        if let Some(item) = self.items.get_mut(key) {
            item.is_touched = item.is_running;
            if !item.is_running {
                item.due = now;
            }
        }
    }

    /// The same for all.
    pub(super) fn touch_all(&mut self, now: Instant) {
        let keys: Vec<K> = self.items.keys().cloned().collect();
        keys.iter().for_each(|key| self.touch(key, now));
    }

    /// Begins what is due, as far as no more than `most` run at a time.
    pub(super) fn begin(&mut self, now: Instant, most: usize) -> Vec<K> {
        let running = self.items.values().filter(|item| item.is_running).count();
        let due = self.items.iter_mut().filter(|(_, item)| !item.is_running && item.due <= now);
        let begun = due.take(most.saturating_sub(running)).map(|(key, item)| {
            item.is_running = true;
            key.clone()
        });
        begun.collect()
    }

    /// One that ran has ended.
    pub(super) fn end(&mut self, key: &K, has_succeeded: bool, now: Instant) {
        let Some(item) = self.items.get_mut(key) else { return };
        let pause = if has_succeeded {
            item.backoff.reset();
            self.period
        } else {
            item.backoff.next_delay()
        };
        item.due = if std::mem::take(&mut item.is_touched) { now } else { now + pause };
        item.is_running = false;
    }

    /// When the next is due that does not run; `None` if there is none.
    pub(super) fn next(&self) -> Option<Instant> {
        self.items.values().filter(|item| !item.is_running).map(|item| item.due).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_wait_longer_and_changes_do_not_wait() {
        let second = Duration::from_secs(1);
        let begin = Instant::now();
        let mut schedule = Schedule::new(30 * second, Backoff::new(second, 4 * second));
        schedule.keep(["a", "b", "c"], begin);
        assert_eq!(schedule.begin(begin, 2), ["a", "b"]);
        assert_eq!(schedule.begin(begin, 2), [""; 0]);
        schedule.end(&"a", false, begin);
        assert_eq!(schedule.begin(begin, 2), ["c"]);
        schedule.touch(&"b", begin);
        schedule.end(&"b", true, begin);
        assert_eq!(schedule.begin(begin, 9), ["b"], "it has changed meanwhile");
        schedule.end(&"b", true, begin);
        schedule.end(&"c", true, begin);
        assert_eq!(schedule.next(), Some(begin + second), "a is retried");
        for wait in [2, 4, 4] {
            let now = schedule.next().unwrap();
            assert_eq!(schedule.begin(now, 9), ["a"]);
            schedule.end(&"a", false, now);
            assert_eq!(schedule.next(), Some(now + wait * second));
        }
        schedule.touch(&"c", begin + second);
        assert_eq!(schedule.begin(begin + second, 9), ["c"]);
        schedule.keep(["d"], begin);
        schedule.end(&"c", true, begin);
        assert_eq!(schedule.begin(begin, 9), ["d"]);
        assert_eq!(schedule.next(), None);
    }
}
