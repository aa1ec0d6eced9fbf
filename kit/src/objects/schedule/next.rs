//! The time of a schedule that comes next. Pure.

use jiff::{SignedDuration, Timestamp, Zoned, civil::Date, tz::TimeZone};

use super::Schedule;

/// A schedule without a match in this many years never matches, such as February 31.
const YEARS: i16 = 5;

impl Schedule {
    /// The first time of the schedule after `after`, by the clocks of `zone` unless the schedule names a zone itself; `None`
    /// when it names no time.
    ///
    /// A time that clocks leave out, as in spring, is no time of the schedule; one that they show twice, as in autumn, is two.
    #[must_use]
    pub fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let second = Timestamp::from_second(after.as_second()).ok()?;
        if let Some(every) = self.every {
            return second.checked_add(SignedDuration::from_secs(i64::try_from(every).ok()?)).ok();
        }
        let zone = self.zone.as_ref().unwrap_or(zone);
        let mut at = second.checked_add(SignedDuration::from_secs(1)).ok()?.to_zoned(zone.clone());
        let last = at.year().checked_add(YEARS)?;
        while at.year() <= last {
            let step = if !self.has(3, at.month()) {
                until(&at, at.date().last_of_month().tomorrow().ok()?)
            } else if !self.has_day(at.day(), at.weekday().to_sunday_zero_offset()) {
                until(&at, at.date().tomorrow().ok()?)
            } else if !self.has(1, at.hour()) {
                SignedDuration::from_mins(60 - i64::from(at.minute())) - seconds(&at)
            } else if at.second() != 0 || !self.has(0, at.minute()) {
                SignedDuration::from_mins(1) - seconds(&at)
            } else {
                return Some(at.timestamp());
            };
            at = forward(&at, step)?;
        }
        None
    }
}

/// The seconds of the minute that have passed.
fn seconds(at: &Zoned) -> SignedDuration {
    SignedDuration::from_secs(i64::from(at.second()))
}

/// How long it is until a day begins; a minute where it has begun once already.
fn until(at: &Zoned, day: Date) -> SignedDuration {
    let begins =
        at.time_zone().to_zoned(day.at(0, 0, 0, 0)).map(|begins| at.timestamp().duration_until(begins.timestamp()));
    begins.ok().filter(SignedDuration::is_positive).unwrap_or_else(|| SignedDuration::from_mins(1) - seconds(at))
}

/// A step, but not over a change of the clocks: after it, another time may be due.
fn forward(at: &Zoned, step: SignedDuration) -> Option<Zoned> {
    let to = at.timestamp().checked_add(step).ok()?;
    let change = at.time_zone().following(at.timestamp()).next().map(|change| change.timestamp());
    Some(change.map_or(to, |change| to.min(change)).to_zoned(at.time_zone().clone()))
}
