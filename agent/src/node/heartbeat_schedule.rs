//! Intervals of lease renewals and status reports, with jitter. Pure but for the random numbers.

use std::time::{Duration, Instant};

use ring::rand::{SecureRandom as _, SystemRandom};

/// A random number in [0, 1); 0.5 if the system has no randomness.
pub(super) fn random_fraction() -> f64 {
    let mut bytes = [0u8; 4];
    match SystemRandom::new().fill(&mut bytes) {
        Ok(()) => f64::from(u32::from_le_bytes(bytes)) / (f64::from(u32::MAX) + 1.0),
        Err(_) => 0.5,
    }
}

/// The interval between lease renewals: a quarter of the lease duration, plus up to 4 % jitter so that nodes do not
/// renew all at once; upstream's.
pub(super) fn renew_interval(lease_seconds: i32, random_fraction: f64) -> Duration {
    let seconds = f64::from(lease_seconds.max(1));
    Duration::from_secs_f64(seconds * 0.25 * (1.0 + 0.04 * random_fraction))
}

/// When an unchanged status is due to be reported.
#[derive(Debug, Clone)]
pub(super) struct ReportSchedule {
    /// Between reports of an unchanged status.
    interval: Duration,
    sent_at: Option<Instant>,
    /// Until the next report.
    current_interval: Duration,
}

impl ReportSchedule {
    pub(super) const fn new(interval: Duration) -> Self {
        Self { interval, sent_at: None, current_interval: interval }
    }

    /// Whether an unchanged status is due.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.sent_at.is_none_or(|at| now.saturating_duration_since(at) >= self.current_interval)
    }

    /// Records a report. After a change the next interval is once half to one and a half of the usual one, so that
    /// nodes that changed together do not report together for ever; upstream's.
    pub(super) fn reported(&mut self, now: Instant, changed: bool, random_fraction: f64) {
        self.sent_at = Some(now);
        self.current_interval = if changed { self.interval.mul_f64(0.5 + random_fraction) } else { self.interval };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_renew_interval_has_jitter() {
        assert_eq!(renew_interval(40, 0.0), Duration::from_secs(10));
        assert_eq!(renew_interval(40, 1.0), Duration::from_millis(10_400));
        assert!(renew_interval(0, 0.0) > Duration::ZERO);
        for _ in 0..100 {
            let random_fraction = random_fraction();
            assert!((0.0..1.0).contains(&random_fraction), "{random_fraction}");
        }
    }

    #[test]
    fn report_interval_has_jitter_after_a_change() {
        let (begun, minutes) = (Instant::now(), |n: f64| Duration::from_secs_f64(n * 60.0));
        let mut schedule = ReportSchedule::new(minutes(5.0));
        assert!(schedule.is_due(begun), "it was never written");
        for (changed, random_fraction, due) in
            [(false, 0.9, 5.0), (true, 0.0, 2.5), (true, 0.5, 5.0), (true, 0.999, 7.4)]
        {
            schedule.reported(begun, changed, random_fraction);
            assert!(!schedule.is_due(begun + minutes(due) - Duration::from_millis(1)), "{changed} {random_fraction}");
            assert!(schedule.is_due(begun + minutes(due + 0.1)), "{changed} {random_fraction}");
        }
        schedule.reported(begun + minutes(1.0), false, 0.0);
        assert!(!schedule.is_due(begun), "a clock that was read before");
    }
}
