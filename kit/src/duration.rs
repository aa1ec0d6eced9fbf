//! Durations as Go writes and parses them, which Kubernetes uses in messages, configuration and metrics; and a stable
//! jitter.

use std::{
    hash::{DefaultHasher, Hash, Hasher as _},
    time::Duration,
};

/// Formats as Go does: `20s`, `1.5s`, `345ms`, `1m20s`, `24h0m0s`; no finer than a millisecond.
#[must_use]
pub fn format(time: Duration) -> String {
    let seconds = time.as_secs();
    if seconds == 0 && time.subsec_millis() > 0 {
        return std::format!("{}ms", time.subsec_millis());
    }
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let rest = f64::from(u32::try_from(seconds % 60).unwrap_or_default()) + f64::from(time.subsec_millis()) / 1000.0;
    match (hours, minutes) {
        (0, 0) => std::format!("{rest}s"),
        (0, _) => std::format!("{minutes}m{rest}s"),
        _ => std::format!("{hours}h{minutes}m{rest}s"),
    }
}

/// Parses as Go's `time.ParseDuration` does: `300ms`, `1.5h`, `1h15m30s`; without a unit only `0`. `None` for any other
/// text, also for a negative duration, and for one that is too long.
#[must_use]
pub fn parse(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    if text.is_empty() {
        return None;
    }
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let (mut rest, mut sum) = (text, Duration::ZERO);
    while !rest.is_empty() {
        let (number, after) = rest.split_at(rest.find(|c| !is_number(c))?);
        let (unit, next) = after.split_at(after.find(is_number).unwrap_or(after.len()));
        let seconds = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        sum = sum.checked_add(Duration::try_from_secs_f64(number.parse::<f64>().ok()? * seconds).ok()?)?;
        rest = next;
    }
    Some(sum)
}

/// A pseudo-random number below `whole` that is always the same for `key`: spreads what many do at an interval over
/// that interval.
#[must_use]
pub fn stable_jitter(whole: u64, key: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish() % whole.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_spread() {
        let shares: Vec<_> = (0..600).map(|n| stable_jitter(60, &n)).collect();
        assert!(shares.iter().all(|share| *share < 60) && stable_jitter(60, &7) == shares[7]);
        for sixth in 0..6 {
            let in_it = shares.iter().filter(|s| **s / 10 == sixth).count();
            assert!((60..140).contains(&in_it), "{in_it} of 600 in the sixth {sixth}");
        }
        assert_eq!(stable_jitter(0, "a"), 0);
    }

    #[test]
    fn as_go_parses_them() {
        for (text, milliseconds) in [
            ("0", 0),
            ("0s", 0),
            ("30s", 30_000),
            ("1m30s", 90_000),
            ("1.5h", 5_400_000),
            ("24h0m0s", 86_400_000),
            ("500ms", 500),
            ("2000us", 2),
            ("2000µs", 2),
            ("3000000ns", 3),
            ("90s", 90_000),
            ("250ms", 250),
            ("1m30.5s", 90_500),
            ("1s.5m", 31_000),
        ] {
            assert_eq!(parse(text), Some(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in [
            "",
            "1",
            "5",
            "30x",
            "1m30",
            "1h 30m",
            "s",
            "1d",
            "-1s",
            " 1s",
            "1s ",
            "1.2.3s",
            "1s2",
            ".",
            ".s",
            "99999999999999999999h",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

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
            assert_eq!(format(Duration::from_millis(milliseconds)), text);
        }
    }
}
