//! Lines of a log file: parsing never panics, and JSON is parsed as serde does.

use serde_json::Value;
use windlass_agent::logs::entry;

pub(crate) fn run(line: &[u8]) {
    let Some(found) = entry::parse(line) else { return };
    let mut out = Vec::new();
    found.content.write(&mut out);
    assert!(!found.content.ends_line() || out.ends_with(b"\n"));
    entry::write_time(&found.time, &mut Vec::new());
    // The CRI format: time, stream, whether the line ends here, output.
    let words: Vec<&[u8]> = line.splitn(4, |b| *b == b' ').collect();
    if let ([_, _, tags, content], false) = (words.as_slice(), line.starts_with(b"{")) {
        let partial = tags.split(|b| *b == b':').next() == Some(&b"P"[..]);
        assert_eq!(out.strip_suffix(if partial { &b""[..] } else { &b"\n"[..] }), Some(*content));
        assert!(partial || found.content.ends_line());
    }
    // Lone surrogates are replaced by our parser, and rejected by serde.
    if let Ok(Value::Object(fields)) = serde_json::from_slice(line)
        && let (Some(log), Some(_)) = (fields.get("log").and_then(Value::as_str), fields.get("time"))
    {
        assert_eq!(out, log.as_bytes());
    }
}
