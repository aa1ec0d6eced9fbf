//! SPDY/3.1 as exec, attach and port-forward use it: streams that the client opens, headers and bytes both ways.
//!
//! `frame` and `headers` are pure: bytes in, frames out, and back. `connection` runs one connection over whatever
//! carries bytes: a socket, or the messages of a WebSocket. Windows of flow control are not kept: the clients there
//! neither keep nor grant any, so a stream that is not read holds up its whole connection, as it does upstream.
//! Knows nothing of pods, Docker or HTTP.

mod connection;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
pub(super) mod fuzzing;
mod headers;

pub(super) use connection::{Connection, Stream, Writer, start};
