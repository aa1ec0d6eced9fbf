//! Port-forward: connections to a pod's ports, multiplexed in a client's connection.

use std::{collections::HashMap, io, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use futures::{SinkExt as _, StreamExt as _};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::mpsc,
};
use tokio_tungstenite::tungstenite::Message;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    channels::Channels,
    session::{Activity, HEARTBEAT_INTERVAL},
    spdy::{Connection, Stream},
    websocket::{self, Socket},
};
use crate::network::PodDialer;

/// The SPDY protocol, and the same tunnelled in a WebSocket.
pub(super) const SPDY: &str = "portforward.k8s.io";
pub(super) const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";
/// WebSockets with a pair of channels for each port of the query.
pub(super) const LEGACY: [&str; 2] = ["v4.channel.k8s.io", "v4.base64.channel.k8s.io"];

/// How long the first stream of a pair waits for the second; upstream's.
const PAIRING_TIMEOUT: Duration = Duration::from_secs(30);
/// Most streams that wait for their pair.
const MAX_PENDING_PAIRS: usize = 256;
const CHUNK_BYTES: usize = 32 << 10;
/// Capacity of the queues of WebSocket messages, toward a connection and toward the client.
const INPUT_QUEUE_CAPACITY: usize = 2;
const OUTPUT_QUEUE_CAPACITY: usize = 8;

/// The target pod.
#[derive(Debug, Clone)]
pub(super) struct Pod {
    /// `namespace/name` and uid, for messages.
    pub(super) name: Arc<str>,
    pub(super) network: PodDialer,
}

impl Pod {
    async fn dial(&self, port: u16) -> Result<TcpStream, String> {
        self.network.dial(port).await.map_err(|e| format!("error forwarding port {port} to pod {}: {e}", self.name))
    }
}

/// The ports of a query: `port=80&port=81,82`.
pub(super) fn ports(query: &[(String, String)]) -> Result<Vec<u16>, String> {
    let texts = query.iter().filter(|(key, _)| key == "port").flat_map(|(_, value)| value.split(','));
    let ports: Vec<u16> = texts.map(port).collect::<Result<_, _>>()?;
    match ports.len() {
        0 => Err("query parameter \"port\" is required".to_owned()),
        // Two channels each, and their number is one byte.
        1..=100 => Ok(ports),
        more => Err(format!("{more} ports are more than one connection can carry, which is 100")),
    }
}

fn port(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(0) => Err(format!("port {text:?} must be > 0")),
        Ok(port) => Ok(port),
        Err(_) => Err(format!("unable to parse {text:?} as a port")),
    }
}

/// Serves pairs of streams until the client is gone.
pub(super) async fn streams(mut connection: Connection, pod: Pod, tasks: &TaskTracker) {
    let mut pending: HashMap<String, (Stream, tokio::time::Instant)> = HashMap::new();
    let mut sweep = tokio::time::interval(PAIRING_TIMEOUT);
    loop {
        let stream = tokio::select! {
            () = connection.client_gone.cancelled() => return,
            _ = sweep.tick() => {
                pending.retain(|_, (_, since)| since.elapsed() < PAIRING_TIMEOUT);
                continue;
            }
            stream = connection.streams.recv() => stream,
        };
        let Some(stream) = stream else { return };
        let kind = stream.headers.get("streamtype").unwrap_or_default();
        if !matches!(kind, "error" | "data") {
            tracing::debug!(kind, "unexpected stream type");
            continue;
        }
        let is_error = kind == "error";
        // The oldest clients send no request id; their data stream follows the error stream.
        let request = stream.headers.get("requestid").map_or_else(
            || (if is_error { stream.id } else { stream.id.saturating_sub(2) }).to_string(),
            str::to_owned,
        );
        match pending.remove(&request) {
            Some((other, _)) if (other.headers.get("streamtype") == Some("error")) != is_error => {
                let (error, data) = if is_error { (stream, other) } else { (other, stream) };
                tasks.spawn(pair(error, data, pod.clone()));
            }
            Some(first) => {
                tracing::debug!(request, "duplicate stream of a pair; ignoring it");
                pending.insert(request, first);
            }
            None if pending.len() >= MAX_PENDING_PAIRS => tracing::debug!("too many unpaired streams"),
            None => {
                pending.insert(request, (stream, tokio::time::Instant::now()));
            }
        }
    }
}

/// Serves one connection to a port.
async fn pair(mut error: Stream, mut data: Stream, pod: Pod) {
    let wanted = data.headers.get("port").ok_or_else(|| "a stream names no port".to_owned()).and_then(port);
    let connected = match wanted {
        Ok(port) => pod.dial(port).await,
        Err(why) => Err(why),
    };
    let result = match connected {
        Ok(socket) => copy(socket, &mut data).await.map_err(|e| e.to_string()),
        Err(why) => Err(why),
    };
    if let Err(why) = result {
        error.writer.send(why.into()).await;
    }
    data.writer.finish().await;
    error.writer.finish().await;
}

/// Copies bytes both ways with half-close, until both ends are closed or the client resets the stream.
async fn copy(mut socket: TcpStream, stream: &mut Stream) -> io::Result<()> {
    let reset = stream.writer.reset.clone();
    let (mut from_pod, mut to_pod) = socket.split();
    let (writer, received) = (&mut stream.writer, &mut stream.data);
    let to_client = async {
        let mut buffer = BytesMut::new();
        loop {
            buffer.reserve(CHUNK_BYTES);
            if from_pod.read_buf(&mut buffer).await? == 0 {
                writer.finish().await;
                return io::Result::Ok(());
            }
            if !writer.send(buffer.split().freeze()).await {
                return Ok(());
            }
        }
    };
    let from_client = async {
        while let Some(bytes) = received.recv().await {
            to_pod.write_all(&bytes).await?;
        }
        to_pod.shutdown().await
    };
    tokio::select! {
        () = reset.cancelled() => Ok(()),
        both = async { tokio::try_join!(to_client, from_client) } => both.map(drop),
    }
}

/// Serves a WebSocket with a pair of channels for each port: data and errors.
pub(super) async fn channels(
    socket: Socket,
    channels: Channels,
    ports: Vec<u16>,
    pod: Pod,
    tasks: &TaskTracker,
    client_gone: CancellationToken,
    activity: Activity,
) {
    let (mut outgoing, mut incoming) = socket.split();
    let (out, mut to_write) = mpsc::channel::<Message>(OUTPUT_QUEUE_CAPACITY);
    let mut inputs = Vec::new();
    for (index, port) in (0u8..).zip(ports) {
        let (input, received) = mpsc::channel::<Bytes>(INPUT_QUEUE_CAPACITY);
        inputs.push(input);
        let (out, pod) = (out.clone(), pod.clone());
        tasks.spawn(channel(channels, index * 2, port, pod, out, received));
    }
    drop(out);
    let writer_activity = activity.clone();
    let write = async {
        let mut heartbeat =
            tokio::time::interval_at(tokio::time::Instant::now() + HEARTBEAT_INTERVAL, HEARTBEAT_INTERVAL);
        loop {
            let message = tokio::select! {
                message = to_write.recv() => message,
                _ = heartbeat.tick() => Some(websocket::heartbeat()),
            };
            let Some(message) = message else { break };
            if !matches!(message, Message::Pong(_)) {
                writer_activity.touch();
            }
            if outgoing.send(message).await.is_err() {
                return false;
            }
        }
        outgoing.send(websocket::close_frame()).await.is_ok()
    };
    let read = async {
        while let Some(message) = websocket::next_payload(&mut incoming).await {
            activity.touch();
            let Ok((channel, bytes)) = channels.split(message) else { return };
            let Some(input) = inputs.get(usize::from(channel / 2)).filter(|_| channel % 2 == 0) else { return };
            // A closed connection takes nothing, and has reported on its error channel.
            let _ = input.send(bytes).await;
        }
    };
    let orderly = tokio::select! {
        () = client_gone.cancelled() => false,
        () = read => false,
        orderly = write => orderly,
    };
    if orderly {
        websocket::drain(&mut incoming, &client_gone).await;
    }
    client_gone.cancel();
}

/// Serves one port of such a WebSocket.
async fn channel(
    channels: Channels,
    data: u8,
    port: u16,
    pod: Pod,
    out: mpsc::Sender<Message>,
    mut received: mpsc::Receiver<Bytes>,
) {
    let error = data + 1;
    // The port's number, by which clients match channels.
    for channel in [data, error] {
        if out.send(channels.write(channel, &port.to_le_bytes())).await.is_err() {
            return;
        }
    }
    let result = async {
        let mut socket = pod.dial(port).await?;
        let (mut from_pod, mut to_pod) = socket.split();
        let to_client = async {
            let mut buffer = vec![0; CHUNK_BYTES];
            loop {
                let length = from_pod.read(&mut buffer).await?;
                if length == 0 || out.send(channels.write(data, &buffer[..length])).await.is_err() {
                    return io::Result::Ok(());
                }
            }
        };
        let from_client = async {
            while let Some(bytes) = received.recv().await {
                to_pod.write_all(&bytes).await?;
            }
            to_pod.shutdown().await
        };
        // This protocol has no half-close: the connection ends when the pod closes it.
        tokio::select! {
            done = to_client => done,
            Err(error) = from_client => Err(error),
            else => Ok(()),
        }
        .map_err(|e| e.to_string())
    };
    if let Err(why) = result.await {
        let _ = out.send(channels.write(error, why.as_bytes())).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_a_query() {
        let read = |all: &[&str]| ports(&all.iter().map(|p| ("port".to_owned(), (*p).to_owned())).collect::<Vec<_>>());
        assert_eq!(read(&["80", "81,82"]), Ok(vec![80, 81, 82]));
        assert_eq!(read(&[]).unwrap_err(), "query parameter \"port\" is required");
        assert_eq!(read(&["0"]).unwrap_err(), "port \"0\" must be > 0");
        assert_eq!(read(&["x"]).unwrap_err(), "unable to parse \"x\" as a port");
        assert_eq!(read(&["65536"]).unwrap_err(), "unable to parse \"65536\" as a port");
        assert!(read(&["1"; 101]).is_err());
    }
}
