//! Doubling delays with a ceiling, as a value: no clock, no sleeping.

use std::time::Duration;

/// A delay that doubles with every failure up to a ceiling.
///
/// The first delay is `base`. Nothing here sleeps: the caller decides what to do with the delay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backoff {
    base: Duration,
    cap: Duration,
    failures: u32,
}

impl Backoff {
    /// A back-off that starts at `base` and never exceeds `cap`.
    #[must_use]
    pub const fn new(base: Duration, cap: Duration) -> Self {
        Self { base, cap, failures: 0 }
    }

    /// Records a failure and returns how long to wait before the next attempt.
    pub fn next_delay(&mut self) -> Duration {
        let delay = delay_after(self.base, self.cap, self.failures);
        self.failures = self.failures.saturating_add(1);
        delay
    }

    /// The attempt worked: the next failure waits `base` again.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// Failures since the last [`reset`](Self::reset).
    #[must_use]
    pub const fn failures(&self) -> u32 {
        self.failures
    }
}

/// The delay after `failures` earlier failures: `base * 2^failures`, at most `cap`.
#[must_use]
pub fn delay_after(base: Duration, cap: Duration, failures: u32) -> Duration {
    1u32.checked_shl(failures).and_then(|factor| base.checked_mul(factor)).map_or(cap, |delay| delay.min(cap))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_from_ten_seconds_to_five_minutes() {
        let mut backoff = Backoff::new(Duration::from_secs(10), Duration::from_secs(300));
        let seconds: Vec<u64> = (0..7).map(|_| backoff.next_delay().as_secs()).collect();
        assert_eq!(seconds, [10, 20, 40, 80, 160, 300, 300]);
        backoff.reset();
        assert_eq!(backoff.next_delay().as_secs(), 10);
    }

    #[test]
    fn never_overflows() {
        for failures in [31, 32, 33, u32::MAX] {
            assert_eq!(delay_after(Duration::from_secs(1), Duration::from_secs(7), failures).as_secs(), 7);
        }
    }
}
