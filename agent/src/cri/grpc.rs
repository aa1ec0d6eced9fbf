//! gRPC over HTTP/2, as much of it as calls with one request and one response need: frames, codes, time limits. Pure.
//!
//! Upstream: gRPC's `PROTOCOL-HTTP2.md`; texts are grpc-go's.

use std::{fmt, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use windlass_kit::serve::headers;

/// Bytes of a message's head: whether it is compressed, and its length.
const HEAD: usize = 5;
/// The longest message, in either direction; kubelet's.
pub(super) const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// The longest body of a request.
pub(super) const MAX_BODY_BYTES: usize = HEAD + MAX_MESSAGE_BYTES;
pub(super) const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/grpc");

/// Codes of gRPC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Code {
    Ok = 0,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
}

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) code: Code,
    pub(super) message: String,
}

impl Status {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// The call took longer than its client waits.
    pub(super) fn late() -> Self {
        Self::new(Code::DeadlineExceeded, "context deadline exceeded")
    }

    /// The headers that end a call.
    pub(super) fn trailers(&self) -> HeaderMap {
        let mut all = HeaderMap::with_capacity(2);
        all.insert("grpc-status", HeaderValue::from(self.code as u16));
        if let Ok(message) = HeaderValue::from_str(&escaped(&self.message)) {
            all.insert("grpc-message", message);
        }
        all
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.code, self.message)
    }
}

/// The headers that end a call that has succeeded.
pub(super) fn done() -> HeaderMap {
    HeaderMap::from_iter([(header::HeaderName::from_static("grpc-status"), HeaderValue::from(Code::Ok as u16))])
}

/// A text as a header carries it: all but printable ASCII, and the percent sign, by percent signs.
fn escaped(message: &str) -> String {
    let mut out = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// Whether a request is one of gRPC.
pub(super) fn is_grpc(all: &HeaderMap) -> bool {
    let kind = headers::shown(all, "content-type");
    let rest = kind.strip_prefix("application/grpc");
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['+', ';']))
}

/// How long the client waits, by its header `grpc-timeout`; `None` without one.
pub(super) fn time_limit(all: &HeaderMap) -> Result<Option<Duration>, Status> {
    if !all.contains_key("grpc-timeout") {
        return Ok(None);
    }
    let text = headers::shown(all, "grpc-timeout");
    let malformed = || Status::new(Code::Internal, format!("malformed grpc-timeout: {text:?}"));
    let unit = text.chars().next_back().ok_or_else(malformed)?;
    let digits = &text[..text.len() - unit.len_utf8()];
    // The protocol has at most eight.
    let number =
        Some(digits).filter(|digits| (1..=8).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit()));
    let number: u64 = number.and_then(|digits| digits.parse().ok()).ok_or_else(malformed)?;
    Ok(Some(match unit {
        'H' => Duration::from_secs(number * 3600),
        'M' => Duration::from_secs(number * 60),
        'S' => Duration::from_secs(number),
        'm' => Duration::from_millis(number),
        'u' => Duration::from_micros(number),
        'n' => Duration::from_nanos(number),
        _ => return Err(malformed()),
    }))
}

/// The only message of a request.
pub(super) fn unframed(body: &Bytes) -> Result<Bytes, Status> {
    let short = || Status::new(Code::Internal, "the request ends inside a message");
    let (head, rest) = body.split_first_chunk::<HEAD>().ok_or_else(short)?;
    let [compressed, length @ ..] = *head;
    if compressed != 0 {
        let why = "the message is compressed, and nothing but identity is accepted";
        return Err(Status::new(Code::Unimplemented, why));
    }
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if length > MAX_MESSAGE_BYTES {
        return Err(too_long(length));
    }
    match rest.len() {
        has if has < length => Err(short()),
        has if has > length => Err(Status::new(Code::Internal, "the request has more than one message")),
        _ => Ok(body.slice(HEAD..)),
    }
}

/// A message is longer than any may be.
pub(super) fn too_long(length: usize) -> Status {
    let why = format!("grpc: received message larger than max ({length} vs. {MAX_MESSAGE_BYTES})");
    Status::new(Code::ResourceExhausted, why)
}

/// A message with its head.
pub(super) fn framed(message: &[u8]) -> Bytes {
    let mut frame = Vec::with_capacity(HEAD + message.len());
    frame.push(0);
    frame.extend(u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
    frame.extend_from_slice(message);
    frame.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_limits() {
        let limit = |text: &str| {
            let all = HeaderMap::from_iter([(header::HeaderName::from_static("grpc-timeout"), text.parse().unwrap())]);
            time_limit(&all).ok().flatten()
        };
        for (text, wanted) in [
            ("1H", Some(Duration::from_secs(3600))),
            ("2M", Some(Duration::from_secs(120))),
            ("10S", Some(Duration::from_secs(10))),
            ("1999951m", Some(Duration::from_millis(1_999_951))),
            ("99999999u", Some(Duration::from_micros(99_999_999))),
            ("0n", Some(Duration::ZERO)),
            ("123456789n", None),
            ("S", None),
            ("", None),
            ("+1S", None),
            ("1s", None),
            ("1é", None),
        ] {
            assert_eq!(limit(text), wanted, "{text:?}");
        }
        assert_eq!(time_limit(&HeaderMap::new()), Ok(None));
    }

    #[test]
    fn messages_have_a_head() {
        let frame = framed(b"abc");
        assert_eq!(frame.as_ref(), b"\0\0\0\0\x03abc");
        assert_eq!(unframed(&frame).unwrap().as_ref(), b"abc");
        for (body, code) in [
            (&b""[..], Code::Internal),
            (b"\0\0\0", Code::Internal),
            (b"\0\0\0\0\x03ab", Code::Internal),
            (b"\0\0\0\0\x01ab", Code::Internal),
            (b"\x01\0\0\0\x01a", Code::Unimplemented),
            (b"\0\xff\xff\xff\xff", Code::ResourceExhausted),
        ] {
            assert_eq!(unframed(&Bytes::from_static(body)).unwrap_err().code, code, "{body:?}");
        }
    }

    #[test]
    fn messages_of_errors_are_escaped() {
        let trailers = Status::new(Code::NotFound, "100% of é\n").trailers();
        assert_eq!(trailers["grpc-status"], "5");
        assert_eq!(trailers["grpc-message"], "100%25 of %C3%A9%0A");
        assert_eq!(done()["grpc-status"], "0");
    }

    #[test]
    fn content_types_of_grpc() {
        let is = |text: &'static str| {
            is_grpc(&HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(text))]))
        };
        assert!(is("application/grpc") && is("application/grpc+proto") && is("application/grpc;a=b"));
        assert!(!is("application/grpc-web") && !is("application/json") && !is_grpc(&HeaderMap::new()));
    }
}
