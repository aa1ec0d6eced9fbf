//! When the next write may start. Pure: time comes in as a value.

use std::time::{Duration, Instant};

/// How many writes may follow each other before the minimum period holds.
const BURST: u32 = 3;

/// After idling, changes are written at once, a few in a row, with half of the time left to others; under constant
/// change writes keep the minimum period, and never take more than a fifth of the time.
#[derive(Debug)]
pub(crate) struct Pace {
    period: Duration,
    /// Writes that may still come early.
    credit: u32,
    last: Option<(Instant, Duration)>,
}

impl Pace {
    pub(crate) const fn new(period: Duration) -> Self {
        Self { period, credit: BURST, last: None }
    }

    /// When the next write may start.
    pub(crate) fn due(&self, now: Instant) -> Instant {
        let Some((end, took)) = self.last else { return now };
        let idle = now.saturating_duration_since(end);
        let rest = (took * 4).min(Duration::from_secs(10));
        let gap = match self.credit {
            1.. => took.min(rest),
            0 if idle >= self.period => rest,
            0 => rest.max(self.period),
        };
        end + gap
    }

    /// A write took from `start` to `end`.
    pub(crate) fn ran(&mut self, start: Instant, end: Instant) {
        let idle = self.last.map_or(Duration::MAX, |(last, _)| start.saturating_duration_since(last));
        if idle >= self.period * BURST {
            self.credit = BURST;
        } else if idle >= self.period {
            self.credit = (self.credit + 1).min(BURST);
        }
        self.credit = self.credit.saturating_sub(1);
        self.last = Some((end, end.saturating_duration_since(start)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_once_after_idling_then_paced() {
        let (ms, start) = (Duration::from_millis, Instant::now());
        let mut pace = Pace::new(ms(1000));
        assert_eq!(pace.due(start), start);
        let mut now = start;
        let mut gaps = Vec::new();
        for _ in 0..6 {
            let begin = pace.due(now);
            gaps.push((begin - now).as_millis());
            now = begin + ms(10);
            pace.ran(begin, now);
        }
        assert_eq!(gaps, [0, 10, 10, 1000, 1000, 1000]);
        let later = now + ms(5000);
        assert!(pace.due(later) <= later);
    }

    #[test]
    fn long_writes_stretch_the_gap() {
        let (s, start) = (Duration::from_secs, Instant::now());
        let mut pace = Pace::new(s(1));
        pace.ran(start, start + s(2));
        assert_eq!(pace.due(start + s(2)), start + s(4));
        pace.ran(start + s(2), start + s(4));
        pace.ran(start + s(4), start + s(6));
        assert_eq!(pace.due(start + s(6)), start + s(14), "no longer a few in a row");
    }
}
