//! A SPDY connection: a task that reads frames, one that writes them, and the streams between.

use std::{collections::HashMap, fmt, sync::Arc};

use bytes::Bytes;
use futures::{Sink, SinkExt as _, Stream as Chunks, StreamExt as _};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    frame::{self, CANCEL, Decoder, Frame, REFUSED_STREAM},
    headers::{Deflater, Headers, Inflater},
};
use crate::server::stream::session::{Activity, CLOSE_TIMEOUT, HEARTBEAT_INTERVAL};

/// Most open streams: two for each forwarded connection.
const MAX_STREAMS: usize = 2048;
/// Capacity of the queues of one stream's data and of outgoing frames.
const STREAM_QUEUE_CAPACITY: usize = 4;
const FRAME_QUEUE_CAPACITY: usize = 16;
/// Bytes of one data frame.
const CHUNK_BYTES: usize = 64 << 10;

/// The streams that the client opens, in order.
#[derive(Debug)]
pub(in super::super) struct Connection {
    pub(in super::super) streams: mpsc::Receiver<Stream>,
    out: mpsc::Sender<Outgoing>,
    /// Cancelled when the connection is closed, from either side.
    pub(in super::super) client_gone: CancellationToken,
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
    table: StreamTable,
    /// Cancelled when the client has reset the stream, or is gone.
    pub(in super::super) reset: CancellationToken,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Writer {
    /// Sends bytes with backpressure; `false` when the client reset the stream.
    pub(in super::super) async fn send(&self, mut bytes: Bytes) -> bool {
        while !bytes.is_empty() {
            let chunk = bytes.split_to(bytes.len().min(CHUNK_BYTES));
            if !self.put(Outgoing::Data { stream: self.id, fin: false, bytes: chunk }).await {
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
        let open = self.table.lock().remove(&self.id).is_some();
        if open && !self.finished && !self.reset.is_cancelled() {
            // A full queue means a peer that does not read; it will see the end of the connection.
            let _ = self.out.try_send(Outgoing::Reset { stream: self.id, status: CANCEL });
        }
    }
}

/// The reading task's state of a stream.
#[derive(Debug)]
struct StreamState {
    /// `None` after the client's half close.
    data: Option<mpsc::Sender<Bytes>>,
    reset: CancellationToken,
}

type StreamTable = Arc<Mutex<HashMap<u32, StreamState>>>;

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
    /// Nothing follows it.
    End,
}

/// Starts a connection over `input` and `output`. `client_gone` ends it at once, and is cancelled on disconnect.
pub(in super::super) fn start<E: fmt::Display + Send + 'static>(
    input: impl Chunks<Item = Result<Bytes, E>> + Send + Unpin + 'static,
    output: impl Sink<Bytes, Error = E> + Send + Unpin + 'static,
    tasks: &TaskTracker,
    client_gone: CancellationToken,
    activity: Activity,
) -> Connection {
    let (out, to_write) = mpsc::channel(FRAME_QUEUE_CAPACITY);
    let (new_streams, streams) = mpsc::channel(STREAM_QUEUE_CAPACITY);
    let output_done = CancellationToken::new();
    let reader = Reader {
        table: StreamTable::default(),
        newest: 0,
        out: out.clone(),
        new_streams: Some(new_streams),
        client_gone: client_gone.clone(),
        output_done: output_done.clone(),
        activity: activity.clone(),
    };
    tasks.spawn(async move {
        let client_gone = reader.client_gone.clone();
        if let Err(why) = reader.run(input).await {
            tracing::debug!(%why, "SPDY connection closed");
        }
        client_gone.cancel();
    });
    let connection_done = client_gone.clone();
    tasks.spawn(async move {
        tokio::select! {
            () = connection_done.cancelled() => {}
            written = write(to_write, output, activity) => match written {
                Ok(()) => output_done.cancel(),
                Err(why) => {
                    tracing::debug!(%why, "SPDY connection closed");
                    connection_done.cancel();
                }
            },
        }
    });
    Connection { streams, out, client_gone }
}

impl Connection {
    /// Closes the connection once all queued frames are sent.
    pub(in super::super) async fn close(self) {
        tokio::select! {
            () = self.client_gone.cancelled() => {}
            _ = self.out.send(Outgoing::End) => {}
        }
    }
}

struct Reader {
    table: StreamTable,
    newest: u32,
    out: mpsc::Sender<Outgoing>,
    /// `None` once no streams are accepted any more.
    new_streams: Option<mpsc::Sender<Stream>>,
    client_gone: CancellationToken,
    /// All output is sent; further input is discarded.
    output_done: CancellationToken,
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
                () = self.client_gone.cancelled() => return Ok(()),
                () = self.output_done.cancelled() => break,
                bytes = input.next() => bytes,
            };
            let Some(bytes) = bytes else { return Ok(()) };
            decoder.push(&bytes.map_err(|e| e.to_string())?);
            while let Some(frame) = decoder.next().map_err(|e| e.to_string())? {
                self.handle_frame(frame, &mut inflater).await?;
            }
        }
        // Closing a socket with unread bytes would reset it and lose output.
        let rest = async { while let Some(Ok(_)) = input.next().await {} };
        tokio::select! {
            () = self.client_gone.cancelled() => {}
            _ = tokio::time::timeout(CLOSE_TIMEOUT, rest) => {}
        }
        Ok(())
    }

    async fn handle_frame(&mut self, frame: Frame, inflater: &mut Inflater) -> Result<(), String> {
        match frame {
            Frame::Open { stream, fin, block } => {
                let headers = inflater.read(&block).map_err(|e| e.to_string())?;
                self.open(stream, fin, headers).await?;
            }
            // Ignored, but they are part of the compression state.
            Frame::Headers { stream, fin, block } => {
                inflater.read(&block).map_err(|e| e.to_string())?;
                if fin {
                    self.half_close(stream);
                }
            }
            Frame::Data { stream, fin, bytes } => {
                self.activity.touch();
                if !bytes.is_empty() {
                    self.push_data(stream, bytes).await;
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
            // Even ids are replies to ours.
            Frame::Ping(id) if !id.is_multiple_of(2) => self.answer(Outgoing::Ping(id)).await,
            Frame::Ping(_) | Frame::GoAway => {}
        }
        Ok(())
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, HashMap<u32, StreamState>> {
        self.table.lock()
    }

    async fn open(&mut self, id: u32, fin: bool, headers: Headers) -> Result<(), String> {
        if id.is_multiple_of(2) || id <= self.newest {
            return Err(format!("the client opened stream {id}, which it cannot: its newest is {}", self.newest));
        }
        self.newest = id;
        let reset = self.client_gone.child_token();
        let (data, received) = mpsc::channel(STREAM_QUEUE_CAPACITY);
        let full = {
            let mut table = self.lock();
            let full = table.len() >= MAX_STREAMS;
            if !full {
                table.insert(id, StreamState { data: (!fin).then_some(data), reset: reset.clone() });
            }
            full
        };
        let Some(new_streams) = self.new_streams.clone().filter(|_| !full) else {
            self.lock().remove(&id);
            self.answer(Outgoing::Reset { stream: id, status: REFUSED_STREAM }).await;
            return Ok(());
        };
        self.answer(Outgoing::Reply { stream: id }).await;
        let writer = Writer { id, finished: false, out: self.out.clone(), table: Arc::clone(&self.table), reset };
        tokio::select! {
            () = self.client_gone.cancelled() => {}
            sent = new_streams.send(Stream { id, headers, data: received, writer }) => if sent.is_err() { self.new_streams = None },
        }
        Ok(())
    }

    async fn push_data(&self, stream: u32, bytes: Bytes) {
        // A closed stream may still receive bytes.
        let Some(data) = self.lock().get(&stream).and_then(|open| open.data.clone()) else { return };
        tokio::select! {
            () = self.client_gone.cancelled() => {}
            () = self.output_done.cancelled() => {}
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
            () = self.client_gone.cancelled() => {}
            () = self.output_done.cancelled() => {}
            _ = self.out.send(frame) => {}
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // Writers remove their own entries; this drops the data senders.
        self.lock().clear();
    }
}

async fn write<E: fmt::Display>(
    mut frames: mpsc::Receiver<Outgoing>,
    mut output: impl Sink<Bytes, Error = E> + Unpin,
    activity: Activity,
) -> Result<(), String> {
    let mut deflater = Deflater::new().map_err(|e| e.to_string())?;
    let mut heartbeat = tokio::time::interval_at(tokio::time::Instant::now() + HEARTBEAT_INTERVAL, HEARTBEAT_INTERVAL);
    let mut ping_id = 0u32;
    let wrong = |e: E| e.to_string();
    loop {
        let next = match frames.try_recv() {
            Ok(frame) => Some(frame),
            Err(_) => {
                output.flush().await.map_err(wrong)?;
                tokio::select! {
                    frame = frames.recv() => frame,
                    _ = heartbeat.tick() => {
                        // A write fails if the peer has vanished.
                        ping_id = ping_id.wrapping_add(2);
                        Some(Outgoing::Ping(ping_id))
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
