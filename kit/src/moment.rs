//! Points in time by both clocks.

use std::{
    sync::LazyLock,
    time::{Duration, Instant},
};

use jiff::Timestamp;

/// Where the monotonic clock of [`Moment`] begins.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// When something was measured in this process. Rates use the monotonic clock, which cannot be set; pages show the
/// wall clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Wall clock.
    pub wall: Timestamp,
    /// Monotonic clock, of this process alone.
    pub mono_ns: u64,
}

impl Moment {
    /// Before anything was measured.
    pub const ZERO: Self = Self { wall: Timestamp::UNIX_EPOCH, mono_ns: 0 };

    /// The present, by both clocks at once.
    #[must_use]
    pub fn now() -> Self {
        let mono_ns = u64::try_from(START.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Self { wall: Timestamp::now(), mono_ns }
    }

    /// The time since another moment; zero when that one is not earlier.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Duration {
        Duration::from_nanos(self.mono_ns.saturating_sub(earlier.mono_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wall_clock_that_is_set_takes_no_time() {
        let set = |wall: i64, mono_ns| Moment { wall: Timestamp::from_second(wall).unwrap(), mono_ns };
        let (first, back, forward) = (set(10_000, 1_000), set(100, 3_000), set(90_000, 4_000));
        assert_eq!(back.since(&first), Duration::from_micros(2));
        assert_eq!(forward.since(&back), Duration::from_micros(1));
        assert_eq!(first.since(&back), Duration::ZERO);
    }
}
