//! Parses one line of a container's log file, in either format: Docker's json-file
//! (`{"log":"…\n","stream":"stdout","time":"…"}`) and CRI's text (`time stream F|P message`). Pure.
//!
//! A log of a gigabyte has ten million lines, so the form that Docker writes is parsed from its end by a few byte
//! searches; other JSON is parsed by serde. Only the content is copied.

use std::borrow::Cow;

use jiff::Timestamp;
use memchr::{memchr, memchr_iter, memrchr};

/// One line of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The logged content.
    pub content: Content<'a>,
    /// Its timestamp, as in the file.
    pub time: Cow<'a, [u8]>,
}

/// Logged content, as in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content<'a> {
    /// The inside of a JSON string.
    Escaped(&'a [u8]),
    /// The bytes themselves.
    Plain(Cow<'a, [u8]>),
    /// The bytes themselves, and a newline that the file omits.
    Line(&'a [u8]),
}

impl Content<'_> {
    /// Whether a line ends here; long lines are split into several entries.
    #[must_use]
    pub fn ends_line(&self) -> bool {
        match self {
            Self::Escaped(text) => text.strip_suffix(b"\\n").is_some_and(|before| !is_escaped(before)),
            Self::Plain(bytes) => bytes.ends_with(b"\n"),
            Self::Line(_) => true,
        }
    }

    /// Appends the content.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Escaped(text) => unescape(text, out),
            Self::Plain(bytes) => out.extend_from_slice(bytes),
            Self::Line(bytes) => {
                out.extend_from_slice(bytes);
                out.push(b'\n');
            }
        }
    }
}

/// Parses a line without its newline; `None` when it has neither format.
#[must_use]
pub fn parse(line: &[u8]) -> Option<Entry<'_>> {
    if line.first() == Some(&b'{') { parse_docker(line).or_else(|| parse_json(line)) } else { parse_cri(line) }
}

/// The form that Docker writes, parsed from its end. In JSON a quote inside a string is escaped, so the searched bytes
/// cannot be part of the content.
fn parse_docker(line: &[u8]) -> Option<Entry<'_>> {
    let inside = line.strip_prefix(b"{\"log\":\"")?.strip_suffix(b"\"}")?;
    let at = memrchr(b'"', inside)?;
    let time = &inside[at + 1..];
    let rest = inside[..at].strip_suffix(b"\",\"time\":")?;
    let at = memrchr(b'"', rest)?;
    if !matches!(&rest[at + 1..], b"stdout" | b"stderr") {
        return None;
    }
    let text = rest[..at].strip_suffix(b"\",\"stream\":")?;
    // There is no other field in between.
    if memchr_iter(b'"', text).any(|at| !is_escaped(&text[..at])) {
        return None;
    }
    Some(Entry { content: Content::Escaped(text), time: Cow::Borrowed(time) })
}

/// Whether the byte after `before` is escaped: each pair of backslashes is an escaped backslash.
fn is_escaped(before: &[u8]) -> bool {
    before.iter().rev().take_while(|b| **b == b'\\').count() % 2 == 1
}

/// Any other JSON object with the three fields, such as one with the attributes of `--log-opt labels`.
fn parse_json(line: &[u8]) -> Option<Entry<'_>> {
    #[derive(serde::Deserialize)]
    struct Fields<'a> {
        #[serde(borrow)]
        log: Cow<'a, str>,
        #[serde(default, borrow)]
        time: Cow<'a, str>,
    }
    let fields: Fields<'_> = serde_json::from_slice(line).ok()?;
    let bytes = |text: Cow<'_, str>| text.into_owned().into_bytes();
    Some(Entry { content: Content::Plain(Cow::Owned(bytes(fields.log))), time: Cow::Owned(bytes(fields.time)) })
}

/// `2026-01-01T00:00:00.000000001Z stdout F message`; a tag may carry more after a colon.
fn parse_cri(line: &[u8]) -> Option<Entry<'_>> {
    let mut rest = line;
    let mut word = || -> Option<&[u8]> {
        let at = memchr(b' ', rest)?;
        let word = &rest[..at];
        rest = &rest[at + 1..];
        Some(word)
    };
    let (time, stream, tags) = (word()?, word()?, word()?);
    nanoseconds(time)?;
    if !matches!(stream, b"stdout" | b"stderr") {
        return None;
    }
    let content = match tags.split(|b| *b == b':').next()? {
        b"P" => Content::Plain(Cow::Borrowed(rest)),
        b"F" => Content::Line(rest),
        _ => return None,
    };
    Some(Entry { content, time: Cow::Borrowed(time) })
}

/// Appends the unescaped inside of a JSON string. Unknown escapes are kept as they are.
fn unescape(mut text: &[u8], out: &mut Vec<u8>) {
    while let Some(at) = memchr(b'\\', text) {
        out.extend_from_slice(&text[..at]);
        text = &text[at..];
        let plain = match text.get(1) {
            Some(b'n') => b'\n',
            Some(b't') => b'\t',
            Some(b'r') => b'\r',
            Some(b'b') => 8,
            Some(b'f') => 12,
            Some(b'u') => {
                text = &text[character(text, out)..];
                continue;
            }
            Some(c @ (b'"' | b'\\' | b'/')) => *c,
            Some(_) => {
                out.extend_from_slice(&text[..2]);
                text = &text[2..];
                continue;
            }
            None => break,
        };
        out.push(plain);
        text = &text[2..];
    }
    out.extend_from_slice(text);
}

/// Appends the character of `\\uXXXX`, or of a surrogate pair; returns how many bytes were read.
fn character(text: &[u8], out: &mut Vec<u8>) -> usize {
    let code = |at: usize| -> Option<u32> {
        let digits = text.get(at..at + 6)?.strip_prefix(b"\\u")?;
        u32::from_str_radix(std::str::from_utf8(digits).ok().filter(|d| !d.starts_with('+'))?, 16).ok()
    };
    let Some(first) = code(0) else {
        out.extend_from_slice(&text[..2]);
        return 2;
    };
    let (found, read) = match (first, code(6)) {
        (0xd800..=0xdbff, Some(second @ 0xdc00..=0xdfff)) => {
            (char::from_u32(0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)), 12)
        }
        _ => (char::from_u32(first), 6),
    };
    let mut buffer = [0; 4];
    out.extend_from_slice(found.unwrap_or(char::REPLACEMENT_CHARACTER).encode_utf8(&mut buffer).as_bytes());
    read
}

/// Nanoseconds since 1970 of a timestamp of either format.
#[must_use]
pub fn nanoseconds(time: &[u8]) -> Option<i64> {
    let at: Timestamp = std::str::from_utf8(time).ok()?.parse().ok()?;
    i64::try_from(at.as_nanosecond()).ok()
}

/// Appends a timestamp with nine fractional digits, as upstream prints it.
pub fn write_time(time: &[u8], out: &mut Vec<u8>) {
    let mut padded = || -> Option<()> {
        let text = time.strip_suffix(b"Z")?;
        let (seconds, digits) = match text.get(19) {
            None => (text, &b""[..]),
            Some(b'.') => (&text[..19], &text[20..]),
            Some(_) => return None,
        };
        if seconds.len() != 19 || digits.len() > 9 {
            return None;
        }
        out.extend_from_slice(seconds);
        out.push(b'.');
        out.extend_from_slice(digits);
        out.resize(out.len() + 9 - digits.len(), b'0');
        out.push(b'Z');
        Some(())
    };
    if padded().is_none() {
        out.extend_from_slice(time);
    }
}

#[cfg(test)]
mod tests;
