//! A client of the read-only port of this machine's node. Another process may have bound the port, so responses are
//! bounded, and control characters are removed.

use std::{
    io::{self, Read, Write as _},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::config::Settings;

/// The timeouts of a read and of the whole response.
const READ_TIMEOUT: Duration = Duration::from_secs(2);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum size of a response: some hundred times that of a full node.
const MAX_BYTES: usize = 64 << 20;

/// The address of the read-only port.
pub(super) fn address(settings: &Settings) -> anyhow::Result<SocketAddr> {
    settings.stats_bind.context("the node's read-only port is off: statsBindAddress is empty")
}

/// Requests a JSON document.
pub(super) fn get_json<T: DeserializeOwned>(address: SocketAddr, path: &str) -> anyhow::Result<T> {
    let answer = get(address, path).with_context(|| {
        format!(
            "http://{address}{path} could not be read; is windlass up? Set another address with --stats-bind-address"
        )
    })?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.lines().next().unwrap_or("");
    anyhow::ensure!(
        status.split(' ').nth(1) == Some("200"),
        "http://{address}{path} answered {status:?}: another program or version listens there"
    );
    let unreadable = || format!("the response of http://{address}{path} is invalid");
    let mut value: Value = serde_json::from_str(body).with_context(unreadable)?;
    remove_control_characters(&mut value);
    serde_json::from_value(value).with_context(unreadable)
}

fn get(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, READ_TIMEOUT)?;
    stream.set_read_timeout(Some(READ_TIMEOUT))?;
    stream.set_write_timeout(Some(READ_TIMEOUT))?;
    // HTTP/1.0, so that the response is not chunked and ends with the connection.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    read(stream, MAX_BYTES, Instant::now() + RESPONSE_TIMEOUT)
}

/// Reads to the end, within the limits.
fn read(mut from: impl Read, max_bytes: usize, deadline: Instant) -> io::Result<String> {
    let (mut answer, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        answer.extend_from_slice(&buffer[..count]);
        if answer.len() > max_bytes {
            return Err(io::Error::other(format!("the response is longer than {max_bytes} bytes")));
        }
        if Instant::now() > deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    String::from_utf8(answer).map_err(io::Error::other)
}

/// Terminals interpret control characters.
fn remove_control_characters(value: &mut Value) {
    match value {
        Value::String(text) if text.contains(char::is_control) => {
            *text = text.replace(char::is_control, "\u{fffd}");
        }
        Value::Array(items) => items.iter_mut().for_each(remove_control_characters),
        Value::Object(fields) => fields.values_mut().for_each(remove_control_characters),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn answers_are_read_within_bounds() {
        let later = Instant::now() + RESPONSE_TIMEOUT;
        assert_eq!(read("abc".as_bytes(), 3, later).unwrap(), "abc");
        assert!(read("abcd".as_bytes(), 3, later).unwrap_err().to_string().contains("longer than 3 bytes"));
        assert!(read(io::repeat(b'x'), MAX_BYTES, later).is_err());
        let late = read("abc".as_bytes(), 3, Instant::now() - Duration::from_secs(1)).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn nothing_is_printed_that_a_terminal_acts_on() {
        let mut value = json!([{"image": "a\u{1b}]0;title\u{7}b", "n": 1}, "plain \u{e9}"]);
        remove_control_characters(&mut value);
        assert_eq!(value, json!([{"image": "a\u{fffd}]0;title\u{fffd}b", "n": 1}, "plain \u{e9}"]));
    }
}
