//! When the lease is renewed and the status is written. Pure, but for the one source of chance.

use std::time::{Duration, Instant};

use ring::rand::{SecureRandom as _, SystemRandom};

/// A number from zero to below one; a half where the system has no chance to give.
pub(super) fn chance() -> f64 {
    let mut bytes = [0u8; 4];
    match SystemRandom::new().fill(&mut bytes) {
        Ok(()) => f64::from(u32::from_le_bytes(bytes)) / (f64::from(u32::MAX) + 1.0),
        Err(_) => 0.5,
    }
}

/// How long after a renewal of the lease the next one is due: a quarter of what one counts for, and up to 4 % more so
/// that nodes do not renew all at once; upstream's.
pub(super) fn renewal(lease_seconds: i32, chance: f64) -> Duration {
    let seconds = f64::from(lease_seconds.max(1));
    Duration::from_secs_f64(seconds * 0.25 * (1.0 + 0.04 * chance))
}

/// How old the API's word of the node may get.
#[derive(Debug, Clone)]
pub(super) struct Pace {
    /// Where nothing changes.
    every: Duration,
    sent_at: Option<Instant>,
    /// At present.
    age: Duration,
}

impl Pace {
    pub(super) const fn new(every: Duration) -> Self {
        Self { every, sent_at: None, age: every }
    }

    /// Whether the status must be written though it has not changed.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.sent_at.is_none_or(|at| now.saturating_duration_since(at) >= self.age)
    }

    /// It was written. After a change the next one comes after half to one and a half of the usual time, once, so that
    /// nodes that changed together do not write together for ever; upstream's.
    pub(super) fn sent(&mut self, now: Instant, changed: bool, chance: f64) {
        self.sent_at = Some(now);
        self.age = if changed { self.every.mul_f64(0.5 + chance) } else { self.every };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_of_forty_seconds_is_renewed_no_more_than_six_times_a_minute() {
        assert_eq!(renewal(40, 0.0), Duration::from_secs(10));
        assert_eq!(renewal(40, 1.0), Duration::from_millis(10_400));
        assert!(renewal(0, 0.0) > Duration::ZERO);
        for _ in 0..100 {
            let chance = chance();
            assert!((0.0..1.0).contains(&chance), "{chance}");
        }
    }

    #[test]
    fn the_status_is_written_every_five_minutes_and_after_a_change_once_sooner_or_later() {
        let (begun, minutes) = (Instant::now(), |n: f64| Duration::from_secs_f64(n * 60.0));
        let mut pace = Pace::new(minutes(5.0));
        assert!(pace.is_due(begun), "it was never written");
        for (changed, chance, due) in [(false, 0.9, 5.0), (true, 0.0, 2.5), (true, 0.5, 5.0), (true, 0.999, 7.4)] {
            pace.sent(begun, changed, chance);
            assert!(!pace.is_due(begun + minutes(due) - Duration::from_millis(1)), "{changed} {chance}");
            assert!(pace.is_due(begun + minutes(due + 0.1)), "{changed} {chance}");
        }
        pace.sent(begun + minutes(1.0), false, 0.0);
        assert!(!pace.is_due(begun), "a clock that was read before");
    }
}
