//! Exec and attach over a SPDY connection: one stream for each direction of a process.

use std::{collections::HashMap, time::Duration};

use bytes::{Buf as _, BytesMut};
use tokio::sync::{mpsc, watch};
use tokio_util::task::TaskTracker;

use super::{
    session::{Output, RequestedStreams, Session, Size},
    spdy::{Connection, Stream, Writer},
};

/// The subprotocols.
pub(super) const PROTOCOLS: [&str; 4] =
    ["v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"];

/// How long a client has to open its streams; upstream's.
const STREAM_OPEN_TIMEOUT: Duration = Duration::from_secs(30);
const OUTPUT_QUEUE_CAPACITY: usize = 8;
/// Limit of an incomplete resize message.
const MAX_RESIZE_BUFFER_BYTES: usize = 4 << 10;

/// The expected streams, by their `streamtype` headers.
fn expected(requested: RequestedStreams, resizes: bool) -> Vec<&'static str> {
    [
        ("error", true),
        ("stdin", requested.stdin),
        ("stdout", requested.stdout),
        ("stderr", requested.stderr && !requested.tty),
        ("resize", resizes && requested.tty),
    ]
    .into_iter()
    .filter_map(|(name, is)| is.then_some(name))
    .collect()
}

/// Accepts the client's streams.
async fn accept_streams(
    connection: &mut Connection,
    names: &[&'static str],
) -> Result<HashMap<&'static str, Stream>, String> {
    let mut streams = HashMap::new();
    while streams.len() < names.len() {
        let Some(stream) = connection.streams.recv().await else {
            return Err("the client went away before it had opened its streams".to_owned());
        };
        let kind = stream.headers.get("streamtype").unwrap_or_default();
        let Some(name) = names.iter().copied().find(|n| *n == kind && !streams.contains_key(n)) else {
            return Err(format!("the client opened a stream {kind:?}, which was not expected"));
        };
        streams.insert(name, stream);
    }
    Ok(streams)
}

/// A session over `connection`; `None` when the client does not open the expected streams.
pub(super) async fn session(
    mut connection: Connection,
    protocol: &str,
    requested: RequestedStreams,
    tasks: &TaskTracker,
) -> Option<Session> {
    let status = protocol.starts_with("v4.");
    let names = expected(requested, status || protocol.starts_with("v3."));
    let opened = tokio::time::timeout(STREAM_OPEN_TIMEOUT, accept_streams(&mut connection, &names)).await;
    let mut streams = match opened.unwrap_or_else(|_| Err("the client did not open its streams in time".to_owned())) {
        Ok(streams) => streams,
        Err(why) => {
            tracing::debug!(%why, "session not started");
            connection.client_gone.cancel();
            return None;
        }
    };
    let mut writers = Vec::new();
    let mut take = |name| {
        let stream: Stream = streams.remove(name)?;
        Some((stream.writer, stream.data))
    };
    let error = take("error")?.0;
    let stdin = take("stdin").map(|(writer, data)| {
        writers.push(writer);
        data
    });
    let (resize, sizes) = watch::channel(None);
    if let Some((writer, data)) = take("resize") {
        writers.push(writer);
        tasks.spawn(read_sizes(data, resize));
    }
    let (stdout, stderr) = (take("stdout").map(|s| s.0), take("stderr").map(|s| s.0));
    let (output, to_write) = mpsc::channel(OUTPUT_QUEUE_CAPACITY);
    let client_gone = connection.client_gone.clone();
    tasks.spawn(async move {
        write(to_write, status, error, stdout, stderr).await;
        for mut writer in writers {
            writer.finish().await;
        }
        connection.close().await;
    });
    Some(Session { stdin, sizes, output, client_gone })
}

async fn write(
    mut output: mpsc::Receiver<Output>,
    status: bool,
    mut error: Writer,
    mut stdout: Option<Writer>,
    mut stderr: Option<Writer>,
) {
    while let Some(next) = output.recv().await {
        let (writer, bytes) = match next {
            Output::Stdout(bytes) => (&stdout, bytes),
            Output::Stderr(bytes) => (&stderr, bytes),
            Output::End(ending) => {
                let text = if status { ending.status().to_string() } else { ending.text() };
                error.send(text.into()).await;
                break;
            }
        };
        if let Some(writer) = writer {
            writer.send(bytes).await;
        }
    }
    for writer in [&mut stdout, &mut stderr].into_iter().flatten() {
        writer.finish().await;
    }
    error.finish().await;
}

/// Reads terminal sizes, which are concatenated JSON objects.
async fn read_sizes(mut data: mpsc::Receiver<bytes::Bytes>, resize: watch::Sender<Option<Size>>) {
    let mut buffer = BytesMut::new();
    while let Some(bytes) = data.recv().await {
        buffer.extend_from_slice(&bytes);
        match sizes(&mut buffer) {
            Ok(Some(size)) => {
                resize.send_replace(Some(size));
            }
            Ok(None) => {}
            Err(why) => return tracing::debug!(%why, "invalid terminal size"),
        }
    }
}

/// Consumes complete sizes from the buffer and returns the last.
fn sizes(buffer: &mut BytesMut) -> Result<Option<Size>, String> {
    let mut objects = serde_json::Deserializer::from_slice(buffer).into_iter::<Size>();
    let mut last = None;
    for object in &mut objects {
        match object {
            Ok(size) => last = Some(size),
            Err(error) if error.is_eof() => break,
            Err(error) => return Err(error.to_string()),
        }
    }
    let read = objects.byte_offset();
    buffer.advance(read);
    if buffer.len() > MAX_RESIZE_BUFFER_BYTES { Err("a size without end".to_owned()) } else { Ok(last) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_a_command() {
        let all = RequestedStreams { stdin: true, stdout: true, stderr: true, tty: true };
        assert_eq!(expected(all, true), ["error", "stdin", "stdout", "resize"]);
        assert_eq!(expected(all, false), ["error", "stdin", "stdout"]);
        assert_eq!(expected(RequestedStreams { tty: false, ..all }, true), ["error", "stdin", "stdout", "stderr"]);
    }

    #[test]
    fn sizes_in_pieces() {
        let mut buffer = BytesMut::from(&br#"{"Width":80,"Height":24}{"Width":100,"#[..]);
        assert_eq!(sizes(&mut buffer), Ok(Some(Size { width: 80, height: 24 })));
        buffer.extend_from_slice(br#""Height":30}"#);
        assert_eq!(sizes(&mut buffer), Ok(Some(Size { width: 100, height: 30 })));
        assert_eq!((sizes(&mut buffer), buffer.len()), (Ok(None), 0));
        buffer.extend_from_slice(b"nonsense");
        assert!(sizes(&mut buffer).is_err());
        let mut endless = BytesMut::from(&[b'['; 5000][..]);
        assert!(sizes(&mut endless).is_err());
        let mut text = BytesMut::from(format!("{{\"x\":\"{}", "y".repeat(5000)).as_bytes());
        assert!(sizes(&mut text).is_err());
    }
}
