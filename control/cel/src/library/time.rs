//! Parts of timestamps and durations: the getters of cel-go's standard library, in UTC if no zone is given.

use super::{Native, Row, member};
use crate::{
    cost::Cost,
    error::EvalError,
    value::{self, Civil, Outcome, Value},
};

const fn of_timestamp(function: &'static str, id: &'static str, body: Native) -> Row {
    member(function, id, "timestamp -> int", Cost::One, body)
}

const fn with_zone(function: &'static str, id: &'static str, body: Native) -> Row {
    member(function, id, "timestamp, string -> int", Cost::One, body)
}

const fn of_duration(function: &'static str, id: &'static str, body: Native) -> Row {
    member(function, id, "duration -> int", Cost::One, body)
}

pub(super) const ROWS: &[Row] = &[
    of_timestamp("getFullYear", "timestamp_to_year", year),
    with_zone("getFullYear", "timestamp_to_year_with_tz", year),
    of_timestamp("getMonth", "timestamp_to_month", month),
    with_zone("getMonth", "timestamp_to_month_with_tz", month),
    of_timestamp("getDayOfYear", "timestamp_to_day_of_year", day_of_year),
    with_zone("getDayOfYear", "timestamp_to_day_of_year_with_tz", day_of_year),
    of_timestamp("getDayOfMonth", "timestamp_to_day_of_month", day_of_month),
    with_zone("getDayOfMonth", "timestamp_to_day_of_month_with_tz", day_of_month),
    of_timestamp("getDate", "timestamp_to_day_of_month_1_based", date),
    with_zone("getDate", "timestamp_to_day_of_month_1_based_with_tz", date),
    of_timestamp("getDayOfWeek", "timestamp_to_day_of_week", day_of_week),
    with_zone("getDayOfWeek", "timestamp_to_day_of_week_with_tz", day_of_week),
    of_timestamp("getHours", "timestamp_to_hours", hours),
    with_zone("getHours", "timestamp_to_hours_with_tz", hours),
    of_duration("getHours", "duration_to_hours", duration_hours),
    of_timestamp("getMinutes", "timestamp_to_minutes", minutes),
    with_zone("getMinutes", "timestamp_to_minutes_with_tz", minutes),
    of_duration("getMinutes", "duration_to_minutes", duration_minutes),
    of_timestamp("getSeconds", "timestamp_to_seconds", seconds),
    with_zone("getSeconds", "timestamp_to_seconds_tz", seconds),
    of_duration("getSeconds", "duration_to_seconds", duration_seconds),
    of_timestamp("getMilliseconds", "timestamp_to_milliseconds", milliseconds),
    with_zone("getMilliseconds", "timestamp_to_milliseconds_with_tz", milliseconds),
    of_duration("getMilliseconds", "duration_to_milliseconds", duration_milliseconds),
];

fn part<'a>(args: &[Value<'a>], of: fn(Civil) -> i64) -> Outcome<'a> {
    let (at, zone) = match args {
        [Value::Timestamp(at)] => (*at, "UTC"),
        [Value::Timestamp(at), Value::String(zone)] => (*at, &**zone),
        _ => return Err(EvalError::no_such_overload()),
    };
    value::in_zone(at, zone).map(|at| Value::Int(of(at)))
}

fn year<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    part(args, |at| at.year)
}

fn month<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    part(args, |at| at.month - 1)
}

fn day_of_year<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    part(args, |at| at.day_of_year - 1)
}

fn day_of_month<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    part(args, |at| at.day - 1)
}

fn date<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    part(args, |at| at.day)
}

fn day_of_week<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    part(args, |at| at.weekday)
}

fn hours<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    part(args, |at| at.hour)
}

fn minutes<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    part(args, |at| at.minute)
}

fn seconds<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    part(args, |at| at.second)
}

fn milliseconds<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    part(args, |at| at.millisecond)
}

fn whole<'a>(args: &[Value<'a>], nanos_of_one: i64) -> Outcome<'a> {
    match args {
        [Value::Duration(nanos)] => Ok(Value::Int(nanos / nanos_of_one)),
        _ => Err(EvalError::no_such_overload()),
    }
}

fn duration_hours<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    whole(args, 3_600_000_000_000)
}

fn duration_minutes<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    whole(args, 60_000_000_000)
}

fn duration_seconds<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    whole(args, 1_000_000_000)
}

fn duration_milliseconds<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    whole(args, 1_000_000)
}
