//! Which time of a schedule is due, and when the next one is. Pure.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use windlass_kit::objects::schedule::Schedule;

/// Above this number of missed times, TooManyMissedTimes is reported.
const MANY: usize = 100;
/// Timers come a little after their time, so that it has passed by every clock.
const AFTER: Duration = Duration::from_millis(100);

/// A schedule, by the clocks of a zone, since a time: the last one that was started, or the CronJob's creation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times<'a> {
    pub(crate) schedule: &'a Schedule,
    pub(crate) zone: &'a TimeZone,
    pub(crate) since: Timestamp,
}

impl Times<'_> {
    fn after(&self, time: Timestamp) -> Option<Timestamp> {
        self.schedule.next(time, self.zone)
    }

    /// Whether the schedule names any time.
    pub(crate) fn any(&self) -> bool {
        self.after(self.since).is_some()
    }

    /// The latest time that has come.
    pub(crate) fn due(&self, now: Timestamp) -> Option<Timestamp> {
        let has_come = |after: Timestamp| self.after(after).filter(|time| *time <= now);
        let mut due = has_come(self.since)?;
        if let Some(every) = self.every() {
            let passed = now.as_second().saturating_sub(self.since.as_second()).max(every);
            return Timestamp::from_second(self.since.as_second().saturating_add(passed / every * every)).ok();
        }
        // Between `from`, after which a time has come, and `to`, after which none has.
        let (mut from, mut to) = (self.since.as_second(), now.as_second());
        while to - from > 1 {
            let middle = from + (to - from) / 2;
            match Timestamp::from_second(middle).ok().and_then(has_come) {
                Some(time) => (from, due) = (middle, time),
                None => to = middle,
            }
        }
        Some(due)
    }

    /// Whether more than a hundred times after `from` have come.
    pub(crate) fn are_many(&self, from: Timestamp, now: Timestamp) -> bool {
        let times = std::iter::successors(self.after(from), |time| self.after(*time));
        times.take_while(|time| *time <= now).take(MANY + 1).count() > MANY
    }

    /// How long it is until the next time.
    pub(crate) fn wait(&self, now: Timestamp) -> Option<Duration> {
        // `@every` counts from the last start, not from now.
        let from = if self.every().is_some() { self.due(now).unwrap_or(self.since) } else { now };
        let wait = self.after(from)?.duration_since(now).max(SignedDuration::ZERO);
        Some(Duration::try_from(wait).unwrap_or_default() + AFTER)
    }

    fn every(&self) -> Option<i64> {
        self.schedule.every().and_then(|seconds| i64::try_from(seconds).ok())
    }
}
