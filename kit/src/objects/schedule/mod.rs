//! Schedules of CronJobs: `minute hour day-of-month month day-of-week`, with upstream's words for what is wrong
//! (`github.com/robfig/cron`), and the times that they name. Pure.

mod next;
#[cfg(test)]
mod tests;

use jiff::tz::TimeZone;

/// Upstream's bit that says that a field was `*`.
const STAR: u64 = 1 << 63;

/// A range of numbers and their names.
struct Bounds {
    min: u32,
    max: u32,
    names: &'static [&'static str],
}

const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
const FIELDS: [Bounds; 5] = [
    Bounds { min: 0, max: 59, names: &[] },
    Bounds { min: 0, max: 23, names: &[] },
    Bounds { min: 1, max: 31, names: &[] },
    Bounds { min: 1, max: 12, names: &MONTHS },
    Bounds { min: 0, max: 6, names: &DAYS },
];

/// A schedule: for each field the set of its numbers, one bit each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// Minutes, hours, days of the month, months, days of the week.
    fields: [u64; 5],
    /// Seconds between two runs, for `@every`.
    every: Option<u64>,
    /// The time zone that the text names itself.
    zone: Option<TimeZone>,
}

impl Schedule {
    /// Reads a schedule.
    ///
    /// # Errors
    /// Upstream's words for what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("empty spec string".to_owned());
        }
        let (zone, text) = split_zone(text)?;
        Ok(Self { zone, ..Self::parse_fields(text)? })
    }

    fn parse_fields(text: &str) -> Result<Self, String> {
        if let Some(descriptor) = text.strip_prefix('@') {
            return Self::descriptor(text, descriptor);
        }
        let parts: Vec<&str> = text.split_whitespace().collect();
        if parts.len() != FIELDS.len() {
            return Err(format!("expected exactly 5 fields, found {}: [{}]", parts.len(), parts.join(" ")));
        }
        let mut fields = [0; 5];
        for ((field, part), bounds) in fields.iter_mut().zip(parts).zip(&FIELDS) {
            for range in part.split(',').filter(|range| !range.is_empty()) {
                *field |= bits(range, bounds)?;
            }
        }
        Ok(Self { fields, every: None, zone: None })
    }

    fn descriptor(text: &str, descriptor: &str) -> Result<Self, String> {
        let of = |text: &str| Self::parse_fields(text);
        match descriptor {
            "yearly" | "annually" => of("0 0 1 1 *"),
            "monthly" => of("0 0 1 * *"),
            "weekly" => of("0 0 * * 0"),
            "daily" | "midnight" => of("0 0 * * *"),
            "hourly" => of("0 * * * *"),
            _ => match descriptor.strip_prefix("every ") {
                Some(every) => match crate::duration::parse(every) {
                    Some(every) => Ok(Self { fields: [0; 5], every: Some(every.as_secs().max(1)), zone: None }),
                    None => Err(format!("failed to parse duration {text}: time: invalid duration {every:?}")),
                },
                None => Err(format!("unrecognized descriptor: {text}")),
            },
        }
    }

    /// The seconds between two runs, where the schedule is `@every`.
    #[must_use]
    pub fn every(&self) -> Option<u64> {
        self.every
    }

    /// Whether a minute belongs to the schedule: minute, hour, day of the month, month, and day of the week with
    /// Sunday as 0.
    #[must_use]
    pub fn matches(&self, time: [u32; 5]) -> bool {
        let [minute, hour, day, month, weekday] = time.map(|number| i8::try_from(number).unwrap_or(i8::MAX));
        self.every.is_none()
            && self.has(0, minute)
            && self.has(1, hour)
            && self.has(3, month)
            && self.has_day(day, weekday)
    }

    /// Whether the number belongs to the field at this place.
    fn has(&self, field: usize, number: i8) -> bool {
        u32::try_from(number).is_ok_and(|number| number < 63 && self.fields[field] & (1 << number) != 0)
    }

    /// Whether a day of the month and of the week belongs to the schedule: where both are given, one suffices.
    fn has_day(&self, day: i8, weekday: i8) -> bool {
        let (month, week) = (self.has(2, day), self.has(4, weekday));
        if (self.fields[2] | self.fields[4]) & STAR == 0 { month || week } else { month && week }
    }
}

/// The time zone before a schedule, and the schedule.
fn split_zone(text: &str) -> Result<(Option<TimeZone>, &str), String> {
    if !text.starts_with("TZ=") && !text.starts_with("CRON_TZ=") {
        return Ok((None, text));
    }
    let (zone, rest) = text.split_once(' ').unwrap_or((text, ""));
    let zone = zone.split_once('=').map_or("", |(_, zone)| zone);
    match TimeZone::get(zone) {
        Ok(found) => Ok((Some(found), rest.trim())),
        Err(_) => Err(format!("provided bad location {zone}: unknown time zone {zone}")),
    }
}

/// The numbers of `*`, `3`, `3-5` and each with `/2`.
fn bits(range: &str, bounds: &Bounds) -> Result<u64, String> {
    let parts: Vec<&str> = range.split('/').collect();
    let ends: Vec<&str> = parts[0].split('-').collect();
    let (start, mut end, star) = if matches!(ends[0], "*" | "?") {
        (bounds.min, bounds.max, STAR)
    } else {
        let start = number_or_name(ends[0], bounds)?;
        let end = match ends[..] {
            [_] => start,
            [_, end] => number_or_name(end, bounds)?,
            _ => return Err(format!("too many hyphens: {range}")),
        };
        (start, end, 0)
    };
    let (step, star) = match parts[..] {
        [_] => (1, star),
        [_, step] => {
            let step = number(step)?;
            // `3/2` is `3-max/2`.
            if ends.len() == 1 {
                end = bounds.max;
            }
            (step, if step > 1 { 0 } else { star })
        }
        _ => return Err(format!("too many slashes: {range}")),
    };
    if start < bounds.min {
        return Err(format!("beginning of range ({start}) below minimum ({}): {range}", bounds.min));
    }
    if end > bounds.max {
        return Err(format!("end of range ({end}) above maximum ({}): {range}", bounds.max));
    }
    if start > end {
        return Err(format!("beginning of range ({start}) beyond end of range ({end}): {range}"));
    }
    let step = usize::try_from(step).unwrap_or(usize::MAX);
    if step == 0 {
        return Err(format!("step of range should be a positive number: {range}"));
    }
    Ok((start..=end).step_by(step).fold(star, |bits, number| bits | (1 << number)))
}

fn number_or_name(text: &str, bounds: &Bounds) -> Result<u32, String> {
    let lower = text.to_lowercase();
    let named = bounds.names.iter().position(|name| *name == lower).and_then(|at| u32::try_from(at).ok());
    named.map_or_else(|| number(text), |at| Ok(at + bounds.min))
}

fn number(text: &str) -> Result<u32, String> {
    let parsed = text.parse::<i64>();
    match parsed {
        Ok(negative) if negative < 0 => Err(format!("negative number ({negative}) not allowed: {text}")),
        Ok(number) => Ok(u32::try_from(number).unwrap_or(u32::MAX)),
        Err(_) => Err(format!("failed to parse int from {text}: strconv.Atoi: parsing {text:?}: invalid syntax")),
    }
}
