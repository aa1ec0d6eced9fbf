//! Client of a node's own API (the kubelet API): logs, and upgraded connections to processes and ports.

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, HeaderName, Method, StatusCode, header},
    response::Response,
};
use bytes::BytesMut;
use http_body_util::BodyExt as _;
use hyper::{body::Incoming, upgrade::OnUpgrade};
use parking_lot::RwLock;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::sync::CancellationToken;
use windlass_kit::serve::InProcessConnector;

use super::proxy::backend::{self, Stream};
use crate::apiserver::request::error::ApiError;

/// Time limit for the connection to a node.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for the response header, from the beginning of the request.
const RESPONSE_HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Limits for the body of an error response.
const MAX_ERROR_BYTES: usize = 64 << 10;
const ERROR_BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// A client with the API server's certificate.
#[derive(Clone)]
pub struct KubeletClient {
    tls: Arc<RwLock<Arc<ClientConfig>>>,
    own: Arc<OnceLock<OwnNode>>,
}

/// The node that runs in this process.
struct OwnNode {
    name: String,
    connector: InProcessConnector,
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

    /// Uses another client certificate from now on.
    pub fn replace(&self, tls: ClientConfig) {
        *self.tls.write() = Arc::new(tls);
    }

    /// Connects to the node of this name inside this process. The first call wins.
    pub fn set_in_process_node(&self, name: String, connector: InProcessConnector) {
        let _ = self.own.set(OwnNode { name, connector });
    }

    /// Whether the node of this name runs in this process.
    pub(crate) fn is_in_process(&self, name: &str) -> bool {
        self.own.get().is_some_and(|own| own.name == name)
    }

    fn tls(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.tls.read())
    }

    /// Opens a connection to a node's API.
    pub(crate) async fn open(&self, node: &Value) -> Result<Stream, String> {
        let endpoint = NodeEndpoint::of(node)?;
        match self.own.get().filter(|own| own.name == endpoint.name) {
            Some(own) => {
                let stream = own.connector.connect().await.map_err(|e| endpoint.failed("reached", &e))?;
                Ok(Box::new(stream))
            }
            None => Ok(Box::new(self.dial(&endpoint).await?)),
        }
    }

    async fn dial(&self, endpoint: &NodeEndpoint) -> Result<TlsStream<TcpStream>, String> {
        let address = endpoint.address;
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address))
            .await
            .map_err(|e| endpoint.failed("reached", &e))?
            .map_err(|e| endpoint.failed("reached", &e))?;
        let _ = stream.set_nodelay(true);
        let connector = TlsConnector::from(self.tls());
        connector.connect(ServerName::from(address.ip()), stream).await.map_err(|e| endpoint.failed("trusted", &e))
    }

    /// Sends a request to a node and waits for the response header. The connection ends with the response body, or
    /// continues as what it is upgraded to.
    async fn send(
        &self,
        node: &Value,
        method: &Method,
        path: &str,
        headers: HeaderMap,
    ) -> Result<(NodeEndpoint, hyper::Response<Incoming>), ApiError> {
        let endpoint = NodeEndpoint::of(node).map_err(ApiError::internal)?;
        let exchange = async {
            let stream = self.open(node).await?;
            let mut request = endpoint.request(method, path)?;
            request.headers_mut().extend(headers);
            backend::exchange(stream, request).await.map_err(|e| endpoint.failed("asked", &e))
        };
        match tokio::time::timeout(RESPONSE_HEADER_TIMEOUT, exchange).await {
            Ok(answer) => answer.map(|answer| (endpoint, answer)).map_err(ApiError::internal),
            Err(_) => {
                let (name, seconds) = (&endpoint.name, RESPONSE_HEADER_TIMEOUT.as_secs());
                let why = format!("the API of node {name:?} did not answer within {seconds} s");
                Err(ApiError::new(504, "Timeout", why))
            }
        }
    }

    /// Proxies a `GET` request to a node and streams the response.
    pub(crate) async fn get(&self, node: &Value, path: &str) -> Result<Response, ApiError> {
        let (endpoint, answer) = self.send(node, &Method::GET, path, HeaderMap::new()).await?;
        let (parts, body) = answer.into_parts();
        if parts.status != StatusCode::OK {
            let text = read_error_body(body).await;
            let text = String::from_utf8_lossy(&text).trim().to_owned();
            return Err(match parts.status.as_u16() {
                422 => ApiError::new(422, "Invalid", text),
                code @ (400 | 404) => ApiError::new(code, if code == 404 { "NotFound" } else { "BadRequest" }, text),
                code => ApiError::internal(format!("the API of node {:?} answered {code}: {text}", endpoint.name)),
            });
        }
        let mut response = Response::new(Body::new(body));
        if let Some(kind) = parts.headers.get(hyper::header::CONTENT_TYPE) {
            response.headers_mut().insert(hyper::header::CONTENT_TYPE, kind.clone());
        }
        Ok(response)
    }

    /// Upgrades a connection to a node and copies bytes between it and the client's until either side ends, or
    /// `closing`.
    pub(crate) async fn upgrade(
        &self,
        node: &Value,
        method: &Method,
        path: &str,
        headers: HeaderMap,
        client: OnUpgrade,
        closing: &CancellationToken,
    ) -> Result<Response, ApiError> {
        let (_, mut answer) = self.send(node, method, path, headers).await?;
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            let (parts, body) = answer.into_parts();
            let body = read_error_body(body).await;
            return Ok(upgrade_response(&parts).map(|_| Body::from(body)));
        }
        backend::join(client, hyper::upgrade::on(&mut answer), closing);
        Ok(upgrade_response(&answer.into_parts().0))
    }
}

/// Reads the body of an error response, bounded in size and in time.
async fn read_error_body<B>(mut body: B) -> Bytes
where
    B: hyper::body::Body<Data = Bytes> + Unpin,
{
    let mut text = BytesMut::new();
    let reading = async {
        while let Some(Ok(frame)) = body.frame().await {
            let Some(data) = frame.data_ref() else { continue };
            let room = MAX_ERROR_BYTES - text.len();
            text.extend_from_slice(&data[..data.len().min(room)]);
            if text.len() == MAX_ERROR_BYTES {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(ERROR_BODY_TIMEOUT, reading).await;
    text.freeze()
}

/// The node's response, with the headers that belong to the upgrade.
fn upgrade_response(parts: &axum::http::response::Parts) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = parts.status;
    for name in [
        header::CONNECTION,
        header::UPGRADE,
        header::SEC_WEBSOCKET_ACCEPT,
        header::SEC_WEBSOCKET_PROTOCOL,
        header::CONTENT_TYPE,
        HeaderName::from_static("x-stream-protocol-version"),
        HeaderName::from_static("x-accepted-stream-protocol-versions"),
    ] {
        for value in parts.headers.get_all(&name) {
            response.headers_mut().append(name.clone(), value.clone());
        }
    }
    response
}

/// Where a node serves its API.
struct NodeEndpoint {
    name: String,
    address: SocketAddr,
}

impl NodeEndpoint {
    fn of(node: &Value) -> Result<Self, String> {
        let name = node["metadata"]["name"].as_str().unwrap_or("").to_owned();
        match backend::node_address(node) {
            Some(address) => Ok(Self { name, address }),
            None => Err(format!("node {name:?} has no address yet")),
        }
    }

    fn failed(&self, what: &str, why: &dyn std::fmt::Display) -> String {
        let Self { name, address } = self;
        format!("the API of node {name:?} at {address} could not be {what}: {why}; does its agent run?")
    }

    fn request(&self, method: &Method, path: &str) -> Result<hyper::Request<Body>, String> {
        hyper::Request::builder()
            .method(method)
            .uri(path)
            .header("host", self.address.to_string())
            .body(Body::empty())
            .map_err(|e| self.failed("asked", &e))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::stream;
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use serde_json::json;
    use windlass_kit::serve::{ClientIdentity, in_process};

    use super::*;

    type Frames = Result<Frame<Bytes>, Infallible>;

    #[tokio::test(start_paused = true)]
    async fn an_endless_error_body_is_cut() {
        let endless = stream::repeat_with(|| Frames::Ok(Frame::data(Bytes::from(vec![b'x'; 50_000]))));
        assert_eq!(read_error_body(StreamBody::new(endless)).await.len(), MAX_ERROR_BYTES);
        let begun = tokio::time::Instant::now();
        let first = Frames::Ok(Frame::data(Bytes::from_static(b"why")));
        let silent = futures::StreamExt::chain(stream::iter([first]), stream::pending());
        assert_eq!(read_error_body(StreamBody::new(silent)).await, "why");
        assert_eq!(begun.elapsed(), ERROR_BODY_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn an_unresponsive_node_times_out() {
        let tls = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the protocols")
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let kubelet = KubeletClient::new(tls);
        // The other side is not served: the connection is accepted, and no answer arrives.
        let (connector, _other_side) = in_process(ClientIdentity { name: "api".into(), ..ClientIdentity::default() });
        kubelet.set_in_process_node("n".into(), connector);
        let node = json!({"metadata": {"name": "n"}, "status": {
            "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        }});
        let begun = tokio::time::Instant::now();
        let error = kubelet.get(&node, "/containerLogs/d/p/c").await.unwrap_err();
        assert_eq!((error.code, begun.elapsed()), (504, RESPONSE_HEADER_TIMEOUT));
        assert!(error.to_string().contains("\"n\""), "{error}");
    }
}
