//! Hijacked connections: Docker upgrades the HTTP connection of exec and attach to a raw stream.
//!
//! Not by bollard, whose reader takes a terminal's bytes for stream headers when they look like some.

use bytes::{Buf as _, Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, StatusCode, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use tokio::{
    io::AsyncReadExt as _,
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
};

use super::{Cause, Engine, EngineError, client::connect, docker_api::ATTACH};

/// Bytes that are reserved for one read.
const CHUNK_BYTES: usize = 64 << 10;

/// Output of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Chunk {
    Stdout(Bytes),
    Stderr(Bytes),
}

/// The streams of a process. Shutting `input` down closes its standard input.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) output: OutputReader,
    pub(crate) input: OwnedWriteHalf,
}

/// Reads a process's output.
#[derive(Debug)]
pub(crate) struct OutputReader {
    socket: OwnedReadHalf,
    buffer: BytesMut,
    demux: Demux,
}

impl OutputReader {
    /// The next chunk of output; `None` at the end.
    pub(crate) async fn next(&mut self) -> std::io::Result<Option<Chunk>> {
        loop {
            if let Some(chunk) = self.demux.next(&mut self.buffer) {
                return Ok(Some(chunk));
            }
            self.buffer.reserve(CHUNK_BYTES);
            if self.socket.read_buf(&mut self.buffer).await? == 0 {
                return Ok(None);
            }
        }
    }
}

impl Engine {
    /// Posts `body` and hijacks the connection; fails when Docker does not answer in time.
    pub(super) async fn hijack(
        &self,
        path: &str,
        body: String,
        tty: bool,
        attempt: &str,
    ) -> Result<Attached, EngineError> {
        match tokio::time::timeout(ATTACH.limit, self.try_hijack(path, body, tty, attempt)).await {
            Ok(attached) => attached,
            Err(_) => Err(EngineError {
                attempt: attempt.to_owned(),
                reason: format!("Docker did not answer within {} s", ATTACH.limit.as_secs()),
                cause: Cause::Unreachable,
            }),
        }
    }

    async fn try_hijack(&self, path: &str, body: String, tty: bool, attempt: &str) -> Result<Attached, EngineError> {
        let unreachable = |why: &dyn std::fmt::Display| EngineError {
            attempt: attempt.to_owned(),
            reason: format!("Docker did not answer: {why}"),
            cause: Cause::Unreachable,
        };
        let socket = connect(self.socket()).await.map_err(|e| unreachable(&e))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await.map_err(|e| unreachable(&e))?;
        tokio::spawn(connection.with_upgrades());
        let request = Request::post(self.path(path))
            .header(header::HOST, "docker")
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, "tcp")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|e| unreachable(&e))?;
        let answer = sender.send_request(request).await.map_err(|e| unreachable(&e))?;
        let status = answer.status();
        if status != StatusCode::SWITCHING_PROTOCOLS {
            let text = answer.into_body().collect().await.map_err(|e| unreachable(&e))?.to_bytes();
            let message = serde_json::from_slice::<serde_json::Value>(&text).ok();
            let message = message.and_then(|m| m["message"].as_str().map(str::to_owned));
            let reason = message.unwrap_or_else(|| String::from_utf8_lossy(&text).trim().to_owned());
            return Err(EngineError { attempt: attempt.to_owned(), reason, cause: Cause::Refused(status.as_u16()) });
        }
        let upgraded = hyper::upgrade::on(answer).await.map_err(|e| unreachable(&e))?;
        let parts = upgraded
            .downcast::<TokioIo<UnixStream>>()
            .map_err(|_| unreachable(&"the upgraded connection is no Unix socket"))?;
        let (socket, input) = parts.io.into_inner().into_split();
        let output = OutputReader { socket, buffer: BytesMut::from(&parts.read_buf[..]), demux: Demux::new(tty) };
        Ok(Attached { output, input })
    }
}

/// Splits Docker's multiplexed stream into standard output and error: each frame has a header of eight bytes. Pure.
#[derive(Debug)]
struct Demux {
    /// A terminal has one stream and no frames.
    raw: bool,
    /// The stream of the current frame.
    stderr: bool,
    left: usize,
}

impl Demux {
    fn new(tty: bool) -> Self {
        Self { raw: tty, stderr: false, left: 0 }
    }

    fn next(&mut self, buffer: &mut BytesMut) -> Option<Chunk> {
        loop {
            if self.raw {
                return (!buffer.is_empty()).then(|| Chunk::Stdout(buffer.split().freeze()));
            }
            if self.left > 0 {
                if buffer.is_empty() {
                    return None;
                }
                let bytes = buffer.split_to(self.left.min(buffer.len())).freeze();
                self.left -= bytes.len();
                return Some(if self.stderr { Chunk::Stderr(bytes) } else { Chunk::Stdout(bytes) });
            }
            let first = *buffer.first()?;
            // Older engines write the reason why a command could not be started without a frame.
            if first > 3 {
                self.raw = true;
                continue;
            }
            let head = *buffer.first_chunk::<8>()?;
            buffer.advance(8);
            self.stderr = first >= 2;
            self.left = usize::try_from(u32::from_be_bytes([head[4], head[5], head[6], head[7]])).unwrap_or(usize::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(tty: bool, chunks: &[&[u8]]) -> (Vec<u8>, Vec<u8>) {
        let (mut demux, mut buffer, mut out) = (Demux::new(tty), BytesMut::new(), (Vec::new(), Vec::new()));
        for chunk in chunks {
            buffer.extend_from_slice(chunk);
            while let Some(chunk) = demux.next(&mut buffer) {
                match chunk {
                    Chunk::Stdout(bytes) => out.0.extend_from_slice(&bytes),
                    Chunk::Stderr(bytes) => out.1.extend_from_slice(&bytes),
                }
            }
        }
        out
    }

    fn frame(stream: u8, bytes: &[u8]) -> Vec<u8> {
        let length = u32::try_from(bytes.len()).expect("it is short").to_be_bytes();
        [&[stream, 0, 0, 0][..], &length, bytes].concat()
    }

    #[test]
    fn terminal_output_is_not_parsed_as_frames() {
        assert_eq!(read(true, &[&[1, 0, 0, 0, 0, 0, 0, 9]]).0, [1, 0, 0, 0, 0, 0, 0, 9]);
    }

    #[test]
    fn unframed_start_errors_are_output() {
        assert_eq!(read(false, &[b"OCI runtime ", b"exec failed"]).0, b"OCI runtime exec failed");
    }

    proptest! {
        #[test]
        fn demultiplexing_does_not_depend_on_chunks(
            printed in prop::collection::vec((1u8..3, prop::collection::vec(any::<u8>(), 0..50)), 0..10),
            cut in 1usize..20,
        ) {
            let wire: Vec<u8> = printed.iter().flat_map(|(stream, bytes)| frame(*stream, bytes)).collect();
            let of = |wanted: u8| -> Vec<u8> {
                printed.iter().filter(|(s, _)| *s == wanted).flat_map(|(_, b)| b.clone()).collect()
            };
            let chunks: Vec<&[u8]> = wire.chunks(cut).collect();
            prop_assert_eq!(read(false, &chunks), (of(1), of(2)));
        }
    }
}
