use serde_json::{Value, json};

use crate::{
    duration::{format as format_duration, parse as parse_duration},
    protobuf::scalars::{json_number, read_time, write_time},
};

fn time_bytes(text: &str, is_micro: bool) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    write_time(&mut out, text, is_micro).map(|()| out)
}

#[test]
fn times_are_seconds_and_micro_times_microseconds() {
    let round = |text: &str, is_micro: bool| read_time(&time_bytes(text, is_micro).unwrap(), is_micro).unwrap();
    for (text, seconds, micros) in [
        ("2024-02-29T12:00:00Z", "2024-02-29T12:00:00Z", "2024-02-29T12:00:00.000000Z"),
        ("2024-02-29T13:00:00.123456789+01:00", "2024-02-29T12:00:00Z", "2024-02-29T12:00:00.123456Z"),
        ("1969-12-31T23:59:58.5Z", "1969-12-31T23:59:58Z", "1969-12-31T23:59:58.500000Z"),
        ("1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "1970-01-01T00:00:00.000000Z"),
        ("0001-01-01T00:00:01Z", "0001-01-01T00:00:01Z", "0001-01-01T00:00:01.000000Z"),
    ] {
        assert_eq!((round(text, false), round(text, true)), (json!(seconds), json!(micros)), "{text}");
    }
    assert_eq!(time_bytes("1970-01-01T00:00:00Z", false).unwrap(), [0x08, 0, 0x10, 0]);
    assert!(time_bytes("0001-01-01T00:00:00Z", false).unwrap().is_empty());
    assert_eq!(read_time(&[], false).unwrap(), Value::Null);
    assert_eq!(time_bytes("yesterday", false), None);
}

#[test]
fn a_time_that_cannot_be_written_is_refused() {
    for message in [
        // The greatest number of seconds, and the least.
        vec![0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
        vec![0x08, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01],
        // A text for the seconds.
        vec![0x0a, 0x01, b'1'],
    ] {
        assert!(read_time(&message, false).is_err(), "{message:?}");
    }
    // Two seconds of nanoseconds, and less than none.
    assert!(read_time(&[0x08, 1, 0x10, 0x80, 0xa8, 0xd6, 0xb9, 0x07], true).is_err());
    assert!(read_time(&[0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01], true).is_err());
}

#[test]
fn durations_are_written_as_go_writes_them() {
    for (text, nanoseconds, written) in [
        ("0", 0, "0s"),
        ("1ns", 1, "1ns"),
        ("1.5us", 1500, "1.5µs"),
        ("20ms", 20_000_000, "20ms"),
        ("1m30s", 90_000_000_000, "1m30s"),
        ("-1.5h", -5_400_000_000_000, "-1h30m0s"),
        ("100h0.25s", 360_000_250_000_000, "100h0m0.25s"),
        ("9223372036.854775807s", i64::MAX, "2562047h47m16.854775807s"),
    ] {
        assert_eq!(parse_duration(text), Some(nanoseconds), "{text}");
        assert_eq!(format_duration(nanoseconds), written);
        assert_eq!(parse_duration(written), Some(nanoseconds), "{written}");
    }
    for text in ["", "1", "s", ".s", "1d", "1s5", "9223372036.854775808s", "-"] {
        assert_eq!(parse_duration(text), None, "{text}");
    }
}

#[test]
fn whole_numbers_have_no_fraction() {
    let shown = |number: f64| json_number(number).to_string();
    assert_eq!([shown(100.0), shown(-0.0), shown(0.5), shown(-1.5)], ["100", "0", "0.5", "-1.5"]);
    assert_eq!(shown(9_007_199_254_740_992.0), "9007199254740992");
    assert_eq!(json_number(f64::NAN), Value::Null);
}
