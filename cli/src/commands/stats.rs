//! What the node of this machine tells on its read-only port. Whoever holds the port in its stead may answer anything:
//! so it is read with bounds, and printed without what terminals act on.

use std::{
    io::{self, Read, Write as _},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::config::Settings;

/// How long the node may be silent, and how long its whole answer may take.
const SILENCE: Duration = Duration::from_secs(2);
const WHOLE: Duration = Duration::from_secs(10);
/// The longest answer: some hundred times that of a full node.
const MAX_BYTES: usize = 64 << 20;

/// Where the node tells.
///
/// # Errors
/// When it does not.
pub(super) fn address(settings: &Settings) -> anyhow::Result<SocketAddr> {
    settings.stats_bind.context("the node's read-only port is off: statsBindAddress is empty")
}

/// Reads one JSON page.
///
/// # Errors
/// When nobody answers there, or something else.
pub(super) fn ask<T: DeserializeOwned>(address: SocketAddr, path: &str) -> anyhow::Result<T> {
    let answer = page(address, path)
        .with_context(|| format!("the node's figures at http://{address}{path} could not be read; is windlass up? Another address is given with --stats-bind-address"))?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.lines().next().unwrap_or("");
    anyhow::ensure!(
        status.split(' ').nth(1) == Some("200"),
        "http://{address}{path} answered {status:?}: it is not a windlass of this version that listens there"
    );
    let unreadable = || format!("the answer of http://{address}{path} cannot be read");
    let mut value: Value = serde_json::from_str(body).with_context(unreadable)?;
    clean(&mut value);
    serde_json::from_value(value).with_context(unreadable)
}

fn page(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, SILENCE)?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    // Version 1.0, so that the answer comes in one piece and ends with the connection.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    read(stream, MAX_BYTES, Instant::now() + WHOLE)
}

/// Reads to the end, within bounds.
fn read(mut from: impl Read, most: usize, until: Instant) -> io::Result<String> {
    let (mut answer, mut piece) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        let count = match from.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        answer.extend_from_slice(&piece[..count]);
        if answer.len() > most {
            return Err(io::Error::other(format!("the answer is longer than {most} bytes")));
        }
        if Instant::now() > until {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    String::from_utf8(answer).map_err(io::Error::other)
}

/// Control characters would be acted on by the terminal that they are printed on.
fn clean(value: &mut Value) {
    match value {
        Value::String(text) if text.contains(char::is_control) => {
            *text = text.replace(char::is_control, "\u{fffd}");
        }
        Value::Array(items) => items.iter_mut().for_each(clean),
        Value::Object(fields) => fields.values_mut().for_each(clean),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn answers_are_read_within_bounds() {
        let later = Instant::now() + WHOLE;
        assert_eq!(read("abc".as_bytes(), 3, later).unwrap(), "abc");
        assert!(read("abcd".as_bytes(), 3, later).unwrap_err().to_string().contains("longer than 3 bytes"));
        assert!(read(io::repeat(b'x'), MAX_BYTES, later).is_err());
        let late = read("abc".as_bytes(), 3, Instant::now() - Duration::from_secs(1)).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn nothing_is_printed_that_a_terminal_acts_on() {
        let mut value = json!([{"image": "a\u{1b}]0;title\u{7}b", "n": 1}, "plain \u{e9}"]);
        clean(&mut value);
        assert_eq!(value, json!([{"image": "a\u{fffd}]0;title\u{fffd}b", "n": 1}, "plain \u{e9}"]));
    }
}
