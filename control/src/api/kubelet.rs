//! The way from the API server to a node's own API, for logs.

use std::{net::IpAddr, sync::Arc, time::Duration};

use axum::{body::Body, http::StatusCode, response::Response};
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::error::ApiError;

/// How long a node may take to take a connection.
const CONNECT: Duration = Duration::from_secs(5);

/// A client with the API server's certificate.
#[derive(Clone)]
pub struct KubeletClient {
    tls: Arc<ClientConfig>,
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
        Self { tls: Arc::new(tls) }
    }

    /// Asks a node and hands its answer through as it comes.
    pub(super) async fn get(&self, node: &Value, path: &str) -> Result<Response, ApiError> {
        let name = node["metadata"]["name"].as_str().unwrap_or("").to_owned();
        let (address, port) =
            endpoint(node).ok_or_else(|| ApiError::internal(format!("node {name:?} has told no address yet")))?;
        let failed = |what: &str, why: &dyn std::fmt::Display| {
            ApiError::internal(format!(
                "the API of node {name:?} at {address}:{port} could not be {what}: {why}; does its agent run?"
            ))
        };
        let stream = tokio::time::timeout(CONNECT, TcpStream::connect((address, port)))
            .await
            .map_err(|e| failed("reached", &e))?
            .map_err(|e| failed("reached", &e))?;
        let connector = TlsConnector::from(Arc::clone(&self.tls));
        let stream = connector.connect(ServerName::from(address), stream).await.map_err(|e| failed("trusted", &e))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|e| failed("asked", &e))?;
        // Ends with the answer's body, which holds the other half.
        tokio::spawn(connection);
        let request = hyper::Request::get(path)
            .header("host", format!("{address}:{port}"))
            .body(Empty::<bytes::Bytes>::new())
            .map_err(|e| failed("asked", &e))?;
        let (parts, body) = sender.send_request(request).await.map_err(|e| failed("asked", &e))?.into_parts();
        if parts.status != StatusCode::OK {
            let text = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
            let text = String::from_utf8_lossy(&text).trim().to_owned();
            return Err(match parts.status.as_u16() {
                code @ (400 | 404) => ApiError::new(code, if code == 404 { "NotFound" } else { "BadRequest" }, text),
                code => ApiError::internal(format!("the API of node {name:?} answered {code}: {text}")),
            });
        }
        let mut response = Response::new(Body::new(body));
        if let Some(kind) = parts.headers.get(hyper::header::CONTENT_TYPE) {
            response.headers_mut().insert(hyper::header::CONTENT_TYPE, kind.clone());
        }
        Ok(response)
    }
}

fn endpoint(node: &Value) -> Option<(IpAddr, u16)> {
    let addresses = node["status"]["addresses"].as_array()?;
    let address = addresses.iter().find(|a| a["type"] == "InternalIP")?["address"].as_str()?.parse().ok()?;
    let port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64()?;
    Some((address, u16::try_from(port).ok()?))
}
