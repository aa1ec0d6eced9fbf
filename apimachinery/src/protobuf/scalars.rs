//! Times and raw JSON between their JSON and protobuf forms.

use std::ops::RangeInclusive;

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
