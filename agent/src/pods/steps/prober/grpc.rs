//! The gRPC handler of probes: the health protocol, and the error messages of upstream's prober (`pkg/probe/grpc`) and
//! of grpc-go below it.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::{api::core::v1::GRPCAction, apimachinery::pkg::util::intstr::IntOrString};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::Instant,
};
use windlass_kit::{duration, serve::headers};

use super::{MAX_RESPONSE_BYTES, PROBE_USER_AGENT, ProbeResult, ProbeTarget, connect, host, join, port_number};

/// The wait before the second try to connect, and what it grows by; grpc-go's.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const RETRY_FACTOR: f64 = 1.6;
/// The type of the frame that a server of HTTP/2 begins with.
const SETTINGS: u8 = 4;

/// Codes of gRPC, in the words of grpc-go.
const CODES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];
const UNKNOWN: u32 = 2;
const DEADLINE_EXCEEDED: u32 = 4;
const UNIMPLEMENTED: u32 = 12;
const INTERNAL: u32 = 13;
const UNAVAILABLE: u32 = 14;

/// A failed call: its code and its message.
#[derive(Debug, PartialEq, Eq)]
struct Status {
    code: u32,
    message: String,
}

impl Status {
    fn new(code: u32, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// What the prober says of it.
    fn failure(&self, limit: Duration) -> String {
        match self.code {
            UNIMPLEMENTED => format!(
                "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {}",
                self.message
            ),
            DEADLINE_EXCEEDED => late(limit),
            code => {
                let known = usize::try_from(code).ok().and_then(|code| CODES.get(code));
                let word = known.map_or_else(|| format!("Code({code})"), |word| (*word).to_owned());
                format!("error: health rpc probe failed: rpc error: code = {word} desc = {}", self.message)
            }
        }
    }
}

/// What the prober says of a call that did not end in time.
pub(super) fn late(limit: Duration) -> String {
    format!("timeout: health rpc did not complete within {}", duration::format(limit))
}

/// Calls the gRPC health service within `limit`; a success when it is SERVING.
pub(crate) async fn grpc(target: ProbeTarget<'_>, action: &GRPCAction, limit: Duration) -> ProbeResult {
    let (host, port) = match (host(target, None), port_number(target, &IntOrString::Int(action.port))) {
        (Ok(host), Ok(port)) => (host, port),
        (Err(why), _) | (_, Err(why)) => return ProbeResult::Unknown(why),
    };
    let deadline = Instant::now() + limit;
    let service = action.service.as_deref().unwrap_or_default();
    let mut wait = FIRST_RETRY;
    loop {
        let is_http2 = Arc::new(AtomicBool::new(false));
        let call = async {
            let stream = connect(&host, port).await.ok()?;
            call(Preface::new(stream, Arc::clone(&is_http2)), &join(&host, port), service).await
        };
        let called = tokio::time::timeout_at(deadline, call).await;
        match called {
            Ok(Some(answer)) => return verdict(answer, limit),
            Err(_) if is_http2.load(Ordering::Relaxed) => return ProbeResult::Failure(late(limit)),
            // No HTTP/2 server is listening there yet.
            Ok(None) => {}
            Err(_) => break,
        }
        if tokio::time::timeout_at(deadline, tokio::time::sleep(wait)).await.is_err() {
            break;
        }
        wait = wait.mul_f64(RETRY_FACTOR);
    }
    ProbeResult::Failure(format!(
        "timeout: failed to connect service {:?} within {}: context deadline exceeded",
        join(&host, port),
        duration::format(limit)
    ))
}

/// One call. `None` if the other side does not speak HTTP/2.
async fn call(stream: Preface, authority: &str, service: &str) -> Option<Result<Bytes, Status>> {
    let is_http2 = Arc::clone(&stream.is_http2);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.ok()?;
    let request = Request::post(format!("http://{authority}/grpc.health.v1.Health/Check"))
        .header(header::CONTENT_TYPE, "application/grpc")
        .header(header::TE, "trailers")
        .header(header::USER_AGENT, PROBE_USER_AGENT)
        .body(Full::new(check_request(service)));
    let request = match request {
        Ok(request) => request,
        Err(error) => return Some(Err(Status::new(INTERNAL, error.to_string()))),
    };
    let driver = tokio::spawn(connection);
    let broken = |why: &dyn std::fmt::Display| Status::new(UNAVAILABLE, format!("error reading from server: {why}"));
    let answer = async {
        let (head, body) = sender.send_request(request).await.map_err(|_| broken(&"EOF"))?.into_parts();
        check_head(head.status, &head.headers)?;
        let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await.map_err(|e| broken(&e))?;
        // Where there is no body, they are in the head.
        let trailers = body.trailers().filter(|all| all.contains_key(GRPC_STATUS)).unwrap_or(&head.headers);
        check_trailers(trailers)?;
        Ok(body.to_bytes())
    };
    let answer = answer.await;
    driver.abort();
    (answer.is_ok() || is_http2.load(Ordering::Relaxed)).then_some(answer)
}

const GRPC_STATUS: &str = "grpc-status";

/// A response that is not gRPC gets a gRPC code from its HTTP status.
fn check_head(status: StatusCode, all: &HeaderMap) -> Result<(), Status> {
    let content_type = all.contains_key(header::CONTENT_TYPE).then(|| headers::shown(all, "content-type"));
    let wrong = match content_type.as_deref() {
        None => "malformed header: missing HTTP content-type".to_owned(),
        Some(text) if is_grpc(text) => return Ok(()),
        Some(text) => format!("transport: received unexpected content-type {text:?}"),
    };
    let code = match status.as_u16() {
        400 => INTERNAL,
        401 => 16,
        403 => 7,
        404 => UNIMPLEMENTED,
        429 | 502..=504 => UNAVAILABLE,
        _ => UNKNOWN,
    };
    let words = status.canonical_reason().unwrap_or_default();
    let status = format!("unexpected HTTP status code received from server: {} ({words})", status.as_u16());
    Err(Status::new(code, format!("{status}; {wrong}")))
}

/// `application/grpc`, alone or with a subtype or parameters.
fn is_grpc(content_type: &str) -> bool {
    let content_type = content_type.to_ascii_lowercase();
    let rest = content_type.strip_prefix("application/grpc");
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['+', ';']))
}

fn check_trailers(all: &HeaderMap) -> Result<(), Status> {
    if !all.contains_key(GRPC_STATUS) {
        return Err(Status::new(INTERNAL, "server closed the stream without sending trailers"));
    }
    let (code, message) = (headers::shown(all, GRPC_STATUS), headers::shown(all, "grpc-message"));
    match code.parse::<u32>() {
        Ok(0) => Ok(()),
        Ok(code) => Err(Status::new(code, unescaped(&message))),
        Err(_) => Err(Status::new(
            UNKNOWN,
            format!("transport: malformed grpc-status: strconv.ParseInt: parsing {code:?}: invalid syntax"),
        )),
    }
}

/// A `grpc-message` without its percent signs.
fn unescaped(message: &str) -> String {
    let mut bytes = Vec::with_capacity(message.len());
    let mut rest = message.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|_| *first == b'%').and_then(|two| std::str::from_utf8(two).ok());
        match digits.and_then(|two| u8::from_str_radix(two, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn verdict(answer: Result<Bytes, Status>, limit: Duration) -> ProbeResult {
    let body = match answer {
        Ok(body) => body,
        Err(status) => return ProbeResult::Failure(status.failure(limit)),
    };
    let word = match serving_status(&body) {
        Some(1) => return ProbeResult::Success,
        None | Some(0) => "UNKNOWN".to_owned(),
        Some(2) => "NOT_SERVING".to_owned(),
        Some(3) => "SERVICE_UNKNOWN".to_owned(),
        Some(other) => other.to_string(),
    };
    ProbeResult::Failure(format!("service unhealthy (responded with {word:?})"))
}

/// `HealthCheckRequest` with field 1, the service's name, in gRPC's frame.
fn check_request(service: &str) -> Bytes {
    let mut message = Vec::new();
    if !service.is_empty() {
        message.push(0x0a);
        let mut left = service.len();
        while left >= 0x80 {
            message.push((left & 0x7f) as u8 | 0x80);
            left >>= 7;
        }
        message.push(left as u8);
        message.extend(service.as_bytes());
    }
    let mut frame = vec![0];
    frame.extend(u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
    frame.extend(message);
    frame.into()
}

/// Field 1 of `HealthCheckResponse`: 1 is SERVING; absent is 0.
fn serving_status(frame: &[u8]) -> Option<u8> {
    match frame.get(5..)? {
        [] => Some(0),
        [0x08, status, ..] => Some(*status),
        _ => None,
    }
}

/// A connection that notices whether the other side begins as HTTP/2 does: grpc-go calls it connected only then.
#[derive(Debug)]
struct Preface {
    stream: TcpStream,
    /// The head of the first frame, as far as it was read.
    head: Vec<u8>,
    is_http2: Arc<AtomicBool>,
}

/// Bytes of a frame's head; the fourth is its type.
const FRAME_HEAD: usize = 9;

impl Preface {
    fn new(stream: TcpStream, is_http2: Arc<AtomicBool>) -> Self {
        Self { stream, head: Vec::new(), is_http2 }
    }
}

impl AsyncRead for Preface {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buffer);
        if this.head.len() < FRAME_HEAD {
            let wanted = FRAME_HEAD - this.head.len();
            this.head.extend(buffer.filled()[before..].iter().take(wanted));
            if this.head.len() == FRAME_HEAD && this.head[3] == SETTINGS {
                this.is_http2.store(true, Ordering::Relaxed);
            }
        }
        read
    }
}

impl AsyncWrite for Preface {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Container;
    use tokio::{io::AsyncWriteExt as _, net::TcpListener};

    use super::*;

    fn map(all: &[(&'static str, &str)]) -> HeaderMap {
        all.iter().map(|(name, value)| (http::HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    /// The texts are those of grpc-go's transport and of upstream's prober.
    #[test]
    fn failures_have_the_words_of_go() {
        const SECOND: Duration = Duration::from_secs(1);
        let failed = |status: Status| status.failure(SECOND);
        let grpc = ("content-type", "application/grpc");
        for (code, headers, why) in [
            (
                404,
                map(&[("content-type", "text/plain; charset=utf-8")]),
                "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): unexpected HTTP status code received from server: 404 (Not Found); transport: received unexpected content-type \"text/plain; charset=utf-8\"",
            ),
            (
                200,
                map(&[]),
                "error: health rpc probe failed: rpc error: code = Unknown desc = unexpected HTTP status code received from server: 200 (OK); malformed header: missing HTTP content-type",
            ),
            (
                503,
                map(&[("content-type", "application/grpcx")]),
                "error: health rpc probe failed: rpc error: code = Unavailable desc = unexpected HTTP status code received from server: 503 (Service Unavailable); transport: received unexpected content-type \"application/grpcx\"",
            ),
        ] {
            let status = check_head(StatusCode::from_u16(code).unwrap(), &headers).unwrap_err();
            assert_eq!(failed(status), why);
        }
        assert_eq!(check_head(StatusCode::OK, &map(&[grpc])), Ok(()));
        assert_eq!(check_head(StatusCode::OK, &map(&[("content-type", "application/grpc+proto")])), Ok(()));
        for (trailers, why) in [
            (
                map(&[("grpc-status", "12"), ("grpc-message", "unknown service grpc.health.v1.Health")]),
                "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): unknown service grpc.health.v1.Health",
            ),
            (map(&[("grpc-status", "4"), ("grpc-message", "x")]), "timeout: health rpc did not complete within 1s"),
            (
                map(&[("grpc-status", "5"), ("grpc-message", "unknown service 100%25")]),
                "error: health rpc probe failed: rpc error: code = NotFound desc = unknown service 100%",
            ),
            (map(&[("grpc-status", "99")]), "error: health rpc probe failed: rpc error: code = Code(99) desc = "),
            (
                map(&[]),
                "error: health rpc probe failed: rpc error: code = Internal desc = server closed the stream without sending trailers",
            ),
        ] {
            assert_eq!(failed(check_trailers(&trailers).unwrap_err()), why);
        }
        let answered = |status: &'static [u8]| verdict(Ok(Bytes::from_static(status)), SECOND);
        assert_eq!(answered(&[0, 0, 0, 0, 2, 8, 1]), ProbeResult::Success);
        for (frame, word) in
            [(&[0, 0, 0, 0, 0][..], "UNKNOWN"), (&[0, 0, 0, 0, 2, 8, 2], "NOT_SERVING"), (&[0, 0, 0, 0, 2, 8, 9], "9")]
        {
            let why = format!("service unhealthy (responded with \"{word}\")");
            assert_eq!(answered(frame), ProbeResult::Failure(why));
        }
    }

    #[test]
    fn health_messages() {
        assert_eq!(check_request("").as_ref(), [0, 0, 0, 0, 0]);
        assert_eq!(check_request("ab").as_ref(), [0, 0, 0, 0, 4, 0x0a, 2, b'a', b'b']);
        assert_eq!(check_request(&"x".repeat(200)).len(), 5 + 3 + 200);
        assert_eq!([&[0, 0, 0, 0, 2, 8, 1][..], &[0, 0, 0, 0, 0], &[0]].map(serving_status), [Some(1), Some(0), None]);
    }

    /// A server without HTTP/2 fails to connect; one with HTTP/2 that never answers times out.
    #[tokio::test]
    async fn connecting_and_being_late_are_two_things() {
        for (greeting, late) in
            [(&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], false), (&[0, 0, 0, 4, 0, 0, 0, 0, 0], true)]
        {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let server = tokio::spawn(async move {
                let mut open = Vec::new();
                while let Ok((mut stream, _)) = listener.accept().await {
                    stream.write_all(greeting).await.unwrap();
                    open.push(stream);
                }
            });
            let container = Container::default();
            let target = ProbeTarget { container: &container, id: "", address: Some("127.0.0.1".parse().unwrap()) };
            let action = GRPCAction { port: port.into(), service: None };
            let result = grpc(target, &action, Duration::from_millis(300)).await;
            server.abort();
            let why = if late {
                "timeout: health rpc did not complete within 300ms".to_owned()
            } else {
                format!(
                    "timeout: failed to connect service \"127.0.0.1:{port}\" within 300ms: context deadline exceeded"
                )
            };
            assert_eq!(result, ProbeResult::Failure(why));
        }
    }
}
