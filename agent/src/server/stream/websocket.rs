//! Exec and attach over a WebSocket, and a WebSocket as a byte stream for tunnelled SPDY.

use std::io;

use bytes::Bytes;
use futures::{
    Sink, SinkExt as _, Stream, StreamExt as _,
    stream::{SplitSink, SplitStream},
};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::sync::{mpsc, watch};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Error, Message,
        protocol::{CloseFrame, Role, WebSocketConfig, frame::coding::CloseCode},
    },
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    channels::{Channels, ERROR, Input, STDERR, STDOUT},
    session::{Activity, CLOSE_TIMEOUT, HEARTBEAT_INTERVAL, Output, RequestedStreams, Session, Size},
};

/// Maximum message size. Some clients send a whole file in one message; upstream accepts 32 MiB.
const MAX_MESSAGE_BYTES: usize = 32 << 20;
/// Capacity of the queues of input, whose entries may be whole messages, and of output.
const STDIN_QUEUE_CAPACITY: usize = 1;
const OUTPUT_QUEUE_CAPACITY: usize = 8;

pub(super) type Socket = WebSocketStream<TokioIo<Upgraded>>;
type Incoming = SplitStream<Socket>;
pub(super) type Outgoing = SplitSink<Socket, Message>;

/// The server side of a WebSocket over an upgraded connection.
pub(super) async fn accept(upgraded: Upgraded) -> Socket {
    let config =
        WebSocketConfig::default().max_message_size(Some(MAX_MESSAGE_BYTES)).max_frame_size(Some(MAX_MESSAGE_BYTES));
    WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, Some(config)).await
}

/// A session over `socket`, served by two tasks until it has ended or the client is gone.
pub(super) fn session(
    socket: Socket,
    channels: Channels,
    requested: RequestedStreams,
    tasks: &TaskTracker,
    client_gone: CancellationToken,
    activity: Activity,
) -> Session {
    let (outgoing, incoming) = socket.split();
    let (stdin, received) = mpsc::channel(STDIN_QUEUE_CAPACITY);
    let (resize, sizes) = watch::channel(None);
    let (output, to_write) = mpsc::channel(OUTPUT_QUEUE_CAPACITY);
    let output_done = CancellationToken::new();
    let reader = Reader {
        channels,
        stdin: requested.stdin.then_some(stdin),
        resize,
        output_done: output_done.clone(),
        client_gone: client_gone.clone(),
        activity: activity.clone(),
    };
    tasks.spawn(reader.run(incoming));
    let connection_done = client_gone.clone();
    tasks.spawn(async move {
        tokio::select! {
            // First: the process may take a broken connection for the end of its input, and must not be reported as
            // successful.
            biased;
            () = connection_done.cancelled() => {}
            written = write(outgoing, to_write, channels, requested, activity) => match written {
                Ok(()) => output_done.cancel(),
                Err(why) => {
                    tracing::debug!(%why, "client connection closed");
                    connection_done.cancel();
                }
            },
        }
    });
    Session { stdin: requested.stdin.then_some(received), sizes, output, client_gone }
}

struct Reader {
    channels: Channels,
    stdin: Option<mpsc::Sender<Bytes>>,
    resize: watch::Sender<Option<Size>>,
    output_done: CancellationToken,
    client_gone: CancellationToken,
    activity: Activity,
}

impl Reader {
    async fn run(mut self, mut incoming: Incoming) {
        // Cancelled before the process's input is closed, which would look like a regular end of input.
        let _gone = self.client_gone.clone().drop_guard();
        loop {
            let message = tokio::select! {
                () = self.client_gone.cancelled() => return,
                () = self.output_done.cancelled() => break,
                message = next_payload(&mut incoming) => message,
            };
            let Some(message) = message else { return };
            self.activity.touch();
            match self.channels.read(message) {
                Ok(Input::Stdin(bytes)) => {
                    let Some(stdin) = &self.stdin else { continue };
                    let accepted = tokio::select! {
                        () = self.client_gone.cancelled() => return,
                        () = self.output_done.cancelled() => break,
                        sent = stdin.send(bytes) => sent.is_ok(),
                    };
                    if !accepted {
                        self.stdin = None;
                    }
                }
                Ok(Input::StdinClosed) => self.stdin = None,
                Ok(Input::Resize(size)) => {
                    self.resize.send_replace(Some(size));
                }
                Ok(Input::Nothing) => {}
                Err(why) => {
                    tracing::debug!(%why, "invalid message from client");
                    return;
                }
            }
        }
        self.stdin = None;
        drain(&mut incoming, &self.client_gone).await;
    }
}

/// The payload of the next message; `None` at the end.
pub(super) async fn next_payload(incoming: &mut Incoming) -> Option<Bytes> {
    loop {
        match incoming.next().await? {
            Ok(message @ (Message::Binary(_) | Message::Text(_))) => return Some(message.into_data()),
            Ok(Message::Close(_)) => return None,
            Ok(_) => {}
            Err(why) => {
                tracing::debug!(%why, "WebSocket failed");
                return None;
            }
        }
    }
}

/// Discards input until the client has closed too: closing a socket with unread bytes would reset it and lose output.
pub(super) async fn drain(incoming: &mut Incoming, client_gone: &CancellationToken) {
    let rest = async { while let Some(Ok(_)) = incoming.next().await {} };
    tokio::select! {
        () = client_gone.cancelled() => {}
        _ = tokio::time::timeout(CLOSE_TIMEOUT, rest) => {}
    }
}

/// An unsolicited pong, which needs no reply. Clients also wait for it when their own ping is stuck behind their input.
pub(super) fn heartbeat() -> Message {
    Message::Pong(Bytes::new())
}

/// The regular close frame.
pub(super) fn close_frame() -> Message {
    Message::Close(Some(CloseFrame { code: CloseCode::Normal, reason: "".into() }))
}

async fn write(
    mut outgoing: Outgoing,
    mut output: mpsc::Receiver<Output>,
    channels: Channels,
    requested: RequestedStreams,
    activity: Activity,
) -> Result<(), Error> {
    // Clients wait for an empty message on the first readable channel.
    let first = if requested.stdout {
        STDOUT
    } else if requested.stderr {
        STDERR
    } else {
        ERROR
    };
    outgoing.send(channels.write(first, b"")).await?;
    let mut heartbeat_timer =
        tokio::time::interval_at(tokio::time::Instant::now() + HEARTBEAT_INTERVAL, HEARTBEAT_INTERVAL);
    loop {
        let next = match output.try_recv() {
            Ok(next) => Some(next),
            Err(_) => {
                outgoing.flush().await?;
                tokio::select! {
                    next = output.recv() => next,
                    _ = heartbeat_timer.tick() => {
                        outgoing.feed(heartbeat()).await?;
                        continue;
                    }
                }
            }
        };
        activity.touch();
        match next {
            Some(Output::Stdout(bytes)) => outgoing.feed(channels.write(STDOUT, &bytes)).await?,
            Some(Output::Stderr(bytes)) => outgoing.feed(channels.write(STDERR, &bytes)).await?,
            Some(Output::End(ending)) => {
                if let Some(message) = channels.end(&ending) {
                    outgoing.feed(message).await?;
                }
                return outgoing.send(close_frame()).await;
            }
            // Without a final status: the session was aborted, and no success is reported.
            None => return Err(Error::ConnectionClosed),
        }
    }
}

/// The byte stream inside a WebSocket's binary messages, both ways.
pub(super) fn bytes(
    socket: Socket,
) -> (
    impl Stream<Item = io::Result<Bytes>> + Send + Unpin + 'static,
    impl Sink<Bytes, Error = io::Error> + Send + Unpin + 'static,
) {
    let (outgoing, incoming) = socket.split();
    let incoming = incoming.filter_map(|message| {
        std::future::ready(match message {
            Ok(Message::Binary(bytes)) => Some(Ok(bytes)),
            Ok(Message::Text(_)) => Some(Err(io::Error::other("unexpected text message"))),
            Ok(_) => None,
            Err(why) => Some(Err(io::Error::other(why))),
        })
    });
    let outgoing = outgoing
        .with(|bytes| std::future::ready(Ok(Message::Binary(bytes))))
        .sink_map_err(|why: Error| io::Error::other(why));
    (incoming, outgoing)
}
