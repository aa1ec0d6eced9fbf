//! A client of CRI on a Unix socket, with as much of gRPC and protobuf as tests of the node's façade need.

use std::{path::Path, sync::Arc};

use anyhow::Context as _;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{HeaderMap, Request, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{net::UnixStream, runtime::Runtime};

/// A message that is written: fields with their numbers.
#[derive(Debug, Clone, Default)]
pub struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.0.push(value.to_le_bytes()[0]);
    }

    /// With a number.
    #[must_use]
    pub fn number(mut self, field: u64, value: u64) -> Self {
        self.varint(field << 3);
        self.varint(value);
        self
    }

    /// With a text.
    #[must_use]
    pub fn text(self, field: u64, value: &str) -> Self {
        self.bytes(field, value.as_bytes())
    }

    /// With a message.
    #[must_use]
    pub fn message(self, field: u64, value: &Self) -> Self {
        self.bytes(field, &value.0)
    }

    /// With an entry of a map.
    #[must_use]
    pub fn entry(self, field: u64, key: &str, value: &str) -> Self {
        self.message(field, &Self::default().text(1, key).text(2, value))
    }

    fn bytes(mut self, field: u64, value: &[u8]) -> Self {
        self.varint(field << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }
}

/// Takes a number of protobuf's wire format from the beginning.
pub fn read_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// A message that was read.
#[derive(Debug, Clone, Default)]
pub struct Fields(Vec<(u64, Value)>);

#[derive(Debug, Clone)]
enum Value {
    Number(u64),
    Bytes(Vec<u8>),
}

impl Fields {
    fn read(mut rest: &[u8]) -> Option<Self> {
        let mut fields = Vec::new();
        while !rest.is_empty() {
            let tag = read_varint(&mut rest)?;
            let value = match tag & 7 {
                0 => Value::Number(read_varint(&mut rest)?),
                2 => {
                    let length = usize::try_from(read_varint(&mut rest)?).ok()?;
                    let (bytes, after) = rest.split_at_checked(length)?;
                    rest = after;
                    Value::Bytes(bytes.to_vec())
                }
                _ => return None,
            };
            fields.push((tag >> 3, value));
        }
        Some(Self(fields))
    }

    /// A number; 0 if it is absent.
    #[must_use]
    pub fn number(&self, field: u64) -> u64 {
        let found = self.0.iter().find_map(|(number, value)| match value {
            Value::Number(value) if *number == field => Some(*value),
            _ => None,
        });
        found.unwrap_or(0)
    }

    fn all_bytes(&self, field: u64) -> impl Iterator<Item = &[u8]> {
        self.0.iter().filter_map(move |(number, value)| match value {
            Value::Bytes(bytes) if *number == field => Some(bytes.as_slice()),
            _ => None,
        })
    }

    /// A text; empty if it is absent.
    #[must_use]
    pub fn text(&self, field: u64) -> String {
        self.all_bytes(field).next().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).unwrap_or_default()
    }

    /// All messages of a field.
    ///
    /// # Panics
    /// When one is no message.
    #[must_use]
    pub fn messages(&self, field: u64) -> Vec<Self> {
        self.all_bytes(field).map(|bytes| Self::read(bytes).expect("a message")).collect()
    }

    /// A message; empty if it is absent.
    #[must_use]
    pub fn message(&self, field: u64) -> Self {
        self.messages(field).into_iter().next().unwrap_or_default()
    }

    /// A value of a map; empty if it is absent.
    #[must_use]
    pub fn entry(&self, field: u64, key: &str) -> String {
        let found = self.messages(field).into_iter().find(|entry| entry.text(1) == key);
        found.map(|entry| entry.text(2)).unwrap_or_default()
    }
}

/// A client with one connection.
#[derive(Debug)]
pub struct CriClient {
    runtime: Arc<Runtime>,
    sender: http2::SendRequest<Full<Bytes>>,
}

impl CriClient {
    /// Connects.
    ///
    /// # Errors
    /// When nobody listens.
    pub fn connect(socket: &Path) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let sender = runtime.block_on(async {
            let stream = UnixStream::connect(socket).await?;
            let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
            tokio::spawn(connection);
            Ok::<_, anyhow::Error>(sender)
        })?;
        Ok(Self { runtime: Arc::new(runtime), sender })
    }

    /// A call that succeeds.
    ///
    /// # Panics
    /// When it does not.
    #[track_caller]
    #[must_use]
    pub fn ask(&self, method: &str, message: &Message) -> Fields {
        self.call(method, message).unwrap_or_else(|error| panic!("{method}: {error:#}"))
    }

    /// A call of `SERVICE/METHOD`.
    ///
    /// # Errors
    /// The code and the message of gRPC, or why there is no answer.
    pub fn call(&self, method: &str, message: &Message) -> anyhow::Result<Fields> {
        let mut frame = vec![0];
        frame.extend(u32::try_from(message.0.len())?.to_be_bytes());
        frame.extend_from_slice(&message.0);
        let request = Request::post(format!("http://localhost/runtime.v1.{method}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("grpc-timeout", "60S")
            .body(Full::from(frame))?;
        let mut sender = self.sender.clone();
        let (head, body) = self.runtime.block_on(async {
            let (head, body) = sender.send_request(request).await?.into_parts();
            Ok::<_, anyhow::Error>((head, body.collect().await?))
        })?;
        let code = |all: &HeaderMap| all.get("grpc-status").and_then(|code| code.to_str().ok()?.parse::<u32>().ok());
        if let Some(code) = code(&head.headers) {
            anyhow::bail!("{code}: {:?}", head.headers.get("grpc-message"));
        }
        let code = body.trailers().and_then(code);
        anyhow::ensure!(code == Some(0), "the call ended with {code:?}");
        let bytes = body.to_bytes();
        Fields::read(bytes.get(5..).unwrap_or_default()).context("the answer is no message")
    }
}
