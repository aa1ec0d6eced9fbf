//! The bounded history of one cgroup: two minutes at full rate, then one point a minute up to an hour.

use std::collections::VecDeque;

use crate::rates::{MIN_WINDOW_NS, Reading, nano_cores};

/// One sample, reduced to what graphs and rates need.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Point {
    /// Wall clock, milliseconds since 1970.
    pub at_ms: i64,
    /// Monotonic clock.
    pub mono_ns: u64,
    /// CPU time used so far.
    pub cpu_ns: u64,
    /// In user mode.
    pub user_ns: u64,
    /// In the kernel.
    pub system_ns: u64,
    /// Memory in use, page cache included.
    pub usage_bytes: u64,
    /// Anonymous memory.
    pub rss_bytes: u64,
    /// Working set: memory that cannot be reclaimed easily.
    pub working_set_bytes: u64,
    /// Received so far.
    pub rx_bytes: u64,
    /// Sent so far.
    pub tx_bytes: u64,
    /// Read from block devices so far.
    pub read_bytes: u64,
    /// Written to block devices so far.
    pub write_bytes: u64,
}

const RECENT_NS: u64 = 120_000_000_000;
const RECENT_MOST: usize = 32;
const MINUTE_NS: u64 = 60_000_000_000;
const MINUTES_MOST: usize = 60;

/// Points in order of time.
#[derive(Debug, Clone, Default)]
pub struct History {
    minutes: VecDeque<Point>,
    recent: VecDeque<Point>,
}

impl History {
    /// Adds the newest point. A point that is not newer than the last is ignored; a CPU counter that decreased means
    /// another cgroup with this name, and clears the history.
    pub fn push(&mut self, point: Point) {
        if let Some(last) = self.recent.back() {
            if point.mono_ns <= last.mono_ns {
                return;
            }
            if point.cpu_ns < last.cpu_ns {
                self.minutes.clear();
                self.recent.clear();
            }
        }
        self.recent.push_back(point);
        while self.recent.len() > 2
            && (self.recent.len() > RECENT_MOST
                || self.recent.front().is_some_and(|old| point.mono_ns - old.mono_ns > RECENT_NS))
        {
            let Some(old) = self.recent.pop_front() else { break };
            if self.minutes.back().is_none_or(|last| old.mono_ns - last.mono_ns >= MINUTE_NS) {
                self.minutes.push_back(old);
                if self.minutes.len() > MINUTES_MOST {
                    self.minutes.pop_front();
                }
            }
        }
    }

    /// CPU rate between the newest point and the nearest one that is far enough before it.
    #[must_use]
    pub fn nano_cores(&self) -> Option<u64> {
        let now = self.recent.back()?;
        let before = self.recent.iter().rev().find(|p| now.mono_ns - p.mono_ns >= MIN_WINDOW_NS)?;
        let reading = |p: &Point| Reading { mono_ns: p.mono_ns, value_ns: p.cpu_ns };
        nano_cores(reading(before), reading(now))
    }

    /// How many points there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.minutes.len() + self.recent.len()
    }

    /// Whether it holds no samples.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.recent.is_empty()
    }

    /// All points, oldest first.
    pub fn points(&self) -> impl Iterator<Item = &Point> {
        self.minutes.iter().chain(&self.recent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64, cpu_ns: u64) -> Point {
        Point { mono_ns: second * 1_000_000_000, cpu_ns, ..Point::default() }
    }

    #[test]
    fn is_bounded_and_thins_to_minutes() {
        let mut history = History::default();
        for second in (0..20_000).step_by(10) {
            history.push(at(second, second));
        }
        assert!(history.len() <= RECENT_MOST + MINUTES_MOST, "{}", history.len());
        let times: Vec<u64> = history.points().map(|p| p.mono_ns / 1_000_000_000).collect();
        assert!(times.is_sorted());
        assert!(times.first().is_some_and(|t| *t < 20_000 - 3_500), "an hour is kept: {times:?}");
        for second in 0..1000 {
            history.push(at(30_000 + second, 30_000));
        }
        assert!(history.len() <= RECENT_MOST + MINUTES_MOST);
    }

    #[test]
    fn rate_skips_points_that_are_too_near() {
        let mut history = History::default();
        assert_eq!(history.nano_cores(), None);
        history.push(at(10, 0));
        assert_eq!(history.nano_cores(), None);
        history.push(at(12, 1_000_000_000));
        assert_eq!(history.nano_cores(), Some(500_000_000));
        history.push(Point { mono_ns: 12_100_000_000, cpu_ns: 1_050_000_000, ..Point::default() });
        assert_eq!(history.nano_cores(), Some(500_000_000), "over 2.1 s, not over 0.1 s");
    }

    #[test]
    fn a_reset_forgets_the_past_and_old_points_are_ignored() {
        let mut history = History::default();
        history.push(at(10, 500));
        history.push(at(20, 100));
        assert_eq!((history.len(), history.nano_cores()), (1, None));
        history.push(at(15, 900));
        assert_eq!(history.len(), 1);
    }
}
