//! Times, durations and raw JSON between their JSON and protobuf forms.

use std::{fmt::Write as _, ops::RangeInclusive};

use jiff::{
    SignedDuration,
    civil::DateTime,
    fmt::temporal::{DateTimePrinter, Pieces},
    tz::Offset,
};
use serde_json::Value;

use super::{
    Problem,
    wire::{Payload, Reader, write_varint_field},
};

/// The seconds since 1970 of Go's zero time, which is an empty message.
const ZERO_TIME_SECONDS: i64 = -62_135_596_800;
const NANOSECONDS_PER_SECOND: i32 = 1_000_000_000;
const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);
/// Go writes no other years.
const YEARS: RangeInclusive<i16> = 0..=9999;

/// Writes the members of a time. Upstream keeps microseconds of a `MicroTime`, and of a `Time` seconds alone.
pub(super) fn write_time(out: &mut Vec<u8>, text: &str, is_micro: bool) -> Option<()> {
    // A `jiff::Timestamp` ends a day before the year 9999 does.
    let pieces = Pieces::parse(text).ok()?;
    let local = pieces.date().to_datetime(pieces.time()?);
    let since_epoch =
        local.duration_since(EPOCH).checked_sub(pieces.to_numeric_offset()?.duration_since(Offset::UTC))?;
    let (mut seconds, mut fraction) = (since_epoch.as_secs(), since_epoch.subsec_nanos());
    if fraction < 0 {
        seconds -= 1;
        fraction += NANOSECONDS_PER_SECOND;
    }
    if seconds == ZERO_TIME_SECONDS && fraction == 0 {
        return Some(());
    }
    write_varint_field(out, 1, seconds.cast_unsigned());
    let fraction = if is_micro { fraction - fraction % 1000 } else { 0 };
    write_varint_field(out, 2, u64::try_from(fraction).ok()?);
    Some(())
}

/// The JSON form of a time; `null` for Go's zero time.
pub(super) fn read_time(message: &[u8], is_micro: bool) -> Result<Value, Problem> {
    if message.is_empty() {
        return Ok(Value::Null);
    }
    let [seconds, nanoseconds] = read_numbers(message)?;
    if seconds == ZERO_TIME_SECONDS && (nanoseconds == 0 || !is_micro) {
        return Ok(Value::Null);
    }
    let fraction = if is_micro { i32::try_from(nanoseconds).map_err(|_| Problem::TimeRange)? } else { 0 };
    if !(0..NANOSECONDS_PER_SECOND).contains(&fraction) {
        return Err(Problem::TimeRange);
    }
    let time = EPOCH.checked_add(SignedDuration::new(seconds, fraction)).ok();
    let time = time.filter(|time| YEARS.contains(&time.year())).ok_or(Problem::TimeRange)?;
    let printer = DateTimePrinter::new().precision(Some(if is_micro { 6 } else { 0 }));
    Ok(format!("{}Z", printer.datetime_to_string(&time)).into())
}

/// The members 1 and 2 of a message, both numbers.
fn read_numbers(message: &[u8]) -> Result<[i64; 2], Problem> {
    let mut numbers = [0; 2];
    let mut reader = Reader::new(message);
    while let Some((number, payload)) = reader.next()? {
        let place = if number <= 2 { (number - 1) as usize } else { continue };
        let Payload::Varint(value) = payload else {
            let found = payload.wire_type() as u8;
            return Err(Problem::WireType { expected: "int64".to_owned(), found });
        };
        numbers[place] = value.cast_signed();
    }
    Ok(numbers)
}

/// Nanoseconds of a duration in Go's form: `1h2m0.5s`.
pub(super) fn parse_duration(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(end);
        let unit_end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_end);
        let unit = DURATION_UNITS.iter().find(|(name, _)| *name == unit).map(|(_, nanoseconds)| *nanoseconds)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || number.len() > 30 {
            return None;
        }
        let digits: i128 = format!("0{whole}{fraction}").parse().ok()?;
        let scale = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
        total = total.checked_add(digits.checked_mul(unit)? / scale)?;
        rest = after;
    }
    i64::try_from(if negative { -total } else { total }).ok()
}

const DURATION_UNITS: [(&str, i128); 8] = [
    ("ns", 1),
    ("us", 1000),
    ("µs", 1000),
    ("μs", 1000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// A duration as Go's `Duration.String` writes it.
pub(super) fn format_duration(nanoseconds: i64) -> String {
    let amount = nanoseconds.unsigned_abs();
    let sign = if nanoseconds < 0 { "-" } else { "" };
    let with_fraction = |whole: u64, fraction: u64, digits: usize, unit: &str| {
        let fraction = format!("{fraction:0digits$}");
        let fraction = fraction.trim_end_matches('0');
        let point = if fraction.is_empty() { "" } else { "." };
        format!("{whole}{point}{fraction}{unit}")
    };
    let text = match amount {
        0 => return "0s".to_owned(),
        1..1000 => format!("{amount}ns"),
        1000..1_000_000 => with_fraction(amount / 1000, amount % 1000, 3, "µs"),
        1_000_000..1_000_000_000 => with_fraction(amount / 1_000_000, amount % 1_000_000, 6, "ms"),
        _ => {
            let (seconds, fraction) = (amount / 1_000_000_000, amount % 1_000_000_000);
            let mut text = String::new();
            if seconds >= 3600 {
                let _ = write!(text, "{}h", seconds / 3600);
            }
            if seconds >= 60 {
                let _ = write!(text, "{}m", seconds / 60 % 60);
            }
            text + &with_fraction(seconds % 60, fraction, 9, "s")
        }
    };
    format!("{sign}{text}")
}

/// A number as Go writes a `float64` in JSON: without a fraction if it has none.
pub(super) fn json_number(number: f64) -> Value {
    /// Every whole number up to this one is exact.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if number.fract() == 0.0 && number.abs() <= EXACT {
        let whole: Result<i64, _> = format!("{number:.0}").parse();
        return whole.map_or(Value::Null, Value::from);
    }
    Value::from(number)
}
