//! How Go writes a duration, which Kubernetes shows in messages, settings and metrics.

use std::time::Duration;

/// `20s`, `1.5s`, `1m20s`, `24h0m0s`; nothing finer than a millisecond.
#[must_use]
pub fn go(time: Duration) -> String {
    let seconds = time.as_secs();
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let rest = f64::from(u32::try_from(seconds % 60).unwrap_or_default()) + f64::from(time.subsec_millis()) / 1000.0;
    match (hours, minutes) {
        (0, 0) => format!("{rest}s"),
        (0, _) => format!("{minutes}m{rest}s"),
        _ => format!("{hours}h{minutes}m{rest}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_go_writes_them() {
        for (milliseconds, text) in [
            (0, "0s"),
            (10_000, "10s"),
            (1_500, "1.5s"),
            (15_021, "15.021s"),
            (80_000, "1m20s"),
            (300_000, "5m0s"),
            (86_400_000, "24h0m0s"),
        ] {
            assert_eq!(go(Duration::from_millis(milliseconds)), text);
        }
    }
}
