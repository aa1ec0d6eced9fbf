//! The rate limit of writes, in place of kube-proxy's `BoundedFrequencyRunner`. Pure: time is passed as a value.

use std::time::{Duration, Instant};

/// Writes that may follow each other before the minimum period applies.
const BURST: u32 = 3;

/// A token bucket: after a pause, changes are written at once, [`BURST`] times in a row, using at most half of the
/// time; under constant change writes keep the minimum period, and never take more than a fifth of the time.
#[derive(Debug)]
pub(crate) struct SyncRateLimiter {
    min_period: Duration,
    /// Writes that may still start before the minimum period is over.
    tokens: u32,
    /// The end and the duration of the last write.
    last: Option<(Instant, Duration)>,
}

impl SyncRateLimiter {
    pub(crate) const fn new(min_period: Duration) -> Self {
        Self { min_period, tokens: BURST, last: None }
    }

    /// When the next write may start.
    pub(crate) fn due(&self, now: Instant) -> Instant {
        let Some((end, took)) = self.last else { return now };
        let idle = now.saturating_duration_since(end);
        let rest = (took * 4).min(Duration::from_secs(10));
        let gap = match self.tokens {
            1.. => took.min(rest),
            0 if idle >= self.min_period => rest,
            0 => rest.max(self.min_period),
        };
        end + gap
    }

    /// Records a write that lasted from `start` to `end`.
    pub(crate) fn record(&mut self, start: Instant, end: Instant) {
        let idle = self.last.map_or(Duration::MAX, |(last, _)| start.saturating_duration_since(last));
        if idle >= self.min_period * BURST {
            self.tokens = BURST;
        } else if idle >= self.min_period {
            self.tokens = (self.tokens + 1).min(BURST);
        }
        self.tokens = self.tokens.saturating_sub(1);
        self.last = Some((end, end.saturating_duration_since(start)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_come_in_a_burst_then_at_the_minimum_period() {
        let (ms, start) = (Duration::from_millis, Instant::now());
        let mut limiter = SyncRateLimiter::new(ms(1000));
        assert_eq!(limiter.due(start), start);
        let mut now = start;
        let mut gaps = Vec::new();
        for _ in 0..6 {
            let begin = limiter.due(now);
            gaps.push((begin - now).as_millis());
            now = begin + ms(10);
            limiter.record(begin, now);
        }
        assert_eq!(gaps, [0, 10, 10, 1000, 1000, 1000]);
        let later = now + ms(5000);
        assert!(limiter.due(later) <= later);
    }

    #[test]
    fn long_writes_stretch_the_gap() {
        let (s, start) = (Duration::from_secs, Instant::now());
        let mut limiter = SyncRateLimiter::new(s(1));
        limiter.record(start, start + s(2));
        assert_eq!(limiter.due(start + s(2)), start + s(4));
        limiter.record(start + s(2), start + s(4));
        limiter.record(start + s(4), start + s(6));
        assert_eq!(limiter.due(start + s(6)), start + s(14), "no longer a few in a row");
    }
}
