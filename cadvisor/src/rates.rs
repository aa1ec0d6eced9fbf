//! Numbers computed from two samples.

/// A counter of nanoseconds at a time of the monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) mono_ns: u64,
    pub(crate) value_ns: u64,
}

/// The shortest interval that a rate is computed over: a shorter one shows the granularity of the scheduler.
pub(crate) const MIN_WINDOW_NS: u64 = 900_000_000;

/// Nanoseconds of CPU per second (billionths of a core) between two readings.
/// `None` when no time passed or the counter decreased (the cgroup was recreated).
pub(crate) fn nano_cores(before: Reading, now: Reading) -> Option<u64> {
    let time = now.mono_ns.checked_sub(before.mono_ns).filter(|t| *t > 0)?;
    let used = now.value_ns.checked_sub(before.value_ns)?;
    u64::try_from(u128::from(used) * 1_000_000_000 / u128::from(time)).ok()
}

/// The rest of a limit; never below 0.
pub(crate) fn available(limit: Option<u64>, used: u64) -> Option<u64> {
    limit.map(|limit| limit.saturating_sub(used))
}

/// A memory limit as read: the kernel writes numbers above 2⁶² for "no limit".
pub(crate) fn limit(raw: Option<u64>) -> Option<u64> {
    raw.filter(|bytes| *bytes <= 1 << 62)
}

/// The v1 shares of a v2 weight: cAdvisor's linear map of 1..10000 to 2..262144.
pub(crate) fn shares(weight: u64) -> u64 {
    2 + weight.clamp(1, 10_000).saturating_sub(1) * 262_142 / 9_999
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_need_time_and_growth() {
        let at = |mono_ns, value_ns| Reading { mono_ns, value_ns };
        assert_eq!(nano_cores(at(1_000, 0), at(1_000_001_000, 500_000_000)), Some(500_000_000));
        assert_eq!(nano_cores(at(0, 7), at(10_000_000_000, 7)), Some(0));
        assert_eq!(nano_cores(at(5, 7), at(5, 9)), None, "no time passed");
        assert_eq!(nano_cores(at(9, 7), at(5, 9)), None, "time went back");
        assert_eq!(nano_cores(at(0, 9), at(1_000_000_000, 7)), None, "counter reset");
        assert_eq!(nano_cores(at(0, 0), at(1, u64::MAX)), None, "out of range");
    }

    #[test]
    fn limits_are_clamped() {
        assert_eq!(available(Some(10), 12), Some(0));
        assert_eq!(available(None, 12), None);
        assert_eq!(limit(Some(9_223_372_036_854_771_712)), None);
        assert_eq!(limit(Some(83_886_080)), Some(83_886_080));
    }

    #[test]
    fn weight_maps_to_the_shares_that_upstream_reports() {
        assert_eq!(shares(174), 4537);
        assert_eq!(shares(1), 2);
        assert_eq!(shares(10_000), 262_144);
    }
}
