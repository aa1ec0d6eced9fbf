//! The sockets: UDP packets and TCP connections of those who are answered, and no more of them than fit.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UdpSocket},
    time::{interval, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use windlass_kit::liveness::{HEARTBEAT_INTERVAL, LoopProbe};

use super::{
    message::Transport,
    places::Places,
    responder::{Responder, Step},
};

/// The largest request over UDP.
const MAX_REQUEST: usize = 4096;
/// Connections at a time.
const MAX_CONNECTIONS: usize = 256;
/// How long a connection may wait for a request, and its client take to send one or to receive an answer.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause after an error of a socket, such as too many open files.
const ERROR_PAUSE: Duration = Duration::from_millis(100);

/// Answers packets until `shutdown`.
pub(super) async fn serve_udp(
    socket: Arc<UdpSocket>,
    responder: Arc<Responder>,
    probe: Arc<LoopProbe>,
    shutdown: CancellationToken,
) -> Result<(), Infallible> {
    let mut buffer = vec![0; MAX_REQUEST];
    let mut heartbeat = interval(HEARTBEAT_INTERVAL);
    loop {
        let received = tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            _ = heartbeat.tick() => {
                probe.beat();
                continue;
            }
            received = socket.recv_from(&mut buffer) => received,
        };
        let (size, from) = match received {
            Ok(received) => received,
            Err(error) => {
                tracing::warn!(%error, "failed to receive a packet of the cluster's DNS");
                sleep(ERROR_PAUSE).await;
                continue;
            }
        };
        if !responder.allows(from, Transport::Udp) {
            continue;
        }
        match responder.respond(buffer.get(..size).unwrap_or_default(), Transport::Udp, from) {
            Step::Nothing => {}
            Step::Reply(reply) => send(&socket, &reply, from).await,
            Step::Wait(waiting) => {
                let (socket, responder) = (Arc::clone(&socket), Arc::clone(&responder));
                tokio::spawn(async move { send(&socket, &responder.finish(&waiting).await, from).await });
            }
        }
    }
}

async fn send(socket: &UdpSocket, reply: &[u8], to: SocketAddr) {
    if let Err(error) = socket.send_to(reply, to).await {
        tracing::debug!(%error, %to, "failed to send an answer of the cluster's DNS");
    }
}

/// Answers connections until `shutdown`.
pub(super) async fn serve_tcp(
    listener: Arc<TcpListener>,
    responder: Arc<Responder>,
    shutdown: CancellationToken,
) -> Result<(), Infallible> {
    let connections = Places::new(MAX_CONNECTIONS);
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            accepted = listener.accept() => accepted,
        };
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "failed to accept a connection of the cluster's DNS");
                sleep(ERROR_PAUSE).await;
                continue;
            }
        };
        if !responder.allows(from, Transport::Tcp) {
            continue;
        }
        let Some(place) = connections.enter(from.ip()) else {
            tracing::debug!(%from, "too many connections to the cluster's DNS; this one is closed");
            continue;
        };
        let (responder, shutdown) = (Arc::clone(&responder), shutdown.clone());
        tokio::spawn(async move {
            let _place = place;
            tokio::select! {
                () = shutdown.cancelled() => {}
                result = serve_connection(stream, from, &responder) => {
                    if let Err(error) = result {
                        tracing::debug!(%error, %from, "a connection to the cluster's DNS ended");
                    }
                }
            }
        });
    }
}

/// Answers the requests of a connection, one after the other.
async fn serve_connection(mut stream: TcpStream, from: SocketAddr, responder: &Responder) -> std::io::Result<()> {
    loop {
        let read = async {
            let mut packet = vec![0; usize::from(stream.read_u16().await?)];
            stream.read_exact(&mut packet).await?;
            std::io::Result::Ok(packet)
        };
        let packet = timeout(IDLE_TIMEOUT, read).await??;
        let reply = match responder.respond(&packet, Transport::Tcp, from) {
            Step::Nothing => return Ok(()),
            Step::Reply(reply) => reply,
            Step::Wait(waiting) => responder.finish(&waiting).await,
        };
        let length = u16::try_from(reply.len()).map_err(std::io::Error::other)?;
        let framed: Vec<u8> = length.to_be_bytes().into_iter().chain(reply).collect();
        timeout(IDLE_TIMEOUT, stream.write_all(&framed)).await??;
    }
}
