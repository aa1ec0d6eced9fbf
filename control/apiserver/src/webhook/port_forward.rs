//! A way to a pod of another node where this machine has no route to it: through the API of the node, which forwards a port.

use axum::body::Bytes;
use bytes::BytesMut;
use futures::{SinkExt as _, StreamExt as _};
use http::{HeaderValue, Request, header};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, handshake::client::generate_key},
};

use super::{ExtensionClients, resolver::Endpoint};
use crate::{
    apiserver::{KubeletClient, handlers::proxy::backend::Stream},
    store::Key,
};

/// A pair of channels for each port; the first message of each is the port's number.
const PROTOCOL: HeaderValue = HeaderValue::from_static("v4.channel.k8s.io");
/// The channels of the first port.
const DATA: u8 = 0;
/// Bytes on the way in each direction.
const BUFFER_BYTES: usize = 64 << 10;
const CHUNK_BYTES: usize = 32 << 10;

impl ExtensionClients {
    /// How to reach an endpoint through its node; `None` for what is no pod of another node.
    pub(super) fn forwarding(
        &self,
        endpoint: &Endpoint,
    ) -> Option<impl Future<Output = Result<Stream, String>> + Send + use<>> {
        let (kubelet, pod) = (self.kubelet.clone()?, endpoint.pod.clone()?);
        if endpoint.node.is_empty() || kubelet.is_in_process(&endpoint.node) {
            return None;
        }
        let key = Key { namespace: String::new(), name: endpoint.node.clone() };
        let node = self.store.get(self.store.resource("nodes"), &key)?.value();
        let port = endpoint.address.port();
        Some(async move { forward(&kubelet, &node, &pod, port).await })
    }
}

async fn forward(kubelet: &KubeletClient, node: &serde_json::Value, pod: &Key, port: u16) -> Result<Stream, String> {
    let stream = kubelet.open(node).await?;
    let request = Request::get(format!("wss://node/portForward/{}/{}?port={port}", pod.namespace, pod.name))
        .header(header::HOST, "node")
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "websocket")
        .header(header::SEC_WEBSOCKET_VERSION, "13")
        .header(header::SEC_WEBSOCKET_KEY, generate_key())
        .header(header::SEC_WEBSOCKET_PROTOCOL, PROTOCOL)
        .body(())
        .map_err(|error| error.to_string())?;
    let opened = tokio_tungstenite::client_async(request, stream).await;
    let (socket, _) = opened.map_err(|error| format!("the node did not forward port {port}: {error}"))?;
    let (near, far) = tokio::io::duplex(BUFFER_BYTES);
    tokio::spawn(carry(socket, far));
    Ok(Box::new(near))
}

/// Carries bytes between the socket and the connection that it stands for, until either ends.
async fn carry(socket: WebSocketStream<Stream>, connection: DuplexStream) {
    let (mut to_node, mut from_node) = socket.split();
    let (mut from_client, mut to_client) = tokio::io::split(connection);
    let inbound = async {
        let mut is_begun = false;
        while let Some(Ok(message)) = from_node.next().await {
            let Message::Binary(bytes) = message else { continue };
            match (bytes.first(), is_begun) {
                // The number of the port.
                (Some(&DATA), false) => is_begun = true,
                (Some(&DATA), true) if to_client.write_all(&bytes[1..]).await.is_err() => return,
                // Why the port cannot be forwarded, after its number.
                (Some(_), _) if bytes.len() > 3 => {
                    let why = String::from_utf8_lossy(&bytes[1..]).into_owned();
                    return tracing::debug!(why, "failed to forward a port for a webhook");
                }
                _ => {}
            }
        }
    };
    let outbound = async {
        let mut buffer = BytesMut::with_capacity(CHUNK_BYTES);
        loop {
            buffer.clear();
            buffer.extend_from_slice(&[DATA]);
            match from_client.read_buf(&mut buffer).await {
                Ok(0) | Err(_) => return,
                Ok(_) if to_node.send(Message::Binary(Bytes::copy_from_slice(&buffer))).await.is_err() => return,
                Ok(_) => {}
            }
        }
    };
    tokio::select! {
        () = inbound => {}
        () = outbound => {}
    }
}
