//! SPDY/3.1 as exec, attach and port-forward use it: client-initiated streams with headers and bytes both ways.
//!
//! `frame` and `headers` are pure: decoding and encoding. `connection` runs a connection over a byte stream: a socket,
//! or the messages of a WebSocket. There is no flow control: the clients neither keep nor grant windows, so a stream
//! that is not read blocks its whole connection, as upstream. Knows nothing of pods, Docker or HTTP.

mod connection;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
pub(super) mod fuzzing;
mod headers;

pub(super) use connection::{Connection, Stream, Writer, start};
