//! Go's durations, exact to the nanosecond: `meta/v1.Duration` in JSON and protobuf. Pure.

use std::fmt::Write as _;

use crate::go_quoted;

const UNITS: [(&str, i128); 8] = [
    ("h", 3_600_000_000_000),
    ("ms", 1_000_000),
    ("m", 60_000_000_000),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ns", 1),
    ("s", 1_000_000_000),
];

/// Nanoseconds of a text such as `1h15m30.5s` or `-2ms`, as Go's `time.ParseDuration`; `None` for any other text, and for
/// one beyond 64 bits.
#[must_use]
pub fn parse(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Some(0);
    }
    let mut sum: i128 = 0;
    loop {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(digits);
        let (unit, nanos) = UNITS.iter().find(|(unit, _)| {
            let next = after.strip_prefix(unit).map(|next| next.chars().next());
            next.is_some_and(|next| next.is_none_or(|c| c.is_ascii_digit() || c == '.'))
        })?;
        sum += amount(number, *nanos)?;
        rest = &after[unit.len()..];
        if rest.is_empty() {
            return i64::try_from(if negative { -sum } else { sum }).ok();
        }
    }
}

/// Why [`parse`] refuses a text, in Go's words.
#[must_use]
pub fn why_invalid(text: &str) -> String {
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    while let Some(first) = rest.chars().next() {
        let (number, after) = rest.split_at(rest.find(|c| !is_number(c)).unwrap_or(rest.len()));
        if !is_number(first) || !number.contains(|c: char| c.is_ascii_digit()) {
            break;
        }
        let (unit, next) = after.split_at(after.find(is_number).unwrap_or(after.len()));
        if unit.is_empty() || number.matches('.').count() > 1 {
            return format!("time: missing unit in duration {}", go_quoted(text));
        }
        if !UNITS.iter().any(|(known, _)| *known == unit) {
            return format!("time: unknown unit {} in duration {}", go_quoted(unit), go_quoted(text));
        }
        rest = next;
    }
    format!("time: invalid duration {}", go_quoted(text))
}

/// A decimal number of units, cut to whole nanoseconds.
fn amount(number: &str, nanos: i128) -> Option<i128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') || whole.len() > 19 {
        return None;
    }
    let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    // Digits beyond the eighteenth are worth less than a nanosecond of the largest unit.
    let fraction = &fraction[..fraction.len().min(18)];
    let part = if fraction.is_empty() { 0 } else { fraction.parse::<i128>().ok()? * nanos };
    let scale = 10i128.pow(u32::try_from(fraction.len()).ok()?);
    Some(whole * nanos + part / scale)
}

/// Nanoseconds as Go's `Duration.String` writes them: `0s`, `1.5µs`, `20s`, `24h0m0s`.
#[must_use]
pub fn format(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let nanos = nanos.unsigned_abs();
    let (seconds, rest) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    if seconds == 0 && rest > 0 {
        let (scale, unit, digits) = match rest {
            ..1_000 => (1, "ns", 0),
            1_000..1_000_000 => (1_000, "µs", 3),
            _ => (1_000_000, "ms", 6),
        };
        return format!("{sign}{}{}{unit}", rest / scale, fraction(rest % scale, digits));
    }
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let mut text = sign.to_owned();
    // Writing to a text cannot fail.
    if hours > 0 {
        let _ = write!(text, "{hours}h");
    }
    if hours > 0 || minutes > 0 {
        let _ = write!(text, "{minutes}m");
    }
    let _ = write!(text, "{}{}s", seconds % 60, fraction(rest, 9));
    text
}

/// `.5` of 500 with three digits; nothing of 0.
fn fraction(part: u64, digits: usize) -> String {
    if part == 0 {
        return String::new();
    }
    let text = format!("{part:0digits$}");
    format!(".{}", text.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn go_says_why() {
        for (text, why) in [
            ("", "invalid duration \"\""),
            ("invalid", "invalid duration \"invalid\""),
            (".s", "invalid duration \".s\""),
            ("10", "missing unit in duration \"10\""),
            ("1.2.3s", "missing unit in duration \"1.2.3s\""),
            ("1x", "unknown unit \"x\" in duration \"1x\""),
            ("-1h-", "unknown unit \"h-\" in duration \"-1h-\""),
        ] {
            assert_eq!((parse(text), why_invalid(text)), (None, format!("time: {why}")));
        }
    }

    #[test]
    fn go_forms() {
        for (text, nanos, written) in [
            ("0", 0, "0s"),
            ("30s", 30_000_000_000, "30s"),
            ("1h15m30.918s", 4_530_918_000_000, "1h15m30.918s"),
            ("1.5h", 5_400_000_000_000, "1h30m0s"),
            ("-2ms", -2_000_000, "-2ms"),
            ("1us", 1_000, "1µs"),
            ("1500ns", 1_500, "1.5µs"),
            (".5m", 30_000_000_000, "30s"),
            ("24h", 86_400_000_000_000, "24h0m0s"),
        ] {
            assert_eq!(parse(text), Some(nanos), "{text}");
            assert_eq!(format(nanos), written);
        }
        for text in ["", "1", "s", ".s", "1x", "1s2", "1.2.3s", "-", "9999999999h"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(nanos in any::<i64>().prop_filter("beyond Go's range", |n| *n != i64::MIN)) {
            prop_assert_eq!(parse(&format(nanos)), Some(nanos));
        }

        #[test]
        fn never_panics(text in "[-+]?[0-9.hmsuµn]{0,30}") {
            let _ = parse(&text);
        }
    }
}
