//! A WebSocket as a session, and as a stream of bytes for the SPDY inside it.

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
    session::{Activity, HEARTBEAT, LINGER, Output, Session, Size, Wanted},
};

/// Longer messages end the connection. Some clients send a whole file in one; upstream takes 32 MiB.
const MOST_MESSAGE: usize = 32 << 20;
/// Pieces that wait: of input, which may be as long as a message, and of output.
const STDIN_WAITING: usize = 1;
const OUTPUT_WAITING: usize = 8;

pub(super) type Socket = WebSocketStream<TokioIo<Upgraded>>;
type Incoming = SplitStream<Socket>;
pub(super) type Outgoing = SplitSink<Socket, Message>;

/// A connection that has been turned over, as a WebSocket of its server.
pub(super) async fn accept(upgraded: Upgraded) -> Socket {
    let config = WebSocketConfig::default().max_message_size(Some(MOST_MESSAGE)).max_frame_size(Some(MOST_MESSAGE));
    WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, Some(config)).await
}

/// A session over `socket`, kept by two tasks until it has ended or the client is gone.
pub(super) fn session(
    socket: Socket,
    channels: Channels,
    wanted: Wanted,
    tasks: &TaskTracker,
    gone: CancellationToken,
    activity: Activity,
) -> Session {
    let (outgoing, incoming) = socket.split();
    let (stdin, received) = mpsc::channel(STDIN_WAITING);
    let (resize, sizes) = watch::channel(None);
    let (output, to_write) = mpsc::channel(OUTPUT_WAITING);
    let ended = CancellationToken::new();
    let reader = Reader {
        channels,
        stdin: wanted.stdin.then_some(stdin),
        resize,
        ended: ended.clone(),
        gone: gone.clone(),
        activity: activity.clone(),
    };
    tasks.spawn(reader.run(incoming));
    let over = gone.clone();
    tasks.spawn(async move {
        tokio::select! {
            // First: a client that broke off must not be told a good end because the process took it for one.
            biased;
            () = over.cancelled() => {}
            written = write(outgoing, to_write, channels, wanted, activity) => match written {
                Ok(()) => ended.cancel(),
                Err(why) => {
                    tracing::debug!(%why, "a client of a command went away");
                    over.cancel();
                }
            },
        }
    });
    Session { stdin: wanted.stdin.then_some(received), sizes, output, gone }
}

struct Reader {
    channels: Channels,
    stdin: Option<mpsc::Sender<Bytes>>,
    resize: watch::Sender<Option<Size>>,
    ended: CancellationToken,
    gone: CancellationToken,
    activity: Activity,
}

impl Reader {
    async fn run(mut self, mut incoming: Incoming) {
        // Told before the process's input is closed, which would look as if the client had said all that it wanted.
        let _gone = self.gone.clone().drop_guard();
        loop {
            let message = tokio::select! {
                () = self.gone.cancelled() => return,
                () = self.ended.cancelled() => break,
                message = next_payload(&mut incoming) => message,
            };
            let Some(message) = message else { return };
            self.activity.touch();
            match self.channels.read(message) {
                Ok(Input::Stdin(bytes)) => {
                    let Some(stdin) = &self.stdin else { continue };
                    let taken = tokio::select! {
                        () = self.gone.cancelled() => return,
                        () = self.ended.cancelled() => break,
                        sent = stdin.send(bytes) => sent.is_ok(),
                    };
                    if !taken {
                        self.stdin = None;
                    }
                }
                Ok(Input::StdinClosed) => self.stdin = None,
                Ok(Input::Resize(size)) => {
                    self.resize.send_replace(Some(size));
                }
                Ok(Input::Nothing) => {}
                Err(why) => {
                    tracing::debug!(%why, "a client of a command cannot be understood");
                    return;
                }
            }
        }
        self.stdin = None;
        linger(&mut incoming, &self.gone).await;
    }
}

/// The bytes of the next message; `None` when no more come.
pub(super) async fn next_payload(incoming: &mut Incoming) -> Option<Bytes> {
    loop {
        match incoming.next().await? {
            Ok(message @ (Message::Binary(_) | Message::Text(_))) => return Some(message.into_data()),
            Ok(Message::Close(_)) => return None,
            Ok(_) => {}
            Err(why) => {
                tracing::debug!(%why, "a WebSocket broke");
                return None;
            }
        }
    }
}

/// Throws away what still comes until the client has closed too: a socket that is closed with unread bytes loses
/// what is on the way to the client.
pub(super) async fn linger(incoming: &mut Incoming, gone: &CancellationToken) {
    let rest = async { while let Some(Ok(_)) = incoming.next().await {} };
    tokio::select! {
        () = gone.cancelled() => {}
        _ = tokio::time::timeout(LINGER, rest) => {}
    }
}

/// The word that needs no answer. It is also what clients wait for when their own is stuck behind their input.
pub(super) fn heartbeat() -> Message {
    Message::Pong(Bytes::new())
}

/// The orderly end.
pub(super) fn goodbye() -> Message {
    Message::Close(Some(CloseFrame { code: CloseCode::Normal, reason: "".into() }))
}

async fn write(
    mut outgoing: Outgoing,
    mut output: mpsc::Receiver<Output>,
    channels: Channels,
    wanted: Wanted,
    activity: Activity,
) -> Result<(), Error> {
    // Clients wait for an empty message on the first channel that they can read.
    let first = if wanted.stdout {
        STDOUT
    } else if wanted.stderr {
        STDERR
    } else {
        ERROR
    };
    outgoing.send(channels.write(first, b"")).await?;
    let mut beat = tokio::time::interval_at(tokio::time::Instant::now() + HEARTBEAT, HEARTBEAT);
    loop {
        let next = match output.try_recv() {
            Ok(next) => Some(next),
            Err(_) => {
                outgoing.flush().await?;
                tokio::select! {
                    next = output.recv() => next,
                    _ = beat.tick() => {
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
                return outgoing.send(goodbye()).await;
            }
            // Without a last word: the client was given up meanwhile, and is not told of a good end.
            None => return Err(Error::ConnectionClosed),
        }
    }
}

/// The bytes inside a WebSocket's binary messages, both ways.
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
            Ok(Message::Text(_)) => Some(Err(io::Error::other("a text came where only bytes are spoken"))),
            Ok(_) => None,
            Err(why) => Some(Err(io::Error::other(why))),
        })
    });
    let outgoing = outgoing
        .with(|bytes| std::future::ready(Ok(Message::Binary(bytes))))
        .sink_map_err(|why: Error| io::Error::other(why));
    (incoming, outgoing)
}
