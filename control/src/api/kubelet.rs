//! The way from the API server to a node's own API: for logs, and for connections to processes and ports.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, OnceLock, PoisonError, RwLock},
    time::Duration,
};

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, Method, StatusCode},
    response::Response,
};
use bytes::BytesMut;
use http_body_util::{BodyExt as _, Empty};
use hyper::{body::Incoming, client::conn::http1, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use serde_json::Value;
use tokio::{
    io::{DuplexStream, copy_bidirectional_with_sizes},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::{either::Either, sync::CancellationToken};
use windlass_kit::serve::Door;

use super::{connect, error::ApiError};

/// How long a node may take to take a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a node may take from then until the head of its answer is there.
const HEAD: Duration = Duration::from_secs(30);
/// What is read of an answer that is an error, and for how long.
const MOST_ERROR: usize = 64 << 10;
const ERROR: Duration = Duration::from_secs(5);
/// How much of a connection is passed on at once.
const PIECE: usize = 64 << 10;

type Stream = Either<DuplexStream, Box<TlsStream<TcpStream>>>;
type Connection = (http1::SendRequest<Empty<Bytes>>, http1::Connection<TokioIo<Stream>, Empty<Bytes>>);

/// A client with the API server's certificate.
#[derive(Clone)]
pub struct KubeletClient {
    tls: Arc<RwLock<Arc<ClientConfig>>>,
    own: Arc<OnceLock<OwnNode>>,
}

/// The node that this process is.
struct OwnNode {
    name: String,
    door: Door,
}

impl std::fmt::Debug for KubeletClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KubeletClient")
    }
}

impl KubeletClient {
    /// A client with this configuration: it must present the server's certificate and trust the nodes' ones.
    #[must_use]
    pub fn new(tls: ClientConfig) -> Self {
        Self { tls: Arc::new(RwLock::new(Arc::new(tls))), own: Arc::default() }
    }

    /// Shows nodes another certificate from now on.
    pub fn replace(&self, tls: ClientConfig) {
        *self.tls.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(tls);
    }

    /// Reaches the node of this name through a door in this process. The first one counts.
    pub fn reach_inside(&self, name: String, door: Door) {
        let _ = self.own.set(OwnNode { name, door });
    }

    fn tls(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.tls.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Opens a connection to a node's API.
    async fn connect(&self, node: &Value) -> Result<(Asked, Connection), ApiError> {
        let name = node["metadata"]["name"].as_str().unwrap_or("").to_owned();
        let (address, port) =
            endpoint(node).ok_or_else(|| ApiError::internal(format!("node {name:?} has told no address yet")))?;
        let asked = Asked { name, address, port };
        let own = self.own.get().filter(|own| own.name == asked.name);
        let stream = match own {
            Some(own) => Either::Left(own.door.connect().await.map_err(|e| asked.failed("reached", &e))?),
            None => Either::Right(Box::new(self.connect_outside(&asked).await?)),
        };
        let connection = http1::handshake(TokioIo::new(stream)).await.map_err(|e| asked.failed("asked", &e))?;
        Ok((asked, connection))
    }

    async fn connect_outside(&self, asked: &Asked) -> Result<TlsStream<TcpStream>, ApiError> {
        let (address, port) = (asked.address, asked.port);
        let stream = tokio::time::timeout(CONNECT, TcpStream::connect((address, port)))
            .await
            .map_err(|e| asked.failed("reached", &e))?
            .map_err(|e| asked.failed("reached", &e))?;
        let _ = stream.set_nodelay(true);
        let connector = TlsConnector::from(self.tls());
        connector.connect(ServerName::from(address), stream).await.map_err(|e| asked.failed("trusted", &e))
    }

    /// Sends a request to a node and waits for the head of its answer. The connection ends with the answer's body, or
    /// goes on as what it is upgraded to.
    async fn ask(
        &self,
        node: &Value,
        method: &Method,
        path: &str,
        headers: HeaderMap,
    ) -> Result<(Asked, hyper::Response<Incoming>), ApiError> {
        let name = node["metadata"]["name"].as_str().unwrap_or("");
        let asking = async {
            let (asked, (mut sender, connection)) = self.connect(node).await?;
            tokio::spawn(connection.with_upgrades());
            let mut request = asked.request(method, path)?;
            request.headers_mut().extend(headers);
            let answer = sender.send_request(request).await.map_err(|e| asked.failed("asked", &e))?;
            Ok((asked, answer))
        };
        tokio::time::timeout(HEAD, asking).await.unwrap_or_else(|_| {
            let seconds = HEAD.as_secs();
            Err(ApiError::new(504, "Timeout", format!("the API of node {name:?} did not answer within {seconds} s")))
        })
    }

    /// Asks a node and hands its answer through as it comes.
    pub(super) async fn get(&self, node: &Value, path: &str) -> Result<Response, ApiError> {
        let (asked, answer) = self.ask(node, &Method::GET, path, HeaderMap::new()).await?;
        let (parts, body) = answer.into_parts();
        if parts.status != StatusCode::OK {
            let text = beginning(body).await;
            let text = String::from_utf8_lossy(&text).trim().to_owned();
            return Err(match parts.status.as_u16() {
                422 => ApiError::new(422, "Invalid", text),
                code @ (400 | 404) => ApiError::new(code, if code == 404 { "NotFound" } else { "BadRequest" }, text),
                code => ApiError::internal(format!("the API of node {:?} answered {code}: {text}", asked.name)),
            });
        }
        let mut response = Response::new(Body::new(body));
        if let Some(kind) = parts.headers.get(hyper::header::CONTENT_TYPE) {
            response.headers_mut().insert(hyper::header::CONTENT_TYPE, kind.clone());
        }
        Ok(response)
    }

    /// Asks a node to turn a connection over, and joins the client's to it until either ends, or `closing`.
    pub(super) async fn turn_over(
        &self,
        node: &Value,
        method: &Method,
        path: &str,
        headers: HeaderMap,
        client: OnUpgrade,
        closing: &CancellationToken,
    ) -> Result<Response, ApiError> {
        let (_, mut answer) = self.ask(node, method, path, headers).await?;
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            let (parts, body) = answer.into_parts();
            let body = beginning(body).await;
            return Ok(connect::answered(&parts).map(|_| Body::from(body)));
        }
        let node = hyper::upgrade::on(&mut answer);
        let closing = closing.clone();
        tokio::spawn(async move {
            let (client, node) = match tokio::try_join!(client, node) {
                Ok((client, node)) => (client, node),
                Err(error) => return tracing::debug!(%error, "a connection could not be turned over"),
            };
            let (mut client, mut node) = (TokioIo::new(client), TokioIo::new(node));
            tokio::select! {
                () = closing.cancelled() => {}
                ended = copy_bidirectional_with_sizes(&mut client, &mut node, PIECE, PIECE) => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "a connection to a pod broke");
                    }
                }
            }
        });
        Ok(connect::answered(&answer.into_parts().0))
    }
}

/// What a node says of what went wrong: no more than anybody would read, and no longer than anybody would wait.
async fn beginning<B>(mut body: B) -> Bytes
where
    B: hyper::body::Body<Data = Bytes> + Unpin,
{
    let mut text = BytesMut::new();
    let reading = async {
        while let Some(Ok(frame)) = body.frame().await {
            let Some(data) = frame.data_ref() else { continue };
            let room = MOST_ERROR - text.len();
            text.extend_from_slice(&data[..data.len().min(room)]);
            if text.len() == MOST_ERROR {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(ERROR, reading).await;
    text.freeze()
}

/// A node that is asked.
struct Asked {
    name: String,
    address: IpAddr,
    port: u16,
}

impl Asked {
    fn failed(&self, what: &str, why: &dyn std::fmt::Display) -> ApiError {
        let Self { name, address, port } = self;
        ApiError::internal(format!(
            "the API of node {name:?} at {address}:{port} could not be {what}: {why}; does its agent run?"
        ))
    }

    fn request(&self, method: &Method, path: &str) -> Result<hyper::Request<Empty<Bytes>>, ApiError> {
        hyper::Request::builder()
            .method(method)
            .uri(path)
            .header("host", SocketAddr::new(self.address, self.port).to_string())
            .body(Empty::new())
            .map_err(|e| self.failed("asked", &e))
    }
}

fn endpoint(node: &Value) -> Option<(IpAddr, u16)> {
    let addresses = node["status"]["addresses"].as_array()?;
    let address = addresses.iter().find(|a| a["type"] == "InternalIP")?["address"].as_str()?.parse().ok()?;
    let port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64()?;
    Some((address, u16::try_from(port).ok()?))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::stream;
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use serde_json::json;
    use windlass_kit::serve::{Peer, inside};

    use super::*;

    type Frames = Result<Frame<Bytes>, Infallible>;

    #[tokio::test(start_paused = true)]
    async fn an_error_without_end_is_cut() {
        let endless = stream::repeat_with(|| Frames::Ok(Frame::data(Bytes::from(vec![b'x'; 50_000]))));
        assert_eq!(beginning(StreamBody::new(endless)).await.len(), MOST_ERROR);
        let begun = tokio::time::Instant::now();
        let first = Frames::Ok(Frame::data(Bytes::from_static(b"why")));
        let silent = futures::StreamExt::chain(stream::iter([first]), stream::pending());
        assert_eq!(beginning(StreamBody::new(silent)).await, "why");
        assert_eq!(begun.elapsed(), ERROR);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_does_not_answer_is_given_up() {
        let tls = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the protocols")
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let kubelet = KubeletClient::new(tls);
        // Nobody serves the other side: the connection is taken and nothing comes.
        let (door, _other_side) = inside(Peer { name: "api".into(), groups: Vec::new() });
        kubelet.reach_inside("n".into(), door);
        let node = json!({"metadata": {"name": "n"}, "status": {
            "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        }});
        let begun = tokio::time::Instant::now();
        let error = kubelet.get(&node, "/containerLogs/d/p/c").await.unwrap_err();
        assert_eq!((error.code, begun.elapsed()), (504, HEAD));
        assert!(error.to_string().contains("\"n\""), "{error}");
    }
}
