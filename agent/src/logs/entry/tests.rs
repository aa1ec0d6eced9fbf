use proptest::prelude::*;

use super::*;

fn content(line: &str) -> Option<String> {
    let entry = parse(line.as_bytes())?;
    let mut out = Vec::new();
    entry.content.write(&mut out);
    Some(String::from_utf8(out).expect("the table holds text"))
}

#[test]
fn lines_of_both_formats() {
    let json = |log: &str| format!(r#"{{"log":"{log}","stream":"stdout","time":"2026-01-01T00:00:00.5Z"}}"#);
    for (line, expected, ends) in [
        (json(r"hello\n"), "hello\n", true),
        (json("half of a line"), "half of a line", false),
        (json(""), "", false),
        (json(r"\\n"), "\\n", false),
        (json(r"\\\n"), "\\\n", true),
        (json(r#"quote \" slash \/ tab \t\n"#), "quote \" slash / tab \t\n", true),
        (json(r"<a> \ud83d\ude00 \ud83d \u00e9\r\n"), "<a> 😀 \u{fffd} é\r\n", true),
        (json(r#"\",\"stream\":\"stderr\",\"time\":\"x\"}\n"#), "\",\"stream\":\"stderr\",\"time\":\"x\"}\n", true),
        (r#"{"stream":"stderr","log":"other order\n","time":"2026-01-01T00:00:00Z"}"#.into(), "other order\n", true),
        (
            r#"{"log":"with attributes\n","stream":"stdout","attrs":{"a":"b"},"time":"2026-01-01T00:00:00Z"}"#.into(),
            "with attributes\n",
            true,
        ),
        (
            r#"{"log":"another field\n","x":"y","stream":"stdout","time":"2026-01-01T00:00:00Z"}"#.into(),
            "another field\n",
            true,
        ),
        ("2026-01-01T00:00:00.000000001Z stdout F a line".into(), "a line\n", true),
        ("2026-01-01T00:00:00.000000001Z stderr P part".into(), "part", false),
        ("2026-01-01T02:00:00.000000001+02:00 stdout F:x:y ".into(), "\n", true),
    ] {
        assert_eq!(content(&line).as_deref(), Some(expected), "{line}");
        assert_eq!(parse(line.as_bytes()).unwrap().content.ends_line(), ends, "{line}");
    }
}

#[test]
fn lines_of_neither_format() {
    for line in
        ["", "{", r#"{"log":"x"#, "no time stdout F x", "2026-01-01T00:00:00Z stdin F x", "2026-01-01T00:00:00Z stdout"]
    {
        assert_eq!(parse(line.as_bytes()), None, "{line}");
    }
}

#[test]
fn timestamps_have_nine_fractional_digits() {
    for (time, expected) in [
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00.000000000Z"),
        ("2026-01-01T00:00:00.5Z", "2026-01-01T00:00:00.500000000Z"),
        ("2026-01-01T00:00:00.123456789Z", "2026-01-01T00:00:00.123456789Z"),
        ("2026-01-01T02:00:00.5+02:00", "2026-01-01T02:00:00.5+02:00"),
        ("nonsense", "nonsense"),
    ] {
        let mut out = Vec::new();
        write_time(time.as_bytes(), &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
    assert_eq!(nanoseconds(b"1970-01-01T00:00:01.5Z"), Some(1_500_000_000));
    assert_eq!(nanoseconds(b"yesterday"), None);
}

proptest! {
    /// What Docker's encoder makes of any text comes back, and serde would say the same.
    #[test]
    fn any_text_round_trips(text in any::<String>(), newline in any::<bool>()) {
        let text = if newline { format!("{text}\n") } else { text };
        let line = serde_json::json!({"log": text, "stream": "stdout", "time": "2026-01-01T00:00:00Z"});
        let log = serde_json::to_string(&line["log"]).unwrap();
        let docker = format!(r#"{{"log":{log},"stream":"stdout","time":"2026-01-01T00:00:00Z"}}"#);
        prop_assert!(parse_docker(docker.as_bytes()).is_some());
        prop_assert_eq!(content(&docker), Some(text.clone()));
        prop_assert_eq!(parse(docker.as_bytes()).unwrap().content.ends_line(), text.ends_with('\n'));
        prop_assert_eq!(content(&line.to_string()), Some(text));
    }

    /// No bytes are too strange to be looked at, and what is taken for an entry can be written.
    #[test]
    fn any_bytes_parse_without_panic(line in prop::collection::vec(any::<u8>(), 0..200), head in any::<bool>()) {
        let line = if head { [b"{\"log\":\"", line.as_slice(), b"\",\"stream\":\"stdout\",\"time\":\"x\"}"].concat() } else { line };
        if let Some(entry) = parse(&line) {
            let mut out = Vec::new();
            entry.content.write(&mut out);
            write_time(&entry.time, &mut out);
        }
    }
}
