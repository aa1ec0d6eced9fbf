//! One connection: a task that reads frames, one that writes them, and the streams between.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use futures::{Sink, SinkExt as _, Stream as Chunks, StreamExt as _};
use tokio::sync::mpsc;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    frame::{self, CANCEL, Decoder, Frame, REFUSED_STREAM},
    headers::{Deflater, Headers, Inflater},
};
use crate::server::stream::session::{Activity, HEARTBEAT, LINGER};

/// Streams that may be open at once: two for each forwarded connection.
const MOST_STREAMS: usize = 2048;
/// Pieces that wait for the reader of one stream, and frames that wait for the socket.
const WAITING: usize = 4;
const TO_WRITE: usize = 16;
/// How much goes into one data frame.
const PIECE: usize = 64 << 10;

/// The streams that the client opens, in order.
#[derive(Debug)]
pub(in super::super) struct Connection {
    pub(in super::super) streams: mpsc::Receiver<Stream>,
    out: mpsc::Sender<Outgoing>,
    /// Cancelled when the connection is over, from either side.
    pub(in super::super) gone: CancellationToken,
}

/// A stream that the client has opened.
#[derive(Debug)]
pub(in super::super) struct Stream {
    pub(in super::super) id: u32,
    pub(in super::super) headers: Headers,
    /// What the client sends; closed at its half close, and when the connection is gone.
    pub(in super::super) data: mpsc::Receiver<Bytes>,
    pub(in super::super) writer: Writer,
}

/// Our half of a stream. Dropped without [`finish`](Self::finish), it resets the stream.
pub(in super::super) struct Writer {
    id: u32,
    finished: bool,
    out: mpsc::Sender<Outgoing>,
    table: Table,
    /// Cancelled when the client has reset the stream, or is gone.
    pub(in super::super) reset: CancellationToken,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Writer {
    /// Sends bytes, waiting while the client is slow; `false` when it wants no more.
    pub(in super::super) async fn send(&self, mut bytes: Bytes) -> bool {
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(PIECE));
            if !self.put(Outgoing::Data { stream: self.id, fin: false, bytes: piece }).await {
                return false;
            }
        }
        true
    }

    /// Closes our half.
    pub(in super::super) async fn finish(&mut self) {
        if !self.finished {
            self.finished = self.put(Outgoing::Data { stream: self.id, fin: true, bytes: Bytes::new() }).await;
        }
    }

    async fn put(&self, frame: Outgoing) -> bool {
        tokio::select! {
            biased;
            () = self.reset.cancelled() => false,
            sent = self.out.send(frame) => sent.is_ok(),
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let open = self.table.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id).is_some();
        if open && !self.finished && !self.reset.is_cancelled() {
            // A full queue means a peer that does not read: the end of the connection tells it the same.
            let _ = self.out.try_send(Outgoing::Reset { stream: self.id, status: CANCEL });
        }
    }
}

/// What the reading task keeps of a stream.
#[derive(Debug)]
struct Open {
    /// `None` after the client's half close.
    data: Option<mpsc::Sender<Bytes>>,
    reset: CancellationToken,
}

type Table = Arc<Mutex<HashMap<u32, Open>>>;

#[derive(Debug)]
enum Outgoing {
    Reply {
        stream: u32,
    },
    Data {
        stream: u32,
        fin: bool,
        bytes: Bytes,
    },
    Reset {
        stream: u32,
        status: u32,
    },
    Ping(u32),
    /// Nothing comes after it.
    End,
}

/// Begins a connection over `input` and `output`. `gone` ends it at once, and is cancelled when the client goes.
pub(in super::super) fn start<E: fmt::Display + Send + 'static>(
    input: impl Chunks<Item = Result<Bytes, E>> + Send + Unpin + 'static,
    output: impl Sink<Bytes, Error = E> + Send + Unpin + 'static,
    tasks: &TaskTracker,
    gone: CancellationToken,
    activity: Activity,
) -> Connection {
    let (out, to_write) = mpsc::channel(TO_WRITE);
    let (tell, streams) = mpsc::channel(WAITING);
    let ended = CancellationToken::new();
    let reader = Reader {
        table: Table::default(),
        newest: 0,
        out: out.clone(),
        tell: Some(tell),
        gone: gone.clone(),
        ended: ended.clone(),
        activity: activity.clone(),
    };
    tasks.spawn(async move {
        let gone = reader.gone.clone();
        if let Err(why) = reader.run(input).await {
            tracing::debug!(%why, "a SPDY connection ended");
        }
        gone.cancel();
    });
    let over = gone.clone();
    tasks.spawn(async move {
        tokio::select! {
            () = over.cancelled() => {}
            written = write(to_write, output, activity) => match written {
                Ok(()) => ended.cancel(),
                Err(why) => {
                    tracing::debug!(%why, "a SPDY connection ended");
                    over.cancel();
                }
            },
        }
    });
    Connection { streams, out, gone }
}

impl Connection {
    /// Ends the connection once everything that was sent is out.
    pub(in super::super) async fn close(self) {
        tokio::select! {
            () = self.gone.cancelled() => {}
            _ = self.out.send(Outgoing::End) => {}
        }
    }
}

struct Reader {
    table: Table,
    newest: u32,
    out: mpsc::Sender<Outgoing>,
    /// `None` once nobody takes streams any more.
    tell: Option<mpsc::Sender<Stream>>,
    gone: CancellationToken,
    /// Everything is said; what still comes is thrown away.
    ended: CancellationToken,
    activity: Activity,
}

impl Reader {
    async fn run<E: fmt::Display>(
        mut self,
        mut input: impl Chunks<Item = Result<Bytes, E>> + Unpin,
    ) -> Result<(), String> {
        let (mut decoder, mut inflater) = (Decoder::default(), Inflater::new());
        loop {
            let bytes = tokio::select! {
                () = self.gone.cancelled() => return Ok(()),
                () = self.ended.cancelled() => break,
                bytes = input.next() => bytes,
            };
            let Some(bytes) = bytes else { return Ok(()) };
            decoder.push(&bytes.map_err(|e| e.to_string())?);
            while let Some(frame) = decoder.next().map_err(|e| e.to_string())? {
                self.take(frame, &mut inflater).await?;
            }
        }
        // A socket that is closed with unread bytes loses what is on the way to the client.
        let rest = async { while let Some(Ok(_)) = input.next().await {} };
        tokio::select! {
            () = self.gone.cancelled() => {}
            _ = tokio::time::timeout(LINGER, rest) => {}
        }
        Ok(())
    }

    async fn take(&mut self, frame: Frame, inflater: &mut Inflater) -> Result<(), String> {
        match frame {
            Frame::Open { stream, fin, block } => {
                let headers = inflater.read(&block).map_err(|e| e.to_string())?;
                self.open(stream, fin, headers).await?;
            }
            // They say nothing to us, but what they hold belongs to the state of the compression.
            Frame::Headers { stream, fin, block } => {
                inflater.read(&block).map_err(|e| e.to_string())?;
                if fin {
                    self.half_close(stream);
                }
            }
            Frame::Data { stream, fin, bytes } => {
                self.activity.touch();
                if !bytes.is_empty() {
                    self.deliver(stream, bytes).await;
                }
                if fin {
                    self.half_close(stream);
                }
            }
            Frame::Reset { stream } => {
                if let Some(open) = self.lock().remove(&stream) {
                    open.reset.cancel();
                }
            }
            // Ours have even numbers, and their answers ask for nothing.
            Frame::Ping(id) if !id.is_multiple_of(2) => self.answer(Outgoing::Ping(id)).await,
            Frame::Ping(_) | Frame::GoAway => {}
        }
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u32, Open>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn open(&mut self, id: u32, fin: bool, headers: Headers) -> Result<(), String> {
        if id.is_multiple_of(2) || id <= self.newest {
            return Err(format!("the client opened stream {id}, which it cannot: its newest is {}", self.newest));
        }
        self.newest = id;
        let reset = self.gone.child_token();
        let (data, received) = mpsc::channel(WAITING);
        let full = {
            let mut table = self.lock();
            let full = table.len() >= MOST_STREAMS;
            if !full {
                table.insert(id, Open { data: (!fin).then_some(data), reset: reset.clone() });
            }
            full
        };
        let Some(tell) = self.tell.clone().filter(|_| !full) else {
            self.lock().remove(&id);
            self.answer(Outgoing::Reset { stream: id, status: REFUSED_STREAM }).await;
            return Ok(());
        };
        self.answer(Outgoing::Reply { stream: id }).await;
        let writer = Writer { id, finished: false, out: self.out.clone(), table: Arc::clone(&self.table), reset };
        tokio::select! {
            () = self.gone.cancelled() => {}
            told = tell.send(Stream { id, headers, data: received, writer }) => if told.is_err() { self.tell = None },
        }
        Ok(())
    }

    async fn deliver(&self, stream: u32, bytes: Bytes) {
        // Streams that are over may have bytes on the way.
        let Some(data) = self.lock().get(&stream).and_then(|open| open.data.clone()) else { return };
        tokio::select! {
            () = self.gone.cancelled() => {}
            () = self.ended.cancelled() => {}
            _ = data.send(bytes) => {}
        }
    }

    fn half_close(&self, stream: u32) {
        if let Some(open) = self.lock().get_mut(&stream) {
            open.data = None;
        }
    }

    async fn answer(&self, frame: Outgoing) {
        tokio::select! {
            () = self.gone.cancelled() => {}
            () = self.ended.cancelled() => {}
            _ = self.out.send(frame) => {}
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // Their writers drop their own entries; what is left are the senders of data, which end with us.
        self.lock().clear();
    }
}

async fn write<E: fmt::Display>(
    mut frames: mpsc::Receiver<Outgoing>,
    mut output: impl Sink<Bytes, Error = E> + Unpin,
    activity: Activity,
) -> Result<(), String> {
    let mut deflater = Deflater::new().map_err(|e| e.to_string())?;
    let mut beat = tokio::time::interval_at(tokio::time::Instant::now() + HEARTBEAT, HEARTBEAT);
    let mut beats = 0u32;
    let wrong = |e: E| e.to_string();
    loop {
        let next = match frames.try_recv() {
            Ok(frame) => Some(frame),
            Err(_) => {
                output.flush().await.map_err(wrong)?;
                tokio::select! {
                    frame = frames.recv() => frame,
                    _ = beat.tick() => {
                        // A peer that is gone without a word shows itself when it is written to.
                        beats = beats.wrapping_add(2);
                        Some(Outgoing::Ping(beats))
                    }
                }
            }
        };
        let bytes = match next {
            Some(Outgoing::Reply { stream }) => frame::reply(stream, &deflater.write(&[]).map_err(|e| e.to_string())?),
            Some(Outgoing::Data { stream, fin, bytes }) => {
                activity.touch();
                frame::data(stream, fin, &bytes)
            }
            Some(Outgoing::Reset { stream, status }) => frame::reset(stream, status),
            Some(Outgoing::Ping(id)) => frame::ping(id),
            Some(Outgoing::End) | None => {
                output.feed(frame::go_away(0)).await.map_err(wrong)?;
                return output.close().await.map_err(wrong);
            }
        };
        output.feed(bytes).await.map_err(wrong)?;
    }
}

#[cfg(test)]
mod tests;
