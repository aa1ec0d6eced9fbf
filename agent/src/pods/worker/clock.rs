//! The machine's clock, and the detection of jumps: somebody has set it.

use std::time::Instant;

use jiff::{SignedDuration, Timestamp};

/// Smaller differences between the wall clock and the monotonic one are drift.
const CLOCK_JUMP_THRESHOLD: SignedDuration = SignedDuration::from_secs(2);

/// Wall clock and monotonic clock at the last reading.
#[derive(Debug)]
pub(super) struct Clock {
    wall: Timestamp,
    monotonic: Instant,
}

impl Clock {
    pub(super) fn new() -> Self {
        Self { wall: Timestamp::now(), monotonic: Instant::now() }
    }

    /// The time, and by how much the wall clock was set since the last reading.
    pub(super) fn read(&mut self) -> (Timestamp, Option<SignedDuration>) {
        let before = std::mem::replace(self, Self::new());
        let passed = SignedDuration::try_from(self.monotonic - before.monotonic).unwrap_or(SignedDuration::ZERO);
        (self.wall, jump(before.wall, self.wall, passed))
    }
}

/// By how much the wall clock was set while `passed` went by on the monotonic one.
fn jump(before: Timestamp, now: Timestamp, passed: SignedDuration) -> Option<SignedDuration> {
    let by = now.duration_since(before) - passed;
    (by.abs() >= CLOCK_JUMP_THRESHOLD).then_some(by)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_clock_that_runs_was_not_set() {
        let second = SignedDuration::from_secs(1);
        assert_eq!(jump(at(1000), at(1010), second * 10), None);
        assert_eq!(jump(at(1000), at(1011), second * 10), None);
        assert_eq!(jump(at(1000), at(87_410), second * 10), Some(second * 86_400));
        assert_eq!(jump(at(87_400), at(1010), second * 10), Some(second * -86_400));
    }
}
