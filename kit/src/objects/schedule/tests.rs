use jiff::{Timestamp, tz::TimeZone};
use proptest::prelude::*;

use super::Schedule;

#[test]
fn schedules_match_their_minutes() {
    // Minute, hour, day, month, weekday.
    for (schedule, time, wanted) in [
        ("* * * * *", [7, 3, 5, 6, 2], true),
        ("*/5 * * * *", [10, 3, 5, 6, 2], true),
        ("*/5 * * * *", [11, 3, 5, 6, 2], false),
        ("0 3 1 jan *", [0, 3, 1, 1, 4], true),
        ("0 3 1 jan mon", [0, 3, 5, 1, 1], true),
        ("0 3 1 jan mon", [0, 3, 5, 1, 2], false),
        ("0 3 1-5/2 * *", [0, 3, 5, 1, 2], true),
        ("0 3 1-5/2 * *", [0, 3, 4, 1, 2], false),
        ("@hourly", [0, 3, 4, 1, 2], true),
        ("CRON_TZ=UTC 0 3 * * *", [0, 3, 4, 1, 2], true),
    ] {
        assert_eq!(Schedule::parse(schedule).unwrap().matches(time), wanted, "{schedule} {time:?}");
    }
    assert_eq!(Schedule::parse("@every 90s").unwrap().every(), Some(90));
}

#[test]
fn what_is_no_schedule_is_told_in_upstreams_words() {
    for (schedule, why) in [
        ("", "empty spec string"),
        ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
        ("60 * * * *", "end of range (60) above maximum (59): 60"),
        ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
        ("5-3 * * * *", "beginning of range (5) beyond end of range (3): 5-3"),
        ("*/0 * * * *", "step of range should be a positive number: */0"),
        ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
        ("1/2/3 * * * *", "too many slashes: 1/2/3"),
        ("x * * * *", "failed to parse int from x: strconv.Atoi: parsing \"x\": invalid syntax"),
        ("@never", "unrecognized descriptor: @never"),
    ] {
        assert_eq!(Schedule::parse(schedule), Err(why.to_owned()), "{schedule}");
    }
}

fn zone(name: &str) -> TimeZone {
    TimeZone::get(name).unwrap()
}

fn next(schedule: &str, after: &str, zone_name: &str) -> Option<String> {
    let next = Schedule::parse(schedule).unwrap().next(after.parse().unwrap(), &zone(zone_name))?;
    Some(next.to_zoned(zone(zone_name)).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string())
}

#[test]
fn the_next_time_is_later_and_in_the_schedule() {
    for (schedule, after, wanted) in [
        ("*/15 * * * *", "2026-07-09T14:45:00Z", "2026-07-09T15:00:00+00:00"),
        ("*/15 * * * *", "2026-07-09T14:59:59Z", "2026-07-09T15:00:00+00:00"),
        ("*/15 * * * *", "2026-07-09T14:59:59.5Z", "2026-07-09T15:00:00+00:00"),
        ("20-35/15 * * * *", "2026-07-09T15:45:00Z", "2026-07-09T16:20:00+00:00"),
        ("*/15 * * * *", "2026-12-31T23:59:45Z", "2027-01-01T00:00:00+00:00"),
        ("0 0 29 feb *", "2026-07-09T23:35:00Z", "2028-02-29T00:00:00+00:00"),
        ("0 0 1 */4 *", "2026-07-09T00:00:00Z", "2026-09-01T00:00:00+00:00"),
        ("0 0 * * mon", "2026-07-10T00:00:00Z", "2026-07-13T00:00:00+00:00"),
        ("0 0 13 * fri", "2026-07-09T00:00:00Z", "2026-07-10T00:00:00+00:00"),
        ("30 6-16/4 * * 1-5", "2026-07-10T14:30:00Z", "2026-07-13T06:30:00+00:00"),
        ("@weekly", "2026-07-09T00:00:00Z", "2026-07-12T00:00:00+00:00"),
        ("@every 90s", "2026-07-09T00:00:10.7Z", "2026-07-09T00:01:40+00:00"),
    ] {
        assert_eq!(next(schedule, after, "UTC").as_deref(), Some(wanted), "{schedule} after {after}");
    }
    assert_eq!(next("0 0 31 2 *", "2026-01-01T00:00:00Z", "UTC"), None, "no such day");
}

/// As upstream's library does it: a time that a day does not have is left out, and one that it has twice comes twice.
#[test]
fn clocks_that_change() {
    let new_york = "America/New_York";
    for (schedule, after, wanted) in [
        // The hour from two to three of March 8 is not.
        ("30 2 8 mar *", "2026-03-08T00:00:00-05:00", "2027-03-08T02:30:00-05:00"),
        ("0 2 * * *", "2026-03-08T00:00:00-05:00", "2026-03-09T02:00:00-04:00"),
        ("0 * * * *", "2026-03-08T01:00:00-05:00", "2026-03-08T03:00:00-04:00"),
        ("0 3 * * *", "2026-03-08T00:00:00-05:00", "2026-03-08T03:00:00-04:00"),
        // The hour from one to two of November 1 comes twice.
        ("30 1 1 nov *", "2026-11-01T01:45:00-04:00", "2026-11-01T01:30:00-05:00"),
        ("0 1 * * *", "2026-11-01T00:00:00-04:00", "2026-11-01T01:00:00-04:00"),
        ("0 1 * * *", "2026-11-01T01:00:00-04:00", "2026-11-01T01:00:00-05:00"),
        ("0 1 * * *", "2026-11-01T01:00:00-05:00", "2026-11-02T01:00:00-05:00"),
        ("0 * * * *", "2026-11-01T01:00:00-05:00", "2026-11-01T02:00:00-05:00"),
        ("30 2 1 nov *", "2026-11-01T00:00:00-04:00", "2026-11-01T02:30:00-05:00"),
    ] {
        assert_eq!(next(schedule, after, new_york).as_deref(), Some(wanted), "{schedule} after {after}");
    }
    // Midnight itself may be left out, and offsets need not be whole hours.
    let cases = [
        ("0 0 * * *", "2018-11-03T12:00:00-03:00", "America/Sao_Paulo", "2018-11-05T00:00:00-02:00"),
        ("0 12 4 nov *", "2018-11-03T12:00:00-03:00", "America/Sao_Paulo", "2018-11-04T12:00:00-02:00"),
        ("45 2 * * *", "2026-10-03T12:00:00+10:30", "Australia/Lord_Howe", "2026-10-04T02:45:00+11:00"),
        ("15 2 4 oct *", "2026-10-03T12:00:00+10:30", "Australia/Lord_Howe", "2027-10-04T02:15:00+11:00"),
        ("0 9 * * *", "2026-06-01T00:00:00Z", "Asia/Kathmandu", "2026-06-01T09:00:00+05:45"),
    ];
    for (schedule, after, name, wanted) in cases {
        assert_eq!(next(schedule, after, name).as_deref(), Some(wanted), "{schedule} after {after} in {name}");
    }
    // The zone of the text comes first.
    let tokyo = Schedule::parse("TZ=Asia/Tokyo 0 9 * * *").unwrap();
    let wanted: Timestamp = "2026-06-01T00:00:00Z".parse().unwrap();
    assert_eq!(tokyo.next("2026-05-31T12:00:00Z".parse().unwrap(), &zone(new_york)), Some(wanted));
}

proptest! {
    /// No minute of the schedule lies between a time and the next one.
    #[test]
    fn nothing_is_left_out(
        minute in 0u8..60, hour in 0u8..24, start in 1_770_000_000i64..1_830_000_000,
        name in prop::sample::select(vec!["UTC", "America/New_York", "Europe/Berlin", "Australia/Lord_Howe"]),
    ) {
        let schedule = Schedule::parse(&format!("{minute},7 {hour},3 * * *")).unwrap();
        let (zone, after) = (zone(name), Timestamp::from_second(start).unwrap());
        let next = schedule.next(after, &zone).unwrap();
        let mut minutes = start / 60 * 60 + 60;
        loop {
            let at = Timestamp::from_second(minutes).unwrap().to_zoned(zone.clone());
            let number = |n: i8| u32::try_from(n).unwrap();
            let weekday = number(at.weekday().to_sunday_zero_offset());
            let time = [number(at.minute()), number(at.hour()), number(at.day()), number(at.month()), weekday];
            if schedule.matches(time) {
                prop_assert_eq!(at.timestamp(), next);
                break;
            }
            minutes += 60;
            prop_assert!(minutes < start + 3 * 86_400);
        }
    }
}
