//! Moments and spans of time, with Go's ranges, texts and time zones.

use jiff::{
    Timestamp as Moment,
    civil::{Date, Time},
    tz::TimeZone,
};

use crate::error::EvalError;

/// A moment between the years 1 and 9999, and the zone that it was written in.
#[derive(Debug, Clone, Copy)]
pub struct Timestamp {
    /// Seconds since 1970.
    seconds: i64,
    nanos: u32,
    /// Seconds that the zone is east of UTC.
    offset: i32,
}

/// cel-go's `minUnixTime` and `maxUnixTime`.
const MIN_SECONDS: i64 = -62_135_596_800;
const MAX_SECONDS: i64 = 253_402_300_799;
const NANOS: i128 = 1_000_000_000;

impl Timestamp {
    /// A moment in UTC; nothing outside of the years 1 to 9999.
    #[must_use]
    pub fn from_seconds(seconds: i64) -> Option<Self> {
        (MIN_SECONDS..=MAX_SECONDS).contains(&seconds).then_some(Self { seconds, nanos: 0, offset: 0 })
    }

    /// Seconds since 1970.
    #[must_use]
    pub const fn seconds(self) -> i64 {
        self.seconds
    }

    /// Nanoseconds since 1970, whatever the zone.
    pub(super) const fn instant(self) -> (i64, u32) {
        (self.seconds, self.nanos)
    }

    fn total(self) -> i128 {
        i128::from(self.seconds) * NANOS + i128::from(self.nanos)
    }

    /// Go's zero time.
    pub(super) const fn is_zero(self) -> bool {
        self.seconds == MIN_SECONDS && self.nanos == 0
    }

    /// A moment so many nanoseconds later.
    pub(super) fn plus(self, nanos: i64) -> Result<Self, EvalError> {
        let total = self.total() + i128::from(nanos);
        let seconds = i64::try_from(total.div_euclid(NANOS)).ok();
        let seconds = seconds.filter(|seconds| (MIN_SECONDS..=MAX_SECONDS).contains(seconds));
        let seconds = seconds.ok_or_else(|| EvalError::new("timestamp overflow"))?;
        Ok(Self { seconds, nanos: u32::try_from(total.rem_euclid(NANOS)).unwrap_or(0), ..self })
    }

    /// The nanoseconds between two moments.
    pub(super) fn since(self, other: Self) -> Result<i64, EvalError> {
        i64::try_from(self.total() - other.total()).map_err(|_| EvalError::new("integer overflow"))
    }

    /// The date and time so many seconds east of UTC.
    fn local(self, offset: i64) -> Civil {
        let seconds = self.seconds.saturating_add(offset);
        let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        let (year, month, day) = date_of(days);
        Civil {
            year,
            month,
            day,
            day_of_year: days - days_before(year) + 1,
            // 1970 began on a Thursday.
            weekday: (days + 4).rem_euclid(7),
            hour: second / 3600,
            minute: second / 60 % 60,
            second: second % 60,
            millisecond: i64::from(self.nanos / 1_000_000),
        }
    }

    /// RFC 3339 with as many digits of a second as there are; Go's `time.RFC3339Nano`.
    pub(crate) fn to_text(self) -> String {
        let at = self.local(i64::from(self.offset));
        let fraction = if self.nanos == 0 {
            String::new()
        } else {
            format!(".{:09}", self.nanos).trim_end_matches('0').to_owned()
        };
        let zone = match self.offset {
            0 => "Z".to_owned(),
            offset => {
                let minutes = offset.abs() / 60;
                format!("{}{:02}:{:02}", if offset < 0 { '-' } else { '+' }, minutes / 60, minutes % 60)
            }
        };
        format!(
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}{fraction}{zone}",
            at.year, at.month, at.day, at.hour, at.minute, at.second
        )
    }

    /// The moment in UTC.
    pub(super) const fn utc(self) -> Self {
        Self { offset: 0, ..self }
    }

    fn at(date: Date, time: Time, offset: i32) -> Option<Self> {
        let days = days_before(i64::from(date.year())) + i64::from(date.day_of_year()) - 1;
        let of_day = i64::from(time.hour()) * 3600 + i64::from(time.minute()) * 60 + i64::from(time.second());
        let seconds = days * 86_400 + of_day - i64::from(offset);
        Some(Self { seconds, nanos: u32::try_from(time.subsec_nanosecond()).ok()?, offset })
    }

    /// A date alone, at its first second in UTC.
    pub(super) fn parse_date(text: &str) -> Option<Self> {
        Self::at(date(text)?, Time::midnight(), 0)
    }

    /// A text of the format date-time as `strfmt.ParseDateTime` reads it: also with fewer parts.
    pub(super) fn parse_lenient(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Self::from_seconds(0);
        }
        if let Some(found) = rfc3339(text) {
            return Some(found);
        }
        let (day, rest) = text.split_at_checked(10)?;
        let clock = rest.strip_prefix('T')?;
        let (clock, offset) =
            clock.strip_suffix('Z').map(|clock| (clock, 0)).or_else(|| zone_of(clock)).unwrap_or((clock, 0));
        let seconds = if clock.len() == 5 { format!("{clock}:00") } else { clock.to_owned() };
        Self::at(date(day)?, self::clock(&seconds)?, offset)
    }
}

/// A date and time of day in some zone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Civil {
    pub(crate) year: i64,
    /// From 1 on, as the days.
    pub(crate) month: i64,
    pub(crate) day: i64,
    pub(crate) day_of_year: i64,
    /// From Sunday on, which is 0.
    pub(crate) weekday: i64,
    pub(crate) hour: i64,
    pub(crate) minute: i64,
    pub(crate) second: i64,
    pub(crate) millisecond: i64,
}

/// The days from 1970 to the beginning of a year.
const fn days_before(year: i64) -> i64 {
    let before = year - 1;
    before * 365 + before.div_euclid(4) - before.div_euclid(100) + before.div_euclid(400) - 719_162
}

/// The year, month and day of a day since 1970.
fn date_of(days: i64) -> (i64, i64, i64) {
    // A year is never shorter than 365 days, and so this is the year, or the one after it.
    let estimate = 1970 + days.div_euclid(365).min(days * 400 / 146_097 + 1);
    let mut year = estimate;
    while days_before(year) > days {
        year -= 1;
    }
    while days_before(year + 1) <= days {
        year += 1;
    }
    let is_leap = days_before(year + 1) - days_before(year) == 366;
    let mut rest = days - days_before(year);
    for (month, length) in (1..).zip([31, if is_leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]) {
        if rest < length {
            return (year, month, rest + 1);
        }
        rest -= length;
    }
    (year, 12, 31)
}

fn digits(text: &str, length: usize) -> Option<i32> {
    (text.len() == length && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok())?
}

fn date(text: &str) -> Option<Date> {
    let mut parts = text.split('-');
    let (year, month, day) = (parts.next()?, parts.next()?, parts.next()?);
    let small = |text: &str| i8::try_from(digits(text, 2)?).ok();
    let year = i16::try_from(digits(year, 4)?).ok()?;
    if parts.next().is_some() {
        return None;
    }
    Date::new(year, small(month)?, small(day)?).ok()
}

/// `15:04:05`, with digits of a second after a point or a comma.
fn clock(text: &str) -> Option<Time> {
    let (whole, fraction) = match text.split_once(['.', ',']) {
        Some((whole, fraction)) if !fraction.is_empty() && fraction.bytes().all(|b| b.is_ascii_digit()) => {
            (whole, fraction)
        }
        Some(_) => return None,
        None => (text, ""),
    };
    let mut parts = whole.split(':');
    let (hour, minute, second) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    // Go takes an hour of one digit, but then a colon at its place.
    let hour = digits(hour, hour.len().clamp(1, 2))?;
    let nanos: i32 = format!("{:0<9}", fraction.get(..9).unwrap_or(fraction)).parse().ok()?;
    let small = |number: i32| i8::try_from(number).ok();
    Time::new(small(hour)?, small(digits(minute, 2)?)?, small(digits(second, 2)?)?, nanos).ok()
}

/// The text before `+01:00`, and how many seconds that is.
fn zone_of(text: &str) -> Option<(&str, i32)> {
    let (before, zone) = text.split_at_checked(text.len().checked_sub(6)?)?;
    let sign = match zone.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    let (hours, minutes) = (digits(hours, 2)?, digits(minutes, 2)?);
    (hours <= 24 && minutes < 60).then_some((before, sign * (hours * 3600 + minutes * 60)))
}

fn rfc3339(text: &str) -> Option<Timestamp> {
    let (day, rest) = text.split_at_checked(10)?;
    let rest = rest.strip_prefix('T')?;
    let (clock_text, offset) = match rest.strip_suffix('Z') {
        Some(clock) => (clock, 0),
        None => zone_of(rest)?,
    };
    Timestamp::at(date(day)?, clock(clock_text)?, offset)
}

/// A text as Go's `time.Parse(time.RFC3339, …)` reads it. `Ok(None)` for any other text.
///
/// # Errors
/// The moment is outside of the years 1 to 9999.
pub(crate) fn parse_timestamp(text: &str) -> Result<Option<Timestamp>, EvalError> {
    match rfc3339(text) {
        Some(found) if !(MIN_SECONDS..=MAX_SECONDS).contains(&found.seconds) => {
            Err(EvalError::new("timestamp overflow"))
        }
        found => Ok(found),
    }
}

/// Nanoseconds of a text that Go's `time.ParseDuration` takes.
pub(crate) fn parse_duration(text: &str) -> Option<i64> {
    windlass_apimachinery::duration::parse(text)
}

/// Nanoseconds of a text of the format duration, `strfmt.ParseDuration`: Go's, or a number and a unit in words.
pub(super) fn parse_format_duration(text: &str) -> Option<i64> {
    if let Some(nanos) = parse_duration(text) {
        return Some(nanos);
    }
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: i64 = text[..digits].parse().ok()?;
    let unit = match text[digits..].trim() {
        "ns" | "nano" | "nanos" | "nanosecond" | "nanoseconds" => 1,
        "us" | "µs" | "micro" | "micros" | "microsecond" | "microseconds" => 1_000,
        "ms" | "milli" | "millis" | "millisecond" | "milliseconds" => 1_000_000,
        "s" | "sec" | "secs" | "second" | "seconds" => 1_000_000_000,
        "m" | "min" | "mins" | "minute" | "minutes" => 60_000_000_000,
        "h" | "hr" | "hour" | "hours" => 3_600_000_000_000,
        "d" | "day" | "days" => 86_400_000_000_000,
        "w" | "week" | "weeks" | "wk" | "wks" => 604_800_000_000_000,
        _ => return None,
    };
    number.checked_mul(unit)
}

/// The date and time of a moment in a zone: a name of the IANA database, or `+01:00`.
///
/// # Errors
/// Go's words for a zone that is none.
pub(crate) fn in_zone(at: Timestamp, zone: &str) -> Result<Civil, EvalError> {
    let Some((hours, minutes)) = zone.split_once(':') else {
        if zone.is_empty() || zone == "UTC" || zone == "Local" {
            return Ok(at.local(0));
        }
        if zone.contains("..") || zone.starts_with('/') || zone.contains('\\') {
            return Err(EvalError::new("time: invalid location name"));
        }
        let unknown = || EvalError::new(format!("unknown time zone {zone}"));
        let found = TimeZone::get(zone).map_err(|_| unknown())?;
        // Names of zones are files for Go, whose letters must be the same.
        if found.iana_name().is_some_and(|name| name != zone) {
            return Err(unknown());
        }
        // Zones do not change near the ends of time, which are further away here than there.
        let seconds = at.seconds.clamp(Moment::MIN.as_second(), Moment::MAX.as_second());
        let moment = Moment::from_second(seconds).map_err(|_| unknown())?;
        return Ok(at.local(i64::from(found.to_offset(moment).seconds())));
    };
    let number = |text: &str| {
        text.parse::<i64>().map_err(|why| {
            let why = match why.kind() {
                std::num::IntErrorKind::PosOverflow | std::num::IntErrorKind::NegOverflow => "value out of range",
                _ => "invalid syntax",
            };
            EvalError::new(format!("strconv.Atoi: parsing {}: {why}", windlass_apimachinery::go_quoted(text)))
        })
    };
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    let minutes = if zone.starts_with('-') { minutes.saturating_neg() } else { minutes };
    let seconds = hours.saturating_mul(3600).saturating_add(minutes.saturating_mul(60));
    // A zone of more than some years is no zone, and Go's arithmetic wraps around.
    Ok(at.local(seconds.clamp(-1_000_000_000, 1_000_000_000)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_have_their_dates() {
        for (days, date) in [
            (0, (1970, 1, 1)),
            (-1, (1969, 12, 31)),
            (59, (1970, 3, 1)),
            (11_016, (2000, 2, 29)),
            (18_321, (2020, 2, 29)),
            (-719_162, (1, 1, 1)),
            (2_932_896, (9999, 12, 31)),
        ] {
            assert_eq!(date_of(days), date, "{days}");
        }
    }
}
