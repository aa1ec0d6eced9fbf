//! Times: how Go writes a duration, which Kubernetes shows in messages, settings and metrics; and a share of one.

use std::{
    hash::{DefaultHasher, Hash, Hasher as _},
    time::Duration,
};

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

/// A part of a time that is the same for `key` each time and another for others, in the unit of `whole`: so that what many do
/// at an interval does not fall on one moment.
#[must_use]
pub fn share_of(whole: u64, key: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish() % whole.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_spread() {
        let shares: Vec<_> = (0..600).map(|n| share_of(60, &n)).collect();
        assert!(shares.iter().all(|share| *share < 60) && share_of(60, &7) == shares[7]);
        for sixth in 0..6 {
            let in_it = shares.iter().filter(|s| **s / 10 == sixth).count();
            assert!((60..140).contains(&in_it), "{in_it} of 600 in the sixth {sixth}");
        }
        assert_eq!(share_of(0, "a"), 0);
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
            assert_eq!(go(Duration::from_millis(milliseconds)), text);
        }
    }
}
